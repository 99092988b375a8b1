//! Why there is no testbed.

use std::io;
use std::path::PathBuf;

/// Why there is no testbed, or why something on it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// No testbed can be made on this machine by this user.
    #[error("cannot make a testbed: {why}")]
    NotHere {
        /// Why, and what to do.
        why: String,
    },
    /// The builder was asked for something that does not exist.
    #[error("there is no such testbed: {why}")]
    Refused {
        /// What, and what to ask for instead.
        why: String,
    },
    /// `ip` or `tc` failed.
    #[error(
        "cannot make a testbed: `{command}` failed: {cause}; install iproute2 and run \
         with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    )]
    Command {
        /// What was called.
        command: String,
        /// What it said.
        cause: String,
    },
    /// The folder of hosts file and runtime directories cannot be written.
    #[error("cannot use {path}: {cause}; set TMPDIR to a folder that can be written")]
    Folder {
        /// Which path.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// Nothing can be done inside a namespace.
    #[error("{doing} in the namespace {namespace} failed: {cause}")]
    Namespace {
        /// Its name.
        namespace: String,
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        cause: io::Error,
    },
    /// Signals cannot be watched, so nothing would be cleaned up.
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
}
