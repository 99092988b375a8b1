//! Configures and creates testbeds.

use std::path::PathBuf;

use crate::error::TestbedError;
use crate::fault::Faults;
use crate::offload::Offloads;
use crate::settings::Settings;
use crate::testbed::Testbed;

/// Settings of a testbed to be created; by default two nodes on one network without a limit.
#[derive(Clone, Debug, Default)]
pub struct Builder(Settings);

impl Testbed {
    /// Returns a builder with default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Sets the number of nodes, up to 250. Default: 2.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.0.nodes = nodes;
        self
    }

    /// Sets the number of networks, up to 8. Every node has an interface on each: `net0`, `net1`, ...
    #[must_use]
    pub fn networks(mut self, networks: u32) -> Self {
        self.0.networks = networks;
        self
    }

    /// Sets the MTU in bytes. Default: 1500.
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.0.mtu = bytes;
        self
    }

    /// Sets the ranks per node in the hosts file. Default: 1.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.0.slots = slots;
        self
    }

    /// Sets the number of queues of an interface per direction, up to 64. Default: 1.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.0.queues = queues;
        self
    }

    /// Limits the rate of interfaces and switch ports, in 10^6 bit/s.
    #[must_use]
    pub fn rate_mbit(mut self, rate: u64) -> Self {
        self.0.rate_mbit = Some(rate);
        self
    }

    /// Sets the queue of a switch port, which needs a rate. Default: 128 KiB.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: u32) -> Self {
        self.0.queue_bytes = Some(bytes);
        self
    }

    /// Sets the offloads of interfaces. Default: off with a rate or faults, else on.
    #[must_use]
    pub fn offloads(mut self, offloads: Offloads) -> Self {
        self.0.offloads = Some(offloads);
        self
    }

    /// Adds faults to every network.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.0.faults = Some(faults);
        self
    }

    /// Declares that this process is in PID and mount namespaces of its own, which remove everything
    /// when it ends, and that `folder` lies in them. The testbed's folder is created there. Signals are
    /// left to the caller, and leftovers of other processes are not looked for, because their process
    /// ids have no meaning here.
    #[must_use]
    pub fn enclosed(mut self, folder: PathBuf) -> Self {
        self.0.enclosure = Some(folder);
        self
    }

    /// Creates the testbed, after removing the leftovers of killed processes.
    ///
    /// # Errors
    /// - [`TestbedError::Refused`]: a setting is out of range, or two settings exclude each other.
    /// - Otherwise the operation that failed; everything created before is removed.
    pub fn build(self) -> Result<Testbed, TestbedError> {
        self.0.check()?;
        Testbed::create(self.0)
    }
}
