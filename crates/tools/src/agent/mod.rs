//! `dipole agent`: one process of a node that answers for it whatever the others do,
//! and knows which nodes there are. No message of a program passes through it.

mod membership;
mod proofs;
mod serve;
mod status;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use dipole_node::registry::{Registry, RegistryError, SeatError};
use dipole_node::{Config, ConfigError};

/// Answer for this node and watch the others.
///
/// One per node and user, started by hand, by a service manager or at boot. Programs find each
/// other without it; with it a process that computes for long, or is stopped, is not taken
/// for dead, and `dipole agent status` tells which nodes there are. It can be ended and
/// started again under running jobs. DIPOLE_NID and DIPOLE_HOSTS say which node this is and
/// where the others are.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    what: Option<What>,
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
    Registry(RegistryError),
    Seat(SeatError),
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
                 line `{node} ADDRESS`, and DIPOLE_NID to this node's number"
            ),
            AgentError::Registry(error) => error.fmt(f),
            AgentError::Seat(error) => error.fmt(f),
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

impl From<SeatError> for AgentError {
    fn from(error: SeatError) -> AgentError {
        AgentError::Seat(error)
    }
}

pub(crate) fn execute(args: &AgentArgs, json: bool) -> ExitCode {
    let done = match args.what {
        None => run(),
        Some(What::Status) => show(json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dipole agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn opened() -> Result<(Config, Registry), AgentError> {
    let config = Config::from_env().map_err(AgentError::Config)?;
    let registry = Registry::open(&config.runtime_dir, config.node)?.with_key(config.key.as_ref());
    Ok((config, registry))
}

fn run() -> Result<(), AgentError> {
    let (config, registry) = opened()?;
    serve::serve(&config, &registry)
}

fn show(json: bool) -> Result<(), AgentError> {
    let (_, registry) = opened()?;
    let text = status::ask(&registry)?;
    if json {
        println!("{text}");
        return Ok(());
    }
    let status = serde_json::from_str(&text).map_err(|cause| AgentError::Status { cause })?;
    print!("{}", status::table(&status));
    Ok(())
}
