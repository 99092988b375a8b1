//! The receive path of small packets: a ring that the kernel fills, or an AF_XDP socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::grant::{Grant, GrantEvent};
use super::hook::Hook;
use super::mapping::Mapping;
use super::ring::Ring;
use super::xsk::{Xsk, XskHook};

/// How often the grant is checked.
const CHECK_EVERY_NS: u64 = 100_000_000;

/// See the module. Dropping it detaches the program that feeds it.
pub(super) struct RxPath {
    source: Source,
}

enum Source {
    /// A ring that this process's own program fills.
    Own { filled: Filled, _hook: OwnHook },
    /// A ring that a broker's program fills; the broker may go away.
    Delegated {
        filled: Filled,
        delegation: Delegation,
    },
    /// Drop order: the program before its socket.
    AfXdp {
        _hook: XskHook,
        xsk: Box<Xsk>,
        scope_id: u32,
    },
}

/// A ring, and its descriptor to sleep on.
struct Filled {
    ring: Ring<Mapping>,
    descriptor: OwnedFd,
}

struct Delegation {
    grant: Grant,
    /// When the grant is checked next.
    check_at_ns: u64,
}

/// A hook that is detached explicitly: merely closed, its program would go on taking packets for
/// a moment, into a ring that nobody reads.
struct OwnHook {
    hook: Option<Hook>,
    pid: u32,
}

impl Drop for OwnHook {
    fn drop(&mut self) {
        // A forked child only closes its copy.
        if self.pid == std::process::id() {
            let _closing_will_do = self.hook.take().map(Hook::detach);
        }
    }
}

impl Filled {
    fn new(descriptor: OwnedFd, scope_id: u32) -> io::Result<Filled> {
        let mapping = Mapping::new(descriptor.as_fd())?;
        Ok(Filled {
            ring: Ring::new(mapping, scope_id),
            descriptor,
        })
    }
}

impl RxPath {
    /// A ring that this process's own program fills.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn own(ring: OwnedFd, hook: Hook, scope_id: u32) -> io::Result<RxPath> {
        let hook = OwnHook {
            hook: Some(hook),
            pid: std::process::id(),
        };
        let source = Source::Own {
            filled: Filled::new(ring, scope_id)?,
            _hook: hook,
        };
        Ok(RxPath { source })
    }

    /// A ring that a broker's program fills.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn delegated(grant: Grant, scope_id: u32) -> io::Result<RxPath> {
        let ring = grant.ring().try_clone_to_owned()?;
        let delegation = Delegation {
            grant,
            check_at_ns: 0,
        };
        let filled = Filled::new(ring, scope_id)?;
        let source = Source::Delegated { filled, delegation };
        Ok(RxPath { source })
    }

    /// An AF_XDP socket and the program before it.
    pub(super) fn af_xdp(xsk: Xsk, hook: XskHook, scope_id: u32) -> RxPath {
        RxPath {
            source: Source::AfXdp {
                _hook: hook,
                xsk: Box::new(xsk),
                scope_id,
            },
        }
    }

    /// True if it is an AF_XDP socket.
    pub(super) fn is_af_xdp(&self) -> bool {
        matches!(self.source, Source::AfXdp { .. })
    }

    /// What has become of the grant, if this is one and a check is due. For idle moments.
    pub(super) fn check_grant(&mut self, now_ns: u64) -> GrantEvent {
        let Source::Delegated { delegation, .. } = &mut self.source else {
            return GrantEvent::Unchanged;
        };
        if now_ns < delegation.check_at_ns {
            return GrantEvent::Unchanged;
        }
        delegation.check_at_ns = now_ns.saturating_add(CHECK_EVERY_NS);
        delegation.grant.check(now_ns)
    }

    /// The grant behind it, if there is one.
    pub(super) fn grant(&mut self) -> Option<&mut Grant> {
        match &mut self.source {
            Source::Own { .. } | Source::AfXdp { .. } => None,
            Source::Delegated { delegation, .. } => Some(&mut delegation.grant),
        }
    }

    /// Fetches what has arrived; what the last call fetched is given back.
    #[inline]
    pub(super) fn poll(&mut self) -> io::Result<usize> {
        match &mut self.source {
            Source::Own { filled, .. } | Source::Delegated { filled, .. } => {
                let found = filled.ring.poll();
                found.map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken.0))
            }
            Source::AfXdp { xsk, .. } => xsk.poll(),
        }
    }

    #[inline]
    pub(super) fn packet(&self, index: usize) -> (SocketAddr, &[u8]) {
        match &self.source {
            Source::Own { filled, .. } | Source::Delegated { filled, .. } => {
                filled.ring.packet_at(index)
            }
            Source::AfXdp { xsk, scope_id, .. } => {
                let (mut from, bytes) = xsk.frame(index);
                if let SocketAddr::V6(six) = &mut from
                    && six.ip().is_unicast_link_local()
                {
                    six.set_scope_id(*scope_id);
                }
                (from, bytes)
            }
        }
    }

    pub(super) fn arm(&mut self) -> bool {
        match &mut self.source {
            Source::Own { filled, .. } | Source::Delegated { filled, .. } => filled.ring.arm(),
            // Its descriptor is readable whenever a packet waits.
            Source::AfXdp { xsk, .. } => !xsk.is_waiting(),
        }
    }

    pub(super) fn disarm(&mut self) {
        match &mut self.source {
            Source::Own { filled, .. } | Source::Delegated { filled, .. } => filled.ring.disarm(),
            Source::AfXdp { .. } => {}
        }
    }
}

impl AsFd for RxPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Own { filled, .. } | Source::Delegated { filled, .. } => {
                filled.descriptor.as_fd()
            }
            Source::AfXdp { xsk, .. } => xsk.as_fd(),
        }
    }
}

impl fmt::Debug for RxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxPath")
            .field("descriptor", &self.as_fd())
            .field("is_af_xdp", &self.is_af_xdp())
            .finish_non_exhaustive()
    }
}
