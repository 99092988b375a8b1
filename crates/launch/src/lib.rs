//! `dipole run`: starts a job's processes on this and other hosts, and ends them.
//!
//! ```text
//! launcher -> guard -> shim -> rank-exec = PROGRAM      (this machine)
//! launcher -> guard -> ssh ~~> guard -> shim -> ...     (another one)
//! launcher -> guard -> reach ~~> agent-session -> guard -> shim -> ...  (through its agent)
//! ```
//!
//! Each process watches both neighbours, so that nothing is left behind whichever process dies: see
//! `guard`.

#![forbid(unsafe_code)]

pub mod call;
pub mod load;

mod binding;
mod budget;
mod descendants;
mod guard;
mod host;
mod keeper;
mod launcher;
mod message;
mod mpi;
mod output;
mod placement;
mod pmi;
mod program;
mod reach;
mod shim;

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use dipole_naming::environment;
use dipole_naming::lines::{self, FileError};
use dipole_node::hosts::{Host, Hosts};
use dipole_node::job::{self, Job, JobError, Starter};
use dipole_node::{ClusterKey, KeyError, NodeId, variables};

use serde::{Deserialize, Serialize};

pub use guard::{GuardArgs, RankExecArgs, guard, rank_exec};
pub use keeper::{KeeperArgs, keep_images};
pub use launcher::default_checkpoint_folder;
pub(crate) use message::Stream;
pub use mpi::installed_provider;
pub use reach::{ReachArgs, reach};
pub use shim::{ShimArgs, shim};

use binding::Binding;
use output::Style;

/// Start a program as the ranks of a job, here or on several hosts
///
/// Rank 0 reads standard input; the others have none. The exit status is that of the first rank
/// that fails.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Number of ranks
    #[arg(short = 'n', long = "ranks", value_name = "P", required_unless_present = "restart",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(job::MAX_RANKS)))]
    first_ranks: Option<u32>,
    /// Number of ranks of all programs.
    #[arg(skip)]
    ranks: u32,
    /// Start with fewer ranks, but at least N, if the hosts that answer take no more
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(job::MAX_RANKS)))]
    at_least: Option<u32>,
    /// Hosts file, whose slots are filled in order, or `agent` for the nodes that this node's agent
    /// knows, those with the most idle speed first (see `dipole load`) [default: $DIPOLE_HOSTS, else
    /// the nodes of this job of Slurm, Flux, PBS or LSF, else this machine only]
    #[arg(long, value_name = "FILE|agent")]
    hosts: Option<PathBuf>,
    /// Command to reach a host, run as CMD DEST COMMAND-LINE [default: its agent if there is a
    /// cluster key, else ssh]
    #[arg(long, value_name = "CMD")]
    rsh: Option<String>,
    /// The dipole program on hosts reached by a command [default: the path of this one]
    #[arg(long, value_name = "PATH")]
    dipole: Option<PathBuf>,
    /// Prefix every line with its rank: `[3] line`
    #[arg(long)]
    tag: bool,
    /// Write the output of rank R to DIR/R.out and DIR/R.err, replacing old files
    #[arg(long, value_name = "DIR", conflicts_with = "tag")]
    output_dir: Option<PathBuf>,
    /// Start the ranks in this directory, which each host must have [default: the current one, else
    /// the home directory]
    #[arg(long, value_name = "DIR")]
    wdir: Option<PathBuf>,
    /// Start more ranks than the hosts file has slots
    #[arg(long)]
    oversubscribe: bool,
    /// End the job after this many seconds, with status 124
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Set a variable for the ranks, or pass on one that refers to this machine (HOME, ...); may be
    /// repeated
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = assignment)]
    environment: Vec<String>,
    /// How long a host may take to answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = seconds)]
    start_timeout: Duration,
    /// How long ranks may take to end after SIGTERM before they are killed, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    grace: Duration,
    /// Action on the other ranks when one fails, or is lost with its host
    #[arg(long, value_enum, default_value_t = launcher::OnLoss::End)]
    on_loss: launcher::OnLoss,
    /// How often a rank is restarted with `--on-loss restart`; with checkpoints, how often the job is
    /// restarted without a new checkpoint in between
    #[arg(long, value_name = "N", default_value_t = 5)]
    restarts: u32,
    #[command(flatten)]
    checkpoints: launcher::CheckpointArgs,
    #[command(flatten)]
    binding: Binding,
    /// Program and arguments; `: -n P PROG` after them adds ranks of another program
    #[arg(
        value_name = "PROG",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "restart"
    )]
    command: Vec<OsString>,
    /// Programs of the command line.
    #[arg(skip)]
    programs: Vec<Program>,
}

/// One of a job's programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program {
    /// Number of ranks that run it.
    ranks: u32,
    /// The program and its arguments.
    command: Vec<OsString>,
}

/// The part of the command line after a colon.
#[derive(Parser, Debug)]
#[command(no_binary_name = true, disable_help_flag = true, name = ":")]
struct ProgramArgs {
    /// Number of ranks
    #[arg(short = 'n', long = "ranks", value_name = "P",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(job::MAX_RANKS)))]
    ranks: u32,
    /// The program and its arguments
    #[arg(
        value_name = "PROG",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    command: Vec<OsString>,
}

/// Splits a command line at its colons. A colon that is not followed by `-n` is an ordinary
/// argument.
fn programs(ranks: u32, command: &[OsString]) -> Result<Vec<Program>, clap::Error> {
    let separates = |at: usize| {
        let next = command.get(at + 1).and_then(|word| word.to_str());
        let counts = next.is_some_and(|next| next.starts_with("-n") || next.starts_with("--ranks"));
        command[at] == ":" && counts
    };
    let ends: Vec<usize> = (1..command.len()).filter(|at| separates(*at)).collect();
    let first = ends.first().copied().unwrap_or(command.len());
    let mut programs = vec![Program {
        ranks,
        command: command[..first].to_vec(),
    }];
    for (index, begin) in ends.iter().enumerate() {
        let end = ends.get(index + 1).copied().unwrap_or(command.len());
        let ProgramArgs { ranks, command } = ProgramArgs::try_parse_from(&command[begin + 1..end])?;
        programs.push(Program { ranks, command });
    }
    Ok(programs)
}

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("{ranks} ranks are more than the {} of a job", job::MAX_RANKS)]
    MoreThanRanks { ranks: u32 },
    #[error(transparent)]
    Hosts(FileError),
    #[error("{variable}: {0}", variable = variables::KEY)]
    Key(KeyError),
    #[error(transparent)]
    Environment(JobError),
    #[error(
        "no agent of this node has listed the nodes ({file} is missing): start one \
         with `dipole agent --discover`, with the same DIPOLE_NID and runtime directory, or \
         name a hosts file (`./agent` if yours has this name)"
    )]
    NoAgent { file: PathBuf },
    #[error(
        "none of the {tried} hosts accepted the job, so no rank was started; see above for \
         each"
    )]
    NoHost { tried: usize },
    #[error(
        "{ranks} ranks are too many: the hosts that answered take {capacity} in all (their slots \
         in the hosts file, or what their owners allow), so none was started; ask for fewer, add \
         hosts or slots, or give --oversubscribe for more ranks than slots"
    )]
    TooManyRanks { ranks: u32, capacity: u32 },
    #[error("cannot create the output directory {}: {cause}", .directory.display())]
    OutputDir {
        directory: PathBuf,
        cause: std::io::Error,
    },
    #[error("{0}")]
    Checkpoint(String),
    #[error("{doing} failed: {cause}")]
    System {
        doing: &'static str,
        cause: std::io::Error,
    },
}

/// Runs the job; returns the exit status of the first rank that failed.
///
/// # Errors
/// Why the job could not be run; a [`clap::Error`] for wrong usage.
pub fn execute(mut args: RunArgs, json: bool) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let jobs = launcher::JobCheckpoints::new(&args.checkpoints)?;
    args.programs = match (&jobs, args.first_ranks) {
        (Some(job), _) if job.is_restart() => job.programs()?,
        (_, ranks) => programs(ranks.unwrap_or(1), &args.command)?,
    };
    let ranks = args.programs.iter().map(|one| one.ranks);
    args.ranks = ranks.fold(0, u32::saturating_add);
    if args.ranks > job::MAX_RANKS {
        return Err(RunError::MoreThanRanks { ranks: args.ranks }.into());
    }
    check_at_least(&args)?;
    args.checkpoints.check_loss(args.on_loss)?;
    let style = match (json, args.tag, args.ranks) {
        (true, ..) => Style::Json,
        (false, true, _) => Style::Tagged,
        (false, false, 1) => Style::Raw,
        (false, false, _) => Style::Lines,
    };
    let hosts = load_hosts(args.hosts.as_deref())?;
    Ok(ExitCode::from(launcher::launch(args, &hosts, jobs, style)?))
}

/// The hosts, their text if there is a file, and the cluster key.
struct HostsFile {
    hosts: Hosts,
    text: Option<String>,
    key: Option<ClusterKey>,
    /// This machine, if it is known which of the hosts it is.
    own_node: Option<NodeId>,
    /// How the scheduler that has allocated the hosts starts processes on them.
    starter: Starter,
}

impl HostsFile {
    /// The hosts in the order in which they are used.
    fn in_order(&self, args: &RunArgs) -> Vec<Host> {
        let hosts = self.hosts.iter().cloned().collect();
        match args.hosts.as_deref() == Some(Path::new(AGENT)) {
            true => load::best_first(hosts, self.own_node),
            false => hosts,
        }
    }
}

/// Refuses a value of `--at-least` that has no meaning.
fn check_at_least(args: &RunArgs) -> Result<(), clap::Error> {
    let wrong = match args.at_least {
        Some(_) if args.programs.len() > 1 => "--at-least works with one program only",
        Some(least) if least > args.ranks => "--at-least is more than -n",
        _ => return Ok(()),
    };
    let error = clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, wrong);
    Err(error)
}

/// Stands for the hosts file that the agent of this node writes.
const AGENT: &str = "agent";

fn load_hosts(given: Option<&Path>) -> Result<HostsFile, RunError> {
    let key = ClusterKey::from_env().map_err(RunError::Key)?;
    let given = match given {
        Some(name) if name == Path::new(AGENT) => Some(agent_file()?),
        other => other.map(Path::to_owned),
    };
    let file = given.or_else(environment::hosts_file);
    let own_node = job::node_from_env().map_err(RunError::Environment)?;
    let Some(file) = file else {
        if let Some(allocation) = Job::allocation().map_err(RunError::Environment)? {
            let lines = allocation.hosts.iter().map(|host| host.line() + "\n");
            return Ok(HostsFile {
                text: Some(lines.collect()),
                hosts: allocation.hosts,
                key,
                own_node: allocation.own,
                starter: allocation.starter,
            });
        }
        return Ok(HostsFile {
            hosts: Hosts::local_only(own_node.unwrap_or(NodeId(1))),
            text: None,
            key,
            own_node,
            starter: Starter::Ssh,
        });
    };
    let text = lines::read("hosts file", &file).map_err(RunError::Hosts)?;
    let hosts = Hosts::parse_as(&text, &file).map_err(RunError::Hosts)?;
    // A name may resolve to another address on another host.
    let text = match Hosts::parse(&text) {
        Ok(_) => text,
        Err(_) => hosts.iter().map(|host| host.line() + "\n").collect(),
    };
    Ok(HostsFile {
        hosts,
        text: Some(text),
        key,
        own_node,
        starter: Starter::Ssh,
    })
}

fn agent_file() -> Result<PathBuf, RunError> {
    let node = job::node_from_env().map_err(RunError::Environment)?;
    let folder = environment::default_runtime_dir();
    let file = dipole_node::registry::nodes_file(&folder, node.unwrap_or(NodeId(1)));
    match file.exists() {
        true => Ok(file),
        false => Err(RunError::NoAgent { file }),
    }
}

/// Reads a stream in pieces until it ends or fails, or `take` fails.
///
/// # Errors
/// The errors of `take`.
pub fn read_pieces<E>(
    mut from: impl Read,
    most_bytes: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; most_bytes];
    loop {
        match from.read(&mut buffer) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return Ok(()),
            Ok(length) => take(&buffer[..length])?,
        }
    }
}

fn assignment(text: &str) -> Result<String, String> {
    match text.split_once('=').map_or(text, |(name, _)| name) {
        "" => Err("a variable has a name, as in NAME=VALUE".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| *duration <= Duration::from_secs(1_000_000))
        .ok_or_else(|| format!("`{text}` is not a number of seconds, such as 2 or 0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(line: &str) -> Result<Vec<(u32, String)>, clap::Error> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let programs = programs(2, &words)?.into_iter().map(|one| {
            let words: Vec<_> = one
                .command
                .iter()
                .map(|word| word.to_string_lossy())
                .collect();
            (one.ranks, words.join(" "))
        });
        Ok(programs.collect())
    }

    #[test]
    fn a_colon_before_a_number_of_ranks_begins_another_program() {
        let parts_of = |parts: &[(u32, &str)]| {
            let parts = parts
                .iter()
                .map(|(ranks, line)| (*ranks, (*line).to_owned()));
            parts.collect::<Vec<_>>()
        };
        let split = taken("./server -v : -n 4 ./client -n 7 : --ranks=1 ./log").unwrap();
        let expected = parts_of(&[(2, "./server -v"), (4, "./client -n 7"), (1, "./log")]);
        assert_eq!(split, expected);
        for line in ["sh -c :", "echo a : b", ": -n"] {
            assert_eq!(taken(line).unwrap(), parts_of(&[(2, line)]), "{line}");
        }
        for wrong in ["a : -n 0 b", "a : -n 3", "a : -n x b", "a : --ranks"] {
            assert!(taken(wrong).is_err(), "{wrong}");
        }
    }
}
