//! Errors of creating and using a testbed.

use std::io;
use std::path::PathBuf;

/// Reason why a testbed cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// This user cannot create testbeds on this machine.
    #[error("cannot make a testbed: {why}")]
    NotHere {
        /// The reason and a remedy.
        why: String,
    },
    /// The builder received invalid settings.
    #[error("invalid testbed settings: {why}")]
    Refused {
        /// The invalid setting and the valid values.
        why: String,
    },
    /// `ip` or `tc` failed.
    #[error(
        "cannot make a testbed: `{command}` failed: {cause}; install iproute2 and run \
         with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    Command {
        /// Command line that failed.
        command: String,
        /// Its standard error.
        cause: String,
    },
    /// The folder for the hosts file and the runtime directories cannot be written.
    #[error("cannot use {path}: {cause}; set TMPDIR to a folder that can be written")]
    Folder {
        /// Path of the file or device.
        path: PathBuf,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// An operation inside a namespace failed.
    #[error("{doing} in the namespace {namespace} failed: {cause}")]
    Namespace {
        /// Name of the network namespace.
        namespace: String,
        /// Operation that failed there.
        doing: &'static str,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// Signals cannot be handled, so nothing would be cleaned up.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
}
