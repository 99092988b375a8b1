//! Regions: memory of an endpoint that peers can read, write and update.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

pub use dipole_link::{Region as RegionMemory, RegionError};
pub use dipole_proto::Rights;
pub use dipole_proto::wire::Outcome;

use crate::endpoint::EndpointOwner;
use crate::error::OpenError;
use crate::inner::Inner;

/// Names a region to peers. Keys cannot be guessed: a peer with the key and an edge to the
/// region's endpoint may do whatever the region's rights allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

impl fmt::Display for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for RegionKey {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<RegionKey, ParseIntError> {
        u64::from_str_radix(text, 16).map(RegionKey)
    }
}

/// Notifies the owner of a region that a put is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The region.
    pub key: RegionKey,
    /// Offset of the data in the region.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The value given by the sender.
    pub value: u64,
}

/// An open region of an endpoint of this process. It closes when it is dropped or its endpoint
/// closes; its key is then invalid.
///
/// The owner accesses it through its memory. Each such access is atomic for peers, except for long
/// gets, which may see parts of concurrent writes.
#[derive(Debug)]
pub struct Region {
    inner: Arc<Inner>,
    memory: RegionMemory,
    key: RegionKey,
}

impl Region {
    pub(crate) fn open(
        inner: &Arc<Inner>,
        owner: &EndpointOwner,
        memory: RegionMemory,
        rights: Rights,
    ) -> Result<Region, OpenError> {
        if inner.is_forked() {
            return Err(OpenError::Forked);
        }
        if owner.is_ended() {
            return Err(OpenError::Ended);
        }
        // Peers may access it while its owner makes no calls.
        inner.ensure_progress().map_err(OpenError::Sleep)?;
        let open = memory.clone();
        let key = inner
            .driver
            .with_last(|engine, _| engine.open_region(owner.id.0, open, rights));
        Ok(Region {
            inner: Arc::clone(inner),
            memory,
            key: RegionKey(key),
        })
    }

    /// The key that names it to peers.
    #[must_use]
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// The memory of the region.
    #[must_use]
    pub fn memory(&self) -> &RegionMemory {
        &self.memory
    }

    /// Closes the region and returns its memory, which no operation changes any more.
    #[must_use]
    pub fn close(self) -> RegionMemory {
        self.memory.clone()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.inner.is_forked() {
            self.inner
                .driver
                .with_last(|engine, _| engine.close_region(self.key.0));
        }
    }
}
