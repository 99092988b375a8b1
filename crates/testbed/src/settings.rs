//! Settings of a testbed and their limits.

use std::path::PathBuf;

use crate::error::TestbedError;
use crate::fault::Faults;
use crate::offload::Offloads;

/// The last byte of an address is the node.
const MOST_NODES: u32 = 250;
/// The second byte of an address is the network.
const MOST_NETWORKS: u32 = 8;
/// More than an interface here can use.
const MOST_QUEUES: u32 = 64;
/// The minimum of IPv4 and the maximum of a TAP device.
const MTU_BYTES: std::ops::RangeInclusive<u32> = 576..=65_000;
/// 1 Tbit/s, close to the limit of the shaper.
const MOST_RATE_MBIT: u64 = 1_000_000;
/// Default queue of a port. A small switch has a few hundred kilobytes for all ports.
const QUEUE_BYTES: u32 = 128 << 10;

/// Settings of a testbed; by default two nodes on one network without a limit.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) nodes: u32,
    pub(crate) networks: u32,
    pub(crate) mtu: u32,
    pub(crate) slots: u32,
    pub(crate) queues: u32,
    pub(crate) rate_mbit: Option<u64>,
    pub(crate) queue_bytes: Option<u32>,
    pub(crate) offloads: Option<Offloads>,
    pub(crate) faults: Option<Faults>,
    /// Parent of the testbed's folder, if namespaces around this process remove everything.
    pub(crate) enclosure: Option<PathBuf>,
}

impl Default for Settings {
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
            enclosure: None,
        }
    }
}

impl Settings {
    pub(crate) fn effective_offloads(&self) -> Offloads {
        let is_shaped = self.rate_mbit.is_some() || self.faults.is_some();
        let default = if is_shaped {
            Offloads::Off
        } else {
            Offloads::On
        };
        self.offloads.unwrap_or(default)
    }

    pub(crate) fn effective_queue_bytes(&self) -> u64 {
        self.queue_bytes.unwrap_or(QUEUE_BYTES).into()
    }

    /// Rejects values out of range and combinations that do not work.
    pub(crate) fn check(&self) -> Result<(), TestbedError> {
        let refused = |why: String| Err(TestbedError::Refused { why });
        for (count, most, what) in [
            (self.nodes, MOST_NODES, "nodes"),
            (self.networks, MOST_NETWORKS, "networks"),
            (self.queues, MOST_QUEUES, "queues of an interface"),
        ] {
            if !(1..=most).contains(&count) {
                return refused(format!("{count} {what}; valid are 1 to {most}"));
            }
        }
        if !MTU_BYTES.contains(&self.mtu) {
            return refused(format!(
                "an MTU of {} bytes; valid are {} to {}",
                self.mtu,
                MTU_BYTES.start(),
                MTU_BYTES.end()
            ));
        }
        if let Some(rate) = self.rate_mbit
            && !(1..=MOST_RATE_MBIT).contains(&rate)
        {
            return refused(format!("{rate} Mbit/s; valid are 1 to {MOST_RATE_MBIT}"));
        }
        if self.queue_bytes.is_some() && self.rate_mbit.is_none() {
            return refused(
                "a queue without a rate, which would stay empty; give a rate too".into(),
            );
        }
        if self.faults.is_some() && self.queues > 1 {
            return refused("several queues and faults; a TAP device has one queue".into());
        }
        if self.faults.is_some() && self.queue_bytes.is_some() {
            return refused(
                "a queue and faults; a switch with faults has no queue, only interfaces are shaped"
                    .into(),
            );
        }
        match (self.faults, self.effective_offloads()) {
            (None, _) => Ok(()),
            (Some(faults), Offloads::Off) => faults.check(),
            (Some(_), other) => refused(format!(
                "faults with offloads {other:?}; a TAP device has none, leave them Off"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    }

    #[test]
    fn invalid_settings_are_rejected_with_the_reason() {
        let faulty = || with(|it| it.faults = Some(Faults::default()));
        let offloads = Some(Offloads::On);
        for (settings, why) in [
            (with(|it| it.nodes = 0), "0 nodes"),
            (with(|it| it.nodes = 251), "1 to 250"),
            (with(|it| it.networks = 9), "1 to 8"),
            (with(|it| it.mtu = 100), "576"),
            (with(|it| it.rate_mbit = Some(0)), "0 Mbit/s"),
            (with(|it| it.queue_bytes = Some(1)), "give a rate"),
            (with(|it| it.queues = 0), "1 to 64"),
            (
                Settings {
                    queues: 2,
                    ..faulty()
                },
                "TAP",
            ),
            (
                Settings {
                    offloads,
                    ..faulty()
                },
                "leave them Off",
            ),
            (
                Settings {
                    rate_mbit: Some(1),
                    queue_bytes: Some(9),
                    ..faulty()
                },
                "only interfaces",
            ),
        ] {
            let message = settings.check().unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn offloads_are_off_with_a_limited_rate_or_faults() {
        assert_eq!(Settings::default().effective_offloads(), Offloads::On);
        let shaped = Settings {
            rate_mbit: Some(10),
            ..Settings::default()
        };
        assert_eq!(shaped.effective_offloads(), Offloads::Off);
        let faulty = Settings {
            faults: Some(Faults::default()),
            ..Settings::default()
        };
        assert_eq!(faulty.effective_offloads(), Offloads::Off);
        assert!(faulty.check().is_ok());
    }
}
