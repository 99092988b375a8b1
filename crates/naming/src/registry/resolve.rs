//! Reasons why an endpoint cannot be found.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::RegistryError;
use crate::address::{Address, NodeId};
use crate::key::KeyMismatch;

/// Source of the list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// Neither hosts file nor agent.
    Nothing,
    /// Nodes come from a hosts file.
    File,
    /// Nodes come from this node's agent.
    Agent {
        /// How long the look-up waited for the node.
        waited: Duration,
    },
}

/// Why an endpoint could not be found.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Neither the hosts file nor this node's agent knows the node.
    #[error("{}", unknown(.address.node, *.hosts))]
    UnknownNode {
        /// Endpoint that was looked up.
        address: Address,
        /// Source of the list of nodes.
        hosts: KnownBy,
    },
    /// The node replied, but no process opened the endpoint in time.
    #[error(
        "no process opened it within {:.1} s; is the program that opens it running, by the \
         same user and with the same runtime directory?",
        .waited.as_secs_f64()
    )]
    NoSuchEndpoint {
        /// Endpoint that was looked up.
        address: Address,
        /// How long the look-up waited.
        waited: Duration,
    },
    /// No reply from the node's directory port.
    #[error(
        "no reply from {directory} within {:.1} s{}; is a program with the hosts file \
         running there, and does UDP get through?",
        .waited.as_secs_f64(), in_brackets(.cause.as_ref())
    )]
    NoAnswer {
        /// Endpoint that was looked up.
        address: Address,
        /// The address that was queried.
        directory: SocketAddr,
        /// How long the look-up waited.
        waited: Duration,
        /// The last error of the network, if any.
        #[source]
        cause: Option<io::Error>,
    },
    /// A different node uses the address in the hosts file.
    #[error(
        "node {answered} replied from {directory}, not node {}; correct the hosts file or \
         DIPOLE_NID there",
        .address.node
    )]
    WrongNode {
        /// Endpoint that was looked up.
        address: Address,
        /// The address that was queried.
        directory: SocketAddr,
        /// The node that replied.
        answered: NodeId,
    },
    /// The node is not a member of our cluster.
    #[error(
        "node {} at {directory} refuses the look-up: {}",
        .address.node, .mismatch.explain(.fingerprint.as_deref())
    )]
    OtherCluster {
        /// Endpoint that was looked up.
        address: Address,
        /// The address that was queried.
        directory: SocketAddr,
        /// How the keys differ.
        mismatch: KeyMismatch,
        /// Fingerprint of our key, if we have one.
        fingerprint: Option<String>,
    },
    /// The registry of this node cannot be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl ResolveError {
    /// The error of the operating system behind it, if there is one.
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            ResolveError::Registry(RegistryError::Io { cause, .. })
            | ResolveError::NoAnswer {
                cause: Some(cause), ..
            } => Some(cause),
            _ => None,
        }
    }
}

fn unknown(node: NodeId, hosts: KnownBy) -> String {
    match hosts {
        KnownBy::Nothing => format!(
            "node {node} is not this one and there is no hosts file; name one (DIPOLE_HOSTS), or \
             let an agent of this node find the others (`dipole agent --discover`)"
        ),
        KnownBy::Agent { waited } => format!(
            "this node's agent did not find node {node} within {:.1} s; does an agent run \
             there, and here (`dipole agent status`)?",
            waited.as_secs_f64()
        ),
        KnownBy::File => format!("the hosts file has no node {node}; add a line `{node} ADDRESS`"),
    }
}

fn in_brackets(cause: Option<&io::Error>) -> String {
    cause.map_or(String::new(), |cause| format!(" ({cause})"))
}
