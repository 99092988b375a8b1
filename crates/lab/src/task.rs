//! Jobs of the processes of a crowd and of an incast: JSON objects on standard input.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use dipole_bench::subject::Subject;
use serde::{Deserialize, Serialize};

/// Arguments with which this program starts itself for a task.
pub(crate) const ARGUMENTS: [&str; 1] = ["lab-side"];

/// The first line that such a process reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// One process of a crowd.
    Crowd(CrowdJob),
    /// One process of an incast.
    Incast(IncastJob),
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
