//! The end of a superstep as a reduction: in round k, node i tells node i + 2^k all it knows.
//!
//! After ceil(log2 n) rounds everybody knows everything, and therefore that everybody is there:
//! the reduction is the barrier. It works for any number of nodes, since knowing something twice
//! is no harm.
//!
//! # Source
//! BSP §5.1; dissemination as in Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988).

/// One node's part in the rounds of a superstep.
#[derive(Clone, Debug)]
pub struct Rounds {
    own: usize,
    nodes: usize,
    round: usize,
    /// What came for rounds that have not begun, by round.
    came: Vec<Option<Vec<u8>>>,
}

/// Rounds that `nodes` need.
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
            came: vec![None; count(nodes)],
        }
    }

    /// Begins again.
    pub fn clear(&mut self) {
        self.round = 0;
        self.came.fill(None);
    }

    /// The round that is under way.
    #[must_use]
    pub fn current(&self) -> usize {
        self.round
    }

    /// True when all rounds have been.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.round == self.came.len()
    }

    /// Whom this node tells in a round.
    #[must_use]
    pub fn to(&self, round: usize) -> usize {
        (self.own + (1 << round)) % self.nodes
    }

    /// Who tells this node in a round.
    #[must_use]
    pub fn from(&self, round: usize) -> usize {
        (self.own + self.nodes - (1 << round)) % self.nodes
    }

    /// Takes what a node tells in a round; `None` if it is not the one to tell it, or has already.
    pub fn accept(&mut self, round: usize, from: usize, knowledge: &[u8]) -> Option<()> {
        let is_due = round >= self.round && round < self.came.len() && from == self.from(round);
        let place = self.came.get_mut(round).filter(|_| is_due)?;
        if place.is_some() {
            return None;
        }
        *place = Some(knowledge.to_vec());
        Some(())
    }

    /// What was told in the round under way, which is over then.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        let knowledge = self.came.get_mut(self.round)?.take()?;
        self.round += 1;
        Some(knowledge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_knows_everything_after_all_rounds() {
        for nodes in 1..40 {
            let mut parts: Vec<_> = (0..nodes).map(|own| Rounds::new(own, nodes)).collect();
            let mut known: Vec<u64> = (0..nodes).map(|own| 1 << own).collect();
            for round in 0..count(nodes) {
                let telling = known.clone();
                for (own, knowledge) in telling.iter().enumerate() {
                    let to = parts[own].to(round);
                    let bytes = knowledge.to_le_bytes();
                    assert_eq!(parts[to].accept(round, own, &bytes), Some(()));
                    assert_eq!(parts[to].accept(round, own, &bytes), None, "twice");
                }
                for (part, known) in parts.iter_mut().zip(&mut known) {
                    let told = part.finish().expect("it was told");
                    *known |= u64::from_le_bytes(told.try_into().expect("eight bytes"));
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
    fn only_the_right_node_tells_and_only_in_rounds_there_are() {
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
