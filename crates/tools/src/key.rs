//! `dipole key`: making cluster keys, and telling which is which.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::output::Failure;
use clap::{Args, Subcommand};
use dipole_node::{ClusterKey, KeyError, Security};

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
        /// How packets between nodes are protected: off (only handshakes are proven), auth (each
        /// packet proves who sent it) or encrypt
        #[arg(long, value_name = "SETTING", default_value_t, value_parser = security)]
        security: Security,
    },
    /// Print the fingerprint of a key, which is no secret
    Show {
        /// The file
        file: PathBuf,
    },
}

fn security(text: &str) -> Result<Security, String> {
    let names = Security::ALL.map(|(name, _)| name).join(", ");
    Security::named(text).ok_or_else(|| format!("expected one of {names}"))
}

pub(crate) fn execute(
    args: &KeyArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let key = run(&args.what)?;
    let (fingerprint, security) = (key.fingerprint(), key.security().to_string());
    match json {
        true => {
            let said = serde_json::json!({"fingerprint": fingerprint, "security": security});
            writeln!(out, "{said}")?;
        }
        false => writeln!(out, "{fingerprint} {security}")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run(what: &What) -> Result<ClusterKey, KeyError> {
    let key = match what {
        What::New { file, security } => {
            let key = ClusterKey::random().map_err(|cause| KeyError::System {
                file: file.clone(),
                doing: "finding random bytes for",
                cause,
            })?;
            let key = key.with_security(*security);
            key.save(file)?;
            key
        }
        What::Show { file } => ClusterKey::load(file)?,
    };
    Ok(key)
}
