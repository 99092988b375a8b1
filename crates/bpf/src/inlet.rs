//! What small packets come by: a ring that the kernel fills, or an AF_XDP socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::hook::Hook;
use super::loan::{Loan, News};
use super::mapping::Mapping;
use super::ring::Ring;
use super::xsk::{Xsk, XskHook};

/// How often it is looked who lends the ring.
const CHECK_EVERY_NS: u64 = 100_000_000;

/// See the module. Dropped, the kernel feeds it no more.
pub struct Inlet {
    source: Source,
}

enum Source {
    /// This process's own hook fills a ring.
    Own { filled: Filled, _hook: OwnHook },
    /// Somebody else, who may go.
    Lent { filled: Filled, lent: Lent },
    /// The program goes before its socket.
    Queue {
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

struct Lent {
    loan: Loan,
    /// When it is looked next who lends the ring.
    check_at_ns: u64,
}

/// A hook that is detached at once: by closing it would take packets a moment longer, for
/// nobody.
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

impl Inlet {
    /// A ring that this process's own hook feeds.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn own(ring: OwnedFd, hook: Hook, scope_id: u32) -> io::Result<Inlet> {
        let hook = OwnHook {
            hook: Some(hook),
            pid: std::process::id(),
        };
        let source = Source::Own {
            filled: Filled::new(ring, scope_id)?,
            _hook: hook,
        };
        Ok(Inlet { source })
    }

    /// A ring that a lender's hook feeds.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn lent(loan: Loan, scope_id: u32) -> io::Result<Inlet> {
        let ring = loan.ring().try_clone_to_owned()?;
        let lent = Lent {
            loan,
            check_at_ns: 0,
        };
        let filled = Filled::new(ring, scope_id)?;
        let source = Source::Lent { filled, lent };
        Ok(Inlet { source })
    }

    /// An AF_XDP socket and the program before it.
    pub(super) fn queue(xsk: Xsk, hook: XskHook, scope_id: u32) -> Inlet {
        Inlet {
            source: Source::Queue {
                _hook: hook,
                xsk: Box::new(xsk),
                scope_id,
            },
        }
    }

    /// True if it is an AF_XDP socket.
    pub(super) fn is_queue(&self) -> bool {
        matches!(self.source, Source::Queue { .. })
    }

    /// What has become of a loan, if it is one and it is time to look. Call it when nothing
    /// has come.
    pub(super) fn news(&mut self, now_ns: u64) -> News {
        let Source::Lent { lent, .. } = &mut self.source else {
            return News::Nothing;
        };
        if now_ns < lent.check_at_ns {
            return News::Nothing;
        }
        lent.check_at_ns = now_ns.saturating_add(CHECK_EVERY_NS);
        lent.loan.check(now_ns)
    }

    /// The loan that feeds it, if it is one.
    pub(super) fn loan(&mut self) -> Option<&mut Loan> {
        match &mut self.source {
            Source::Own { .. } | Source::Queue { .. } => None,
            Source::Lent { lent, .. } => Some(&mut lent.loan),
        }
    }

    /// Shows what has come; what the last call showed is gone.
    #[inline]
    pub(super) fn poll(&mut self) -> io::Result<usize> {
        match &mut self.source {
            Source::Own { filled, .. } | Source::Lent { filled, .. } => {
                let found = filled.ring.poll();
                found.map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken.0))
            }
            Source::Queue { xsk, .. } => xsk.poll(),
        }
    }

    #[inline]
    pub(super) fn packet(&self, index: usize) -> (SocketAddr, &[u8]) {
        match &self.source {
            Source::Own { filled, .. } | Source::Lent { filled, .. } => {
                filled.ring.packet_at(index)
            }
            Source::Queue { xsk, scope_id, .. } => {
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
            Source::Own { filled, .. } | Source::Lent { filled, .. } => filled.ring.arm(),
            // Its descriptor is readable whenever something waits.
            Source::Queue { xsk, .. } => !xsk.is_waiting(),
        }
    }

    pub(super) fn disarm(&mut self) {
        match &mut self.source {
            Source::Own { filled, .. } | Source::Lent { filled, .. } => filled.ring.disarm(),
            Source::Queue { .. } => {}
        }
    }
}

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Own { filled, .. } | Source::Lent { filled, .. } => filled.descriptor.as_fd(),
            Source::Queue { xsk, .. } => xsk.as_fd(),
        }
    }
}

impl fmt::Debug for Inlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlet")
            .field("descriptor", &self.as_fd())
            .field("is_queue", &self.is_queue())
            .finish_non_exhaustive()
    }
}
