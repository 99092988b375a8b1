//! Duplicate detection for packets that are not retransmitted. Spec §5.7.

use serde::{Deserialize, Serialize};

const WORDS: usize = 4;
const BITS: u64 = 64 * WORDS as u64;

/// The numbers seen, within 256 below the highest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Replay {
    top: u64,
    seen: [u64; WORDS],
}

impl Replay {
    pub(crate) fn starting_at(first: u64) -> Replay {
        Replay {
            top: first,
            seen: [0; WORDS],
        }
    }

    /// The number after the highest seen.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// Records a number. Returns false if it was seen before or is too old to know.
    pub(crate) fn record(&mut self, number: u64) -> bool {
        if number >= self.top {
            let steps = number + 1 - self.top;
            for passed in 0..steps.min(BITS) {
                self.clear(self.top + passed);
            }
            self.top = number + 1;
        } else if self.top - number > BITS || self.bit(number) {
            return false;
        }
        let (word, mask) = Self::position(number);
        self.seen[word] |= mask;
        true
    }

    /// True if [`record`](Self::record) would return false.
    pub(crate) fn is_known(&self, number: u64) -> bool {
        number < self.top && (self.top - number > BITS || self.bit(number))
    }

    fn bit(&self, number: u64) -> bool {
        let (word, mask) = Self::position(number);
        self.seen[word] & mask != 0
    }

    fn clear(&mut self, number: u64) {
        let (word, mask) = Self::position(number);
        self.seen[word] &= !mask;
    }

    fn position(number: u64) -> (usize, u64) {
        let bit = number % BITS;
        ((bit / 64) as usize & (WORDS - 1), 1 << (bit % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_number_is_accepted_twice_and_recent_ones_are_accepted_once(
            numbers in proptest::collection::vec(0_u64..600, 0..400)
        ) {
            let mut replay = Replay::default();
            let mut seen = std::collections::BTreeSet::new();
            let mut top = 0;
            for number in numbers {
                let passed = replay.record(number);
                let recent = number + BITS >= top;
                proptest::prop_assert_eq!(passed, recent && !seen.contains(&number));
                if passed { seen.insert(number); }
                top = top.max(number + 1);
            }
        }
    }
}
