//! Which testbed is wanted.

use crate::error::TestbedError;
use crate::fault::Faults;
use crate::offload::Offloads;
use crate::testbed::Testbed;

/// The last byte of an address counts the nodes.
const MOST_NODES: u32 = 250;
/// The second byte of an address counts the networks.
const MOST_NETWORKS: u32 = 8;
/// More than an interface here has use for.
const MOST_QUEUES: u32 = 64;
/// What IPv4 needs, and what a TAP device takes.
const MTU_BYTES: std::ops::RangeInclusive<u32> = 576..=65_000;
/// A terabit; the shaper counts further, but not by much.
const MOST_RATE_MBIT: u64 = 1_000_000;
/// A small switch has a few hundred kilobytes for all its ports.
const QUEUE_BYTES: u32 = 128 << 10;

/// A testbed to be made: two nodes on one fast network, unless said otherwise.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) nodes: u32,
    pub(crate) networks: u32,
    pub(crate) mtu: u32,
    pub(crate) slots: u32,
    pub(crate) queues: u32,
    pub(crate) rate_mbit: Option<u64>,
    queue_bytes: Option<u32>,
    offloads: Option<Offloads>,
    pub(crate) faults: Option<Faults>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: 2,
            networks: 1,
            mtu: 1500,
            slots: 1,
            queues: 1,
            rate_mbit: None,
            queue_bytes: None,
            offloads: None,
            faults: None,
        }
    }
}

impl Builder {
    /// How many nodes, up to 250.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// How many networks, up to 8. Every node has an interface on each: `net0`, `net1`, ...
    #[must_use]
    pub fn networks(mut self, networks: u32) -> Self {
        self.networks = networks;
        self
    }

    /// The largest IP packet in bytes; 1500 unless said otherwise.
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }

    /// What the hosts file says about ranks per node.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// How many queues an interface has for each direction, up to 64; 1 unless said otherwise.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// How fast an interface and a port of the switch send, in 10^6 bits per second.
    #[must_use]
    pub fn rate_mbit(mut self, rate: u64) -> Self {
        self.rate_mbit = Some(rate);
        self
    }

    /// What waits at most at a port of the switch; 128 KiB unless said otherwise. Needs a rate.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: u32) -> Self {
        self.queue_bytes = Some(bytes);
        self
    }

    /// What interfaces join and cut; off where there is a rate or faults, else on.
    #[must_use]
    pub fn offloads(mut self, offloads: Offloads) -> Self {
        self.offloads = Some(offloads);
        self
    }

    /// A switch that does harm, on every network.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Makes the testbed, after sweeping what killed processes have left of theirs.
    ///
    /// # Errors
    /// - [`TestbedError::Refused`]: a number is out of its range, or two wishes do not go together.
    /// - Else whatever failed; what had been made is gone again.
    pub fn build(self) -> Result<Testbed, TestbedError> {
        self.check()?;
        Testbed::make(self)
    }

    pub(crate) fn offloads_in_force(&self) -> Offloads {
        let harmed = self.rate_mbit.is_some() || self.faults.is_some();
        let fitting = if harmed { Offloads::Off } else { Offloads::On };
        self.offloads.unwrap_or(fitting)
    }

    pub(crate) fn queue_in_force(&self) -> u64 {
        self.queue_bytes.unwrap_or(QUEUE_BYTES).into()
    }

    fn check(&self) -> Result<(), TestbedError> {
        let refused = |why: String| Err(TestbedError::Refused { why });
        for (count, most, what) in [
            (self.nodes, MOST_NODES, "nodes"),
            (self.networks, MOST_NETWORKS, "networks"),
            (self.queues, MOST_QUEUES, "queues of an interface"),
        ] {
            if !(1..=most).contains(&count) {
                return refused(format!("{count} {what}; there may be 1 to {most}"));
            }
        }
        if !MTU_BYTES.contains(&self.mtu) {
            return refused(format!(
                "an MTU of {} bytes; from {} to {} will do",
                self.mtu,
                MTU_BYTES.start(),
                MTU_BYTES.end()
            ));
        }
        if let Some(rate) = self.rate_mbit
            && !(1..=MOST_RATE_MBIT).contains(&rate)
        {
            return refused(format!("{rate} Mbit/s; from 1 to {MOST_RATE_MBIT} will do"));
        }
        if self.queue_bytes.is_some() && self.rate_mbit.is_none() {
            return refused("a queue without a rate; nothing waits there, give a rate too".into());
        }
        if self.faults.is_some() && self.queues > 1 {
            return refused(
                "queues of an interface at a switch that does harm; its TAP has one".into(),
            );
        }
        if self.faults.is_some() && self.queue_bytes.is_some() {
            return refused(
                "a queue at a switch that does harm; it has none, only interfaces are shaped"
                    .into(),
            );
        }
        match (self.faults, self.offloads_in_force()) {
            (None, _) => Ok(()),
            (Some(faults), Offloads::Off) => faults.check(),
            (Some(_), other) => refused(format!(
                "faults with offloads {other:?}; a TAP device joins nothing, leave them Off"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_together_is_refused_with_the_reason() {
        let harm = Faults::default();
        for (builder, why) in [
            (Builder::default().nodes(0), "0 nodes"),
            (Builder::default().nodes(251), "1 to 250"),
            (Builder::default().networks(9), "1 to 8"),
            (Builder::default().mtu(100), "576"),
            (Builder::default().rate_mbit(0), "0 Mbit/s"),
            (Builder::default().queue_bytes(1), "give a rate"),
            (Builder::default().queues(0), "1 to 64"),
            (Builder::default().faults(harm).queues(2), "TAP"),
            (
                Builder::default().faults(harm).offloads(Offloads::On),
                "leave them Off",
            ),
            (
                Builder::default().faults(harm).rate_mbit(1).queue_bytes(9),
                "only interfaces",
            ),
        ] {
            let message = builder.check().unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn offloads_are_off_where_they_would_hide_what_is_tried() {
        assert_eq!(Builder::default().offloads_in_force(), Offloads::On);
        assert_eq!(
            Builder::default().rate_mbit(10).offloads_in_force(),
            Offloads::Off
        );
        let harmed = Builder::default().faults(Faults::default());
        assert_eq!(harmed.offloads_in_force(), Offloads::Off);
        assert!(harmed.check().is_ok());
    }
}
