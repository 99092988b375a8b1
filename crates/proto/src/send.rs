//! The send window of a session: which units are queued, in flight, or to be retransmitted.
//!
//! A unit is the reliable content of one packet. It is in a slot (a frame of the caller) from
//! [`SendWindow::queue`] until it has arrived. The window works on unit numbers and slots; it has
//! no clock and sees no bytes. Spec §5.2.

mod settled;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::time::Instant;
use crate::wire::Part;

/// Index of a frame in the caller's pool.
pub type Slot = u32;

/// State of a unit that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitState {
    /// It was sent and is not acknowledged.
    Flying {
        /// Index of the lane.
        lane: u8,
        /// Number of the packet that carried it.
        number: u64,
    },
    /// It is or may be lost and is to be retransmitted.
    Lost,
    /// It has arrived, but units before it have not.
    Arrived,
    /// It is too long for the path, so it is sent in parts.
    Cut,
}

/// A unit that has a number and was not released.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitView {
    /// Its frame, which is the caller's again if the unit has arrived.
    pub slot: Slot,
    /// The unit belongs to the bulk class.
    pub bulk: bool,
    /// Present state of the unit.
    pub state: UnitState,
    /// When it was last sent.
    pub sent_at: Instant,
    /// The states of its parts if it was cut, and when they were last sent.
    pub parts: Vec<(UnitState, Instant)>,
}

/// The contents of one packet: a whole unit, or one of the parts into which it was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) unit: u64,
    pub(crate) part: Part,
}

impl Piece {
    pub(crate) fn whole(unit: u64) -> Piece {
        Piece {
            unit,
            part: Part::WHOLE,
        }
    }
}

/// The latest transmission of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Flight {
    pub(crate) lane: u8,
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum State {
    /// It was sent and is not acknowledged.
    Flying(Flight),
    /// It was not sent yet, or is or may be lost. Whole units are also in `repeats`.
    Lost,
    /// It has arrived. The slot of a whole unit is free.
    Arrived,
    /// A whole unit whose parts are sent instead.
    Cut,
}

/// State of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Progress {
    state: State,
    sent_at: Instant,
    /// Lane of the last flight.
    lane: Option<u8>,
}

impl Progress {
    const UNSENT: Progress = Progress {
        state: State::Lost,
        sent_at: Instant(0),
        lane: None,
    };

    fn is_flying(&self) -> bool {
        matches!(self.state, State::Flying(_))
    }

    fn view(&self) -> UnitState {
        match self.state {
            State::Flying(flight) => UnitState::Flying {
                lane: flight.lane,
                number: flight.number,
            },
            State::Lost => UnitState::Lost,
            State::Arrived => UnitState::Arrived,
            State::Cut => UnitState::Cut,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Unit {
    slot: Slot,
    progress: Progress,
    bulk: bool,
    /// Length of the packet that last carried it.
    bytes: u16,
}

/// The parts of a unit that was cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Cut {
    unit: u64,
    parts: Vec<Progress>,
}

impl Cut {
    fn piece(&self, index: usize) -> Piece {
        let index = u8::try_from(index).unwrap_or(u8::MAX);
        let last = u8::try_from(self.parts.len() - 1).unwrap_or(u8::MAX);
        let part = Part { index, last };
        Piece {
            unit: self.unit,
            part,
        }
    }
}

/// A piece to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) piece: Piece,
    pub(crate) slot: Slot,
    pub(crate) bulk: bool,
    pub(crate) repeat: bool,
}

/// Most units whose parts may be in flight at once; the receiver reassembles as many.
pub(crate) const MAX_CUT: usize = 16;

/// The queued and unacknowledged units of one session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SendWindow {
    /// Number of the first unit in `units`. All units below have arrived.
    base: u64,
    units: VecDeque<Unit>,
    /// Slots without a unit number. Small ones are sent before bulk.
    small: VecDeque<Slot>,
    bulk: VecDeque<Slot>,
    /// Lost units, in the order of retransmission.
    repeats: VecDeque<u64>,
    /// Slots that carry only notices, and whether refusals are among them.
    notices: Vec<(Slot, bool)>,
    /// The peer has acknowledged all units below, and this side has received its refusals of them.
    settled: u64,
    /// The last acknowledgement came from a peer with refusals on their way.
    is_disputed: bool,
    /// Units that were cut, lowest first.
    cuts: Vec<Cut>,
    flying: u32,
    /// Number of units that have arrived.
    arrivals: u64,
}

impl SendWindow {
    /// A window whose units are numbered from `first` on.
    pub(crate) fn starting_at(first: u64) -> SendWindow {
        SendWindow {
            base: first,
            settled: first,
            ..SendWindow::default()
        }
    }

    /// Queues filled frames.
    pub(crate) fn queue(&mut self, slots: &[Slot], bulk: bool) {
        match bulk {
            true => self.bulk.extend(slots),
            false => self.small.extend(slots),
        }
    }

    /// Queues a frame with notices, which need not arrive before a session ends.
    pub(crate) fn queue_notices(&mut self, slot: Slot, refuses: bool) {
        self.notices.push((slot, refuses));
        self.small.push_back(slot);
    }

    /// True while a refusal is queued, in flight or lost.
    pub(crate) fn has_refusals(&self) -> bool {
        self.notices.iter().any(|(_, refuses)| *refuses)
    }

    /// True if nothing but notices is queued, in flight or lost.
    pub(crate) fn has_only_notices(&self) -> bool {
        let on_their_way = self.units.iter();
        let on_their_way = on_their_way.filter(|unit| unit.progress.state != State::Arrived);
        on_their_way
            .map(|unit| &unit.slot)
            .chain(&self.small)
            .chain(&self.bulk)
            .all(|slot| self.notices.iter().any(|(notice, _)| notice == slot))
    }

    /// Number of packets in flight.
    pub(crate) fn flying(&self) -> u32 {
        self.flying
    }

    /// Number of units that have arrived, in any order.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// True if no frame waits for its first transmission.
    pub(crate) fn is_drained(&self) -> bool {
        self.small.is_empty() && self.bulk.is_empty()
    }

    /// True if nothing is queued, in flight or lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty() && self.is_drained()
    }

    /// Number of frames that wait for their first transmission.
    pub(crate) fn queued(&self) -> usize {
        self.small.len() + self.bulk.len()
    }

    /// Number of frames that are queued or whose units have not arrived.
    pub(crate) fn held(&self) -> usize {
        self.units.len() + self.queued()
    }

    /// True if a small frame waits for its first transmission.
    pub(crate) fn has_small(&self) -> bool {
        !self.small.is_empty()
    }

    /// The number after the last queued unit.
    pub(crate) fn end(&self) -> u64 {
        self.top() + self.queued() as u64
    }

    /// True if there is a piece to send while at most `allowed` packets may be in flight.
    pub(crate) fn has_next(&self, allowed: u32) -> bool {
        if self.flying >= allowed {
            return false;
        }
        !self.repeats.is_empty() || !self.is_drained() || self.lost_part().is_some()
    }

    /// Takes a filled frame that is to be sent at once. Returns `None` and changes nothing if other
    /// pieces wait or `allowed` packets are in flight. The piece must be [`sent`](Self::sent) before
    /// the next call.
    pub(crate) fn next_alone(&mut self, slot: Slot, allowed: u32) -> Option<Next> {
        let is_alone = self.is_drained() && self.repeats.is_empty() && self.cuts.is_empty();
        (is_alone && self.flying < allowed).then(|| self.begin_unit(slot, false))
    }

    /// The frame that [`next`](Self::next) returns and whether it is bulk, if it begins a new unit.
    #[inline]
    pub(crate) fn peek_new(&self, allowed: u32) -> Option<(Slot, bool)> {
        let is_new = self.repeats.is_empty() && self.cuts.is_empty() && self.flying < allowed;
        let next = match self.small.front() {
            Some(slot) => (*slot, false),
            None => (*self.bulk.front()?, true),
        };
        is_new.then_some(next)
    }

    /// Takes the frame that [`peek_new`](Self::peek_new) has returned. It must be sent with
    /// [`sent_new`](Self::sent_new) before the next call.
    #[inline]
    pub(crate) fn take_new(&mut self, bulk: bool) {
        let queue = match bulk {
            true => &mut self.bulk,
            false => &mut self.small,
        };
        queue.pop_front();
    }

    /// A frame was sent in a packet of `bytes` as a new unit.
    #[inline]
    pub(crate) fn sent_new(
        &mut self,
        (slot, bulk): (Slot, bool),
        flight: Flight,
        bytes: u16,
        now: Instant,
    ) {
        self.units.push_back(Unit {
            slot,
            progress: Progress {
                state: State::Flying(flight),
                sent_at: now,
                lane: Some(flight.lane),
            },
            bulk,
            bytes,
        });
        self.flying += 1;
    }

    /// The next piece to send, if fewer than `allowed` packets are in flight: parts of the oldest
    /// unit first, then retransmissions, then new units. It must be [`sent`](Self::sent) before the
    /// next call.
    pub(crate) fn next(&mut self, allowed: u32) -> Option<Next> {
        if self.flying >= allowed {
            return None;
        }
        // While the oldest unit is missing, the receiver may drop everything else because its pool is full.
        let part = self.lost_part();
        let is_oldest = part.is_some_and(|(piece, _)| piece.unit == self.base);
        while !is_oldest && let Some(unit) = self.repeats.pop_front() {
            if let Some(entry) = self.entry(unit)
                && entry.progress.state == State::Lost
            {
                return Some(Next {
                    piece: Piece::whole(unit),
                    slot: entry.slot,
                    bulk: entry.bulk,
                    repeat: true,
                });
            }
        }
        if let Some((piece, repeat)) = part
            && let Some(entry) = self.entry(piece.unit)
        {
            return Some(Next {
                piece,
                slot: entry.slot,
                bulk: entry.bulk,
                repeat,
            });
        }
        let (slot, bulk) = match self.small.pop_front() {
            Some(slot) => (slot, false),
            None => (self.bulk.pop_front()?, true),
        };
        Some(self.begin_unit(slot, bulk))
    }

    /// Assigns a unit number to a frame.
    fn begin_unit(&mut self, slot: Slot, bulk: bool) -> Next {
        let unit = self.top();
        self.units.push_back(Unit {
            slot,
            progress: Progress::UNSENT,
            bulk,
            bytes: 0,
        });
        Next {
            piece: Piece::whole(unit),
            slot,
            bulk,
            repeat: false,
        }
    }

    /// The first part to send, and whether it was sent before.
    fn lost_part(&self) -> Option<(Piece, bool)> {
        let mut cuts = self.cuts.iter().take(MAX_CUT);
        cuts.find_map(|cut| {
            let lost = |part: &Progress| part.state == State::Lost;
            let index = cut.parts.iter().position(lost)?;
            Some((cut.piece(index), cut.parts[index].lane.is_some()))
        })
    }

    /// Cuts the unit that [`next`](Self::next) has just returned into parts, which are sent instead.
    pub(crate) fn cut(&mut self, unit: u64, parts: usize) {
        let Some(entry) = self.entry_mut(unit) else {
            return;
        };
        debug_assert_eq!(entry.progress.state, State::Lost);
        entry.progress.state = State::Cut;
        let at = self.cuts.partition_point(|cut| cut.unit < unit);
        let parts = alloc::vec![Progress::UNSENT; parts];
        self.cuts.insert(at, Cut { unit, parts });
    }

    /// A piece was sent in a packet of `bytes`.
    pub(crate) fn sent(&mut self, piece: Piece, flight: Flight, bytes: u16, now: Instant) {
        if piece.part.is_whole()
            && let Some(entry) = self.entry_mut(piece.unit)
        {
            entry.bytes = bytes;
        }
        if let Some(progress) = self.progress_mut(piece)
            && progress.state == State::Lost
        {
            *progress = Progress {
                state: State::Flying(flight),
                sent_at: now,
                lane: Some(flight.lane),
            };
            self.flying += 1;
        }
    }

    /// A piece has arrived. Returns the slot that is free now.
    pub(crate) fn arrived(&mut self, piece: Piece) -> Option<Slot> {
        if !piece.part.is_whole() {
            let at = self.cut_index(piece.unit)?;
            let part = self.cuts[at].parts.get_mut(usize::from(piece.part.index))?;
            self.flying -= u32::from(part.is_flying());
            part.state = State::Arrived;
            self.arrivals += 1;
            let arrived = |part: &Progress| part.state == State::Arrived;
            if !self.cuts[at].parts.iter().all(arrived) {
                return None;
            }
        }
        let entry = self.entry_mut(piece.unit)?;
        let before = entry.progress;
        if before.state == State::Arrived {
            return None;
        }
        entry.progress.state = State::Arrived;
        let slot = entry.slot;
        self.notices.retain(|(notice, _)| *notice != slot);
        self.arrivals += 1;
        self.flying -= u32::from(before.is_flying());
        if before.state == State::Cut
            && let Some(at) = self.cut_index(piece.unit)
        {
            let cut = self.cuts.remove(at);
            let flying = cut.parts.iter().filter(|part| part.is_flying());
            self.flying -= u32::try_from(flying.count()).unwrap_or(0);
        }
        while let Some(front) = self.units.front()
            && front.progress.state == State::Arrived
        {
            self.units.pop_front();
            self.base += 1;
        }
        Some(slot)
    }

    /// All units below `next` have arrived. Appends the slots that are free now to `released`.
    pub(crate) fn arrived_below(&mut self, next: u64, released: &mut Vec<Slot>) {
        if !self.cuts.is_empty() || !self.notices.is_empty() {
            released.extend((self.base..next).filter_map(|unit| self.arrived(Piece::whole(unit))));
            return;
        }
        while let Some(front) = self.units.front() {
            let has_arrived = front.progress.state == State::Arrived;
            if self.base >= next && !has_arrived {
                break;
            }
            if !has_arrived {
                self.arrivals += 1;
                self.flying -= u32::from(front.progress.is_flying());
                released.push(front.slot);
            }
            self.units.pop_front();
            self.base += 1;
        }
    }

    /// The lowest unit that has not arrived.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The number of the next new unit.
    pub(crate) fn top(&self) -> u64 {
        self.base + self.units.len() as u64
    }

    /// True if this is the latest transmission of a piece that has not arrived.
    pub(crate) fn is_current(&self, piece: Piece, flight: Flight) -> bool {
        self.progress(piece)
            .is_some_and(|progress| progress.state == State::Flying(flight))
    }

    /// A transmission was lost. Returns true if its piece is sent again. The loss of an older
    /// transmission does not count.
    pub(crate) fn lost(&mut self, piece: Piece, flight: Flight) -> bool {
        if !self.is_current(piece, flight) {
            return false;
        }
        self.repeat(piece);
        true
    }

    /// When a piece was last sent.
    pub(crate) fn sent_at(&self, piece: Piece) -> Option<Instant> {
        self.progress(piece).map(|progress| progress.sent_at)
    }

    /// Length of the packet in which a whole unit was last sent; zero for parts.
    pub(crate) fn packet_bytes(&self, piece: Piece) -> u16 {
        match self.entry(piece.unit) {
            Some(entry) if piece.part.is_whole() => entry.bytes,
            _ => 0,
        }
    }

    /// First and last piece in flight, which are retransmitted when the tail may be lost (thesis
    /// §5.2).
    pub(crate) fn first_and_last_flying(&self) -> Option<(Piece, Piece)> {
        let flying = |entry: &Unit| entry.progress.is_flying();
        let whole = |index: usize| Piece::whole(self.base + index as u64);
        let first = self.units.iter().position(flying).map(whole);
        let last = self.units.iter().rposition(flying).map(whole);
        let mut parts = self.flying_parts();
        let first_part = parts.next();
        let last_part = parts.last().or(first_part);
        let first = first.into_iter().chain(first_part).min()?;
        let last = last.into_iter().chain(last_part).max()?;
        Some((first, last))
    }

    fn flying_parts(&self) -> impl Iterator<Item = Piece> + '_ {
        self.cuts.iter().flat_map(|cut| {
            let parts = cut.parts.iter().enumerate();
            let flying = parts.filter(|(_, part)| part.is_flying());
            flying.map(|(index, _)| cut.piece(index))
        })
    }

    /// The lane on which a piece is in flight.
    pub(crate) fn lane_of(&self, piece: Piece) -> Option<u8> {
        match self.progress(piece)?.state {
            State::Flying(flight) => Some(flight.lane),
            State::Lost | State::Arrived | State::Cut => None,
        }
    }

    /// The lane on which a piece was last sent.
    pub(crate) fn last_lane_of(&self, piece: Piece) -> Option<u8> {
        self.progress(piece)?.lane
    }

    /// The lanes on which all pieces that have not arrived were last sent.
    pub(crate) fn last_lanes(&self) -> impl Iterator<Item = Option<u8>> + '_ {
        let units = self.units.iter().map(|unit| unit.progress);
        let parts = self.cuts.iter().flat_map(|cut| cut.parts.iter().copied());
        let waiting = units.chain(parts).filter(|it| it.state != State::Arrived);
        waiting.map(|progress| progress.lane)
    }

    /// The lane on which the oldest unit that has not arrived was last sent.
    pub(crate) fn oldest_lane(&self) -> Option<u8> {
        let mut units = self.units.iter();
        let oldest = units.find(|unit| unit.progress.state != State::Arrived)?;
        oldest.progress.lane
    }

    /// Queues a piece in flight for retransmission.
    pub(crate) fn repeat(&mut self, piece: Piece) {
        if let Some(progress) = self.progress_mut(piece)
            && progress.is_flying()
        {
            progress.state = State::Lost;
            self.flying -= 1;
            if piece.part.is_whole() {
                self.repeats.push_back(piece.unit);
            }
        }
    }

    /// Queues all pieces in flight on a dead lane for retransmission.
    pub(crate) fn abandon_lane(&mut self, lane: u8) {
        let units = (self.base..self.top()).map(Piece::whole);
        let pieces = units.chain(self.flying_parts());
        let pieces: Vec<Piece> = pieces
            .filter(|piece| self.lane_of(*piece) == Some(lane))
            .collect();
        for piece in pieces {
            self.repeat(piece);
        }
    }

    /// Queues all units in flight in packets longer than `bytes` for retransmission.
    pub(crate) fn repeat_longer(&mut self, bytes: u16) {
        for unit in self.base..self.top() {
            if self.entry(unit).is_some_and(|entry| entry.bytes > bytes) {
                self.repeat(Piece::whole(unit));
            }
        }
    }

    /// Empties the window. Returns every slot in use.
    pub(crate) fn clear(&mut self) -> Vec<Slot> {
        let held = self
            .units
            .iter()
            .filter(|entry| entry.progress.state != State::Arrived)
            .map(|entry| entry.slot);
        let slots = held
            .chain(self.small.iter().copied())
            .chain(self.bulk.iter().copied())
            .collect();
        *self = SendWindow {
            base: self.top(),
            settled: self.top(),
            arrivals: self.arrivals,
            ..SendWindow::default()
        };
        slots
    }

    fn entry(&self, unit: u64) -> Option<&Unit> {
        let index = usize::try_from(unit.checked_sub(self.base)?).ok()?;
        self.units.get(index)
    }

    fn entry_mut(&mut self, unit: u64) -> Option<&mut Unit> {
        let index = usize::try_from(unit.checked_sub(self.base)?).ok()?;
        self.units.get_mut(index)
    }

    fn cut_index(&self, unit: u64) -> Option<usize> {
        self.cuts.binary_search_by_key(&unit, |cut| cut.unit).ok()
    }

    fn progress(&self, piece: Piece) -> Option<&Progress> {
        if piece.part.is_whole() {
            return self.entry(piece.unit).map(|entry| &entry.progress);
        }
        let cut = &self.cuts[self.cut_index(piece.unit)?];
        cut.parts.get(usize::from(piece.part.index))
    }

    fn progress_mut(&mut self, piece: Piece) -> Option<&mut Progress> {
        if piece.part.is_whole() {
            return self.entry_mut(piece.unit).map(|entry| &mut entry.progress);
        }
        let at = self.cut_index(piece.unit)?;
        self.cuts[at].parts.get_mut(usize::from(piece.part.index))
    }

    /// The units in the window, for [`View`](crate::View).
    pub(crate) fn view(&self) -> impl Iterator<Item = UnitView> + '_ {
        (self.base..)
            .zip(&self.units)
            .map(|(number, unit)| UnitView {
                slot: unit.slot,
                bulk: unit.bulk,
                state: unit.progress.view(),
                sent_at: unit.progress.sent_at,
                parts: match self.cut_index(number) {
                    Some(at) => {
                        let parts = self.cuts[at].parts.iter();
                        parts.map(|part| (part.view(), part.sent_at)).collect()
                    }
                    None => Vec::new(),
                },
            })
    }

    /// Slots that were never sent, and whether they are bulk.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Slot, bool)> + '_ {
        let small = self.small.iter().map(|slot| (*slot, false));
        small.chain(self.bulk.iter().map(|slot| (*slot, true)))
    }

    /// Units to retransmit, in this order.
    pub(crate) fn repeats(&self) -> impl Iterator<Item = u64> + '_ {
        self.repeats.iter().copied()
    }
}

#[cfg(test)]
mod tests;
