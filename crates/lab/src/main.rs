//! `dipole-lab`: measurements for papers and reports. It builds on the modules of `dipole bench` and
//! is not part of the released `dipole`.

#![forbid(unsafe_code)]

mod cluster;
mod crossings;
mod crowd;
mod incast;
mod migration;
mod mpi;
mod options;
mod pacing;
mod peers;
mod side;
mod supersteps;
mod task;
mod variance;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dipole_bench::output::Output;
use dipole_bench::{RankArgs, side as bench_side};
use tracing_subscriber::EnvFilter;

/// Measurements of Dipole for papers and reports
#[derive(Parser, Debug)]
#[command(name = "dipole-lab", version)]
struct Arguments {
    /// Print JSON, one object per line, instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Peers(peers::PeersArgs),
    Supersteps(supersteps::Args),
    Crowd(crowd::CrowdArgs),
    Incast(incast::IncastArgs),
    Pacing(pacing::PacingArgs),
    Variance(variance::VarianceArgs),
    Crossings(crossings::CrossingsArgs),
    Migration(migration::MigrationArgs),
    /// One of the two sides of a measurement (started by this program).
    #[command(hide = true)]
    BenchSide,
    /// One process of a crowd or an incast (started by this program).
    #[command(hide = true)]
    LabSide,
    /// A rank whose supersteps are measured (started by this program).
    #[command(hide = true)]
    SuperstepRank(RankArgs),
    /// Starts ranks, as `dipole run` does.
    #[command(hide = true)]
    Run(Box<dipole_launch::RunArgs>),
    #[command(hide = true)]
    Guard(dipole_launch::GuardArgs),
    #[command(hide = true)]
    Shim(dipole_launch::ShimArgs),
    #[command(hide = true)]
    Reach(dipole_launch::ReachArgs),
    #[command(hide = true)]
    RankExec(dipole_launch::RankExecArgs),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = match dipole_node::log::filter() {
        Ok(filter) => filter.unwrap_or_else(|| EnvFilter::new("warn")),
        Err(error) => {
            eprintln!("dipole-lab: {error}");
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    match run(arguments) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("dipole-lab: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let json = arguments.json;
    let out = &mut std::io::stdout();
    let output = &mut Output {
        json,
        wide: false,
        out,
    };
    let succeeded = match arguments.command {
        Command::Peers(args) => peers::execute(&args, output)?,
        Command::Supersteps(args) => supersteps::execute(&args, output)?,
        Command::Crowd(args) => crowd::execute(&args, output)?,
        Command::Incast(args) => incast::execute(&args, output)?,
        Command::Pacing(args) => pacing::execute(&args, output)?,
        Command::Variance(args) => variance::execute(&args, output)?,
        Command::Crossings(args) => crossings::execute(&args, output)?,
        Command::Migration(args) => migration::execute(&args, output)?,
        Command::BenchSide => return Ok(bench_side::run()),
        Command::LabSide => return Ok(side::run()),
        Command::SuperstepRank(args) => {
            dipole_bench::rank(&args)?;
            true
        }
        Command::Run(args) => return dipole_launch::execute(*args, json),
        Command::Guard(args) => return Ok(dipole_launch::guard(args)),
        Command::Shim(args) => return Ok(dipole_launch::shim(&args)),
        Command::Reach(args) => return Ok(dipole_launch::reach(&args)),
        Command::RankExec(args) => return Ok(dipole_launch::rank_exec(&args)),
    };
    match succeeded {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}
