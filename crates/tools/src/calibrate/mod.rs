//! `dipole calibrate`: measures the parameters of the cost model and saves them in profiles, or checks
//! saved ones.

mod choice;
mod exchange;
mod pacing;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::output::Failure;

/// Measure the cost of messages and supersteps, and save it for `dipole predict`
///
/// Without a kind: messages.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CalibrateArgs {
    #[command(subcommand)]
    kind: Option<Kind>,
    #[command(flatten)]
    messages: dipole_bench::MessagesArgs,
}

#[derive(Subcommand, Debug)]
enum Kind {
    Messages(dipole_bench::MessagesArgs),
    Supersteps(dipole_bench::SuperstepsArgs),
    Pacing(pacing::PacingArgs),
}

/// Executes the command; with `json` one object per line.
pub(crate) fn execute(
    arguments: &CalibrateArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let done = match &arguments.kind {
        None => dipole_bench::calibrate_messages(&arguments.messages, json, out),
        Some(Kind::Messages(args)) => dipole_bench::calibrate_messages(args, json, out),
        Some(Kind::Supersteps(args)) => dipole_bench::calibrate_supersteps(args, json, out),
        Some(Kind::Pacing(args)) => return pacing::execute(args, json, out),
    };
    done.map_err(|error| Failure::with_status(2, error))
}
