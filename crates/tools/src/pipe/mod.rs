//! `dipole send` and `dipole recv`: transfer files, or a stream of bytes or lines, to an endpoint.
//!
//! Both return 0 only after the receiver has confirmed that everything arrived. If either side ends
//! first, the other ends too and reports why.

mod destination;
mod extents;
mod frame;
mod interrupt;
mod owners;
mod place;
mod progress;
mod record;
mod recv;
mod send;
mod shown;
mod store;
mod walk;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dipole_naming::key::random_bytes;
use dipole_naming::lines::FileError;
use dipole_node::hosts::Hosts;
use dipole_node::{
    Address, Config, ConfigError, EndpointId, FaultPlan, NodeId, OpenError, ReceiveError,
    SendError, TargetError,
};

use frame::FrameError;
use record::RecordError;
pub(crate) use recv::{RecvArgs, recv};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
pub(crate) use send::{SendArgs, send};
use shown::shown_path;

/// Options of both directions.
#[derive(Args, Debug)]
struct PipeArgs {
    /// One message per line instead of a stream of bytes
    #[arg(long)]
    lines: bool,
    /// Hosts file [default: $DIPOLE_HOSTS, else this machine alone]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID")]
    nid: Option<NodeId>,
    /// Faults to inject into outgoing packets, as in drop=0.01,seed=7
    #[arg(long, value_name = "PLAN")]
    fault: Option<String>,
    /// Write every packet to a pcap file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
}

/// How long the other side may take for the final confirmation.
const LAST_ACK: Duration = Duration::from_secs(1);
/// Length of one wait, after which the other side's liveness is checked.
const LOOK: Duration = Duration::from_millis(100);

/// Reasons why a stream was not transferred completely.
#[derive(Debug, thiserror::Error)]
enum PipeError {
    #[error(transparent)]
    Config(ConfigError),
    #[error(transparent)]
    Hosts(FileError),
    #[error("--fault {plan}: {reason}")]
    Fault { plan: String, reason: String },
    /// `recv NID:DPID` with the number of another node.
    #[error(
        "cannot receive at {asked}: this is node {own}; give --nid {}, or another address",
        .asked.node
    )]
    NotOurNode { asked: Address, own: NodeId },
    #[error(transparent)]
    Open(OpenError),
    #[error(transparent)]
    Target(TargetError),
    #[error(transparent)]
    Send(SendError),
    #[error(transparent)]
    Receive(ReceiveError),
    #[error("{doing}: {cause}")]
    File {
        doing: &'static str,
        cause: io::Error,
    },
    #[error("endpoint {from} sent {cause}")]
    Frame { from: Address, cause: FrameError },
    /// One side has `--lines` and the other does not.
    #[error("endpoint {from} {}", other_mode(*.lines))]
    Mode { from: Address, lines: bool },
    #[error("the stream of endpoint {from} was cut after {bytes} bytes: {why}")]
    Cut {
        from: Address,
        bytes: u64,
        why: String,
    },
    #[error(
        "the stream of endpoint {from} is damaged: {found_bytes} of {expected_bytes} bytes \
         arrived, or their CRC32C differs; send it again"
    )]
    Damaged {
        from: Address,
        expected_bytes: u64,
        found_bytes: u64,
    },
    #[error(
        "endpoint {to} did not confirm that everything has arrived; the end may be missing there"
    )]
    Unconfirmed { to: Address },
    #[error("endpoint {to} answers out of turn; is it `dipole recv` of this version?")]
    OutOfTurn { to: Address },
    #[error("endpoint {to} reports: {}", plain(.reason))]
    Refused { to: Address, reason: String },
    #[error(
        "what endpoint {from} sends has no file name (standard input): give a file to --out, not a \
         directory"
    )]
    Nameless { from: Address },
    #[error(
        "endpoint {from} sends several files, directories or links: give an existing directory to --out"
    )]
    Several { from: Address },
    #[error("endpoint {from} sent {cause}; is it `dipole send` of this version?")]
    Tree { from: Address, cause: RecordError },
    /// Some files were not sent or not stored, and each was reported.
    #[error("{}", incomplete(*.skipped, *.failed, .first, *.to))]
    Incomplete {
        to: Address,
        skipped: u64,
        failed: u64,
        first: String,
    },
    #[error(
        "{cause}; what has arrived is kept: start `dipole recv --resume` there and send the same again"
    )]
    Interrupted { cause: Box<PipeError> },
    #[error("reading the files took longer than {seconds} s (--timeout)")]
    Stalled { seconds: u64 },
    #[error(
        "endpoint {to} accepted nothing for {seconds} s (--timeout); is its disk slow, or its process \
         stopped?"
    )]
    Unaccepted { to: Address, seconds: u64 },
    #[error("{} is a directory, which has no lines; leave out --lines", shown_path(.path))]
    LinesOfDirectory { path: PathBuf },
    #[error("endpoint {from} sends a file named `{name}`, which is not a valid file name")]
    Name { from: Address, name: String },
    /// A file stands in the way that the sender cannot have meant.
    #[error(
        "{} is not a plain file of this user: a link, a directory, a device, or another user's; \
         remove it, or receive elsewhere (--out)",
        shown_path(.file)
    )]
    NoPlainFile { file: PathBuf },
    #[error("{} changed while it was sent; send it again", shown_path(.file))]
    Changed { file: PathBuf },
    #[error(
        "{} and {} would both arrive as `{name}`; send one of them later, or a directory that contains both",
        shown_path(.first), shown_path(.second)
    )]
    SameName {
        name: String,
        first: PathBuf,
        second: PathBuf,
    },
    #[error("another process writes {}; wait for it, or end it", shown_path(.part))]
    Busy { part: PathBuf },
    #[error(
        "this is node {node}, which the hosts file does not list, so no other node could find it: add a \
         line `{node} ADDRESS`, or say which node this is (DIPOLE_NID or --nid)"
    )]
    NotListed { node: NodeId },
}

/// Text from the other side, without control characters.
fn plain(text: &str) -> String {
    let shown = text.chars().take(MAX_REASON_CHARS);
    shown
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Files that were not sent, or not stored at `to`.
fn incomplete(skipped: u64, failed: u64, first: &str, to: Address) -> String {
    let mut parts = Vec::new();
    if skipped > 0 {
        parts.push(format!("{skipped} were not sent"));
    }
    if failed > 0 {
        parts.push(format!(
            "{failed} were not stored completely at endpoint {to}, the first: {}",
            plain(first)
        ));
    }
    format!(
        "not all files arrived: {}; the others are complete",
        parts.join("; ")
    )
}

/// Mode of the other side, given whether this one has `--lines`.
fn other_mode(lines: bool) -> &'static str {
    match lines {
        true => "sends a stream of bytes, not lines; leave out --lines here or add it there",
        false => "sends lines, not a stream of bytes; add --lines here or leave it out there",
    }
}

/// Wraps an error of the input, the output, or the system.
fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> PipeError {
    move |cause| PipeError::File { doing, cause }
}

/// Wraps an error of a file.
fn failed_at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PipeError {
    move |cause| {
        let text = format!("{}: {cause}", shown_path(path));
        failed(doing)(io::Error::new(cause.kind(), text))
    }
}

/// Configuration from the environment and options; options take precedence.
fn configure(args: &PipeArgs) -> Result<Config, PipeError> {
    let mut config = Config::from_env().map_err(PipeError::Config)?;
    if let Some(node) = args.nid {
        config.set_node(node).map_err(PipeError::Config)?;
    }
    if let Some(file) = &args.hosts {
        config.hosts = Hosts::load(file).map_err(PipeError::Hosts)?;
    }
    if (args.nid.is_some() || args.hosts.is_some()) && !config.hosts.is_local_only() {
        config.apply_hosts_file();
    }
    let hosts = &config.hosts;
    if !hosts.is_local_only() && !hosts.is_from_agent() && hosts.get(config.node).is_none() {
        return Err(PipeError::NotListed { node: config.node });
    }
    if let Some(plan) = &args.fault {
        let parsed: Result<FaultPlan, _> = plan.parse();
        config.fault = Some(parsed.map_err(|error| PipeError::Fault {
            plan: plan.clone(),
            reason: error.to_string(),
        })?);
    }
    if let Some(file) = &args.capture {
        config.recordings.capture = Some(file.clone());
    }
    Ok(config)
}

/// Allows as many open files as an administrator does: each level of directories needs a descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Without it, directories that are too deep are reported.
    let _unchanged = setrlimit(Resource::Nofile, raised);
}

/// Identifies the running kernel: the CRC32C of its random number.
fn running_kernel() -> u32 {
    let mut sum = frame::Sum::new();
    sum.add(&std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    sum.crc()
}

/// Longest part of the other side's text that is shown.
const MAX_REASON_CHARS: usize = 500;

/// Number of an unnamed endpoint, above the numbers of all jobs.
fn spare_endpoint() -> Result<EndpointId, PipeError> {
    let [low, middle, high] = random_bytes().map_err(failed("drawing a random number"))?;
    Ok(EndpointId(u32::from_le_bytes([low, middle, high, 0xff])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_side_reports_does_nothing_to_a_terminal() {
        let to = Address::new(2, 7);
        let reason = format!("\u{1b}]0;owned\u{7}\u{9b}2J\nno {}", "x".repeat(5000));
        let shown = PipeError::Refused { to, reason }.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        assert!(shown.contains("?]0;owned??2J?no x") && shown.len() < 600);
    }
}
