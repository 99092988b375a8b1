//! What regions are named by, and what their owners are told of puts.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

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
