//! What can go wrong between processes of one node.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::MAX_GREETING_BYTES;
#[cfg(doc)]
use super::MAX_RECORD_BYTES;

/// Why memory cannot be shared.
#[derive(Debug)]
pub enum ShmError {
    /// The socket file cannot be made or reached.
    Socket {
        /// Which.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// No memory or descriptors.
    Memory(io::Error),
    /// The greeting is longer than [`MAX_GREETING_BYTES`].
    GreetingTooLong {
        /// Its length.
        length: usize,
    },
}

impl fmt::Display for ShmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShmError::Socket { path, cause } => write!(
                f,
                "cannot meet other processes of this node at the socket {}: {cause}; \
                 its folder must exist and belong to the same user",
                path.display()
            ),
            ShmError::Memory(cause) => write!(
                f,
                "no memory to share with another process of this node: {cause}; \
                 see `ulimit -n` and the memory limit of this process"
            ),
            ShmError::GreetingTooLong { length } => write!(
                f,
                "a greeting of {length} bytes is too long, the limit is {MAX_GREETING_BYTES}"
            ),
        }
    }
}

impl std::error::Error for ShmError {}

/// Why a record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now.
    Full,
    /// Longer than [`MAX_RECORD_BYTES`].
    TooLong {
        /// Its length.
        length: usize,
    },
    /// There is no such connection (any more), or it is not open yet.
    Gone,
}
