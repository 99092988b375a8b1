//! `dipole key`: creates, identifies and rotates cluster keys.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::output::Failure;
use clap::{Args, Subcommand};
use dipole_node::{ClusterKey, KeyError, KeyRole, Security};

/// Create or identify a cluster key
///
/// Processes and agents with a key (DIPOLE_KEY=FILE) communicate with other nodes only if those
/// prove that they hold the same key.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Write a new random key to a file that does not exist yet, readable by its owner only
    New {
        /// Path of the new key file
        file: PathBuf,
        /// How packets between nodes are protected: off (only handshakes are proven), auth (each
        /// packet proves who sent it) or encrypt
        #[arg(long, value_name = "SETTING", default_value_t, value_parser = security)]
        security: Security,
    },
    /// Print the fingerprint of a key, which is not secret
    Show {
        /// Path of the key file
        file: PathBuf,
    },
    /// Rotate a cluster's key while it runs, in three steps
    ///
    /// The first adds a new key to the file, the second makes it the one that is proven with, and the
    /// third removes the old one. Copy the file to every node after each step. Processes and agents read
    /// it again by themselves; open sessions continue.
    Rotate {
        /// Path of the key file, which has one key at first
        file: PathBuf,
        /// Every node has the current file: continue with the next step
        #[arg(long = "continue")]
        goes_on: bool,
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
    let other = key.other();
    if json {
        let mut said = serde_json::json!({"fingerprint": fingerprint, "security": security});
        if let Some((role, other)) = other {
            said[role.name()] = other.into();
        }
        writeln!(out, "{said}")?;
        return Ok(ExitCode::SUCCESS);
    }
    match &other {
        Some((role, other)) => {
            writeln!(out, "{fingerprint} {security} {}={other}", role.name())?;
        }
        None => writeln!(out, "{fingerprint} {security}")?,
    }
    if let What::Rotate { file, .. } = &args.what {
        let file = file.display();
        let (step, then) = match other.map(|(role, _)| role) {
            Some(KeyRole::Next) => (1, format!(", then `dipole key rotate --continue {file}`")),
            Some(KeyRole::Old) => (2, format!(", then `dipole key rotate --continue {file}`")),
            None => (3, String::new()),
        };
        writeln!(
            out,
            "step {step} of 3: copy {file} to every node{then}; what runs there reads it again by \
             itself"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run(what: &What) -> Result<ClusterKey, KeyError> {
    match what {
        What::New { file, security } => {
            let key = ClusterKey::random().map_err(|cause| KeyError::System {
                file: file.clone(),
                doing: "finding random bytes for",
                cause,
            })?;
            let key = key.with_security(*security);
            key.save(file)?;
            Ok(key)
        }
        What::Show { file } => ClusterKey::load(file),
        What::Rotate { file, goes_on } => ClusterKey::rotate(file, *goes_on),
    }
}
