//! `dipole key`: making cluster keys, and telling which is which.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::output::Failure;
use clap::{Args, Subcommand};
use dipole_node::{ClusterKey, KeyError};

/// Make a cluster key, or tell which one a file holds
///
/// Processes and agents that have a key (DIPOLE_KEY=FILE) talk only to those of other nodes that
/// prove they have the same.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Write a new random key to a file that does not exist yet, readable by its owner only
    New {
        /// The file
        file: PathBuf,
    },
    /// Print the fingerprint of a key, which is no secret
    Show {
        /// The file
        file: PathBuf,
    },
}

pub(crate) fn execute(
    args: &KeyArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let fingerprint = run(&args.what)?;
    match json {
        true => writeln!(out, "{}", serde_json::json!({"fingerprint": fingerprint}))?,
        false => writeln!(out, "{fingerprint}")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run(what: &What) -> Result<String, KeyError> {
    let key = match what {
        What::New { file } => {
            let key = ClusterKey::random().map_err(|cause| KeyError::System {
                file: file.clone(),
                doing: "finding random bytes for",
                cause,
            })?;
            key.save(file)?;
            key
        }
        What::Show { file } => ClusterKey::load(file)?,
    };
    Ok(key.fingerprint())
}
