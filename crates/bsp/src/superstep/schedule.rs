//! The order in which a process sends to the others in a superstep.
//!
//! All processes begin to send after the barrier. If all sent to process 0 first, then to process 1,
//! the link of one receiver would be overloaded while the others idle. In a Latin square no process
//! receives from two others in the same round. Thesis §5.1, table 6.8.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// An order of destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In each round every process sends to one process and receives from one: first its successor,
    /// then the one after that, and so on.
    LatinSquare,
    /// Every process draws its own order, so in a round some receive from several processes and some
    /// from none. The seed is common to all.
    Random {
        /// The seed of all orders.
        seed: u64,
    },
    /// 0, 1, 2, ... on all processes, for comparison.
    Naive,
}

impl Order {
    /// The destinations of process `rank` of `processes`, round by round: every other process once.
    #[must_use]
    pub fn destinations(self, rank: usize, processes: usize) -> Vec<usize> {
        let mut others: Vec<usize> = (1..processes)
            .map(|distance| (rank + distance) % processes)
            .collect();
        match self {
            Order::LatinSquare => {}
            Order::Naive => others.sort_unstable(),
            Order::Random { seed } => {
                let mut rng = StdRng::seed_from_u64(seed);
                let own: u64 = rng.random();
                others.shuffle(&mut StdRng::seed_from_u64(own ^ rank as u64));
            }
        }
        others
    }
}

/// Chooses destinations in turn, among those for which something is left.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    destinations: Vec<usize>,
    next: usize,
}

impl RoundRobin {
    /// The turns of process `rank` of `processes`.
    #[must_use]
    pub fn new(order: Order, rank: usize, processes: usize) -> RoundRobin {
        RoundRobin {
            destinations: order.destinations(rank, processes),
            next: 0,
        }
    }

    /// The next destination for which something is left.
    pub fn next(&mut self, is_left: impl Fn(usize) -> bool) -> Option<usize> {
        let count = self.destinations.len();
        let turn = (0..count)
            .map(|turn| (self.next + turn) % count)
            .find(|&turn| is_left(self.destinations[turn]))?;
        self.next = (turn + 1) % count;
        Some(self.destinations[turn])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ORDERS: [Order; 3] = [Order::LatinSquare, Order::Random { seed: 7 }, Order::Naive];

    #[test]
    fn every_order_reaches_every_other_process_once() {
        for order in ORDERS {
            for processes in 1..20 {
                for rank in 0..processes {
                    let own = order.destinations(rank, processes);
                    assert_eq!(own.len(), processes - 1);
                    let mut all: BTreeSet<usize> = own.into_iter().collect();
                    assert!(all.insert(rank), "{order:?}: {rank} sends to itself");
                    assert_eq!(all, (0..processes).collect(), "{order:?}");
                }
            }
        }
    }

    #[test]
    fn in_a_round_of_the_latin_square_each_process_receives_from_exactly_one() {
        for processes in 2..40 {
            let of = |rank| Order::LatinSquare.destinations(rank, processes);
            let all: Vec<Vec<usize>> = (0..processes).map(of).collect();
            for round in 0..processes - 1 {
                let receivers: BTreeSet<usize> = all.iter().map(|own| own[round]).collect();
                assert_eq!(receivers.len(), processes, "round {round} of {processes}");
            }
        }
    }

    #[test]
    fn random_orders_are_repeatable_and_differ_between_processes_and_seeds() {
        let of = |seed, rank| Order::Random { seed }.destinations(rank, 16);
        assert_eq!(of(1, 3), of(1, 3));
        assert_ne!(of(1, 3), of(2, 3));
        let distances = |rank: usize| -> Vec<usize> {
            let own = of(1, rank).into_iter();
            own.map(|to| (to + 16 - rank) % 16).collect()
        };
        assert_ne!(distances(3), distances(4));
    }

    #[test]
    fn destinations_with_nothing_left_are_skipped() {
        let mut left = [0, 0, 1, 3, 2];
        let mut turns = RoundRobin::new(Order::LatinSquare, 0, left.len());
        let mut taken = Vec::new();
        while let Some(to) = turns.next(|to| left[to] > 0) {
            left[to] -= 1;
            taken.push(to);
        }
        assert_eq!(taken, [2, 3, 4, 3, 4, 3]);
        assert_eq!(
            RoundRobin::new(Order::LatinSquare, 0, 1).next(|_| true),
            None
        );
    }
}
