//! `dipole bsp`: what belongs to programs that run in supersteps.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::output::Failure;

/// Measure what programs for BSPlib find here
#[derive(Args, Debug)]
pub(crate) struct BspArgs {
    #[command(subcommand)]
    command: BspCommand,
}

#[derive(Subcommand, Debug)]
enum BspCommand {
    Probe(dipole_bench::ProbeArgs),
    /// Takes part in a measurement (started by `probe`).
    #[command(hide = true)]
    Rank(dipole_bench::RankArgs),
}

pub(crate) fn execute(
    args: &BspArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    match &args.command {
        BspCommand::Probe(args) => {
            dipole_bench::probe(args, json, out).map_err(|error| Failure::with_status(2, error))
        }
        BspCommand::Rank(args) => {
            dipole_bench::rank(args)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
