//! What is to be done outside the engine's lock: files, other nodes' directories.

use std::fmt;

use dipole_proto::PeerId;

use crate::address::{EndpointId, NodeId};

/// What the owner of an engine is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Write counters and links, if they have changed, and the edges' statistics, if anybody
    /// watches.
    Show,
    /// Remove the files of processes that died.
    Sweep,
    /// A peer is silent: ask its node whether it lives.
    Suspect {
        /// The peer.
        peer: PeerId,
        /// Its node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// The last copy of its descriptor was closed.
    EndEndpoint(EndpointId),
    /// There is a peer: step the engine also while no thread calls.
    Serve,
}

/// Where commands are posted: called with the engine's lock held, so it must not block.
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
