//! The number of an edge in the table.

use dipole_driver::WaitKey;

/// An edge of the table; one that is closed is found no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EdgeRef {
    pub(super) index: u32,
    pub(super) life: u32,
}

impl EdgeRef {
    /// Becomes ready when the edge is open, has failed, or nothing waits on it any more.
    pub(crate) fn key(self) -> WaitKey {
        WaitKey::Connecting(u64::from(self.life) << 32 | u64::from(self.index))
    }
}
