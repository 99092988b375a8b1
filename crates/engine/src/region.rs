//! Keys of regions, and notices of puts into them.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

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
    /// Key with which peers access the region.
    pub key: RegionKey,
    /// Offset of the data in the region.
    pub offset: u64,
    /// Length of the access in bytes.
    pub length: u64,
    /// The value given by the sender.
    pub value: u64,
}
