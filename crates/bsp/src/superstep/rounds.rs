//! The end of a superstep as a reduction: in round k, node i sends node i + 2^k all it knows.
//!
//! After ceil(log2 n) rounds every node knows everything, and therefore that every other node has
//! arrived, so the reduction is also the barrier. It works for any number of nodes, because merging
//! the same summary twice has no effect.
//!
//! # Source
//! BSP §5.1; dissemination as in Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988).

/// One node's part in the rounds of a superstep.
#[derive(Clone, Debug)]
pub struct Rounds {
    own: usize,
    nodes: usize,
    round: usize,
    /// Summaries received for rounds that have not ended, by round.
    received: Vec<Option<Vec<u8>>>,
}

/// Number of rounds for `nodes` nodes.
#[must_use]
pub fn count(nodes: usize) -> usize {
    nodes.next_power_of_two().trailing_zeros() as usize
}

impl Rounds {
    /// The part of node `own` of `nodes`.
    #[must_use]
    pub fn new(own: usize, nodes: usize) -> Rounds {
        Rounds {
            own,
            nodes,
            round: 0,
            received: vec![None; count(nodes)],
        }
    }

    /// Begins the next superstep.
    pub fn clear(&mut self) {
        self.round = 0;
        self.received.fill(None);
    }

    /// Returns the current round.
    #[must_use]
    pub fn current(&self) -> usize {
        self.round
    }

    /// True once all rounds have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.round == self.received.len()
    }

    /// The node that this one sends to in a round.
    #[must_use]
    pub fn to(&self, round: usize) -> usize {
        (self.own + (1 << round)) % self.nodes
    }

    /// The node that this one receives from in a round.
    #[must_use]
    pub fn from(&self, round: usize) -> usize {
        (self.own + self.nodes - (1 << round)) % self.nodes
    }

    /// Accepts the summary that a node sends in a round. Returns `None` if another node was due, or the
    /// summary is already there.
    pub fn accept(&mut self, round: usize, from: usize, summary: &[u8]) -> Option<()> {
        let is_due = round >= self.round && round < self.received.len() && from == self.from(round);
        let slot = self.received.get_mut(round).filter(|_| is_due)?;
        if slot.is_some() {
            return None;
        }
        *slot = Some(summary.to_vec());
        Some(())
    }

    /// Takes the summary of the current round, and ends the round.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        let summary = self.received.get_mut(self.round)?.take()?;
        self.round += 1;
        Some(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_knows_everything_after_all_rounds() {
        for nodes in 1..40 {
            let mut parts: Vec<_> = (0..nodes).map(|own| Rounds::new(own, nodes)).collect();
            let mut known: Vec<u64> = (0..nodes).map(|own| 1 << own).collect();
            for round in 0..count(nodes) {
                let before = known.clone();
                for (own, summary) in before.iter().enumerate() {
                    let to = parts[own].to(round);
                    let bytes = summary.to_le_bytes();
                    assert_eq!(parts[to].accept(round, own, &bytes), Some(()));
                    assert_eq!(parts[to].accept(round, own, &bytes), None, "twice");
                }
                for (part, known) in parts.iter_mut().zip(&mut known) {
                    let received = part.finish().expect("the round's summary");
                    *known |= u64::from_le_bytes(received.try_into().expect("eight bytes"));
                }
            }
            assert!(parts.iter().all(Rounds::is_over));
            assert!(
                known.iter().all(|known| *known == (1 << nodes) - 1),
                "{nodes}"
            );
        }
    }

    #[test]
    fn only_the_right_node_is_accepted_and_only_in_existing_rounds() {
        let mut part = Rounds::new(0, 5);
        assert_eq!(part.accept(0, 3, &[]), None);
        assert_eq!(part.accept(3, 4, &[]), None);
        assert_eq!(part.accept(1, 3, &[]), Some(()), "ahead of its round");
        assert_eq!(part.finish(), None);
        assert_eq!(part.accept(0, 4, &[]), Some(()));
        assert!(part.finish().is_some() && part.finish().is_some());
        assert_eq!(part.accept(0, 4, &[]), None, "over");
    }
}
