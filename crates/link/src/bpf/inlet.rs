//! The ring of a process, and what keeps it fed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::hook::Hook;
use super::loan::{Loan, News};
use super::mapping::Mapping;
use super::ring::Ring;

/// How often it is looked who lends the ring.
const CHECK_EVERY_NS: u64 = 100_000_000;

/// See the module. Dropped, the kernel feeds it no more.
pub struct Inlet {
    ring: Ring<Mapping>,
    descriptor: OwnedFd,
    source: Source,
    /// When it is looked next who lends the ring.
    check_at_ns: u64,
}

/// Who put the ring where the kernel finds it.
enum Source {
    /// This process; the kernel takes its program away with the last descriptor.
    Own { _hook: Hook },
    /// Somebody else, who may go.
    Lent(Loan),
}

impl Inlet {
    /// A ring that this process's own hook feeds.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn own(ring: OwnedFd, hook: Hook, scope_id: u32) -> io::Result<Inlet> {
        Inlet::new(ring, Source::Own { _hook: hook }, scope_id)
    }

    /// A ring that a lender's hook feeds.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn lent(loan: Loan, scope_id: u32) -> io::Result<Inlet> {
        let ring = loan.ring().try_clone_to_owned()?;
        Inlet::new(ring, Source::Lent(loan), scope_id)
    }

    /// What has become of a loan, if it is one and it is time to look. Call it when nothing
    /// has come.
    pub(super) fn news(&mut self, now_ns: u64) -> News {
        let Source::Lent(loan) = &mut self.source else {
            return News::Nothing;
        };
        if now_ns < self.check_at_ns {
            return News::Nothing;
        }
        self.check_at_ns = now_ns.saturating_add(CHECK_EVERY_NS);
        loan.check(now_ns)
    }

    /// The loan that feeds it, if it is one.
    pub(super) fn loan(&mut self) -> Option<&mut Loan> {
        match &mut self.source {
            Source::Own { .. } => None,
            Source::Lent(loan) => Some(loan),
        }
    }

    fn new(descriptor: OwnedFd, source: Source, scope_id: u32) -> io::Result<Inlet> {
        let mapping = Mapping::new(descriptor.as_fd())?;
        Ok(Inlet {
            ring: Ring::new(mapping, scope_id),
            descriptor,
            source,
            check_at_ns: 0,
        })
    }

    /// Shows what has come; what the last call showed is gone.
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

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl fmt::Debug for Inlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlet")
            .field("descriptor", &self.descriptor)
            .finish_non_exhaustive()
    }
}
