//! Communication patterns of supersteps. `peers/superstep.c` has the same.

/// Communication pattern of a superstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// No rank sends.
    Nothing,
    /// Each rank sends 8 bytes to the next.
    Word,
    /// Each rank sends to all others.
    Exchange,
    /// All ranks send to rank 0.
    Gather,
    /// Rank 0 sends to all.
    Scatter,
    /// Random, different in each superstep.
    Random,
}

/// The relation of superstep number `step` with this pattern and h.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relation {
    pub(crate) pattern: Pattern,
    pub(crate) h: usize,
    pub(crate) size: u32,
}

impl Relation {
    /// Returns the most bytes that one rank sends to another: the distance of their slots.
    pub(crate) fn slot(&self) -> usize {
        match self.pattern {
            Pattern::Word => 8,
            Pattern::Random => 2 * self.h / self.size as usize,
            _ => self.h / (self.size as usize - 1).max(1),
        }
    }

    /// Returns the bytes that `from` sends to `to`. A single rank sends to itself.
    pub(crate) fn bytes(&self, step: u64, from: u32, to: u32) -> usize {
        if from == to && self.size > 1 {
            return 0;
        }
        let only = |is_meant: bool| if is_meant { self.slot() } else { 0 };
        match self.pattern {
            Pattern::Nothing => 0,
            Pattern::Word => only(to == (from + 1) % self.size),
            Pattern::Exchange => self.slot(),
            Pattern::Gather => only(to == 0),
            Pattern::Scatter => only(from == 0),
            Pattern::Random => {
                let size = u64::from(self.size);
                let number = (step * size + u64::from(from)) * size + u64::from(to);
                let bytes = mixed(number) % (self.slot() as u64).max(1);
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
        }
    }

    /// Returns the most bytes that a rank sends or receives.
    pub(crate) fn h(&self, step: u64) -> usize {
        let sums = (0..self.size).map(|one| {
            let of = |way: &dyn Fn(u32) -> usize| (0..self.size).map(way).sum::<usize>();
            let sent = of(&|other| self.bytes(step, one, other));
            sent.max(of(&|other| self.bytes(step, other, one)))
        });
        sums.max().unwrap_or(0)
    }
}

/// Returns the n-th number of a random sequence that is the same in all ranks (SplitMix64).
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(pattern: Pattern, size: u32) -> Relation {
        let h = 1 << 20;
        Relation { pattern, h, size }
    }

    #[test]
    fn h_is_the_most_that_a_rank_sends_or_receives() {
        for pattern in [Pattern::Exchange, Pattern::Gather, Pattern::Scatter] {
            for size in [2, 5] {
                assert_eq!(
                    relation(pattern, size).h(3),
                    1 << 20,
                    "{pattern:?} of {size}"
                );
            }
        }
        assert_eq!(relation(Pattern::Nothing, 4).h(0), 0);
        assert_eq!(relation(Pattern::Word, 4).h(0), 8);
        assert_eq!(relation(Pattern::Exchange, 1).h(0), 1 << 20);
    }

    #[test]
    fn random_relations_differ_from_step_to_step_are_skewed_and_stay_in_their_slots() {
        let random = relation(Pattern::Random, 4);
        let all: Vec<usize> = (0..50).map(|step| random.h(step)).collect();
        let mean = all.iter().sum::<usize>() / all.len();
        assert!((1 << 19..1 << 21).contains(&mean), "{mean}");
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
        for step in 0..50 {
            for (from, to) in [(0, 1), (3, 2), (2, 0)] {
                assert!(random.bytes(step, from, to) < random.slot());
            }
        }
    }
}
