//! Messages between the parent and its sides: JSON objects, one per line, on the side's standard
//! input and output.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::statistics::OneWay;
use crate::subject::Subject;
use crate::traffic::MemoryTraffic;
use crate::work::{Carrier, Role, Workload};

/// What a process started by the parent is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Be one of two sides.
    Side(Job),
    /// Be one of two sides whose costs are told apart; or, of messages of these lengths, only single
    /// trips.
    Calibrate(Job, Option<Vec<usize>>),
}

/// What a side is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub subject: Subject,
    pub work: Workload,
    pub role: Role,
    pub core: usize,
    /// The other side's core: where a subject of two threads puts the second.
    pub other_core: usize,
    /// The network namespace to enter, by its file.
    pub namespace: Option<PathBuf>,
    pub own: IpAddr,
    pub other: IpAddr,
    /// What carries the messages, for subjects that can choose.
    pub carrier: Carrier,
    /// The other side's node.
    pub other_node: u32,
    /// Endpoints are counted from here: on a node that others use, above theirs.
    pub first_endpoint: u32,
    /// Where sockets and pipes with a name are made.
    pub meeting: PathBuf,
    /// A plan for the fault wrapper, for subjects that have one.
    pub fault: Option<String>,
}

/// A side is ready to be connected at these ports; or, from the parent: both are, the other
/// side at these. Begin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    pub ports: Vec<u16>,
}

/// What one side has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub one_way: Option<OneWay>,
    /// Share of messages and the one-way time in nanoseconds that this share stays within.
    #[serde(default)]
    pub percentiles: Vec<(f64, f64)>,
    pub messages_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// This side's part only.
    pub cpu_ns_per_message: f64,
    pub remarks: Vec<String>,
    /// What the engine has moved, of subjects that have one.
    #[serde(default)]
    pub moved: Option<MemoryTraffic>,
}

/// A side's last line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// It went well.
    Done(Outcome),
    /// It did not; what happened.
    Failed(String),
}
