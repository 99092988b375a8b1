//! Identifies an edge in the table.

use dipole_driver::WaitKey;

/// Index of an edge in the table, with a generation so that closed edges are not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EdgeRef {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl EdgeRef {
    /// Becomes ready when the edge opens, fails, or has no more posted operations.
    pub(crate) fn key(self) -> WaitKey {
        WaitKey::Connecting(u64::from(self.generation) << 32 | u64::from(self.index))
    }
}
