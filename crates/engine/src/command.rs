//! Commands for work outside the engine's lock, such as file access.

use std::fmt;

use dipole_proto::PeerId;

use crate::address::{EndpointId, NodeId};

/// A command from the engine to its owner.
#[derive(Debug)]
pub enum Command {
    /// Write counters and links if they have changed, and edge statistics if they are being
    /// watched.
    PublishStats,
    /// Remove the files of processes that have died.
    Sweep,
    /// A peer is silent: ask its node whether it is alive.
    Suspect {
        /// Id of the peer.
        peer: PeerId,
        /// Node of the peer.
        node: NodeId,
        /// Incarnation of the peer.
        incarnation: u64,
    },
    /// The last copy of an endpoint's descriptor was closed.
    EndEndpoint(EndpointId),
    /// There is a peer: step the engine even while no thread is in a call.
    StartProgressThread,
}

/// The callback that posts commands. It is called under the engine's lock and must not block.
pub(crate) struct Commands(Box<dyn Fn(Command) + Send + Sync>);

impl Commands {
    pub(crate) fn new(post: impl Fn(Command) + Send + Sync + 'static) -> Commands {
        Commands(Box::new(post))
    }

    pub(crate) fn post(&self, command: Command) {
        (self.0)(command);
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commands")
    }
}
