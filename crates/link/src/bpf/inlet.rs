//! The ring of a process, and what keeps it fed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::hook::Hook;
use super::mapping::Mapping;
use super::ring::Ring;

/// Empty looks between two looks at what keeps the ring fed.
const LOOKS_PER_CHECK: u32 = 1 << 16;

/// See the module. Dropped, the kernel feeds it no more.
pub struct Inlet {
    ring: Ring<Mapping>,
    descriptor: OwnedFd,
    _source: Source,
}

/// Who put the ring where the kernel finds it.
enum Source {
    /// This process; the kernel takes its program away with the last descriptor.
    Own {
        _hook: Hook,
    },
}

impl Inlet {
    /// A ring that this process's own hook feeds.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(super) fn own(ring: OwnedFd, hook: Hook, scope_id: u32) -> io::Result<Inlet> {
        Inlet::new(ring, Source::Own { _hook: hook }, scope_id)
    }

    fn new(descriptor: OwnedFd, source: Source, scope_id: u32) -> io::Result<Inlet> {
        let mapping = Mapping::new(descriptor.as_fd())?;
        Ok(Inlet {
            ring: Ring::new(mapping, scope_id),
            descriptor,
            _source: source,
        })
    }

    /// Shows what has come; what the last call showed is gone.
    #[inline]
    pub(super) fn poll(&mut self, _now_ns: u64) -> io::Result<usize> {
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
