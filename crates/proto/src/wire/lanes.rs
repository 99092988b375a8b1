//! The addresses at which a process listens from now on, in a record. Spec §4.8.

use super::Malformed;
use super::control::{LANE_BYTES, LaneAddress};
use super::cursor::{put, u32_at};
use super::header::MAX_LANES;

const FIXED_BYTES: usize = 4;
/// Bytes of the longest list, without the record around it.
pub(super) const MAX_LIST_BYTES: usize = list_bytes(MAX_LANES);

/// Bytes of a list of this many lanes.
pub(super) const fn list_bytes(lanes: usize) -> usize {
    FIXED_BYTES + LANE_BYTES * lanes
}

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

/// Writes a list into [`list_bytes`] bytes.
pub(super) fn emit_list(bytes: &mut [u8], serial: u32, lanes: &[LaneAddress]) {
    put(bytes, 0, &serial.to_le_bytes());
    let places = bytes[FIXED_BYTES..].chunks_exact_mut(LANE_BYTES);
    for (lane, place) in lanes.iter().zip(places) {
        lane.emit(place);
    }
}
