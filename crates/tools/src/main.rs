//! The `dipole` program: starts jobs, pipes streams, measures, examines.

#![forbid(unsafe_code)]

mod doctor;
mod graph;
mod key;
mod manual;
mod output;
mod pipe;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Low-latency messages over ordinary networks.
#[derive(Parser, Debug)]
#[command(name = "dipole", version, about, propagate_version = true)]
struct Arguments {
    /// Print JSON, one object a line, instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(dipole_launch::RunArgs),
    Send(pipe::SendArgs),
    Recv(pipe::RecvArgs),
    Bench(dipole_bench::BenchArgs),
    Graph(graph::GraphArgs),
    Agent(dipole_agent::AgentArgs),
    Key(key::KeyArgs),
    Doctor(doctor::DoctorArgs),
    /// Print the completions of a shell
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Prints all manual pages, each behind a line that begins with 0x01 and its name (for
    /// `xtask install`).
    #[command(hide = true)]
    Manual,
    /// Keeps watch above a host's processes (started by `run`).
    #[command(hide = true)]
    Guard(dipole_launch::GuardArgs),
    /// Starts and tends a host's ranks (started by `guard`).
    #[command(hide = true)]
    Shim(dipole_launch::ShimArgs),
    /// Reaches a node through its agent (started by `run`).
    #[command(hide = true)]
    Reach(dipole_launch::ReachArgs),
    /// Tends one caller of the agent (started by `agent`).
    #[command(hide = true)]
    AgentSession(dipole_agent::SessionArgs),
    /// Becomes a rank (started by `shim`).
    #[command(hide = true)]
    RankExec(dipole_launch::RankExecArgs),
}

impl Command {
    /// True for the agent and its sessions, whose output is their log.
    fn is_agent(&self) -> bool {
        match self {
            Command::Agent(args) => args.serves(),
            Command::AgentSession(_) => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Warnings are wanted by default: they say for whom something waits.
    // An agent whose log is read by a program says all that happens.
    let json = arguments.json;
    let logs_json = json && arguments.command.is_agent();
    let usual = if logs_json { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("DIPOLE_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    if logs_json {
        log.json().flatten_event(true).init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).init();
    }
    match arguments.command {
        Command::Run(args) => dipole_launch::execute(args, json),
        Command::Send(args) => pipe::send(&args, json),
        Command::Recv(args) => pipe::recv(&args, json),
        Command::Bench(args) => dipole_bench::execute(args, json),
        Command::Graph(args) => graph::execute(&args, json),
        Command::Agent(args) => dipole_agent::execute(&args, json),
        Command::Key(args) => key::execute(&args, json),
        Command::Doctor(args) => doctor::execute(args, json),
        Command::Completions { shell } => manual::completions(shell, Arguments::command()),
        Command::Manual => manual::pages(Arguments::command()),
        Command::Guard(args) => dipole_launch::guard(args),
        Command::Shim(args) => dipole_launch::shim(&args),
        Command::Reach(args) => dipole_launch::reach(&args),
        Command::AgentSession(args) => dipole_agent::session(&args),
        Command::RankExec(args) => dipole_launch::rank_exec(&args),
    }
}
