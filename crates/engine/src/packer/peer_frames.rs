//! The frames of one peer.

use dipole_proto::wire::HEADER_BYTES;
use dipole_proto::{EdgeId, Instant, PeerId, Slot};

use crate::frames::FrameUse;

/// With this many frames of whole messages in flight, further messages share a frame: the sender
/// outruns the receiver's answers, and a packet costs more than a message.
const CROWD: u32 = 16;
/// Frames are held for further messages for at most this long.
const HOLD_NS: u64 = 20_000;

/// A frame that still accepts records.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFrame {
    pub(super) slot: Slot,
    /// Offset of the next record.
    pub(super) end: usize,
    /// It contains a record of a stream that uses the bulk lane.
    pub(super) bulk: bool,
    /// It contains a whole message.
    pub(super) whole: bool,
}

impl OpenFrame {
    pub(super) fn new(slot: Slot) -> OpenFrame {
        OpenFrame {
            slot,
            end: HEADER_BYTES,
            bulk: false,
            whole: false,
        }
    }
}

#[derive(Debug)]
pub(super) struct PeerFrames {
    pub(super) id: PeerId,
    pub(super) open: Option<OpenFrame>,
    /// A long message is being copied into frames.
    pub(super) long_begun: bool,
    /// Frames with whole messages that have been queued and not released.
    pub(super) whole_flying: u32,
    /// The last frame left because the next message did not fit.
    pub(super) was_full: bool,
    /// Until then frames need not leave as long as others are in flight.
    pub(super) hold_until: Instant,
    /// Edges with records in the open frame.
    pub(super) open_edges: Vec<u32>,
    /// Bulk frames queued and released so far. An edge stays on the bulk lane until its last
    /// bulk frame has been released, so that its messages do not overtake each other.
    pub(super) bulk_queued: u64,
    pub(super) bulk_released: u64,
    pub(super) bulk_mark: Vec<u64>,
}

impl PeerFrames {
    pub(super) fn new(id: PeerId) -> PeerFrames {
        PeerFrames {
            id,
            open: None,
            long_begun: false,
            whole_flying: 0,
            was_full: false,
            hold_until: Instant(0),
            open_edges: Vec::new(),
            bulk_queued: 0,
            bulk_released: 0,
            bulk_mark: Vec::new(),
        }
    }

    /// True if this outgoing edge has messages in flight on the bulk lane.
    #[inline]
    pub(super) fn is_streaming(&self, edge: EdgeId) -> bool {
        self.bulk_mark
            .get(edge.index as usize)
            .is_some_and(|mark| *mark > self.bulk_released)
    }

    /// True if further messages should share a frame.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.whole_flying >= CROWD || self.was_full && self.whole_flying > 0
    }

    /// Lets frames wait for further messages for a while.
    pub(super) fn hold(&mut self, now: Instant) {
        self.hold_until = now.after(HOLD_NS);
    }

    /// True if frames wait for further messages.
    #[inline]
    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.open.is_some() && self.whole_flying > 0 && now < self.hold_until
    }

    /// A frame has been queued, or is about to be.
    #[inline]
    pub(super) fn queued(&mut self, used: FrameUse) {
        self.whole_flying += u32::from(used.whole);
    }

    /// The protocol has released a queued frame.
    #[inline]
    pub(super) fn released(&mut self, used: FrameUse) {
        self.bulk_released += u64::from(used.bulk);
        self.whole_flying -= u32::from(used.whole);
    }

    /// Records that the open frame has a record of this edge.
    #[inline]
    pub(super) fn note_record(&mut self, edge: EdgeId) {
        if self.open_edges.last() != Some(&edge.index) {
            self.open_edges.push(edge.index);
        }
    }

    /// Closes the open frame, as a bulk frame or not.
    pub(super) fn close_open(&mut self, bulk: bool) {
        self.was_full = false;
        self.bulk_queued += u64::from(bulk);
        while let Some(edge) = self.open_edges.pop() {
            if bulk {
                self.note_bulk(edge, 0);
            }
        }
    }

    /// Records queued bulk frames, the last of which has a record of this edge.
    pub(super) fn note_bulk(&mut self, edge: u32, more: u64) {
        let index = edge as usize;
        self.bulk_queued += more;
        if self.bulk_mark.len() <= index {
            self.bulk_mark.resize(index + 1, 0);
        }
        self.bulk_mark[index] = self.bulk_queued;
    }
}
