//! The state of each peer, for tools that explain a hang.

use alloc::vec::Vec;

use crate::channel::{IncomingStatus, OutgoingStatus};
use crate::event::PeerId;
use crate::machine::{Machine, Peer};
use crate::session::SessionStatus;

/// The state of a peer: see [`Machine::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Id of the peer.
    pub peer: PeerId,
    /// Its node; zero while a session is opening.
    pub node: u32,
    /// Its incarnation; zero while a session is opening.
    pub incarnation: u64,
    /// The session; `None` if the peer is on this node and uses a pipe.
    pub session: Option<SessionStatus>,
    /// Long messages in a pipe that the peer has not copied yet.
    pub long_messages: usize,
    /// Edges to the peer.
    pub outgoing: Vec<OutgoingStatus>,
    /// Edges from the peer.
    pub incoming: Vec<IncomingStatus>,
}

impl Machine {
    /// The state of a peer.
    #[must_use]
    pub fn status(&self, peer: PeerId) -> Option<PeerStatus> {
        let found = self.peers.get(peer)?;
        let channel = found.channel();
        let (node, incarnation, session, long_messages) = match found {
            Peer::Session(session) => {
                let remote = &session.remote;
                let status = session.status(&self.shared);
                (remote.node, remote.incarnation, Some(status), 0)
            }
            Peer::Pipe(pipe) => {
                let remote = &pipe.remote;
                (remote.node, remote.incarnation, None, pipe.long_messages())
            }
        };
        Some(PeerStatus {
            peer,
            node,
            incarnation,
            session,
            long_messages,
            outgoing: channel.outgoing_status().collect(),
            incoming: channel.incoming_status().collect(),
        })
    }

    /// Endpoints that accept messages.
    pub fn endpoints(&self) -> impl Iterator<Item = u32> + '_ {
        self.shared.endpoints.keys().copied()
    }
}
