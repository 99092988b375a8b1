//! The reply of a node's directory.

use std::io;

use dipole_node::KeyMismatch;

/// What replies at a directory.
#[derive(Debug)]
pub(super) enum Answer {
    /// The expected node.
    Right,
    /// Another node.
    Wrong,
    /// A process with another cluster key.
    Stranger(KeyMismatch),
    /// Nothing.
    Silent,
    /// The host's kernel: the port is closed.
    Refused,
    /// The probe could not be sent.
    Failed(io::Error),
}
