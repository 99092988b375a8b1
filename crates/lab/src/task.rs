//! Jobs of the processes of a crowd and of an incast: JSON objects on standard input.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use dipole_bench::subject::Subject;
use serde::{Deserialize, Serialize};

/// Arguments with which this program starts itself for a task.
pub(crate) const ARGUMENTS: [&str; 1] = ["lab-side"];

/// The first line that a task's process reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// One process of a crowd.
    Crowd(CrowdJob),
    /// One process of an incast.
    Incast(IncastJob),
}

/// Job of one process of an incast.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IncastJob {
    pub(crate) subject: Subject,
    pub(crate) part: IncastPart,
    pub(crate) senders: u32,
    pub(crate) core: usize,
    pub(crate) namespace: PathBuf,
    /// Address of the receiver.
    pub(crate) receiver: IpAddr,
    pub(crate) size_bytes: usize,
}

/// Roles of processes in an incast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IncastPart {
    /// Receives from all others.
    Receive,
    /// Sends to the receiver.
    Send,
}

/// From the parent: send one message, or receive these.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    /// When to send, on the monotonic clock.
    pub(crate) at_ns: u64,
    /// Number of messages for the receiver.
    pub(crate) messages: u32,
    /// First byte of these messages.
    pub(crate) number: u8,
}

/// Job of one process of a crowd.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CrowdJob {
    /// Index of the process, from 0.
    pub(crate) index: usize,
    pub(crate) processes: usize,
    pub(crate) part: CrowdPart,
    pub(crate) core: usize,
    pub(crate) size_bytes: usize,
    pub(crate) duration: Duration,
    /// Sleep immediately while waiting, instead of spinning first.
    pub(crate) block: bool,
}

/// Roles of processes in a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CrowdPart {
    /// Sends to all other processes of this role and receives from them, until it is killed.
    Flow {
        /// Index of the first process of this role; it goes up to the last process.
        first: usize,
    },
    /// Process 0 sends to process 1.
    Ping,
    /// Process 1 replies to process 0.
    Echo,
    /// Waits for a message that never comes.
    Wait,
}

/// Counters of a process of a crowd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CrowdCount {
    /// Messages received from each process within the duration.
    pub(crate) received: Vec<u64>,
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
}
