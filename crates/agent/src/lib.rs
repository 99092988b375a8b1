//! `dipole agent`: the daemon of a node. It answers look-ups for the node whatever the node's other
//! processes do, and tracks the other nodes. Messages of programs do not pass through it.

#![forbid(unsafe_code)]

mod announcer;
mod callers;
mod discovery;
mod fd_store;
mod jobs;
mod load;
mod load_command;
mod member;
mod membership;
mod metrics;
mod nodes;
mod options;
mod own_addresses;
mod paths;
mod rules;
mod sampler;
mod scrape;
mod segment;
mod serve;
mod session;
mod sockets;
mod status;
mod toml_lines;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use dipole_node::hosts::Hosts;
use dipole_node::registry::{DirectoryLockError, Registry, RegistryError};
use dipole_node::{Config, ConfigError, NodeId, variables};

pub use load_command::{LoadArgs, load};
#[doc(hidden)]
pub use membership::receive_anything;
pub use metrics::metrics;

/// Version and commit of this program, as `dipole --version` prints them.
pub const VERSION: &str = env!("SOURCE_VERSION");
use options::{LoadOptions, NodeOptions};
use rules::RulesError;
pub use session::{SessionArgs, session};

/// Answer look-ups for this node and track the other nodes.
///
/// One agent per node and user, started by hand, by a service manager or at boot. Programs find
/// each other without it. With it, a process that computes for long, or is stopped, is not taken
/// for dead, and `dipole agent status` lists the nodes. It can be stopped and restarted while jobs
/// run. DIPOLE_NID is the number of this node and DIPOLE_HOSTS the file with the addresses of all
/// nodes; with --discover or --seed the nodes find each other without a file. Programs without a
/// hosts file reach all nodes that the agent of their node knows, and so does `dipole run --hosts
/// agent`.
///
/// With a cluster key (DIPOLE_KEY) it starts ranks for callers that prove that they hold the same
/// key, so that `dipole run --hosts` needs no ssh. The owner of the machine can restrict that with
/// rules: a TOML file named by --rules or DIPOLE_AGENT_RULES, else
/// $XDG_CONFIG_HOME/dipole/agent.toml if it exists. It may set max-load (of the last minute, per
/// core), hours (such as ["Mon-Fri 19:00-07:00", "Sat-Sun"]), users-logged-in ("allow",
/// "refuse-others", "refuse") and max-ranks. With --json the log has one JSON object per line.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// File with the owner's rules about work for others
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Serve the counters of this user's processes to Prometheus: http://ADDRESS:PORT/metrics, for
    /// any client that can reach the address
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Number of this node [default: $DIPOLE_NID, else 1]
    #[arg(long, value_name = "NID", global = true)]
    nid: Option<NodeId>,
    #[command(flatten)]
    node: NodeOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(subcommand)]
    command: Option<AgentCommand>,
}

impl AgentArgs {
    /// True for the agent itself, false for commands that query it.
    pub fn serves(&self) -> bool {
        self.command.is_none()
    }
}

#[derive(Subcommand, Debug)]
enum AgentCommand {
    /// Show the state of this node's agent
    Status,
}

/// Why the agent cannot run, or cannot be queried.
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
    #[error(
        "{node} has a link-local address in the hosts file: agents pass addresses on to machines \
         whose interfaces may have other names; give it an address such as fd00::1, or run \
         programs with this file and without agents"
    )]
    LinkLocal { node: String },
    #[error("{variable} cannot be used: {expected}")]
    Variable {
        variable: &'static str,
        expected: String,
    },
    #[error(
        "no interface of this machine is up with a network address; set the addresses \
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
    #[error(
        "an agent starts no work without a cluster key: set {} to its file",
        variables::KEY
    )]
    NoKey,
    #[error("a caller disconnected: {0}")]
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
        "cannot listen at {address} (TCP) to serve counters: {cause}; choose another address or \
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
        "no agent listens at {socket}: {cause}; start one with `dipole agent`, with the same \
         DIPOLE_NID and runtime directory"
    )]
    NoAgent { socket: PathBuf, cause: io::Error },
    #[error("the agent cannot collect its status: {error}")]
    NoStatus { error: String },
    #[error("cannot read the status of the agent: {cause}; is it another version?")]
    Status { cause: serde_json::Error },
}

/// Adds the failed action to an error of the system.
fn system(doing: &'static str) -> impl Fn(std::io::Error) -> AgentError {
    move |cause| AgentError::System { doing, cause }
}

/// Runs the agent until a signal stops it, or prints its status.
///
/// # Errors
/// The agent cannot run or does not reply, or writing to `out` failed.
pub fn execute(
    args: &AgentArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    match args.command {
        None => Ok(run(args, json)?),
        Some(AgentCommand::Status) => show(args.nid, json, out),
    }
}

/// Opens the configuration and the registry of this node, or of `nid`.
fn open_node(nid: Option<NodeId>) -> Result<(Config, Registry), AgentError> {
    let mut config = Config::from_env().map_err(AgentError::Config)?;
    if let Some(node) = nid {
        config.set_node(node).map_err(AgentError::Config)?;
    }
    let registry = Registry::open(&config.runtime_dir, config.node)?.with_key(config.key.as_ref());
    Ok((config, registry))
}

fn run(args: &AgentArgs, json: bool) -> Result<(), AgentError> {
    let (mut config, registry) = open_node(args.nid)?;
    // Nodes that an earlier agent discovered are discovered again.
    if config.hosts.is_from_agent() {
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
    let (config, registry) = open_node(nid)?;
    let status = status::request(&registry)?;
    let status = status::completed(status, &registry, &config.broker)?;
    match json {
        true => writeln!(out, "{}", serde_json::to_string(&status)?)?,
        false => write!(out, "{}", status::table(&status))?,
    }
    Ok(())
}
