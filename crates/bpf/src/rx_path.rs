//! The receive path of small packets: a ring that the kernel fills.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::grant::{Grant, GrantEvent};
use super::hook::Hook;
use super::mapping::Mapping;
use super::ring::Ring;

/// How often the grant is checked.
const CHECK_EVERY_NS: u64 = 100_000_000;

/// A ring, its descriptor to sleep on, and what fills it. Dropping it detaches the program that
/// this process attached.
pub(super) struct RxPath {
    ring: Ring<Mapping>,
    descriptor: OwnedFd,
    source: Source,
}

enum Source {
    /// This process's own program.
    Own { _hook: OwnHook },
    /// A broker's program; the broker may go away.
    Delegated(Box<Delegation>),
}

struct Delegation {
    grant: Grant,
    /// When the grant is checked next.
    check_at_ns: u64,
}

/// A hook that is detached explicitly: if it were only closed, its program would continue to put
/// packets into an abandoned ring for a moment.
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
        RxPath::new(ring, scope_id, Source::Own { _hook: hook })
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
        RxPath::new(ring, scope_id, Source::Delegated(Box::new(delegation)))
    }

    fn new(descriptor: OwnedFd, scope_id: u32, source: Source) -> io::Result<RxPath> {
        let mapping = Mapping::new(descriptor.as_fd())?;
        Ok(RxPath {
            ring: Ring::new(mapping, scope_id),
            descriptor,
            source,
        })
    }

    /// Checks the grant, if there is one and a check is due. To be called when idle.
    pub(super) fn check_grant(&mut self, now_ns: u64) -> GrantEvent {
        let Source::Delegated(delegation) = &mut self.source else {
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
            Source::Own { .. } => None,
            Source::Delegated(delegation) => Some(&mut delegation.grant),
        }
    }

    /// Fetches packets that have arrived; those of the last call are returned to the kernel.
    #[inline]
    pub(super) fn poll(&mut self) -> io::Result<usize> {
        let found = self.ring.poll();
        found.map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken.0))
    }

    #[inline]
    pub(super) fn packet(&self, index: usize) -> (SocketAddr, &[u8]) {
        self.ring.packet_at(index)
    }

    pub(super) fn arm(&mut self) -> bool {
        self.ring.arm()
    }

    pub(super) fn disarm(&mut self) {
        self.ring.disarm();
    }
}

impl AsFd for RxPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl fmt::Debug for RxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxPath")
            .field("descriptor", &self.as_fd())
            .finish_non_exhaustive()
    }
}
