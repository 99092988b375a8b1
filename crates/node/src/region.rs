//! Regions: memory of an endpoint that others put into, get from and update.

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

/// What others name a region by. Nobody guesses it: whoever has it, and an edge to the region's
/// endpoint, may do what the region allows.
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

/// What a put says to the owner of the region when all of it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The region.
    pub key: RegionKey,
    /// Where the data lie.
    pub offset: u64,
    /// How many bytes they are.
    pub length: u64,
    /// The initiator's.
    pub value: u64,
}

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
            .with_last(|engine, _| engine.open_region(owner.id.0, open, rights));
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
                .with_last(|engine, _| engine.close_region(self.key.0));
        }
    }
}
