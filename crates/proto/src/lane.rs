//! One path and class inside a session: its packet numbers, both ways. Spec §5.1, §5.3.
//!
//! [`LaneOut`] remembers which unit each number in flight carried; numbers are
//! never used twice. [`LaneIn`] knows which numbers of the peer are missing and
//! which of those have been overtaken by enough others to be asked for.

use alloc::collections::VecDeque;

use crate::holes::{Arrival, Hole, Holes};
use crate::path_state::{LaneState, PathState};
use crate::send::{Flight, Piece, SendWindow};
use crate::time::Instant;
use crate::wire::Address;

/// Most numbers of a lane that may be in question at once (`settled` is 16 bits).
pub(crate) const MAX_OPEN_NUMBERS: usize = 32_768;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    piece: Piece,
    at: Instant,
    asked: bool,
    /// Length of the packet.
    bytes: u16,
}

/// The sending half.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneOut {
    /// Lowest number that may still be asked for.
    floor: u64,
    /// The end of what is known to have arrived.
    arrived: u64,
    /// The number that was next when a lane began to be silent.
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

    /// How far `number` is above the floor, as the header tells it.
    pub(crate) fn settled(&self, number: u64) -> u16 {
        u16::try_from(number - self.floor).unwrap_or(u16::MAX)
    }

    /// True if no number is in question.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    /// Uses the next number of an idle lane for a packet without a unit.
    pub(crate) fn skip(&mut self) -> u64 {
        self.floor += 1;
        self.floor - 1
    }

    /// True while another number may be used.
    pub(crate) fn is_open(&self) -> bool {
        self.sent.len() < MAX_OPEN_NUMBERS
    }

    /// Uses the next number for a unit.
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

    /// What a number carried, and the length of its packet, unless the number is settled
    /// or unused.
    pub(crate) fn carried(&self, number: u64) -> Option<(Piece, u16)> {
        let index = usize::try_from(number.checked_sub(self.floor)?).ok()?;
        self.sent.get(index).map(|sent| (sent.piece, sent.bytes))
    }

    /// The round trip that an acknowledgement of all below `next` shows.
    pub(crate) fn round_trip(&self, next: u64, now: Instant) -> Option<u64> {
        let newest = next.checked_sub(1)?.checked_sub(self.floor)?;
        let sent = self.sent.get(usize::try_from(newest).ok()?)?;
        sent.asked.then(|| now.since(sent.at))
    }

    /// Notes that what ends at `end` has arrived; true if that was not known, though it may be
    /// settled: what was repeated elsewhere has arrived here all the same. A peer that still
    /// misses something says again and again what it has: that is no sign of life, and shows no
    /// round trip.
    pub(crate) fn is_news(&mut self, end: u64) -> bool {
        let news = end > self.arrived;
        self.arrived = self.arrived.max(end);
        news
    }

    /// A lane has begun to be silent: what leaves by this one from now on may tell whether the
    /// peer is.
    pub(crate) fn mark(&mut self) {
        self.mark = self.next();
    }

    /// True if what ends at `end` left after the [`mark`](Self::mark).
    pub(crate) fn is_marked(&self, end: u64) -> bool {
        end > self.mark
    }

    /// How many numbers in question left after the mark, and whether others did.
    pub(crate) fn view_mark(&self) -> (u64, bool) {
        let from = self.mark.max(self.floor);
        (self.next() - from, self.floor > self.mark)
    }

    /// Raises the floor over numbers that no longer matter: their unit has
    /// arrived, or flies under a later number.
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

    /// Lowest number that may still be asked for.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// The end of what is known to have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// What the numbers from the floor on carried: units and parts of them.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, u8)> + '_ {
        let pieces = self.sent.iter().map(|sent| sent.piece);
        pieces.map(|piece| (piece.unit, piece.part.index))
    }
}

/// The receiving half.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LaneIn {
    holes: Holes,
    /// Holes that end at or below this have been asked for at least once.
    asked_below: u64,
    /// Something arrived since this lane was last acknowledged.
    pub(crate) dirty: bool,
}

impl LaneIn {
    fn starting_at(first: u64) -> LaneIn {
        LaneIn {
            holes: Holes::starting_at(first),
            ..LaneIn::default()
        }
    }

    /// Lowest number that is missing.
    pub(crate) fn next(&self) -> u64 {
        self.holes.next()
    }

    /// True if nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.holes.is_whole()
    }

    /// What recording this number would mean.
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

    /// Takes the floor of a packet whose content was not accepted.
    pub(crate) fn settle(&mut self, floor: u64) {
        self.holes.settle(floor);
    }

    /// True if a hole has become ripe that was never asked for.
    pub(crate) fn has_new_hole(&self, reorder_packets: u32) -> bool {
        self.holes
            .missing()
            .rev()
            .take_while(|hole| hole.end > self.asked_below)
            .any(|hole| self.is_ripe(hole, reorder_packets))
    }

    /// Holes overtaken by at least `reorder_packets` numbers, lowest first, and
    /// the end of what may be told: everything from `next` to there, holes
    /// excepted, has arrived.
    pub(crate) fn ripe(&self, reorder_packets: u32) -> (impl Iterator<Item = Hole> + '_, u64) {
        let top = self
            .holes
            .missing()
            .find(|hole| !self.is_ripe(*hole, reorder_packets))
            .map_or(self.holes.top(), |hole| hole.start);
        let holes = self.holes.missing().take_while(move |hole| hole.end < top);
        (holes, top)
    }

    /// Notes that all ripe holes are being asked for.
    pub(crate) fn asked(&mut self, reorder_packets: u32) {
        let (_, top) = self.ripe(reorder_packets);
        self.asked_below = self.asked_below.max(top);
        self.dirty = false;
    }

    fn is_ripe(&self, hole: Hole, reorder_packets: u32) -> bool {
        self.holes.top() - hole.end >= u64::from(reorder_packets)
    }

    /// The arrivals, and the end of what was asked for, for [`View`](crate::View).
    pub(crate) fn view(&self) -> (&Holes, u64) {
        (&self.holes, self.asked_below)
    }
}

/// Tail time-outs in a row after which a lane is thought dead.
const MAX_LANE_TIMEOUTS: u8 = 4;

/// Tail time-outs in a row without any news of a lane. Spec §5.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneTimeouts {
    count: u8,
    /// The latest but one.
    before: Instant,
    latest: Instant,
    /// Since when it is known that what left by another lane after the first has arrived.
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

    /// What left by another lane after the first has arrived, as is known now.
    pub(crate) fn arrived_elsewhere(&mut self, now: Instant) {
        if !self.is_none() {
            self.elsewhere.get_or_insert(now);
        }
    }

    /// Repeats try another lane, to find out whether the peer answers there.
    pub(crate) fn is_suspect(self) -> bool {
        self.count >= 2
    }

    /// The peer has answered elsewhere, and a whole time-out later not yet here. One that does
    /// not run for a while answers by no lane, and then by one after the other.
    pub(crate) fn is_dead(self) -> bool {
        let known = |at: Instant| at < self.before;
        self.count >= MAX_LANE_TIMEOUTS && self.elsewhere.is_some_and(known)
    }

    /// All but the times, for [`View`](crate::View).
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

/// A lane: both halves, where it leads, and whether it works.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) id: u8,
    pub(crate) bulk: bool,
    pub(crate) to: Address,
    pub(crate) out: LaneOut,
    pub(crate) incoming: LaneIn,
    pub(crate) timeouts: LaneTimeouts,
    /// Whether what is sent there arrives.
    pub(crate) path: PathState,
    /// The lowest number that the peer misses, as it says.
    pub(crate) told: u64,
    /// The peer asks for numbers that are settled: tell it so.
    pub(crate) floor_due: bool,
}

impl Lane {
    /// Packets are numbered from `first` on.
    pub(crate) fn new(id: u8, bulk: bool, to: Address, state: LaneState, first: u64) -> Lane {
        Lane {
            id,
            bulk,
            to,
            out: LaneOut::starting_at(first),
            incoming: LaneIn::starting_at(first),
            timeouts: LaneTimeouts::default(),
            path: PathState::new(state),
            told: first,
            floor_due: false,
        }
    }

    /// True if the peer should be told, by a packet without a unit, that nothing
    /// below the next number will come.
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
    fn a_hole_is_asked_for_only_after_enough_packets_overtook_it() {
        let mut lane = lane_after(&[0, 2, 3]);
        assert!(!lane.has_new_hole(3));
        assert_eq!(
            lane.ripe(3).1,
            1,
            "nothing may be told beyond an unripe hole"
        );
        lane.record(4, 0);
        assert!(lane.has_new_hole(3));
        let holes: alloc::vec::Vec<Hole> = lane.ripe(3).0.collect();
        assert_eq!(holes, [Hole { start: 1, end: 2 }]);
        lane.asked(3);
        assert!(!lane.has_new_hole(3));
    }

    #[test]
    fn the_senders_floor_closes_holes_that_were_repeated_elsewhere() {
        let mut lane = lane_after(&[0, 3, 4, 5]);
        lane.record(6, 3);
        assert!(lane.is_whole());
        assert_eq!(lane.record(1, 3), Arrival::Duplicate);
    }

    #[test]
    fn what_is_said_again_is_no_news() {
        let mut lane = LaneOut::default();
        assert!(lane.is_news(3));
        assert!(!lane.is_news(3) && !lane.is_news(2));
        assert!(lane.is_news(4));
        let mut settled = LaneOut {
            floor: 6,
            ..LaneOut::default()
        };
        assert!(settled.is_news(5), "its units were repeated elsewhere");
    }

    #[test]
    fn a_lane_is_dead_if_the_peer_answered_elsewhere_a_time_out_ago() {
        let struck = |known: u64| {
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
        assert_eq!(struck(1000), None, "before the first it says nothing");
        assert_eq!(struck(11), Some(150));
        assert_eq!(struck(69), Some(150));
        assert_eq!(struck(71), Some(310), "not yet a time-out ago");
    }

    #[test]
    fn numbers_settle_when_their_unit_arrived_or_flies_anew() {
        let mut window = SendWindow::default();
        let mut lane = LaneOut::default();
        for slot in 0..3 {
            window.queue(slot, false);
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
