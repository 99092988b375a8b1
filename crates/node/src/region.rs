//! Regions: memory of an endpoint that peers can read, write and update.

use std::sync::Arc;

use dipole_engine::RegionKey;
pub use dipole_link::{Region as RegionMemory, RegionError};
pub use dipole_proto::Rights;
pub use dipole_proto::wire::Outcome;

use crate::error::OpenError;
use crate::inner::Inner;
use crate::owner::EndpointOwner;

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
            .with_last(|state, _| state.engine.open_region(owner.id.0, open, rights));
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
                .with_last(|state, _| state.engine.close_region(self.key.0));
        }
    }
}
