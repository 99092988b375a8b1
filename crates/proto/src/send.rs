//! The send side of one session: which units may go, are in flight, must be repeated.
//!
//! A unit is the reliable content of one packet; it lies in a slot (a frame of
//! the caller) from [`SendWindow::queue`] until it has arrived. The window
//! knows unit numbers and slots, no bytes and no clock. Spec §5.2.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::time::Instant;
use crate::wire::Part;

/// Names a frame of the caller's pool.
pub type Slot = u32;

/// Where a unit is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitState {
    /// Sent, fate unknown.
    Flying {
        /// Over which lane.
        lane: u8,
        /// Under which packet number.
        number: u64,
    },
    /// Known or feared lost: to be repeated.
    Lost,
    /// Received by the peer; units before it are not.
    Arrived,
    /// Too long for the path: its parts are sent instead.
    Cut,
}

/// One unit that has been numbered and not settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitView {
    /// Its frame; the caller's again if it has arrived.
    pub slot: Slot,
    /// Bulk class.
    pub bulk: bool,
    /// How far it has come.
    pub state: UnitState,
    /// When it last left.
    pub sent_at: Instant,
    /// If it is cut, how far its parts have come, and when they last left.
    pub parts: Vec<(UnitState, Instant)>,
}

/// What one packet carries of a unit: all of it, or one of the parts it was cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// The transmission of a piece that counts: its latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) lane: u8,
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Sent, fate unknown.
    Flying(Flight),
    /// Not sent yet, known or feared lost. Whole units wait in `repeats`.
    Lost,
    /// Received by the peer; the slot of a whole unit is free.
    Arrived,
    /// Its parts fly instead; only of whole units.
    Cut,
}

/// How far a piece has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Unit {
    slot: Slot,
    progress: Progress,
    bulk: bool,
    /// Length of the packet that carried it last.
    bytes: u16,
}

/// The parts of a unit that was cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

/// A piece that should be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) piece: Piece,
    pub(crate) slot: Slot,
    pub(crate) bulk: bool,
    pub(crate) repeat: bool,
}

/// Units whose parts may be on their way at once: the receiver keeps parts of so many.
pub(crate) const MAX_CUT: usize = 16;

/// Units of one session on their way. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendWindow {
    /// Number of the first unit in `units`; all below have arrived.
    base: u64,
    units: VecDeque<Unit>,
    /// Queued, not yet numbered: small ones overtake bulk.
    small: VecDeque<Slot>,
    bulk: VecDeque<Slot>,
    /// Lost units in the order in which to repeat them.
    repeats: VecDeque<u64>,
    /// Slots that carry only notices.
    notices: Vec<Slot>,
    /// Units too long for the path, lowest first.
    cuts: Vec<Cut>,
    flying: u32,
    /// Units that have arrived so far.
    arrivals: u64,
}

impl SendWindow {
    /// Units are numbered from `first` on.
    pub(crate) fn starting_at(first: u64) -> SendWindow {
        SendWindow {
            base: first,
            ..SendWindow::default()
        }
    }

    /// Takes a filled frame.
    pub(crate) fn queue(&mut self, slot: Slot, bulk: bool) {
        if bulk {
            self.bulk.push_back(slot);
        } else {
            self.small.push_back(slot);
        }
    }

    /// Takes a frame of notices, for which nobody waits who has ended.
    pub(crate) fn queue_notices(&mut self, slot: Slot) {
        self.notices.push(slot);
        self.small.push_back(slot);
    }

    /// True if nothing but notices is queued, in flight or lost.
    pub(crate) fn has_only_notices(&self) -> bool {
        let on_their_way = self.units.iter();
        let on_their_way = on_their_way.filter(|unit| unit.progress.state != State::Arrived);
        on_their_way
            .map(|unit| &unit.slot)
            .chain(&self.small)
            .chain(&self.bulk)
            .all(|slot| self.notices.contains(slot))
    }

    /// Packets sent and neither arrived nor known lost.
    pub(crate) fn flying(&self) -> u32 {
        self.flying
    }

    /// Units that have arrived so far, in any order.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// True if nothing waits to be sent for the first time.
    pub(crate) fn is_drained(&self) -> bool {
        self.small.is_empty() && self.bulk.is_empty()
    }

    /// True if nothing is queued, in flight or lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty() && self.is_drained()
    }

    /// Number of frames queued for the first time.
    pub(crate) fn queued(&self) -> usize {
        self.small.len() + self.bulk.len()
    }

    /// Number of frames that are queued or whose units have not all arrived.
    pub(crate) fn held(&self) -> usize {
        self.units.len() + self.queued()
    }

    /// True if a small packet waits for its first sending.
    pub(crate) fn has_small(&self) -> bool {
        !self.small.is_empty()
    }

    /// The unit number after the last that is queued.
    pub(crate) fn end(&self) -> u64 {
        self.top() + self.queued() as u64
    }

    /// True if units of either kind could be offered with `allowed` in flight.
    pub(crate) fn has_next(&self, allowed: u32) -> bool {
        if self.flying >= allowed {
            return false;
        }
        !self.repeats.is_empty() || !self.is_drained() || self.lost_part().is_some()
    }

    /// Takes a filled frame that is to be sent at once: it must be [`sent`](Self::sent) before
    /// the next call. `None`, and nothing has changed, if others wait, or `allowed` packets are
    /// in flight.
    pub(crate) fn next_alone(&mut self, slot: Slot, allowed: u32) -> Option<Next> {
        let is_alone = self.is_drained() && self.repeats.is_empty() && self.cuts.is_empty();
        (is_alone && self.flying < allowed).then(|| self.begin_unit(slot, false))
    }

    /// The unit to send now, if fewer than `allowed` packets are in flight.
    /// Parts of the oldest unit go first, then repeats. It must be [`sent`](Self::sent) before
    /// the next call.
    pub(crate) fn next(&mut self, allowed: u32) -> Option<Next> {
        if self.flying >= allowed {
            return None;
        }
        // Repeats that find no room at the receiver never end while the oldest unit is missing.
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

    /// Gives a frame its unit.
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

    /// The first part to be sent, and whether it has been sent before.
    fn lost_part(&self) -> Option<(Piece, bool)> {
        let mut cuts = self.cuts.iter().take(MAX_CUT);
        cuts.find_map(|cut| {
            let lost = |part: &Progress| part.state == State::Lost;
            let index = cut.parts.iter().position(lost)?;
            Some((cut.piece(index), cut.parts[index].lane.is_some()))
        })
    }

    /// Cuts a unit that [`next`](Self::next) has just given into this many parts, which are
    /// sent in its place.
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

    /// Notes that a piece left as this flight, in a packet of `bytes`.
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

    /// Notes an arrival; returns the slot that is free now.
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
        if !self.notices.is_empty() {
            self.notices.retain(|notice| *notice != slot);
        }
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

    /// Notes that all units below `next` have arrived; `released` gets the slots that are free
    /// now.
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

    /// The lowest unit that has not arrived, or will be sent next.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The number the next new unit will get.
    pub(crate) fn top(&self) -> u64 {
        self.base + self.units.len() as u64
    }

    /// True if this flight is the latest of a piece that has not arrived.
    pub(crate) fn is_current(&self, piece: Piece, flight: Flight) -> bool {
        self.progress(piece)
            .is_some_and(|progress| progress.state == State::Flying(flight))
    }

    /// Notes that a flight was lost; true if the piece will be repeated for it.
    /// An older flight of a piece says nothing about its latest.
    pub(crate) fn lost(&mut self, piece: Piece, flight: Flight) -> bool {
        if !self.is_current(piece, flight) {
            return false;
        }
        self.repeat(piece);
        true
    }

    /// When the given piece last left.
    pub(crate) fn sent_at(&self, piece: Piece) -> Option<Instant> {
        self.progress(piece).map(|progress| progress.sent_at)
    }

    /// Length of the packet by which a whole unit last left; zero for parts.
    pub(crate) fn packet_bytes(&self, piece: Piece) -> u16 {
        match self.entry(piece.unit) {
            Some(entry) if piece.part.is_whole() => entry.bytes,
            _ => 0,
        }
    }

    /// First and last piece in flight, for a tail that may be lost (thesis §5.2).
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

    /// The lane of a piece's latest flight.
    pub(crate) fn lane_of(&self, piece: Piece) -> Option<u8> {
        match self.progress(piece)?.state {
            State::Flying(flight) => Some(flight.lane),
            State::Lost | State::Arrived | State::Cut => None,
        }
    }

    /// The lane of a piece's last flight, whatever became of it.
    pub(crate) fn last_lane_of(&self, piece: Piece) -> Option<u8> {
        self.progress(piece)?.lane
    }

    /// The same of all that have not arrived.
    pub(crate) fn last_lanes(&self) -> impl Iterator<Item = Option<u8>> + '_ {
        let units = self.units.iter().map(|unit| unit.progress);
        let parts = self.cuts.iter().flat_map(|cut| cut.parts.iter().copied());
        let waiting = units.chain(parts).filter(|it| it.state != State::Arrived);
        waiting.map(|progress| progress.lane)
    }

    /// Lane of the last flight of the oldest unit that has not arrived.
    pub(crate) fn oldest_lane(&self) -> Option<u8> {
        let mut units = self.units.iter();
        let oldest = units.find(|unit| unit.progress.state != State::Arrived)?;
        oldest.progress.lane
    }

    /// Queues a flying piece for repetition.
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

    /// Hands every piece that flies on a dead lane to the others.
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

    /// Queues all units for repetition that fly in packets longer than `bytes`.
    pub(crate) fn repeat_longer(&mut self, bytes: u16) {
        for unit in self.base..self.top() {
            if self.entry(unit).is_some_and(|entry| entry.bytes > bytes) {
                self.repeat(Piece::whole(unit));
            }
        }
    }

    /// Empties the window; returns every slot it held.
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

    /// Slots that wait for their first sending, and whether they are bulk.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Slot, bool)> + '_ {
        let small = self.small.iter().map(|slot| (*slot, false));
        small.chain(self.bulk.iter().map(|slot| (*slot, true)))
    }

    /// Units that wait for their repetition, in that order.
    pub(crate) fn repeats(&self) -> impl Iterator<Item = u64> + '_ {
        self.repeats.iter().copied()
    }
}

#[cfg(test)]
mod tests;
