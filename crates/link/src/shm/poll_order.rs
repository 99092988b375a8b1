//! Selects the connections that a poll checks: recently active ones each time, the others in turn.

/// Inactive connections polled per round.
const OTHERS_PER_ROUND: usize = 8;
/// Maximum number of active connections.
const MAX_ACTIVE: usize = 64;
/// Polls of the active connections between two rounds over inactive ones.
const POLLS_PER_ROUND: u32 = 32;

/// Indices of active connections, and the position among the others.
#[derive(Debug, Default)]
pub(super) struct PollOrder {
    /// Each at most once, the least recently added first.
    active: Vec<u32>,
    next_other: usize,
    polls: u32,
}

impl PollOrder {
    /// Number of active connections.
    #[inline]
    pub(super) fn active_len(&self) -> usize {
        self.active.len()
    }

    /// The `at`-th active connection.
    #[inline]
    pub(super) fn active(&self, at: usize) -> usize {
        self.active[at] as usize
    }

    /// Counts a poll; true if inactive connections are due.
    #[inline]
    pub(super) fn is_round_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(POLLS_PER_ROUND) || self.active.is_empty()
    }

    /// Number of inactive connections to try in a round, of `slots` in all.
    pub(super) fn round_len(slots: usize) -> usize {
        OTHERS_PER_ROUND.min(slots)
    }

    /// The next connection of a round; `None` if it is active and was polled already.
    pub(super) fn next_other(&mut self, slots: usize) -> Option<u32> {
        self.next_other = (self.next_other + 1) % slots;
        let index = u32::try_from(self.next_other).unwrap_or(u32::MAX);
        (!self.active.contains(&index)).then_some(index)
    }

    /// Polls a connection each time from now on, instead of the one active for longest if there are
    /// too many.
    pub(super) fn set_active(&mut self, index: u32) {
        if self.active.contains(&index) {
            return;
        }
        if self.active.len() >= MAX_ACTIVE {
            self.active.remove(0);
        }
        self.active.push(index);
    }

    /// Forgets a closed connection.
    pub(super) fn remove(&mut self, index: u32) {
        self.active.retain(|active| *active != index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_is_active_for_longest_makes_room_and_rounds_skip_active_ones() {
        let mut order = PollOrder::default();
        assert!(order.is_round_due(), "none is active");
        for index in 0..=u32::try_from(MAX_ACTIVE).expect("few") {
            order.set_active(index);
            order.set_active(index);
        }
        assert_eq!((order.active_len(), order.active(0)), (MAX_ACTIVE, 1));
        order.remove(1);
        assert_eq!(order.active(0), 2);
        let slots = MAX_ACTIVE + 1;
        let others: Vec<u32> = (0..slots).filter_map(|_| order.next_other(slots)).collect();
        assert_eq!(others, [1, 0]);
    }
}
