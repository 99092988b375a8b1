//! Messages between the parent and its sides: JSON objects, one per line, on the side's standard
//! input and output.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::CpuTimes;
use crate::statistics::OneWay;
use crate::subject::Subject;
use crate::traffic::MemoryTraffic;
use crate::work::{Carrier, Role, Workload};

/// Arguments with which a program that links this crate starts itself as a side.
pub const SIDE_ARGUMENTS: [&str; 1] = ["bench-side"];

/// The first line that a process reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Be one of two sides of a measurement.
    Side(Job),
    /// Be one of two sides of a calibration.
    Calibrate(Job, Part),
    /// Compute on this core.
    Soak(usize),
}

/// The part of a calibration to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Part {
    All,
    /// Single trips of messages of these lengths.
    Trips(Vec<usize>),
    /// Messages of these lengths, sent whole or offered, until they are in the receiver's buffer.
    Transfers(Vec<usize>),
}

/// The job of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub subject: Subject,
    pub work: Workload,
    pub role: Role,
    pub core: usize,
    /// The other side's core, for the second thread of subjects with two threads.
    pub other_core: usize,
    /// Path of the network namespace to enter.
    pub namespace: Option<PathBuf>,
    pub own: IpAddr,
    pub other: IpAddr,
    /// The link, for subjects that support several.
    pub carrier: Carrier,
    /// The other side's node.
    pub other_node: u32,
    /// First endpoint id. On a node with other programs it is above theirs.
    pub first_endpoint: u32,
    /// Prefix of the paths of sockets and pipes.
    pub meeting: PathBuf,
    /// Plan of the fault wrapper, for subjects that support it.
    pub fault: Option<String>,
}

/// From a side: it is ready to be connected at these ports. From the parent: the other side is ready
/// at these ports, so begin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    pub ports: Vec<u16>,
}

/// Results of one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub one_way: Option<OneWay>,
    /// Shares of messages, and the one-way time in nanoseconds that this share does not exceed.
    #[serde(default)]
    pub percentiles: Vec<(f64, f64)>,
    pub messages_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// CPU time of this side only.
    pub cpu_ns_per_message: f64,
    /// CPU time of this side from its start until its result.
    #[serde(default)]
    pub cpu: CpuTimes,
    pub remarks: Vec<String>,
    /// Bytes moved by the engine, for subjects that have one.
    #[serde(default)]
    pub moved: Option<MemoryTraffic>,
}

/// The last line of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// The measurement succeeded.
    Done(Outcome),
    /// The measurement failed for this reason.
    Failed(String),
}
