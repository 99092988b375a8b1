//! The `dipole` program: starts jobs, pipes streams, measures, examines.

#![forbid(unsafe_code)]

mod agent;
mod bench;
mod doctor;
mod graph;
mod key;
mod manual;
mod output;
mod pipe;
mod run;

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
    Run(run::RunArgs),
    Send(pipe::SendArgs),
    Recv(pipe::RecvArgs),
    Bench(bench::BenchArgs),
    Graph(graph::GraphArgs),
    Agent(agent::AgentArgs),
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
    Guard(run::GuardArgs),
    /// Starts and tends a host's ranks (started by `guard`).
    #[command(hide = true)]
    Shim(run::ShimArgs),
    /// Becomes a rank (started by `shim`).
    #[command(hide = true)]
    RankExec(run::RankExecArgs),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Warnings are wanted by default: they say for whom something waits.
    let filter = EnvFilter::try_from_env("DIPOLE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let json = arguments.json;
    match arguments.command {
        Command::Run(args) => run::execute(args, json),
        Command::Send(args) => pipe::send(&args, json),
        Command::Recv(args) => pipe::recv(&args, json),
        Command::Bench(args) => bench::execute(args, json),
        Command::Graph(args) => graph::execute(&args, json),
        Command::Agent(args) => agent::execute(&args, json),
        Command::Key(args) => key::execute(&args, json),
        Command::Doctor(args) => doctor::execute(args, json),
        Command::Completions { shell } => manual::completions(shell, Arguments::command()),
        Command::Manual => manual::pages(Arguments::command()),
        Command::Guard(args) => run::guard(args),
        Command::Shim(args) => run::shim(&args),
        Command::RankExec(args) => run::rank_exec(&args),
    }
}
