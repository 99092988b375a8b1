//! The reply of a node's directory.

use std::io;

use dipole_node::KeyMismatch;

/// Result of probing a directory.
#[derive(Debug)]
pub(super) enum Answer {
    /// The expected node replied.
    Right,
    /// A different node replied.
    Wrong,
    /// A process with another cluster key.
    Stranger(KeyMismatch),
    /// No reply.
    Silent,
    /// The host's kernel: the port is closed.
    Refused,
    /// The probe could not be sent.
    Failed(io::Error),
}
