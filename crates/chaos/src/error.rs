//! Errors of `dipole chaos`.

use std::io;
use std::path::PathBuf;

/// Why a program cannot be run under faults.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// No program was given.
    #[error("give a program after --, as in `dipole chaos -n 4 --loss 1% -- ./program`")]
    NoCommand,
    /// Options that exclude each other, or values out of range.
    #[error("{0}")]
    Usage(String),
    /// Namespaces are not available to this user.
    #[error("cannot create a cluster of namespaces: {doing} failed: {cause}; {advice}")]
    Namespaces {
        /// Operation that failed.
        doing: &'static str,
        /// The error from the kernel.
        cause: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// A device for the network cannot be opened.
    #[error(
        "cannot create a cluster: /dev/net/tun cannot be opened: {0}; load the kernel module tun, \
         and let this user read and write the device (`chmod 666 /dev/net/tun`, the default of most \
         distributions), or run as root"
    )]
    Tun(io::Error),
    /// `--clock` does not work here.
    #[error("--clock is not possible here: {0}")]
    Clock(String),
    /// The testbed cannot be created.
    #[error(transparent)]
    Testbed(#[from] dipole_testbed::TestbedError),
    /// A file cannot be written.
    #[error("cannot write {path}: {cause}; name a file that can be written, or free some space")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {cause}; check its path")]
    Start {
        /// The program.
        program: String,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
}
