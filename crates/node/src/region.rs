//! Regions: memory of an endpoint that others put into, get from and update.

use std::sync::Arc;

use dipole_engine::RegionKey;
pub use dipole_link::{Region as RegionMemory, RegionError};
pub use dipole_proto::Rights;
pub use dipole_proto::wire::Outcome;

use crate::error::OpenError;
use crate::inner::Inner;
use crate::owner::EndpointOwner;

/// An open region of an endpoint of this process. Dropping it closes it, and so does the end
/// of its endpoint: then nobody reaches the memory by its key.
///
/// Its owner reads and writes by the methods of its memory, each in one piece as others see it, but
/// for long gets: they may find some of what is written meanwhile.
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
        // Its owner may make no calls while others reach it.
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

    /// What others name it by.
    #[must_use]
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &RegionMemory {
        &self.memory
    }

    /// Closes it and gives its memory back: no operation changes it from now on.
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
