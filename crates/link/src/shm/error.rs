//! Errors of connections between processes of one node.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::MAX_GREETING_BYTES;
#[cfg(doc)]
use super::MAX_RECORD_BYTES;

/// Why memory cannot be shared.
#[derive(Debug)]
pub enum ShmError {
    /// The socket cannot be created or reached.
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Error returned by the kernel.
        cause: io::Error,
    },
    /// A process of another user listens on the socket.
    Foreign {
        /// Path of the socket.
        path: PathBuf,
        /// Its process id; 0 if it is in another pid namespace.
        pid: i32,
        /// User id of that process.
        uid: u32,
        /// User id of this process.
        own_uid: u32,
    },
    /// The connection limit is reached.
    TooMany {
        /// Maximum number of connections.
        limit: usize,
    },
    /// Memory or descriptors have run out.
    Memory(io::Error),
    /// The greeting is longer than [`MAX_GREETING_BYTES`].
    GreetingTooLong {
        /// Length of the greeting in bytes.
        length: usize,
    },
}

impl fmt::Display for ShmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShmError::Socket { path, cause } => write!(
                f,
                "cannot connect to local processes at the socket {}: {cause}; \
                 its directory must exist and belong to the same user",
                path.display()
            ),
            ShmError::Foreign {
                path,
                pid,
                uid,
                own_uid,
            } => write!(
                f,
                "process {pid} of uid {uid} listens on the socket {}, but memory is shared only \
                 with processes of uid {own_uid}; end that process, or set DIPOLE_RUNTIME_DIR to \
                 a directory of your own",
                path.display()
            ),
            ShmError::TooMany { limit } => write!(
                f,
                "this process already shares memory with {limit} others, which is its limit \
                 (DIPOLE_MAX_PEERS)"
            ),
            ShmError::Memory(cause) => write!(
                f,
                "cannot create shared memory: {cause}; \
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

/// Why a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The ring is full; try again later.
    Full,
    /// The record is longer than [`MAX_RECORD_BYTES`].
    TooLong {
        /// Length of the record in bytes.
        length: usize,
    },
    /// The connection does not exist, has ended, or is not open yet.
    Gone,
}
