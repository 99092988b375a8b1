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
    /// Another user's process listens there.
    Foreign {
        /// At which socket.
        path: PathBuf,
        /// Its process, 0 if it cannot be seen.
        pid: i32,
        /// Its user.
        uid: u32,
        /// Who we are.
        own_uid: u32,
    },
    /// There are as many connections as there may be.
    TooMany {
        /// How many that is.
        limit: usize,
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
            ShmError::Foreign {
                path,
                pid,
                uid,
                own_uid,
            } => write!(
                f,
                "process {pid} of uid {uid} listens at the socket {}, not one of uid {own_uid}: \
                 memory is shared with nobody else; end it, or set DIPOLE_RUNTIME_DIR to a \
                 directory of your own",
                path.display()
            ),
            ShmError::TooMany { limit } => write!(
                f,
                "this process shares memory with {limit} others already, its limit \
                 (DIPOLE_MAX_PEERS)"
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
