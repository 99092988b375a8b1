//! The arrivals of one lane, with a list of its holes. Spec §4.5.

use super::Malformed;
use super::cursor::{put, u16_at, u32_at};

/// Most holes in one acknowledgement; others are requested later.
pub const MAX_RANGES: usize = 64;

/// A range of missing packet numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First missing number, low 32 bits.
    pub start: u32,
    /// How many numbers are missing from there on.
    pub count: u16,
}

/// The arrivals of one lane, in a record.
#[derive(Clone, Copy, Debug)]
pub struct LaneAck<'a> {
    /// Index of the lane.
    pub lane: u8,
    /// Lowest number not received.
    pub next: u32,
    /// Everything from `next` up to here has been received, except for the holes.
    pub top: u32,
    ranges: &'a [u8],
}

const FIXED_BYTES: usize = 8;
const RANGE_BYTES: usize = 6;

impl<'a> LaneAck<'a> {
    /// Body bytes for `ranges` holes.
    pub(super) fn body_bytes(ranges: usize) -> usize {
        FIXED_BYTES + RANGE_BYTES * ranges
    }

    pub(super) fn parse(lane: u8, body: &'a [u8]) -> Result<LaneAck<'a>, Malformed> {
        if usize::from(lane) >= super::MAX_LANES {
            return Err(Malformed::BadLane(lane));
        }
        if body.len() < FIXED_BYTES || !(body.len() - FIXED_BYTES).is_multiple_of(RANGE_BYTES) {
            return Err(Malformed::BadField("lane ack length"));
        }
        if body.len() > Self::body_bytes(MAX_RANGES) {
            return Err(Malformed::BadField("lane ack ranges"));
        }
        Ok(LaneAck {
            lane,
            next: u32_at(body, 0),
            top: u32_at(body, 4),
            ranges: &body[FIXED_BYTES..],
        })
    }

    pub(super) fn emit(body: &mut [u8], next: u32, top: u32, ranges: impl Iterator<Item = Range>) {
        put(body, 0, &next.to_le_bytes());
        put(body, 4, &top.to_le_bytes());
        for (index, range) in ranges.enumerate() {
            let at = FIXED_BYTES + RANGE_BYTES * index;
            put(body, at, &range.start.to_le_bytes());
            put(body, at + 4, &range.count.to_le_bytes());
        }
    }

    /// The holes, lowest first.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + 'a {
        self.ranges.chunks_exact(RANGE_BYTES).map(|range| Range {
            start: u32_at(range, 0),
            count: u16_at(range, 4),
        })
    }
}
