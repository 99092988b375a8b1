//! `dipole agent`: one process of a node that answers for it whatever the node's other processes
//! do, and knows the other nodes. No message of a program passes through it.

#![forbid(unsafe_code)]

mod announcer;
mod broker;
mod callers;
mod discovery;
mod fd_store;
mod jobs;
mod member;
mod membership;
mod metrics;
mod nodes;
mod options;
mod paths;
mod rules;
mod scrape;
mod segment;
mod serve;
mod session;
mod standby;
mod status;
mod toml_lines;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use dipole_node::hosts::Hosts;
use dipole_node::registry::{DirectoryLockError, Registry, RegistryError};
use dipole_node::{Config, ConfigError, NodeId, variables};

use broker::BrokerError;
#[doc(hidden)]
pub use membership::take_anything;
pub use metrics::metrics;
use options::NodeOptions;
use rules::RulesError;
pub use session::{SessionArgs, session};
pub use standby::{StandbyArgs, standby};

/// Answer for this node and watch the others.
///
/// One per node and user, started by hand, by a service manager or at boot. Programs find each
/// other without it; with it a process that computes for long, or is stopped, is not taken
/// for dead, and `dipole agent status` lists the nodes. It can be stopped and started again under
/// running jobs. DIPOLE_NID and DIPOLE_HOSTS say which node this is and where the others are; with
/// --discover or --seed the nodes find each other without a hosts file. Programs without a hosts
/// file reach all nodes that the agent of their node knows, and so does `dipole run --hosts agent`.
///
/// With a cluster key (DIPOLE_KEY) it starts ranks for callers that prove to hold the same key, so
/// that `dipole run --hosts` needs no ssh, as far as the rules of the machine's owner allow: a TOML
/// file named by --rules or DIPOLE_AGENT_RULES, else $XDG_CONFIG_HOME/dipole/agent.toml if it
/// exists. It may set max-load (of the last minute, per core), hours (such as
/// ["Mon-Fri 19:00-07:00", "Sat-Sun"]), users-logged-in ("allow", "refuse-others", "refuse") and
/// max-ranks. With --json the log has one JSON object per line.
///
/// With CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW it grants unprivileged processes what the bpf link
/// needs, as far as the administrator of the machine allows: a TOML file named by --interfaces or
/// DIPOLE_AGENT_INTERFACES, else /etc/dipole/interfaces.toml if it exists. It may set
/// rings-per-user (64), and for each interface, an entry of the array "interface", its name, users
/// and groups (names, numbers, or "*") that get a ring, raw-users and raw-groups that also get a
/// socket for raw frames, and ring-bytes, the longest ring (1048576). Processes connect to
/// DIPOLE_BROKER (/run/dipole/broker). The file must belong to root or the agent's user, and nobody
/// else may write to it; it is read when the agent starts.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// The owner's rules about work for others
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The administrator's file about interfaces whose rings are granted
    #[arg(long, value_name = "FILE")]
    interfaces: Option<PathBuf>,
    /// Serve the counters of this user's processes here to Prometheus: http://ADDRESS:PORT/metrics,
    /// to whoever can reach the address
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID", global = true)]
    nid: Option<NodeId>,
    #[command(flatten)]
    node: NodeOptions,
    #[command(subcommand)]
    what: Option<What>,
}

impl AgentArgs {
    /// True for the agent itself, false for commands that ask it.
    pub fn serves(&self) -> bool {
        self.what.is_none()
    }
}

#[derive(Subcommand, Debug)]
enum What {
    /// Show what the agent of this node knows
    Status,
}

/// Why there is no agent.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error(transparent)]
    Config(ConfigError),
    #[error(
        "no hosts file has an address for node {node}: set DIPOLE_HOSTS to one with a \
         line `{node} ADDRESS`, and DIPOLE_NID to this node's number; or let the nodes find \
         each other (--discover, --seed)"
    )]
    NotInHosts { node: u32 },
    #[error("{variable} cannot be used: {expected}")]
    Variable {
        variable: &'static str,
        expected: String,
    },
    #[error(
        "no interface of this machine is up with a network address; name the addresses \
         of this node with --bind"
    )]
    NoInterface,
    #[error(
        "{control} is one of this node's interfaces: name only the others with --bind, or \
         omit --control"
    )]
    ControlIsInterface { control: IpAddr },
    #[error(
        "node number {node} is taken: an agent at {by} has had it for {age_s} s; give \
         this node another (--nid, DIPOLE_NID), or stop that agent first"
    )]
    Taken { node: u32, by: String, age_s: u64 },
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    DirectoryLock(#[from] DirectoryLockError),
    #[error(transparent)]
    Rules(#[from] RulesError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(
        "an agent starts no work without a cluster key: set {} to its file",
        variables::KEY
    )]
    NoKey,
    #[error("a caller hung up: {0}")]
    Caller(io::Error),
    #[error(
        "cannot listen at {address} (TCP) for work: {cause}; stop the process that does \
         (`ss -ltnp`), or choose another port with `port=` in the hosts file"
    )]
    Port {
        address: SocketAddr,
        cause: io::Error,
    },
    #[error(
        "cannot listen at {address} (TCP) for readers of counters: {cause}; choose another address or \
         port with --metrics"
    )]
    Metrics {
        address: SocketAddr,
        cause: io::Error,
    },
    #[error("{doing}: {cause}")]
    System {
        doing: &'static str,
        cause: io::Error,
    },
    #[error(
        "no agent answers at {socket}: {cause}; start one with `dipole agent`, with the same \
         DIPOLE_NID and runtime directory"
    )]
    NoAgent { socket: PathBuf, cause: io::Error },
    #[error("cannot read the agent's answer: {cause}; is it another version?")]
    Status { cause: serde_json::Error },
}

/// Runs the agent until it is told to stop, or prints what it knows.
///
/// # Errors
/// Why there is no agent, or none that answers; writing to `out` failed.
pub fn execute(
    args: &AgentArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    match args.what {
        None => Ok(run(args, json)?),
        Some(What::Status) => show(args.nid, json, out),
    }
}

/// Configuration and registry of this node, or of the one given.
fn opened(nid: Option<NodeId>) -> Result<(Config, Registry), AgentError> {
    let mut config = Config::from_env().map_err(AgentError::Config)?;
    if let Some(node) = nid {
        config.set_node(node).map_err(AgentError::Config)?;
    }
    let registry = Registry::open(&config.runtime_dir, config.node)?.with_key(config.key.as_ref());
    Ok((config, registry))
}

fn run(args: &AgentArgs, json: bool) -> Result<(), AgentError> {
    let (mut config, registry) = opened(args.nid)?;
    // Nodes that an earlier agent discovered do not bind this one.
    if config.hosts.is_of_agent() {
        config.hosts = Hosts::local_only(config.node);
        config.apply_hosts_file();
    }
    serve::serve(&config, &registry, args, json)
}

fn show(
    nid: Option<NodeId>,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let (_, registry) = opened(nid)?;
    let text = status::request(&registry)?;
    let status = serde_json::from_str(&text).map_err(|cause| AgentError::Status { cause })?;
    let status = status::completed(status, &registry)?;
    match json {
        true => writeln!(out, "{}", serde_json::to_string(&status)?)?,
        false => write!(out, "{}", status::table(&status))?,
    }
    Ok(())
}
