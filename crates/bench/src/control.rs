//! What the parent and its two sides tell each other: one JSON object a line
//! on the side's standard input and output.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::machine;
use super::moved::Moved;
use super::statistics::OneWay;
use super::subject::Subject;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Kind {
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
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("none is hidden");
    value.get_name().to_owned()
}

/// Which of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Asks, sends, holds the clock.
    Lead,
    /// Answers, receives.
    Follow,
}

impl Role {
    /// Of what the two sides have, this one's and the other's.
    pub(crate) fn own_and_other<T>(self, lead: T, follow: T) -> (T, T) {
        match self {
            Role::Lead => (lead, follow),
            Role::Follow => (follow, lead),
        }
    }
}

/// Where the two sides of a measurement lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Placement {
    /// On two nodes: packets go through the kernel's network.
    TwoNodes,
    /// Both on one node: memory, sockets and pipes of one machine.
    OneNode,
}

/// What carries Dipole's messages, by the names that `DIPOLE_LINK` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// UDP sockets.
    Udp,
    /// Rings that the kernel fills, and raw frames.
    Bpf,
    /// Shared memory.
    Shm,
}

/// One measurement, the same for every subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) kind: Kind,
    pub(crate) size_bytes: usize,
    pub(crate) duration: Duration,
    pub(crate) unreliable: bool,
    /// Waits sleep in the kernel instead of spinning.
    pub(crate) block: bool,
    /// The subject repeats nothing by itself: a ping may get lost.
    pub(crate) may_lose: bool,
    /// Both sides are threads of one process, which then share its CPU clock.
    pub(crate) threads: bool,
    /// Each side sends and receives by a thread of its own on one connection.
    pub(crate) two_threads_a_side: bool,
}

impl Workload {
    /// One of a kind, and nothing unusual.
    #[cfg(test)]
    pub(crate) fn of(kind: Kind, size_bytes: usize) -> Workload {
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
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        if self.threads {
            machine::thread_cpu_ns()
        } else {
            machine::process_cpu_ns()
        }
    }

    /// The same work by reliable messages: for what goes on around it.
    pub(crate) fn reliably(&self) -> Self {
        Self {
            unreliable: false,
            may_lose: false,
            ..self.clone()
        }
    }
}

/// What a process started by the parent is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Be one of two sides.
    Side(Job),
    /// Be one of a crowd.
    Crowd(CrowdJob),
    /// Be one of many that send to one, or that one.
    Incast(IncastJob),
    /// Be one of two sides whose costs are told apart; or, of messages of these lengths, only single
    /// trips.
    Calibrate(Job, Option<Vec<usize>>),
}

/// What one process of an incast does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IncastJob {
    pub(crate) subject: Subject,
    pub(crate) part: IncastPart,
    pub(crate) senders: u32,
    pub(crate) core: usize,
    pub(crate) namespace: PathBuf,
    /// The address of the one that receives.
    pub(crate) receiver: IpAddr,
    pub(crate) size_bytes: usize,
}

/// The parts played in an incast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IncastPart {
    /// Receives from all others.
    Receive,
    /// Sends to the one that receives.
    Send,
}

/// From the parent: send one message, or receive these.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    /// When to send, by the clock that never jumps.
    pub(crate) at_ns: u64,
    /// How many come to the receiver.
    pub(crate) messages: u32,
    /// The first byte of these messages.
    pub(crate) number: u8,
}

/// What one process of a crowd does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CrowdJob {
    /// Which one this is, from 0.
    pub(crate) index: usize,
    pub(crate) processes: usize,
    pub(crate) part: CrowdPart,
    pub(crate) core: usize,
    pub(crate) size_bytes: usize,
    pub(crate) duration: Duration,
    /// Waits sleep at once instead of spinning a little first.
    pub(crate) block: bool,
}

/// The parts played in a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CrowdPart {
    /// Sends to everybody else that flows and receives from them, until it is ended.
    Flow {
        /// The first of those that flow; they go up to the last process.
        first: usize,
    },
    /// Process 0: asks process 1.
    Ping,
    /// Process 1: answers process 0.
    Echo,
    /// Waits for a message that never comes.
    Wait,
}

/// What a process of a crowd has counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CrowdCount {
    /// Messages received from each process within the time.
    pub(crate) received: Vec<u64>,
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
}

/// What a side is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) subject: Subject,
    pub(crate) work: Workload,
    pub(crate) role: Role,
    pub(crate) core: usize,
    /// The other side's core: where a subject of two threads puts the second.
    pub(crate) other_core: usize,
    /// The network namespace to enter, by its file.
    pub(crate) namespace: Option<PathBuf>,
    pub(crate) own: IpAddr,
    pub(crate) other: IpAddr,
    /// What carries the messages, for subjects that can choose.
    pub(crate) carrier: Carrier,
    /// The other side's node.
    pub(crate) other_node: u32,
    /// Endpoints are counted from here: on a node that others use, above theirs.
    pub(crate) first_endpoint: u32,
    /// Where sockets and pipes with a name are made.
    pub(crate) meeting: PathBuf,
    /// A plan for the fault wrapper, for subjects that have one.
    pub(crate) fault: Option<String>,
}

/// A side is ready to be connected at these ports; or, from the parent: both are, the other
/// side at these. Begin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) ports: Vec<u16>,
}

/// What one side has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) one_way: Option<OneWay>,
    /// Share of messages and the one-way time in nanoseconds that this share stays within.
    #[serde(default)]
    pub(crate) percentiles: Vec<(f64, f64)>,
    pub(crate) messages_per_s: Option<f64>,
    pub(crate) bytes_per_s: Option<f64>,
    /// This side's part only.
    pub(crate) cpu_ns_per_message: f64,
    pub(crate) remarks: Vec<String>,
    /// What the engine has moved, of subjects that have one.
    #[serde(default)]
    pub(crate) moved: Option<Moved>,
}

/// A side's last line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// It went well.
    Done(Outcome),
    /// It did not; what happened.
    Failed(String),
}
