//! The addresses at which a process listens from now on, in a record. Spec §4.8.

use super::Malformed;
use super::control::{COUNTER_BYTES, LANE_BYTES, LaneAddress, SUM_BYTES, TAG_BYTES};
use super::cursor::{put, u32_at};
use super::header::{HEADER_BYTES, MAX_LANES, MIN_PACKET_BYTES};
use super::record::{LANES, PREFIX_BYTES, prefix};

const FIXED_BYTES: usize = 4;
/// Bytes of the longest list of lanes.
pub const LANES_BYTES: usize = PREFIX_BYTES + FIXED_BYTES + LANE_BYTES * MAX_LANES;

// It fits into every packet, with the longest trailer.
const _: () =
    assert!(HEADER_BYTES + LANES_BYTES + COUNTER_BYTES + TAG_BYTES + SUM_BYTES <= MIN_PACKET_BYTES);

/// All lanes on which the sender of a record listens.
#[derive(Clone, Copy, Debug)]
pub struct LaneList<'a> {
    /// A list with a higher number replaces this one, whatever the order of their arrival.
    pub serial: u32,
    lanes: &'a [u8],
}

impl<'a> LaneList<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<LaneList<'a>, Malformed> {
        if body.len() < FIXED_BYTES {
            return Err(Malformed::BadField("lane list length"));
        }
        let lanes = &body[FIXED_BYTES..];
        let count = lanes.len() / LANE_BYTES;
        if !lanes.len().is_multiple_of(LANE_BYTES) || count == 0 || count > MAX_LANES {
            return Err(Malformed::BadField("lane list length"));
        }
        for lane in lanes.chunks_exact(LANE_BYTES) {
            LaneAddress::parse(lane)?;
        }
        Ok(LaneList {
            serial: u32_at(body, 0),
            lanes,
        })
    }

    /// The lanes.
    pub fn lanes(&self) -> impl Iterator<Item = LaneAddress> + 'a {
        // They were checked when the list was parsed.
        let lanes = self.lanes.chunks_exact(LANE_BYTES);
        lanes.filter_map(|lane| LaneAddress::parse(lane).ok())
    }
}

/// Writes a list of up to [`MAX_LANES`] lanes. Returns its length.
///
/// # Panics
/// When `bytes` is shorter than [`LANES_BYTES`].
pub fn emit_lanes(bytes: &mut [u8], serial: u32, lanes: &[LaneAddress]) -> usize {
    let lanes = &lanes[..lanes.len().min(MAX_LANES)];
    let body = FIXED_BYTES + LANE_BYTES * lanes.len();
    prefix(bytes, LANES, 0, body);
    let at = PREFIX_BYTES;
    put(bytes, at, &serial.to_le_bytes());
    for (index, lane) in lanes.iter().enumerate() {
        let at = at + FIXED_BYTES + LANE_BYTES * index;
        lane.emit(&mut bytes[at..at + LANE_BYTES]);
    }
    at + body
}
