//! The send side of one session: which units may go, are in flight, must be repeated.
//!
//! A unit is the reliable content of one packet; it lies in a slot (a frame of
//! the caller) from [`SendWindow::queue`] until it has arrived. The window
//! knows unit numbers and slots, no bytes and no clock. Spec §5.2.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::session::{UnitState, UnitView};
use crate::time::Instant;

/// Names a frame of the caller's pool.
pub type Slot = u32;

/// The transmission of a unit that counts: its latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) lane: u8,
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Sent, fate unknown.
    Flying(Flight),
    /// Known or feared lost; waits in `repeats`.
    Lost,
    /// Received by the peer; its slot is free.
    Arrived,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Unit {
    slot: Slot,
    state: State,
    sent_at: Instant,
    bulk: bool,
    /// Lane of the last flight.
    lane: Option<u8>,
}

/// A unit that should be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) unit: u64,
    pub(crate) slot: Slot,
    pub(crate) bulk: bool,
    pub(crate) repeat: bool,
}

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
    flying: u32,
    /// Units that have arrived so far.
    arrivals: u64,
}

impl SendWindow {
    /// Takes a filled frame.
    pub(crate) fn queue(&mut self, slot: Slot, bulk: bool) {
        if bulk {
            self.bulk.push_back(slot);
        } else {
            self.small.push_back(slot);
        }
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

    /// True if units of either kind could be offered with `allowed` in flight.
    pub(crate) fn has_next(&self, allowed: u32) -> bool {
        if self.flying >= allowed {
            return false;
        }
        !self.repeats.is_empty() || !self.is_drained()
    }

    /// The unit to send now, if fewer than `allowed` packets are in flight.
    /// Repeats go first. It must be [`sent`](Self::sent) before the next call.
    pub(crate) fn next(&mut self, allowed: u32) -> Option<Next> {
        if self.flying >= allowed {
            return None;
        }
        while let Some(unit) = self.repeats.pop_front() {
            if let Some(entry) = self.entry(unit)
                && entry.state == State::Lost
            {
                return Some(Next {
                    unit,
                    slot: entry.slot,
                    bulk: entry.bulk,
                    repeat: true,
                });
            }
        }
        let (slot, bulk) = match self.small.pop_front() {
            Some(slot) => (slot, false),
            None => (self.bulk.pop_front()?, true),
        };
        let unit = self.base + self.units.len() as u64;
        self.units.push_back(Unit {
            slot,
            state: State::Lost,
            sent_at: Instant(0),
            bulk,
            lane: None,
        });
        Some(Next {
            unit,
            slot,
            bulk,
            repeat: false,
        })
    }

    /// Notes that a unit left as this flight.
    pub(crate) fn sent(&mut self, unit: u64, flight: Flight, now: Instant) {
        if let Some(entry) = self.entry_mut(unit)
            && entry.state == State::Lost
        {
            entry.state = State::Flying(flight);
            entry.lane = Some(flight.lane);
            entry.sent_at = now;
            self.flying += 1;
        }
    }

    /// Notes an arrival; returns the slot that is free now.
    pub(crate) fn arrived(&mut self, unit: u64) -> Option<Slot> {
        let entry = self.entry_mut(unit)?;
        let before = entry.state;
        if before == State::Arrived {
            return None;
        }
        entry.state = State::Arrived;
        let slot = entry.slot;
        self.arrivals += 1;
        if matches!(before, State::Flying(_)) {
            self.flying -= 1;
        }
        while let Some(front) = self.units.front()
            && front.state == State::Arrived
        {
            self.units.pop_front();
            self.base += 1;
        }
        Some(slot)
    }

    /// The lowest unit that has not arrived, or will be sent next.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The number the next new unit will get.
    pub(crate) fn top(&self) -> u64 {
        self.base + self.units.len() as u64
    }

    /// True if this flight is the latest of a unit that has not arrived.
    pub(crate) fn is_current(&self, unit: u64, flight: Flight) -> bool {
        self.entry(unit)
            .is_some_and(|entry| entry.state == State::Flying(flight))
    }

    /// Notes that a flight was lost; true if the unit will be repeated for it.
    /// An older flight of a unit says nothing about its latest.
    pub(crate) fn lost(&mut self, unit: u64, flight: Flight) -> bool {
        if !self.is_current(unit, flight) {
            return false;
        }
        self.repeat(unit);
        true
    }

    /// When the given unit last left.
    pub(crate) fn sent_at(&self, unit: u64) -> Option<Instant> {
        self.entry(unit).map(|entry| entry.sent_at)
    }

    /// First and last unit in flight, for a tail that may be lost (thesis §5.2).
    pub(crate) fn first_and_last_flying(&self) -> Option<(u64, u64)> {
        let flying = |entry: &Unit| matches!(entry.state, State::Flying(_));
        let first = self.units.iter().position(flying)? as u64;
        let last = self.units.iter().rposition(flying)? as u64;
        Some((self.base + first, self.base + last))
    }

    /// The lane of a unit's latest flight.
    pub(crate) fn lane_of(&self, unit: u64) -> Option<u8> {
        match self.entry(unit)?.state {
            State::Flying(flight) => Some(flight.lane),
            State::Lost | State::Arrived => None,
        }
    }

    /// Lane of the last flight of the oldest unit that has not arrived.
    pub(crate) fn oldest_lane(&self) -> Option<u8> {
        self.units
            .iter()
            .find(|unit| unit.state != State::Arrived)?
            .lane
    }

    /// Queues a flying unit for repetition.
    pub(crate) fn repeat(&mut self, unit: u64) {
        if let Some(entry) = self.entry_mut(unit)
            && matches!(entry.state, State::Flying(_))
        {
            entry.state = State::Lost;
            self.flying -= 1;
            self.repeats.push_back(unit);
        }
    }

    /// Hands every unit that flies on a dead lane to the others; how many.
    pub(crate) fn abandon_lane(&mut self, lane: u8) -> usize {
        let units: Vec<u64> = (self.base..self.top())
            .filter(|unit| self.lane_of(*unit) == Some(lane))
            .collect();
        for unit in &units {
            self.repeat(*unit);
        }
        units.len()
    }

    /// Empties the window; returns every slot it held.
    pub(crate) fn clear(&mut self) -> Vec<Slot> {
        let held = self
            .units
            .iter()
            .filter(|entry| entry.state != State::Arrived)
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

    /// The units in the window, for [`View`](crate::View).
    pub(crate) fn view(&self) -> impl Iterator<Item = UnitView> + '_ {
        self.units.iter().map(|unit| UnitView {
            slot: unit.slot,
            bulk: unit.bulk,
            state: match unit.state {
                State::Flying(flight) => UnitState::Flying {
                    lane: flight.lane,
                    number: flight.number,
                },
                State::Lost => UnitState::Lost,
                State::Arrived => UnitState::Arrived,
            },
            sent_at: unit.sent_at,
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
mod tests {
    use super::*;

    const NOW: Instant = Instant(7);

    fn flight(number: u64) -> Flight {
        Flight { lane: 0, number }
    }

    fn window_with_flying(count: u32) -> SendWindow {
        let mut window = SendWindow::default();
        for slot in 0..count {
            window.queue(slot, true);
            let next = window.next(u32::MAX).expect("queued");
            window.sent(next.unit, flight(u64::from(slot)), NOW);
        }
        window
    }

    #[test]
    fn small_units_overtake_bulk_and_repeats_overtake_both() {
        let mut window = window_with_flying(2);
        window.queue(10, true);
        window.queue(11, false);
        assert!(window.lost(1, flight(1)));
        let order: Vec<Slot> = core::iter::from_fn(|| {
            let next = window.next(10)?;
            window.sent(next.unit, flight(100 + next.unit), NOW);
            Some(next.slot)
        })
        .collect();
        assert_eq!(order, [1, 11, 10]);
    }

    #[test]
    fn an_older_flight_does_not_repeat_its_unit_again() {
        let mut window = window_with_flying(1);
        assert!(window.lost(0, flight(0)));
        assert!(!window.lost(0, flight(0)));
        let next = window.next(1).expect("lost");
        window.sent(next.unit, flight(1), NOW);
        assert!(!window.lost(0, flight(0)));
        assert!(window.lost(0, flight(1)));
    }

    #[test]
    fn arrivals_free_slots_once_in_any_order() {
        let mut window = window_with_flying(3);
        assert_eq!(window.arrived(2), Some(2));
        assert_eq!(window.arrived(2), None);
        assert_eq!(window.base(), 0);
        assert_eq!(window.arrived(0), Some(0));
        assert_eq!(window.arrived(1), Some(1));
        assert_eq!((window.base(), window.flying()), (3, 0));
        assert!(window.is_empty());
    }

    #[test]
    fn no_more_fly_than_allowed() {
        let mut window = window_with_flying(2);
        window.queue(9, false);
        assert_eq!(window.next(2), None);
        assert!(window.next(3).is_some());
    }

    #[test]
    fn a_cleared_window_gives_back_exactly_what_it_held() {
        let mut window = window_with_flying(3);
        window.arrived(1);
        window.queue(7, true);
        let mut slots = window.clear();
        slots.sort_unstable();
        assert_eq!(slots, [0, 2, 7]);
        assert!(window.is_empty());
    }
}
