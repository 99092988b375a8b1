//! Checks that a descriptor passed by a client is a ring.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::{MapKind, map_facts};

/// Properties of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingInfo {
    /// Size of the ring in bytes.
    pub bytes: u32,
    /// The id of its map.
    pub map: u32,
}

/// Queries the properties of a ring; needs no privileges.
///
/// # Errors
/// The error that the kernel returns, or the descriptor is not a ring.
pub fn ring_info(ring: BorrowedFd<'_>) -> io::Result<RingInfo> {
    let facts = map_facts(ring)?;
    if facts.kind != MapKind::Ring as u32 {
        let text = format!("it is a map of kind {}, not a ring", facts.kind);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(RingInfo {
        bytes: facts.entries,
        map: facts.id,
    })
}
