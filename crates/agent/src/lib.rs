//! `dipole agent`: one process of a node that answers for it whatever the others do,
//! and knows which nodes there are. No message of a program passes through it.

#![forbid(unsafe_code)]

mod callers;
mod discovery;
mod finder;
mod jobs;
mod lend;
mod lines;
mod member;
mod membership;
mod nodes;
mod place;
mod proofs;
mod rules;
mod segment;
mod serve;
mod session;
mod status;
mod store;
mod ways;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use dipole_node::hosts::Hosts;
use dipole_node::registry::{DirectoryLockError, Registry, RegistryError};
use dipole_node::{Config, ConfigError, NodeId, variables};

use lend::LendError;
use place::PlaceArgs;
use rules::RulesError;
pub use session::{SessionArgs, session};

/// Answer for this node and watch the others.
///
/// One per node and user, started by hand, by a service manager or at boot. Programs find each
/// other without it; with it a process that computes for long, or is stopped, is not taken
/// for dead, and `dipole agent status` tells which nodes there are. It can be ended and
/// started again under running jobs. DIPOLE_NID and DIPOLE_HOSTS say which node this is and
/// where the others are; with --discover or --seed they find each other without a hosts file.
/// Programs of the node that have none reach all nodes that its agent knows, and so does
/// `dipole run --hosts agent`.
///
/// With a cluster key (DIPOLE_KEY) it starts ranks for those who prove that they hold the same,
/// so that `dipole run --hosts` needs no ssh, as far as the rules of the machine's owner allow:
/// a TOML file, by --rules, DIPOLE_AGENT_RULES, or $XDG_CONFIG_HOME/dipole/agent.toml if there
/// is one. It may set max-load (of the last minute, per core), hours (such as
/// ["Mon-Fri 19:00-07:00", "Sat-Sun"]), users-logged-in ("allow", "refuse-others", "refuse") and
/// max-ranks. With --json its log is an object a line.
///
/// With CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW it lends what the bpf link needs to processes
/// without privileges, as far as the administrator of the machine allows: a TOML file, by
/// --cards, DIPOLE_AGENT_CARDS, or /etc/dipole/cards.toml if there is one. It may set
/// rings-per-user (64), and for each card, an entry of the array "card", its name, users and
/// groups (names, numbers, or "*") that get a ring, raw-users and raw-groups that get a socket
/// for raw frames, too, and ring-bytes, the longest ring (1048576). Processes ask at
/// DIPOLE_LENDER (/run/dipole/lender).
/// The file must belong to root or the agent's user, and nobody else may write to it; it is read
/// when the agent starts.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// The owner's rules about work for others
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The administrator's file about cards that are lent
    #[arg(long, value_name = "FILE")]
    cards: Option<PathBuf>,
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID", global = true)]
    nid: Option<NodeId>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(subcommand)]
    what: Option<What>,
}

impl AgentArgs {
    /// True for the agent itself, false for whoever asks it.
    pub fn serves(&self) -> bool {
        self.what.is_none()
    }
}

#[derive(Subcommand, Debug)]
enum What {
    /// What the agent of this node knows
    Status,
}

/// Why there is no agent.
#[derive(Debug)]
enum AgentError {
    Config(ConfigError),
    /// The hosts file does not tell where this node is asked.
    NotInHosts {
        node: u32,
    },
    Variable {
        variable: &'static str,
        expected: String,
    },
    NoCard,
    ControlIsCard {
        control: IpAddr,
    },
    /// Another node has this node's number, and had it first.
    Taken {
        node: u32,
        by: String,
        age_s: u64,
    },
    Registry(RegistryError),
    Seat(DirectoryLockError),
    Rules(RulesError),
    Lend(LendError),
    /// A session without the agent's key.
    NoKey,
    Port {
        address: SocketAddr,
        cause: io::Error,
    },
    System {
        doing: &'static str,
        cause: io::Error,
    },
    NoAgent {
        socket: PathBuf,
        cause: io::Error,
    },
    Status {
        cause: serde_json::Error,
    },
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentError::Config(error) => error.fmt(f),
            AgentError::NotInHosts { node } => write!(
                f,
                "no hosts file says where node {node} is asked: set DIPOLE_HOSTS to one with a \
                 line `{node} ADDRESS`, and DIPOLE_NID to this node's number; or let the nodes find \
                 each other (--discover, --seed)"
            ),
            AgentError::Variable { variable, expected } => {
                write!(f, "{variable} cannot be used: {expected}")
            }
            AgentError::NoCard => f.write_str(
                "no card of this machine is up with an address on a network; name the addresses \
                 of this node by --bind",
            ),
            AgentError::ControlIsCard { control } => write!(
                f,
                "{control} is one of this node's cards: name the others by --bind, or leave \
                 --control away"
            ),
            AgentError::Taken { node, by, age_s } => write!(
                f,
                "node number {node} is taken: an agent at {by} has had it for {age_s} s; give \
                 this node another (--nid, DIPOLE_NID), or end that agent first"
            ),
            AgentError::Registry(error) => error.fmt(f),
            AgentError::Seat(error) => error.fmt(f),
            AgentError::Rules(error) => error.fmt(f),
            AgentError::Lend(error) => error.fmt(f),
            AgentError::NoKey => write!(
                f,
                "an agent starts no work without a cluster key: set {} to its file",
                variables::KEY
            ),
            AgentError::Port { address, cause } => write!(
                f,
                "cannot listen at {address} (TCP) for work: {cause}; end who does (`ss -ltnp`), or \
                 choose another port by `port=` in the hosts file"
            ),
            AgentError::System { doing, cause } => write!(f, "{doing}: {cause}"),
            AgentError::NoAgent { socket, cause } => write!(
                f,
                "no agent answers at {}: {cause}; start one with `dipole agent`, with the same \
                 DIPOLE_NID and runtime directory",
                socket.display()
            ),
            AgentError::Status { cause } => {
                write!(
                    f,
                    "what the agent says is not understood: {cause}; is it of another version?"
                )
            }
        }
    }
}

impl From<RegistryError> for AgentError {
    fn from(error: RegistryError) -> AgentError {
        AgentError::Registry(error)
    }
}

impl From<DirectoryLockError> for AgentError {
    fn from(error: DirectoryLockError) -> AgentError {
        AgentError::Seat(error)
    }
}

impl From<RulesError> for AgentError {
    fn from(error: RulesError) -> AgentError {
        AgentError::Rules(error)
    }
}

impl From<LendError> for AgentError {
    fn from(error: LendError) -> AgentError {
        AgentError::Lend(error)
    }
}

/// Runs the agent until it is told to end, or shows what it knows.
pub fn execute(args: &AgentArgs, json: bool) -> ExitCode {
    let done = match args.what {
        None => run(args, json),
        Some(What::Status) => show(args.nid, json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dipole agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Configuration and registry of this node, or of the one given.
fn opened(nid: Option<NodeId>) -> Result<(Config, Registry), AgentError> {
    let mut config = Config::from_env().map_err(AgentError::Config)?;
    if let Some(node) = nid {
        config.act_as(node).map_err(AgentError::Config)?;
    }
    let registry = Registry::open(&config.runtime_dir, config.node)?.with_key(config.key.as_ref());
    Ok((config, registry))
}

fn run(args: &AgentArgs, json: bool) -> Result<(), AgentError> {
    let (mut config, registry) = opened(args.nid)?;
    // What an agent has found is no order to the next.
    if config.hosts.is_of_agent() {
        config.hosts = Hosts::local_only(config.node);
        config.settle();
    }
    serve::serve(&config, &registry, args, json)
}

fn show(nid: Option<NodeId>, json: bool) -> Result<(), AgentError> {
    let (_, registry) = opened(nid)?;
    let text = status::ask(&registry)?;
    let status = serde_json::from_str(&text).map_err(|cause| AgentError::Status { cause })?;
    let status = status::completed(status, &registry)?;
    if json {
        let text = serde_json::to_string(&status).map_err(|cause| AgentError::Status { cause })?;
        println!("{text}");
    } else {
        print!("{}", status::table(&status));
    }
    Ok(())
}
