//! The agent's status, served on a socket in the registry of its node.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use dipole_bpf::grant::status::{BrokerStatus, read_status};
use dipole_launch::load::{AGENT_SOCKET, NodeLoad};
use dipole_node::registry::Registry;
use serde::{Deserialize, Serialize};

use super::AgentError;
use super::jobs::{JobStatus, Jobs};
use super::rules::{HostState, Rules};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) node: u32,
    pub(super) address: String,
    /// The cluster that the agent discovers; none if nodes come from the hosts file only.
    #[serde(default)]
    pub(super) cluster: Option<String>,
    /// Announcements received from other clusters.
    #[serde(default)]
    pub(super) foreign: u64,
    pub(super) pid: u32,
    pub(super) version: String,
    pub(super) running_s: u64,
    /// Look-ups by other nodes that the agent answered.
    pub(super) answered: u64,
    /// The owner's rules, if there are any.
    pub(super) rules_file: Option<PathBuf>,
    /// Short form of the rules.
    #[serde(default)]
    pub(super) rules: String,
    /// Why the rules refuse a rank at present, if they do.
    #[serde(default)]
    pub(super) refuses: Option<String>,
    /// Running jobs that agents of this node started.
    #[serde(default)]
    pub(super) jobs: Vec<JobStatus>,
    /// Look-ups refused and membership packets dropped because their senders do not hold our
    /// cluster key.
    #[serde(default)]
    pub(super) strangers: u64,
    /// Membership packets dropped as duplicates.
    #[serde(default)]
    pub(super) repeated: u64,
    /// Fingerprint of the cluster key; without a key the agent starts no work.
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) members: Vec<MemberStatus>,
    pub(super) processes: Vec<ProcessStatus>,
    /// Load of this node and other nodes, as far as known.
    #[serde(default)]
    pub(super) load: Vec<NodeLoad>,
    /// Status of the machine's broker, if there is one and this user may read it.
    #[serde(default)]
    pub(super) broker: Option<BrokerStatus>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MemberStatus {
    pub(super) node: u32,
    pub(super) address: String,
    /// "up", "down", or "never seen".
    pub(super) state: String,
    /// Seconds in this state, as far as this agent knows.
    pub(super) for_s: u64,
    pub(super) version: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProcessStatus {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) endpoints: Vec<u32>,
}

pub(super) fn socket(registry: &Registry) -> PathBuf {
    registry.path().join(AGENT_SOCKET)
}

/// Sent instead of a status that cannot be collected.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NoStatus {
    pub(super) error: String,
}

/// Requests the status from the agent of this node.
pub(super) fn request(registry: &Registry) -> Result<Status, AgentError> {
    let socket = socket(registry);
    let mut text = String::new();
    let text = UnixStream::connect(&socket)
        .and_then(|mut stream| stream.read_to_string(&mut text))
        .and_then(|length| match length {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(text),
        })
        .map_err(|cause| AgentError::NoAgent { socket, cause })?;
    serde_json::from_str(&text).map_err(|cause| match serde_json::from_str(&text) {
        Ok(NoStatus { error }) => AgentError::NoStatus { error },
        Err(_) => AgentError::Status { cause },
    })
}

/// Adds what the agent does not collect itself because collecting it could block.
pub(super) fn completed(
    status: Status,
    registry: &Registry,
    broker: &Path,
) -> Result<Status, AgentError> {
    let system = |doing| move |cause| AgentError::System { doing, cause };
    let jobs = Jobs::of(registry).and_then(|jobs| jobs.living());
    let jobs = jobs.map_err(system("listing the jobs of this node"))?;
    let running = jobs.iter().map(|job| job.ranks).sum();
    let (rules, refuses) = match Rules::load(status.rules_file.as_deref()) {
        Ok(rules) => {
            let state = HostState::gather(&rules).map_err(system("looking at this machine"))?;
            let refuses = rules.evaluate(&state, running, 1).err();
            (rules.to_string(), refuses)
        }
        Err(error) => (String::new(), Some(error.to_string())),
    };
    Ok(Status {
        rules,
        refuses: match status.key {
            Some(_) => refuses,
            None => Some(AgentError::NoKey.to_string()),
        },
        jobs,
        broker: read_status(broker).ok(),
        ..status
    })
}

/// An empty table with these headings.
pub(super) fn titled<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(headings);
    table
}

pub(super) fn table(status: &Status) -> String {
    let mut text = format!(
        "agent of node {} at {}: process {}, version {}, for {} s, {} look-ups answered\n",
        status.node, status.address, status.pid, status.version, status.running_s, status.answered
    );
    let key = match &status.key {
        Some(fingerprint) => format!("cluster key {fingerprint}"),
        None => "no cluster key".to_owned(),
    };
    let _infallible = writeln!(
        text,
        "{key}: {} packets without the key and {} repeated ones dropped",
        status.strangers, status.repeated
    );
    if let Some(cluster) = &status.cluster {
        let foreign = status.foreign;
        let _infallible = writeln!(
            text,
            "discovers the nodes of cluster {cluster}; received {foreign} announcements of others"
        );
    }
    let rules = match (&status.rules_file, status.rules.as_str()) {
        (None, _) => "no rules of the owner".to_owned(),
        (Some(file), rules) => format!("rules of the owner ({}): {rules}", file.display()),
    };
    let now = match &status.refuses {
        None => "accepts work".to_owned(),
        Some(reason) => format!("would refuse work now: {reason}"),
    };
    let _infallible = writeln!(text, "{rules}\n{now}");
    let mut members = titled(["node", "address", "state", "for s", "version"]);
    for member in &status.members {
        members.add_row([
            member.node.to_string(),
            member.address.clone(),
            member.state.clone(),
            member.for_s.to_string(),
            member.version.clone(),
        ]);
    }
    let mut processes = titled(["pid", "endpoints", "command"]);
    for process in &status.processes {
        let endpoints: Vec<String> = process.endpoints.iter().map(u32::to_string).collect();
        processes.add_row([
            process.pid.to_string(),
            endpoints.join(" "),
            process.command.clone(),
        ]);
    }
    let _infallible = writeln!(text, "{members}\n{processes}");
    if let Some(broker) = &status.broker {
        text.push_str(&grants(broker));
    }
    if !status.jobs.is_empty() {
        let mut jobs = titled(["started for", "from", "ranks", "for s", "pid", "command"]);
        for job in &status.jobs {
            jobs.add_row([
                job.who.clone(),
                job.peer.clone(),
                job.ranks.to_string(),
                job.running().as_secs().to_string(),
                job.pid.to_string(),
                job.command.clone(),
            ]);
        }
        let _infallible = writeln!(text, "{jobs}");
    }
    text
}

/// Table of grants by interface and user, and counters of packets.
fn grants(broker: &BrokerStatus) -> String {
    let mut grants = titled([
        "interface",
        "attached",
        "user",
        "rings",
        "bytes",
        "raw sockets",
    ]);
    let mut counts = String::new();
    for interface in &broker.interfaces {
        let attached = interface.attached.as_deref().unwrap_or("-");
        if interface.users.is_empty() {
            grants.add_row([&interface.name, attached, "-", "0", "0", "0"]);
        }
        for user in &interface.users {
            grants.add_row([
                interface.name.clone(),
                attached.to_owned(),
                user.uid.to_string(),
                user.rings.to_string(),
                user.bytes.to_string(),
                user.senders.to_string(),
            ]);
        }
        let named = interface.counters.iter().filter(|(_, count)| **count > 0);
        let named: Vec<String> = named
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        if !named.is_empty() || interface.refused_frames > 0 {
            let _infallible = writeln!(
                counts,
                "packets for rings on {}: {}; {} frames refused",
                interface.name,
                named.join(", "),
                interface.refused_frames
            );
        }
    }
    format!(
        "rings are granted at {}: {} exist, {} requests refused\n{grants}\n{counts}",
        broker.socket, broker.rings, broker.refused
    )
}
