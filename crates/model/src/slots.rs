//! Slots in which processes send, as calibrated. The algorithm that uses them is in `dipole-bsp`.
//!
//! # Source
//! `bsp-protocols-thesis`, ch. 4.

use serde::{Deserialize, Serialize};

/// The resource that concurrent senders share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// None: a switch with a full-duplex link to each node. Q = 1.
    Switch,
    /// One medium for all nodes. Q is the number of senders.
    Bus,
}

/// Calibrated slots of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// Payload of a full slot, and so the longest chunk that should be sent in one piece.
    pub bytes: u32,
    /// Duration of a full slot.
    pub epsilon_ns: u64,
    /// The resource that the senders share.
    pub medium: Medium,
}

impl Slots {
    /// Returns the number of slots in a cycle for this number of senders.
    #[must_use]
    pub fn in_cycle(&self, senders: u32) -> u32 {
        let most = match self.medium {
            Medium::Switch => 1,
            Medium::Bus => u32::MAX,
        };
        senders.clamp(1, most)
    }

    /// Returns a suitable `ack_delay_ns` of the protocol for this number of processes: two rounds, in
    /// which each process has a slot for every other, so that acknowledgements travel with data. The
    /// minimum retransmission timeout must be longer, for example twice this.
    #[must_use]
    pub fn acknowledgement_delay_ns(&self, processes: u32) -> u64 {
        let rounds = u64::from(processes).saturating_mul(2);
        self.epsilon_ns.saturating_mul(rounds)
    }

    /// Returns the duration of the slot of a chunk, in proportion to its length.
    #[must_use]
    pub fn epsilon_ns(&self, bytes: usize) -> u64 {
        let full = u128::from(self.bytes.max(1));
        let ns = u128::from(self.epsilon_ns) * bytes as u128 / full;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUS: Slots = Slots {
        bytes: 1000,
        epsilon_ns: 10_000,
        medium: Medium::Bus,
    };

    #[test]
    fn acknowledgements_may_wait_for_two_rounds() {
        assert_eq!(BUS.acknowledgement_delay_ns(8), 160_000);
    }

    #[test]
    fn the_medium_decides_how_many_slots_make_a_cycle() {
        let in_cycle = |medium, senders| Slots { medium, ..BUS }.in_cycle(senders);
        assert_eq!(in_cycle(Medium::Bus, 7), 7);
        assert_eq!(in_cycle(Medium::Switch, 7), 1);
        assert_eq!(in_cycle(Medium::Bus, 0), 1);
    }
}
