//! Benches between two hosts: `dipole bench server` on one, `dipole bench --to NODE` on the other.
//!
//! The two exchange JSON objects in Dipole messages, so every program that may send to the node may
//! use it for measurements, and no other. The server starts its processes itself, with addresses of
//! its own hosts file. It takes only the work from the client's job.

mod client;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use dipole_node::hosts::Hosts;
use dipole_node::{Config, ConfigError, FileError, NodeId, OpenError};
use serde::{Deserialize, Serialize};

use crate::control::Job;
pub use client::{Remote, RemoteWorker};
pub(crate) use server::serve;

/// First endpoint of a bench on a node that other programs use.
pub const FIRST_ENDPOINT: u32 = 0xfeb0_0000;
const SERVER: u32 = FIRST_ENDPOINT;
/// Interval at which a waiting side checks whether the other is alive.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for sending a message.
const PATIENCE: Duration = Duration::from_secs(10);
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The other host of a bench.
#[derive(Args, Debug)]
pub struct RemoteArgs {
    /// Measure between this node and that one, where `dipole bench server` runs
    #[arg(long, value_name = "NODE", conflicts_with = "on")]
    pub(crate) to: Option<NodeId>,
    /// Hosts file [default: $DIPOLE_HOSTS]
    #[arg(long, value_name = "FILE", requires = "to")]
    hosts: Option<PathBuf>,
    /// Id of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID", requires = "to")]
    nid: Option<NodeId>,
}

/// Options of `dipole bench server`.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Hosts file [default: $DIPOLE_HOSTS]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Id of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID")]
    nid: Option<NodeId>,
}

impl RemoteArgs {
    fn identity(&self) -> Identity<'_> {
        Identity {
            hosts: self.hosts.as_ref(),
            nid: self.nid,
        }
    }
}

impl ServerArgs {
    fn identity(&self) -> Identity<'_> {
        Identity {
            hosts: self.hosts.as_ref(),
            nid: self.nid,
        }
    }
}

/// Hosts file and node id from the command line.
#[derive(Clone, Copy)]
struct Identity<'a> {
    hosts: Option<&'a PathBuf>,
    nid: Option<NodeId>,
}

impl Identity<'_> {
    /// Returns the configuration from the environment, overridden by the options.
    fn configure(&self) -> Result<Config, RemoteError> {
        let mut config = Config::from_env().map_err(RemoteError::Config)?;
        if let Some(node) = self.nid {
            config.set_node(node).map_err(RemoteError::Config)?;
        }
        if let Some(file) = self.hosts {
            config.hosts = Hosts::load(file).map_err(RemoteError::Hosts)?;
        }
        if self.nid.is_some() || self.hosts.is_some() {
            config.apply_hosts_file();
        }
        if config.hosts.is_local_only() {
            return Err(RemoteError::Alone);
        }
        Ok(config)
    }

    /// Returns additional environment variables for the processes of this side.
    fn environment(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        let hosts = self.hosts.into_iter().map(|file| {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            ("DIPOLE_HOSTS", file.into())
        });
        let node = self.nid.map(|node| ("DIPOLE_NID", node.to_string().into()));
        hosts.chain(node).collect()
    }
}

/// Reason why a bench between two hosts is impossible.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    Config(ConfigError),
    #[error(transparent)]
    Hosts(FileError),
    #[error(
        "there is only this node: name a hosts file (--hosts or DIPOLE_HOSTS), or run an agent that \
         knows the others (`dipole agent --discover`)"
    )]
    Alone,
    #[error("node {0} is this one; leave out --to for a bench on one machine")]
    Self_(NodeId),
    #[error("node {0} is not in the hosts file; add a line `{0} ADDRESS`")]
    NotListed(NodeId),
    #[error(transparent)]
    Open(OpenError),
    #[error(
        "another `dipole bench server` runs on this node (process {process}); end it, or use it"
    )]
    Taken { process: u32 },
    #[error("no bench with node {node}: {why}")]
    Unreachable { node: NodeId, why: String },
    #[error("found no `dipole bench server` on node {node}; start one there. {why}")]
    NoServer { node: NodeId, why: String },
    #[error("node {node} refuses the bench: {why}")]
    Refused { node: NodeId, why: String },
    #[error(
        "the bench server of node {node} {event}; start it again, with the version of this side"
    )]
    Silent { node: NodeId, event: String },
    #[error("cannot watch for signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot write: {0}")]
    Output(#[from] std::io::Error),
}

/// Message from the client to the server.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// The first message.
    Hello { version: String },
    /// Be the following side of this job.
    Start { number: u64, job: Job },
    /// A line for the process of this job.
    Line { number: u64, line: String },
    /// Ends this job.
    Stop { number: u64 },
    /// The sender is alive.
    Alive,
    /// The last message.
    Bye,
}

/// Message from the server to the client.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The server is free and has this machine.
    Welcome(Machine),
    /// The server does not take part, for this reason.
    Refused {
        why: String,
    },
    /// A line from the process of a job.
    Line {
        number: u64,
        line: String,
    },
    /// The process has exited.
    Ended {
        number: u64,
        how: String,
    },
    Alive,
}

impl Answer {
    /// Replaces control characters in texts, which could manipulate a terminal.
    fn plain(self) -> Answer {
        match self {
            Answer::Welcome(machine) => Answer::Welcome(Machine {
                description: plain(&machine.description),
                ..machine
            }),
            Answer::Refused { why } => Answer::Refused { why: plain(&why) },
            Answer::Ended { number, how } => Answer::Ended {
                number,
                how: plain(&how),
            },
            // Lines are parsed by this program and not printed.
            other @ (Answer::Line { .. } | Answer::Alive) => other,
        }
    }
}

/// Replaces control characters, so that remote text cannot control the terminal.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Facts about the other machine that readers of figures must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub description: String,
    /// Core of its side.
    pub core: usize,
    /// The bpf link is available there.
    pub has_bpf: bool,
}

/// Returns why a client of another version is rejected, if it is.
fn other_version(theirs: &str) -> Option<String> {
    (theirs != VERSION).then(|| {
        format!(
            "the side that asks has version {theirs}, the server {VERSION}; install the same version \
             on both"
        )
    })
}

fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("plain data can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_read_as_they_were_written() {
        let hello = to_bytes(&Request::Hello {
            version: "9.8.7".to_owned(),
        });
        assert!(matches!(
            serde_json::from_slice(&hello),
            Ok(Request::Hello { version }) if version == "9.8.7"
        ));
        let ended = to_bytes(&Answer::Ended {
            number: 3,
            how: "ended".to_owned(),
        });
        assert!(matches!(
            serde_json::from_slice(&ended),
            Ok(Answer::Ended { number: 3, .. })
        ));
    }

    #[test]
    fn texts_of_the_other_side_do_nothing_to_a_terminal() {
        let evil = "\u{1b}]0;owned\u{7}\n\u{9b}2J".to_owned();
        let machine = Machine {
            description: evil.clone(),
            core: 1,
            has_bpf: false,
        };
        for answer in [
            Answer::Welcome(machine),
            Answer::Refused { why: evil.clone() },
            Answer::Ended {
                number: 1,
                how: evil,
            },
        ] {
            let shown = match answer.plain() {
                Answer::Welcome(machine) => machine.description,
                Answer::Refused { why: text } | Answer::Ended { how: text, .. } => text,
                other => panic!("{other:?}"),
            };
            assert_eq!(shown, "?]0;owned???2J");
        }
    }

    #[test]
    fn only_the_same_version_takes_part() {
        assert_eq!(other_version(VERSION), None);
        let why = other_version("9.8.7").expect("another one");
        assert!(why.contains("9.8.7") && why.contains(VERSION), "{why}");
    }
}
