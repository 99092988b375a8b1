//! What an agent tells of itself, at a socket in the registry of its node.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use dipole_node::registry::Registry;
use serde::{Deserialize, Serialize};

use super::AgentError;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) node: u32,
    pub(super) address: String,
    pub(super) pid: u32,
    pub(super) version: String,
    pub(super) running_s: u64,
    /// Questions of other nodes answered.
    pub(super) answered: u64,
    /// Questions refused and membership packets dropped because their senders do not prove
    /// to hold our cluster key.
    #[serde(default)]
    pub(super) strangers: u64,
    /// Membership packets dropped because they had come before.
    #[serde(default)]
    pub(super) repeated: u64,
    /// Fingerprint of the cluster key, if there is one.
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) members: Vec<MemberStatus>,
    pub(super) processes: Vec<ProcessStatus>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MemberStatus {
    pub(super) node: u32,
    pub(super) address: String,
    /// "there", "gone", or "never seen".
    pub(super) state: String,
    /// For how long it has been so, as far as this agent knows.
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
    registry.path().join("agent.sock")
}

/// What the agent of this node says.
pub(super) fn ask(registry: &Registry) -> Result<String, AgentError> {
    let socket = socket(registry);
    let mut text = String::new();
    UnixStream::connect(&socket)
        .and_then(|mut stream| stream.read_to_string(&mut text))
        .and_then(|length| match length {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(text),
        })
        .map_err(|cause| AgentError::NoAgent { socket, cause })
}

pub(super) fn table(status: &Status) -> String {
    let mut text = format!(
        "agent of node {} at {}: process {}, version {}, for {} s, {} questions answered\n",
        status.node, status.address, status.pid, status.version, status.running_s, status.answered
    );
    let key = match &status.key {
        Some(fingerprint) => format!("cluster key {fingerprint}"),
        None => "no cluster key".to_owned(),
    };
    let _infallible = writeln!(
        text,
        "{key}: {} packets of strangers and {} repeated ones dropped",
        status.strangers, status.repeated
    );
    let mut members = Table::new();
    members.load_preset(UTF8_FULL_CONDENSED);
    members.set_header(["node", "address", "state", "for s", "version"]);
    for member in &status.members {
        members.add_row([
            member.node.to_string(),
            member.address.clone(),
            member.state.clone(),
            member.for_s.to_string(),
            member.version.clone(),
        ]);
    }
    let mut processes = Table::new();
    processes.load_preset(UTF8_FULL_CONDENSED);
    processes.set_header(["pid", "endpoints", "command"]);
    for process in &status.processes {
        let endpoints: Vec<String> = process.endpoints.iter().map(u32::to_string).collect();
        processes.add_row([
            process.pid.to_string(),
            endpoints.join(" "),
            process.command.clone(),
        ]);
    }
    let _infallible = writeln!(text, "{members}\n{processes}");
    text
}
