//! Whether a descriptor that a stranger offers is a ring.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::{MapKind, map_facts};

/// What the kernel says of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFacts {
    /// How long it is.
    pub bytes: u32,
    /// The number of its map.
    pub map: u32,
}

/// What the kernel says of a ring that packets can be deposited in.
///
/// # Errors
/// Also when the descriptor is something else.
pub fn ring_facts(ring: BorrowedFd<'_>) -> io::Result<RingFacts> {
    let facts = map_facts(ring)?;
    if facts.kind != MapKind::Ring as u32 {
        let text = format!("it is a map of kind {}, not a ring", facts.kind);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(RingFacts {
        bytes: facts.entries,
        map: facts.id,
    })
}
