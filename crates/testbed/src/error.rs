//! Why there is no testbed.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why there is no testbed, or why something on it cannot be done.
#[derive(Debug)]
pub enum TestbedError {
    /// No testbed can be made on this machine by this user.
    NotHere {
        /// Why, and what to do.
        why: String,
    },
    /// The builder was asked for something that does not exist.
    Refused {
        /// What, and what to ask for instead.
        why: String,
    },
    /// `ip` or `tc` failed.
    Command {
        /// What was called.
        command: String,
        /// What it said.
        cause: String,
    },
    /// The folder of hosts file and runtime directories cannot be written.
    Folder {
        /// Which path.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// Nothing can be done inside a namespace.
    Namespace {
        /// Its name.
        namespace: String,
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        cause: io::Error,
    },
    /// Signals cannot be watched, so nothing would be cleaned up.
    Signals(io::Error),
}

impl fmt::Display for TestbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TestbedError::NotHere { why } => write!(f, "cannot make a testbed: {why}"),
            TestbedError::Refused { why } => write!(f, "there is no such testbed: {why}"),
            TestbedError::Command { command, cause } => write!(
                f,
                "cannot make a testbed: `{command}` failed: {cause}; install iproute2 and run \
                 with CAP_NET_ADMIN and CAP_SYS_ADMIN"
            ),
            TestbedError::Folder { path, cause } => write!(
                f,
                "cannot use {}: {cause}; set TMPDIR to a folder that can be written",
                path.display()
            ),
            TestbedError::Namespace {
                namespace,
                doing,
                cause,
            } => write!(f, "{doing} in the namespace {namespace} failed: {cause}"),
            TestbedError::Signals(cause) => write!(f, "cannot watch for signals: {cause}"),
        }
    }
}

impl std::error::Error for TestbedError {}
