//! What is measured: the kind of work, the placement of the two sides, and the link.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::machine;

/// Length of the acknowledgement that ends a stream, and of the pings that measure its trip.
pub const ACKNOWLEDGEMENT_BYTES: usize = 4;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Kind {
    /// Round trips: the one-way latency
    Pingpong,
    /// One way, each message leaves at once: the transmission throughput
    Stream,
    /// Both ways at once
    Bidir,
    /// One way, small messages that may be packed: messages a second
    Rate,
    /// Round trips beside a stream of long messages
    Mixed,
}

/// A value as the command line takes it and results show it.
pub fn name_of(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("none is hidden");
    value.get_name().to_owned()
}

/// Which of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Asks, sends, holds the clock.
    Lead,
    /// Answers, receives.
    Follow,
}

impl Role {
    /// Of what the two sides have, this one's and the other's.
    pub fn own_and_other<T>(self, lead: T, follow: T) -> (T, T) {
        match self {
            Role::Lead => (lead, follow),
            Role::Follow => (follow, lead),
        }
    }
}

/// Where the two sides of a measurement lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// On two nodes: packets go through the kernel's network.
    TwoNodes,
    /// Both on one node: memory, sockets and pipes of one machine.
    OneNode,
}

/// What carries Dipole's messages, by the names that `DIPOLE_LINK` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub enum Carrier {
    /// UDP sockets.
    Udp,
    /// Rings that the kernel fills, and raw frames.
    Bpf,
    /// Shared memory.
    Shm,
}

/// One measurement, the same for every subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub kind: Kind,
    pub size_bytes: usize,
    pub duration: Duration,
    pub unreliable: bool,
    /// Waits sleep in the kernel instead of spinning.
    pub block: bool,
    /// The subject repeats nothing by itself: a ping may get lost.
    pub may_lose: bool,
    /// Both sides are threads of one process, which then share its CPU clock.
    pub threads: bool,
    /// Each side sends and receives by a thread of its own on one connection.
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

    /// The CPU time this side has used, user and system, spinning included.
    pub fn cpu_time_ns(&self) -> u64 {
        if self.threads {
            machine::thread_cpu_ns()
        } else {
            machine::process_cpu_ns()
        }
    }

    /// The same work by reliable messages: for what goes on around it.
    pub fn reliably(&self) -> Self {
        Self {
            unreliable: false,
            may_lose: false,
            ..self.clone()
        }
    }
}
