//! The work of a measurement: kind, placement of the two sides, and link.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::machine;

/// Length of the acknowledgement that ends a stream, and of the messages that measure a single trip.
pub const ACKNOWLEDGEMENT_BYTES: usize = 4;

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Kind {
    /// Round trips: the one-way latency
    Pingpong,
    /// One way, each message is sent immediately: the transmission throughput
    Stream,
    /// Both ways at the same time
    Bidir,
    /// One way, small messages that may be batched: messages per second
    Rate,
    /// Round trips next to a stream of long messages
    Mixed,
}

/// Returns the name of a value on the command line and in results.
pub fn name_of(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("none is hidden");
    value.get_name().to_owned()
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Sends first and measures time.
    Lead,
    /// The side that receives, and replies if the measurement requires it.
    Follow,
}

impl Role {
    /// Orders the values of the two sides as this side's and the other's.
    pub fn own_and_other<T>(self, lead: T, follow: T) -> (T, T) {
        match self {
            Role::Lead => (lead, follow),
            Role::Follow => (follow, lead),
        }
    }
}

/// Placement of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// On two nodes: packets go through the kernel's network.
    TwoNodes,
    /// Both on one node: shared memory, sockets and pipes.
    OneNode,
}

/// Links for Dipole's messages, with the names that `DIPOLE_LINK` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub enum Carrier {
    /// UDP sockets.
    Udp,
    /// Rings that the kernel fills, and raw frames.
    Bpf,
    /// Shared memory.
    Shm,
}

/// Work of one measurement, the same for every subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub kind: Kind,
    pub size_bytes: usize,
    pub duration: Duration,
    pub unreliable: bool,
    /// Sleep in the kernel while waiting, instead of spinning.
    pub block: bool,
    /// The subject does not retransmit, so a ping may get lost.
    pub may_lose: bool,
    /// Both sides are threads of one process and share its CPU clock.
    pub threads: bool,
    /// Each side uses one thread to send and one to receive on the same connection.
    pub two_threads_a_side: bool,
}

impl Workload {
    /// Creates a workload of 10 ms with default options, for tests.
    pub fn of(kind: Kind, size_bytes: usize) -> Workload {
        Workload {
            kind,
            size_bytes,
            duration: Duration::from_millis(10),
            unreliable: false,
            block: false,
            may_lose: false,
            threads: false,
            two_threads_a_side: false,
        }
    }

    /// Returns the CPU time of this side, including spinning.
    pub fn cpu_time_ns(&self) -> u64 {
        if self.threads {
            machine::thread_cpu_ns()
        } else {
            machine::process_cpu_ns()
        }
    }

    /// Returns the same work with reliable messages.
    pub fn reliably(&self) -> Self {
        Self {
            unreliable: false,
            may_lose: false,
            ..self.clone()
        }
    }
}
