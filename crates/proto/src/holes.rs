//! Tracks the numbers of a sequence that have arrived, and those that are missing.
//!
//! [`Holes`] is a sorted list of missing ranges below the highest arrival. Lanes use it for packet
//! numbers, sessions for units. It keeps at most [`MAX_HOLES`] ranges: an arrival that would open
//! another one is refused, and the sender retransmits it. Spec §5.1.

use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};

/// Most holes of a sequence.
pub const MAX_HOLES: usize = 256;

/// A range of missing numbers, `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hole {
    /// Lowest missing number.
    pub start: u64,
    /// The number after the last missing one.
    pub end: u64,
}

/// How a number relates to the earlier arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The number has not arrived before.
    New,
    /// The number has arrived before.
    Duplicate,
    /// It would open a hole too many, or is too far ahead. It was not recorded.
    Refused,
}

/// The arrivals of one sequence of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holes {
    /// All numbers below have arrived or do not matter any more.
    next: u64,
    /// The number after the highest arrival; equal to `next` if nothing is missing.
    top: u64,
    /// Missing ranges between `next` and `top`, lowest first. The first begins at `next`.
    missing: VecDeque<Hole>,
}

/// The largest distance of a number from `next`.
const HORIZON: u64 = 60_000;

impl Holes {
    /// A sequence that begins with `first`.
    pub(crate) fn starting_at(first: u64) -> Holes {
        Holes {
            next: first,
            top: first,
            missing: VecDeque::new(),
        }
    }

    /// The lowest number that has not arrived.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number after the highest arrival.
    #[must_use]
    pub fn top(&self) -> u64 {
        self.top
    }

    /// True if nothing is missing below the highest arrival.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }

    /// The missing ranges, lowest first.
    pub fn missing(&self) -> impl DoubleEndedIterator<Item = Hole> + '_ {
        self.missing.iter().copied()
    }

    /// Returns the result of [`record`](Self::record) without recording.
    #[must_use]
    pub fn classify(&self, number: u64) -> Arrival {
        if number == self.top {
            return Arrival::New;
        }
        if number > self.top {
            let full = self.missing.len() >= MAX_HOLES;
            return if full || number - self.next > HORIZON {
                Arrival::Refused
            } else {
                Arrival::New
            };
        }
        match self.find(number) {
            None => Arrival::Duplicate,
            Some(index) => {
                let hole = self.missing[index];
                let splits = hole.start != number && hole.end != number + 1;
                if splits && self.missing.len() >= MAX_HOLES {
                    Arrival::Refused
                } else {
                    Arrival::New
                }
            }
        }
    }

    /// True if a number, of which these are the low 32 bits, is the one after the highest arrival.
    #[inline]
    pub(crate) fn expects(&self, low: u32) -> bool {
        widen(low, self.next) == self.top
    }

    /// Records the arrival of the `count` numbers after the highest.
    #[inline]
    pub(crate) fn append(&mut self, count: u32) {
        self.top += u64::from(count);
        if self.missing.is_empty() {
            self.next = self.top;
        }
    }

    /// Records the arrival of a number.
    #[inline]
    pub fn record(&mut self, number: u64) -> Arrival {
        if number == self.top {
            self.append(1);
            return Arrival::New;
        }
        let arrival = self.classify(number);
        if arrival == Arrival::New {
            if number > self.top {
                self.missing.push_back(Hole {
                    start: self.top,
                    end: number,
                });
                self.top = number + 1;
            } else if let Some(index) = self.find(number) {
                self.fill(index, number);
            }
        }
        arrival
    }

    /// Treats all numbers below `floor` as arrived, because the sender does not wait for them any
    /// more.
    pub fn settle(&mut self, floor: u64) {
        if floor <= self.next {
            return;
        }
        while let Some(hole) = self.missing.front_mut() {
            if hole.end <= floor {
                self.missing.pop_front();
            } else {
                hole.start = hole.start.max(floor);
                break;
            }
        }
        self.top = self.top.max(floor);
        self.advance();
    }

    fn fill(&mut self, index: usize, number: u64) {
        let hole = self.missing[index];
        match (hole.start == number, hole.end == number + 1) {
            (true, true) => {
                self.missing.remove(index);
            }
            (true, false) => self.missing[index].start += 1,
            (false, true) => self.missing[index].end -= 1,
            (false, false) => {
                self.missing[index].end = number;
                self.missing.insert(
                    index + 1,
                    Hole {
                        start: number + 1,
                        end: hole.end,
                    },
                );
            }
        }
        self.advance();
    }

    fn advance(&mut self) {
        self.next = self.missing.front().map_or(self.top, |hole| hole.start);
    }

    fn find(&self, number: u64) -> Option<usize> {
        if number < self.next {
            return None;
        }
        let index = self.missing.partition_point(|hole| hole.end <= number);
        let hole = self.missing.get(index)?;
        (hole.start <= number).then_some(index)
    }
}

/// The low 32 bits, which packets and records carry.
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
#[inline]
pub(crate) fn low(number: u64) -> u32 {
    number as u32
}

/// Widens the low 32 bits of a number that is within 2^31 of `near`.
#[must_use]
#[inline]
pub(crate) fn widen(low: u32, near: u64) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "the low 32 bits are meant")]
    let distance = low.wrapping_sub(near as u32).cast_signed();
    near.saturating_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::vec::Vec;

    fn holes_of(arrivals: &[u64]) -> Holes {
        let mut holes = Holes::default();
        for number in arrivals {
            assert_eq!(holes.record(*number), Arrival::New, "{number}");
        }
        holes
    }

    #[test]
    fn the_example_of_the_thesis_has_two_holes() {
        let holes = holes_of(&[0, 1, 4, 5, 6, 9]);
        let missing: Vec<Hole> = holes.missing().collect();
        assert_eq!(
            missing,
            [Hole { start: 2, end: 4 }, Hole { start: 7, end: 9 }]
        );
        assert_eq!((holes.next(), holes.top()), (2, 10));
    }

    #[test]
    fn a_late_packet_fills_its_hole_and_advances_past_later_arrivals() {
        let mut holes = holes_of(&[1, 2, 5]);
        assert_eq!(holes.record(0), Arrival::New);
        assert_eq!(holes.next(), 3);
        assert_eq!(holes.record(0), Arrival::Duplicate);
        assert_eq!(holes.record(4), Arrival::New);
        assert_eq!(holes.record(3), Arrival::New);
        assert!(holes.is_whole());
        assert_eq!(holes.next(), 6);
    }

    #[test]
    fn settled_numbers_are_no_longer_missing() {
        let mut holes = holes_of(&[3, 8]);
        holes.settle(5);
        assert_eq!(holes.next(), 5);
        holes.settle(20);
        assert_eq!((holes.next(), holes.top()), (20, 20));
    }

    #[test]
    fn a_hole_too_many_is_refused_without_effect() {
        let mut holes = Holes::default();
        for index in 0..MAX_HOLES as u64 {
            assert_eq!(holes.record(2 * index + 1), Arrival::New);
        }
        let before = holes.clone();
        assert_eq!(holes.record(2 * MAX_HOLES as u64 + 1), Arrival::Refused);
        assert_eq!(holes, before);
        assert_eq!(holes.record(0), Arrival::New);
    }

    #[test]
    fn numbers_are_widened_across_the_wrap() {
        assert_eq!(widen(2, u64::from(u32::MAX)), 1 << 32 | 2);
        assert_eq!(widen(u32::MAX, 1 << 32), u64::from(u32::MAX));
        assert_eq!(widen(5, 0), 5);
    }

    proptest::proptest! {
        #[test]
        fn any_order_of_arrivals_agrees_with_a_plain_set(
            numbers in proptest::collection::vec(0_u64..200, 0..300)
        ) {
            let mut holes = Holes::default();
            let mut model = std::collections::BTreeSet::new();
            for number in numbers {
                let expected = if model.insert(number) { Arrival::New } else { Arrival::Duplicate };
                proptest::prop_assert_eq!(holes.record(number), expected);
                let next = (0..).find(|n| !model.contains(n)).unwrap_or(0);
                proptest::prop_assert_eq!(holes.next(), next);
                let missing: u64 = holes.missing().map(|hole| hole.end - hole.start).sum();
                proptest::prop_assert_eq!(missing + model.len() as u64, holes.top());
            }
        }
    }
}
