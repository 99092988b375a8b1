//! Supersteps of many nodes in virtual time, with the real engine in each node.

use std::time::Instant;

use super::{H_BYTES, Relation as Kind, Sampled};
use crate::cluster::{Cluster, Relation, Setup};
use crate::pacing;
use dipole_bench::machine;
use dipole_bench::statistics::as_float;

/// Supersteps that are not counted, in which receivers measure the capacity of their links.
const LEARNING: usize = 2;
/// Bytes per slot of a switch, and the factor by which it is longer than they need.
const SLOT_BYTES: usize = 16 << 10;
const SLACK: f64 = 1.03;
/// Limit of nodes on a bus, where all nodes share the medium.
const MOST_ON_BUS: usize = 32;
/// Limit of nodes with pacing: with more, a process sends less than a packet per slot.
const MOST_PACED: usize = 32;

/// Network model of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Switch,
    PacedSwitch,
    Bus,
}

impl System {
    pub(super) const ALL: [System; 3] = [System::Switch, System::PacedSwitch, System::Bus];

    pub(super) fn name(self) -> &'static str {
        match self {
            System::Switch => "simulated switch",
            System::PacedSwitch => "simulated switch, paced",
            System::Bus => "simulated bus",
        }
    }

    fn most_nodes(self) -> usize {
        match self {
            System::Switch => usize::MAX,
            System::PacedSwitch => MOST_PACED,
            System::Bus => MOST_ON_BUS,
        }
    }

    /// Returns the setup of a system. `None` if it does not support this many nodes.
    fn setup(self, nodes: usize, seed: u64) -> Option<Setup> {
        let switch = Setup {
            processes: nodes,
            ..pacing::switch()
        };
        let setup = match self {
            System::Switch => switch,
            System::PacedSwitch => pacing::paced(switch, SLOT_BYTES, SLACK),
            System::Bus => pacing::bus(nodes),
        };
        (nodes <= self.most_nodes()).then_some(Setup { seed, ..setup })
    }
}

/// Simulates supersteps. `None` if the system does not support this many nodes.
pub(super) fn supersteps(
    system: System,
    nodes: usize,
    kind: Kind,
    count: usize,
    seed: u64,
) -> Option<Sampled> {
    let begun = Instant::now();
    let mut cluster = Cluster::new(&system.setup(nodes, seed)?);
    let each = H_BYTES / (nodes - 1);
    let mut sampled = Sampled::default();
    for step in 0..count + LEARNING {
        let relation = match kind {
            Kind::TotalExchange => Relation::total_exchange(nodes, each.max(1)),
            Kind::Random => {
                // Half of the pairs send half of the maximum on average, if any sends.
                let drawn = (0_u64..).map(|again| {
                    let seed = seed ^ step as u64 ^ again << 32;
                    Relation::random(nodes, 4 * each.max(1), seed)
                });
                let mut some = drawn.filter(|relation| relation.h() > 0);
                some.next()?
            }
        };
        let exchange = cluster.exchange(&relation);
        if step >= LEARNING {
            sampled.h_bytes.push(as_float(relation.h() as u64));
            sampled.ns.push(as_float(exchange.ns));
            sampled.repeats += exchange.repeats;
            sampled.lost += exchange.lost;
        }
    }
    sampled.simulated_s = Some(begun.elapsed().as_secs_f64());
    sampled.peak_bytes = machine::peak_bytes();
    Some(sampled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_every_superstep() {
        let of = |seed| {
            let sampled = supersteps(System::Switch, 5, Kind::TotalExchange, 4, seed);
            sampled.expect("few nodes").ns
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn what_everybody_hears_has_few_nodes() {
        assert!(supersteps(System::Bus, 33, Kind::Random, 1, 1).is_none());
        assert!(supersteps(System::PacedSwitch, 33, Kind::Random, 1, 1).is_none());
    }
}
