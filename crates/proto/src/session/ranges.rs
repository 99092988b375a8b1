//! A list of ranges without allocation.

use crate::holes::{Hole, low};
use crate::wire::{MAX_RANGES, Range};

pub(super) struct RangeList {
    ranges: [Range; MAX_RANGES + 1],
    count: usize,
}

impl RangeList {
    pub(super) fn collect(holes: impl Iterator<Item = Hole>) -> RangeList {
        let mut list = RangeList {
            ranges: [Range::default(); MAX_RANGES + 1],
            count: 0,
        };
        for hole in holes.take(MAX_RANGES + 1) {
            list.ranges[list.count] = Range {
                start: low(hole.start),
                count: u16::try_from(hole.end - hole.start).unwrap_or(u16::MAX),
            };
            list.count += 1;
        }
        list
    }

    pub(super) fn as_slice(&self) -> &[Range] {
        &self.ranges[..self.count]
    }
}
