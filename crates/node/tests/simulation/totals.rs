//! Totals over all seeds, which also show that every kind of fault occurs.

use dipole_link::sim::{self, NetworkStats};
use dipole_node::GoneReason;
use dipole_proto::{DropReason, Stats};

/// Why a peer is gone.
const GONE_REASONS: [&str; 6] = [
    "silent",
    "closed",
    "restarted",
    "reset",
    "died",
    "misbehaved",
];

/// Event counts of one or more runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub runs: u64,
    pub virtual_ms: u64,
    pub accepted: u64,
    pub read: u64,
    pub read_at_once: u64,
    pub read_in_place: u64,
    pub read_into: u64,
    pub shared: u64,
    pub bytes_read: u64,
    pub oversize: u64,
    pub operations: u64,
    pub notices: u64,
    pub unreliable_accepted: u64,
    pub unreliable_read: u64,
    pub cancelled: u64,
    pub memory_full: u64,
    pub edges_closed: u64,
    pub told_refused: u64,
    pub told_gone: u64,
    pub sessions_gone: [u64; GONE_REASONS.len()],
    pub crashes: u64,
    pub goodbyes: u64,
    pub pauses: u64,
    pub stuck: u64,
    pub stopped: u64,
    pub jumps: u64,
    pub withdrawals: u64,
    pub partitions: u64,
    pub interfaces: u64,
    pub followed: u64,
    pub networks: u64,
    pub narrowings: u64,
    pub probes: u64,
    pub endpoint_changes: u64,
    pub packets: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    pub joined: u64,
    pub lost: [u64; sim::DropReason::ALL.len()],
    pub units: u64,
    pub repeats: u64,
    pub tail_repeats: u64,
    pub acks: u64,
    pub ack_requests: u64,
    pub lanes_lost: u64,
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Totals {
    pub fn add_network(&mut self, stats: &NetworkStats) {
        self.packets += stats.sent;
        self.duplicated += stats.duplicated;
        self.reordered += stats.reordered;
        self.corrupted += stats.corrupted;
        self.joined += stats.joined;
        for (sum, reason) in self.lost.iter_mut().zip(sim::DropReason::ALL) {
            *sum += stats.dropped(reason);
        }
    }

    pub fn add_machine(&mut self, stats: &Stats) {
        self.units += stats.units_sent;
        self.repeats += stats.repeats;
        self.tail_repeats += stats.tail_repeats;
        self.acks += stats.explicit_acks;
        self.ack_requests += stats.ack_requests;
        self.lanes_lost += stats.lanes_lost;
        self.probes += stats.probes;
        for (sum, (_, count)) in self.dropped.iter_mut().zip(stats.drops()) {
            *sum += count;
        }
    }

    pub fn add_gone(&mut self, reason: GoneReason) {
        let index = match reason {
            GoneReason::Silent | GoneReason::Unreachable => 0,
            GoneReason::Closed => 1,
            GoneReason::Restarted => 2,
            GoneReason::Reset(_) => 3,
            GoneReason::Died => 4,
            GoneReason::ProtocolViolation => 5,
            GoneReason::NoDescriptors | GoneReason::NoDescriptorsAtPeer => {
                unreachable!("the simulated memory has no descriptors")
            }
            GoneReason::Key(_) => unreachable!("all take both keys"),
        };
        self.sessions_gone[index] += 1;
    }

    /// Frames lost individually, by chance.
    pub fn lost_by_chance(&self) -> u64 {
        self.lost[sim::DropReason::Loss as usize]
    }

    pub fn add(&mut self, other: &Totals) {
        let mut mine = self.numbers();
        for (sum, (_, value)) in mine.iter_mut().zip(other.clone().numbers()) {
            *sum.1 += *value;
        }
    }

    /// All counts with names.
    fn numbers(&mut self) -> Vec<(String, &mut u64)> {
        let mut all: Vec<(String, &mut u64)> = Vec::new();
        macro_rules! plain {
            ($($field:ident),* $(,)?) => {
                $( all.push((stringify!($field).replace('_', " "), &mut self.$field)); )*
            };
        }
        plain!(
            runs,
            virtual_ms,
            accepted,
            read,
            read_at_once,
            read_in_place,
            read_into,
            shared,
            bytes_read,
            oversize,
            operations,
            notices,
            unreliable_accepted,
            unreliable_read,
            cancelled,
            memory_full,
            edges_closed,
            told_refused,
            told_gone,
            crashes,
            goodbyes,
            pauses,
            stuck,
            stopped,
            jumps,
            withdrawals,
            partitions,
            interfaces,
            followed,
            networks,
            narrowings,
            probes,
            endpoint_changes,
            packets,
            duplicated,
            reordered,
            corrupted,
            joined,
            units,
            repeats,
            tail_repeats,
            acks,
            ack_requests,
            lanes_lost,
        );
        for (name, value) in GONE_REASONS.iter().zip(&mut self.sessions_gone) {
            all.push((format!("gone {name}"), value));
        }
        for (reason, value) in sim::DropReason::ALL.iter().zip(&mut self.lost) {
            all.push((format!("lost {reason:?}"), value));
        }
        for (reason, value) in DropReason::ALL.iter().zip(&mut self.dropped) {
            all.push((format!("dropped {}", reason.name()), value));
        }
        all
    }

    /// Names of the counts that are zero.
    pub fn missing(&self) -> Vec<String> {
        let mut copy = self.clone();
        let numbers = copy.numbers();
        numbers
            .into_iter()
            .filter(|(_, value)| **value == 0)
            .map(|(name, _)| name)
            .collect()
    }

    /// All counts, a few per line.
    pub fn report(&self) -> String {
        let mut copy = self.clone();
        let texts: Vec<String> = copy
            .numbers()
            .into_iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let lines: Vec<String> = texts.chunks(6).map(|chunk| chunk.join(" · ")).collect();
        lines.join("\n")
    }
}
