//! One path and class of a session: its packet numbers in both directions. Spec §5.1, §5.3.
//!
//! [`LaneOut`] remembers which unit each number in flight carried. Numbers are never reused.
//! [`LaneIn`] tracks which numbers of the peer are missing, and which of those have been overtaken
//! by enough others to be requested.

use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};

use crate::holes::{Arrival, Hole, Holes};
use crate::path_state::{LaneState, PathState};
use crate::send::{Flight, Piece, SendWindow};
use crate::time::Instant;
use crate::wire::Address;

/// Most unsettled numbers of a lane (`settled` has 16 bits in the header).
pub(crate) const MAX_OPEN_NUMBERS: usize = 32_768;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Sent {
    piece: Piece,
    at: Instant,
    asked: bool,
    /// Length of the packet.
    bytes: u16,
}

/// The sending half of a lane.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LaneOut {
    /// Lowest number that may still be requested.
    floor: u64,
    /// All numbers below this, as far as known, have arrived.
    arrived: u64,
    /// The next number at the time when some lane became silent.
    mark: u64,
    sent: VecDeque<Sent>,
}

impl LaneOut {
    fn starting_at(first: u64) -> LaneOut {
        LaneOut {
            floor: first,
            arrived: first,
            mark: first,
            sent: VecDeque::new(),
        }
    }

    /// The number that the next packet will carry.
    pub(crate) fn next(&self) -> u64 {
        self.floor + self.sent.len() as u64
    }

    /// How far `number` is above the floor, for the header.
    pub(crate) fn settled(&self, number: u64) -> u16 {
        u16::try_from(number - self.floor).unwrap_or(u16::MAX)
    }

    /// True if all numbers are settled.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    /// Uses the next number of an idle lane for a packet without a unit.
    pub(crate) fn skip(&mut self) -> u64 {
        self.floor += 1;
        self.floor - 1
    }

    /// True if another number may be used.
    pub(crate) fn is_open(&self) -> bool {
        self.sent.len() < MAX_OPEN_NUMBERS
    }

    /// Uses the next number for a piece of a unit.
    pub(crate) fn record(&mut self, piece: Piece, bytes: u16, at: Instant, asked: bool) -> u64 {
        let number = self.next();
        self.sent.push_back(Sent {
            piece,
            at,
            asked,
            bytes,
        });
        number
    }

    /// The piece that a number carried and the length of its packet; `None` if the number is settled
    /// or unused.
    pub(crate) fn carried(&self, number: u64) -> Option<(Piece, u16)> {
        let index = usize::try_from(number.checked_sub(self.floor)?).ok()?;
        self.sent.get(index).map(|sent| (sent.piece, sent.bytes))
    }

    /// When the newest of the numbers below `next` left, if it requested an acknowledgement.
    pub(crate) fn asked_at(&self, next: u64) -> Option<Instant> {
        let newest = next.checked_sub(1)?.checked_sub(self.floor)?;
        let sent = self.sent.get(usize::try_from(newest).ok()?)?;
        sent.asked.then_some(sent.at)
    }

    /// Records that all numbers below `end` have arrived. Returns true if that is new, even if the
    /// numbers are settled because their units were retransmitted on another lane. A peer with a hole
    /// repeats its acknowledgements, which neither proves that the lane works nor measures a round
    /// trip.
    pub(crate) fn record_acknowledged(&mut self, end: u64) -> bool {
        let news = end > self.arrived;
        self.arrived = self.arrived.max(end);
        news
    }

    /// A lane has become silent. Packets that leave on this one from now on show whether the peer is
    /// alive.
    pub(crate) fn mark(&mut self) {
        self.mark = self.next();
    }

    /// True if numbers below `end` were used after the last [`mark`](Self::mark).
    pub(crate) fn is_marked(&self, end: u64) -> bool {
        end > self.mark
    }

    /// How many unsettled numbers were used after the mark, and whether older ones are settled.
    pub(crate) fn view_mark(&self) -> (u64, bool) {
        let from = self.mark.max(self.floor);
        (self.next() - from, self.floor > self.mark)
    }

    /// Raises the floor over numbers that no longer matter, because their unit has arrived or was
    /// sent again under another number.
    pub(crate) fn settle(&mut self, lane: u8, window: &SendWindow) {
        while let Some(front) = self.sent.front() {
            let flight = Flight {
                lane,
                number: self.floor,
            };
            if window.is_current(front.piece, flight) {
                break;
            }
            self.sent.pop_front();
            self.floor += 1;
        }
    }

    /// Lowest number that may still be requested.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// All numbers below this, as far as known, have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Unit and part that each number from the floor on carried.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        let pieces = self.sent.iter().map(|sent| sent.piece);
        pieces.map(|piece| (piece.unit, piece.part.index))
    }
}

/// The receiving half of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct LaneIn {
    holes: Holes,
    /// Holes that end at or below this have been requested at least once.
    requested_below: u64,
    /// Something has arrived since this lane was last acknowledged.
    pub(crate) dirty: bool,
}

impl LaneIn {
    fn starting_at(first: u64) -> LaneIn {
        LaneIn {
            holes: Holes::starting_at(first),
            ..LaneIn::default()
        }
    }

    /// Returns the lowest missing number.
    pub(crate) fn next(&self) -> u64 {
        self.holes.next()
    }

    /// True if nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.holes.is_whole()
    }

    /// Returns the result of [`record`](Self::record) without recording.
    pub(crate) fn classify(&self, number: u64) -> Arrival {
        self.holes.classify(number)
    }

    /// Records an arrival and the sender's floor.
    pub(crate) fn record(&mut self, number: u64, floor: u64) -> Arrival {
        self.holes.settle(floor);
        self.dirty = true;
        if number < self.holes.next() {
            return Arrival::Duplicate;
        }
        self.holes.record(number)
    }

    /// True if a number, of which these are the low 32 bits, is the one after the highest arrival.
    #[inline]
    pub(crate) fn expects(&self, number: u32) -> bool {
        self.holes.expects(number)
    }

    /// Records the arrival of the next `count` numbers. The sender's floor is `settled` below the first.
    #[inline]
    pub(crate) fn append(&mut self, settled: u16, count: u32) {
        let floor = self.holes.top().saturating_sub(settled.into());
        self.holes.settle(floor);
        self.holes.append(count);
        self.dirty = true;
    }

    /// Applies the floor of a packet whose contents were not accepted.
    pub(crate) fn settle(&mut self, floor: u64) {
        self.holes.settle(floor);
    }

    /// True if a ripe hole exists that was never requested.
    pub(crate) fn has_new_hole(&self, reorder_packets: u32) -> bool {
        self.holes
            .missing()
            .rev()
            .take_while(|hole| hole.end > self.requested_below)
            .any(|hole| self.is_ripe(hole, reorder_packets))
    }

    /// Holes overtaken by at least `reorder_packets` numbers, lowest first, and the end of the range
    /// that may be acknowledged: from `next` up to there, everything but these holes has arrived.
    pub(crate) fn ripe(&self, reorder_packets: u32) -> (impl Iterator<Item = Hole> + '_, u64) {
        let top = self
            .holes
            .missing()
            .find(|hole| !self.is_ripe(*hole, reorder_packets))
            .map_or(self.holes.top(), |hole| hole.start);
        let holes = self.holes.missing().take_while(move |hole| hole.end < top);
        (holes, top)
    }

    /// All ripe holes are being requested.
    pub(crate) fn mark_requested(&mut self, reorder_packets: u32) {
        let (_, top) = self.ripe(reorder_packets);
        self.requested_below = self.requested_below.max(top);
        self.dirty = false;
    }

    fn is_ripe(&self, hole: Hole, reorder_packets: u32) -> bool {
        self.holes.top() - hole.end >= u64::from(reorder_packets)
    }

    /// The arrivals, and the end of the holes that were requested, for [`View`](crate::View).
    pub(crate) fn view(&self) -> (&Holes, u64) {
        (&self.holes, self.requested_below)
    }
}

/// Tail time-outs in a row after which a lane may be given up.
const MAX_LANE_TIMEOUTS: u8 = 4;

/// Consecutive tail time-outs of a lane. Spec §5.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaneTimeouts {
    count: u8,
    /// Time of the last but one.
    before: Instant,
    latest: Instant,
    /// When it became known that a packet sent on another lane after the first time-out has
    /// arrived.
    elsewhere: Option<Instant>,
}

impl LaneTimeouts {
    pub(crate) fn add(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.before = self.latest;
        self.latest = now;
    }

    pub(crate) fn is_none(self) -> bool {
        self.count == 0
    }

    /// A packet that was sent on another lane after the first time-out has arrived.
    pub(crate) fn arrived_elsewhere(&mut self, now: Instant) {
        if !self.is_none() {
            self.elsewhere.get_or_insert(now);
        }
    }

    /// True if retransmissions must try another lane.
    pub(crate) fn is_suspect(self) -> bool {
        self.count >= 2
    }

    /// True if the peer has acknowledged packets on another lane and, a whole time-out later, still
    /// none on this one. A peer that did not run for a while acknowledges one lane after the other.
    pub(crate) fn is_dead(self) -> bool {
        let known = |at: Instant| at < self.before;
        self.count >= MAX_LANE_TIMEOUTS && self.elsewhere.is_some_and(known)
    }

    /// Everything but the times, for [`View`](crate::View).
    pub(crate) fn view(self) -> (u8, bool, bool) {
        let known = |at: Instant| at < self.latest;
        let elsewhere = self.elsewhere;
        (
            self.count,
            elsewhere.is_some(),
            elsewhere.is_some_and(known),
        )
    }
}

/// A lane in both directions, its address and its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) id: u8,
    pub(crate) bulk: bool,
    pub(crate) to: Address,
    pub(crate) out: LaneOut,
    pub(crate) incoming: LaneIn,
    pub(crate) timeouts: LaneTimeouts,
    /// State of the path: packets sent there arrive or not.
    pub(crate) path: PathState,
    /// The lowest number that the peer misses, as far as it has reported.
    pub(crate) missing_from: u64,
    /// The peer requests numbers that are settled, so the floor must be sent.
    pub(crate) floor_due: bool,
}

impl Lane {
    /// A lane whose packets are numbered from `first` on.
    pub(crate) fn new(id: u8, bulk: bool, to: Address, state: LaneState, first: u64) -> Lane {
        Lane {
            id,
            bulk,
            to,
            out: LaneOut::starting_at(first),
            incoming: LaneIn::starting_at(first),
            timeouts: LaneTimeouts::default(),
            path: PathState::new(state),
            missing_from: first,
            floor_due: false,
        }
    }

    /// True if a packet without a unit must report that nothing below the next number will arrive.
    pub(crate) fn must_send_floor(&self) -> bool {
        self.floor_due && self.out.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane_after(arrivals: &[u64]) -> LaneIn {
        let mut lane = LaneIn::default();
        for number in arrivals {
            lane.record(*number, 0);
        }
        lane
    }

    #[test]
    fn a_hole_is_requested_only_after_enough_later_packets() {
        let mut lane = lane_after(&[0, 2, 3]);
        assert!(!lane.has_new_hole(3));
        assert_eq!(
            lane.ripe(3).1,
            1,
            "nothing may be acknowledged beyond an unripe hole"
        );
        lane.record(4, 0);
        assert!(lane.has_new_hole(3));
        let holes: alloc::vec::Vec<Hole> = lane.ripe(3).0.collect();
        assert_eq!(holes, [Hole { start: 1, end: 2 }]);
        lane.mark_requested(3);
        assert!(!lane.has_new_hole(3));
    }

    #[test]
    fn the_senders_floor_closes_holes_filled_elsewhere() {
        let mut lane = lane_after(&[0, 3, 4, 5]);
        lane.record(6, 3);
        assert!(lane.is_whole());
        assert_eq!(lane.record(1, 3), Arrival::Duplicate);
    }

    #[test]
    fn a_repeated_acknowledgement_is_not_news() {
        let mut lane = LaneOut::default();
        assert!(lane.record_acknowledged(3));
        assert!(!lane.record_acknowledged(3) && !lane.record_acknowledged(2));
        assert!(lane.record_acknowledged(4));
        let mut settled = LaneOut {
            floor: 6,
            ..LaneOut::default()
        };
        assert!(
            settled.record_acknowledged(5),
            "its units were retransmitted elsewhere"
        );
    }

    #[test]
    fn a_lane_is_dead_a_time_out_after_the_peer_acknowledged_elsewhere() {
        let died_at = |known: u64| {
            let mut timeouts = LaneTimeouts::default();
            timeouts.arrived_elsewhere(Instant(0));
            let mut died = None;
            for now in [10, 30, 70, 150, 310] {
                if now > known {
                    timeouts.arrived_elsewhere(Instant(known));
                }
                timeouts.add(Instant(now));
                died = died.or(timeouts.is_dead().then_some(now));
            }
            died
        };
        assert_eq!(died_at(1000), None, "it became known too late");
        assert_eq!(died_at(11), Some(150));
        assert_eq!(died_at(69), Some(150));
        assert_eq!(died_at(71), Some(310), "less than a time-out ago");
    }

    #[test]
    fn numbers_settle_when_their_unit_has_arrived_or_was_sent_again() {
        let mut window = SendWindow::default();
        let mut lane = LaneOut::default();
        for slot in 0..3 {
            window.queue(&[slot], false);
            let next = window.next(9).expect("queued");
            let number = lane.record(next.piece, 100, Instant(1), true);
            window.sent(next.piece, Flight { lane: 0, number }, 100, Instant(1));
        }
        window.arrived(Piece::whole(1));
        lane.settle(0, &window);
        assert_eq!(lane.floor(), 0);
        window.lost(Piece::whole(0), Flight { lane: 0, number: 0 });
        let next = window.next(9).expect("lost");
        let number = lane.record(next.piece, 100, Instant(2), true);
        window.sent(next.piece, Flight { lane: 0, number }, 100, Instant(2));
        lane.settle(0, &window);
        assert_eq!(lane.floor(), 2);
        assert_eq!(lane.settled(3), 1);
        assert_eq!(lane.carried(3), Some((Piece::whole(0), 100)));
    }
}
