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
use super::jobs::{JobStatus, Jobs};
use super::lend::LendStatus;
use super::rules::{Facts, Rules};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) node: u32,
    pub(super) address: String,
    /// The cluster whose nodes it finds, if it does not have them from a hosts file alone.
    #[serde(default)]
    pub(super) cluster: Option<String>,
    /// Announcements heard of other clusters.
    #[serde(default)]
    pub(super) foreign: u64,
    pub(super) pid: u32,
    pub(super) version: String,
    pub(super) running_s: u64,
    /// Questions of other nodes answered.
    pub(super) answered: u64,
    /// The owner's rules, if there are any.
    pub(super) rules_file: Option<PathBuf>,
    /// What they say.
    #[serde(default)]
    pub(super) rules: String,
    /// Why a rank would be refused now.
    #[serde(default)]
    pub(super) refuses: Option<String>,
    /// What agents of this node have started and still runs.
    #[serde(default)]
    pub(super) jobs: Vec<JobStatus>,
    /// Questions refused and membership packets dropped because their senders do not prove
    /// to hold our cluster key.
    #[serde(default)]
    pub(super) strangers: u64,
    /// Membership packets dropped because they had come before.
    #[serde(default)]
    pub(super) repeated: u64,
    /// Fingerprint of the cluster key by which it knows members; without one it starts no work.
    #[serde(default)]
    pub(super) key: Option<String>,
    pub(super) members: Vec<MemberStatus>,
    pub(super) processes: Vec<ProcessStatus>,
    /// What is lent of the cards, if this agent lends.
    #[serde(default)]
    pub(super) lends: Option<LendStatus>,
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

/// Adds what the agent does not look at for others: that could keep it waiting.
pub(super) fn completed(status: Status, registry: &Registry) -> Result<Status, AgentError> {
    let system = |doing| move |cause| AgentError::System { doing, cause };
    let jobs = Jobs::of(registry).and_then(|jobs| jobs.living());
    let jobs = jobs.map_err(system("listing the jobs of this node"))?;
    let running = jobs.iter().map(|job| job.ranks).sum();
    let (rules, refuses) = match Rules::load(status.rules_file.as_deref()) {
        Ok(rules) => {
            let facts = Facts::gather(&rules).map_err(system("looking at this machine"))?;
            let refuses = rules.judge(&facts, running, 1).err();
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
        ..status
    })
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
    if let Some(cluster) = &status.cluster {
        let foreign = status.foreign;
        let _infallible = writeln!(
            text,
            "finds the nodes of cluster {cluster}; heard {foreign} announcements of others"
        );
    }
    let rules = match (&status.rules_file, status.rules.as_str()) {
        (None, _) => "no rules of the owner".to_owned(),
        (Some(file), rules) => format!("rules of the owner ({}): {rules}", file.display()),
    };
    let now = match &status.refuses {
        None => "work is welcome".to_owned(),
        Some(reason) => format!("work would be refused now: {reason}"),
    };
    let _infallible = writeln!(text, "{rules}\n{now}");
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
    if let Some(lends) = &status.lends {
        text.push_str(&lent(lends));
    }
    if !status.jobs.is_empty() {
        let mut jobs = Table::new();
        jobs.load_preset(UTF8_FULL_CONDENSED);
        jobs.set_header(["started for", "from", "ranks", "for s", "pid", "command"]);
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

/// The cards that are lent: what each user has, and what became of their packets.
fn lent(lends: &LendStatus) -> String {
    let mut cards = Table::new();
    cards.load_preset(UTF8_FULL_CONDENSED);
    cards.set_header(["card", "attached", "user", "rings", "bytes", "raw sockets"]);
    let mut counts = String::new();
    for card in &lends.cards {
        let attached = card.attached.as_deref().unwrap_or("-");
        if card.users.is_empty() {
            cards.add_row([&card.name, attached, "-", "0", "0", "0"]);
        }
        for user in &card.users {
            cards.add_row([
                card.name.clone(),
                attached.to_owned(),
                user.uid.to_string(),
                user.rings.to_string(),
                user.bytes.to_string(),
                user.senders.to_string(),
            ]);
        }
        let named = card.counters.iter().filter(|(_, count)| **count > 0);
        let named: Vec<String> = named
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        if !named.is_empty() || card.refused_frames > 0 {
            let _infallible = writeln!(
                counts,
                "packets for rings on {}: {}; {} frames refused",
                card.name,
                named.join(", "),
                card.refused_frames
            );
        }
    }
    format!(
        "cards are lent at {}: {} rings exist, {} questions refused\n{cards}\n{counts}",
        lends.socket, lends.rings, lends.refused
    )
}
