//! Endpoints and edges of a machine, for sessions and pipes.

use alloc::vec::Vec;

use super::Machine;
use super::peers::Peer;
use crate::channel::{MessageStart, Urgency};
use crate::error::{BeginError, EdgeError};
use crate::event::{EdgeId, EdgePosition, PeerId};
use crate::send::Slot;
use crate::shared::Endpoint;
use crate::time::Instant;
use crate::wire::EdgeKey;

impl Machine {
    /// Accepts messages for `target` from now on.
    pub fn open_endpoint(&mut self, target: u32) {
        self.shared.endpoints.insert(target, Endpoint::default());
        self.shared.endpoints_generation += 1;
    }

    /// Refuses messages for `target` from now on and discards those that are held. Edges from it
    /// end.
    pub fn close_endpoint(&mut self, now: Instant, target: u32) {
        self.shared.endpoints.remove(&target);
        self.shared.endpoints_generation += 1;
        let peers: Vec<PeerId> = self.peers().collect();
        for peer in peers {
            match self.peers.get_mut(peer) {
                Some(Peer::Session(session)) => {
                    session.close_target(target, now, &mut self.shared);
                    session.close_source(target, &mut self.shared);
                }
                Some(Peer::Pipe(pipe)) => {
                    pipe.channel.close_target(target, now, &mut self.shared);
                    pipe.channel.close_source(target, &mut self.shared);
                }
                None => {}
            }
            self.reschedule(peer);
        }
    }

    /// Endpoints with open edges to `target`: peer and source.
    pub fn sources(&self, target: u32) -> impl Iterator<Item = (PeerId, u32)> + '_ {
        self.peers.ids().flat_map(move |peer| {
            let channel = self.peers.get(peer).map(Peer::channel);
            let sources = channel.into_iter().flat_map(move |it| it.sources(target));
            sources.map(move |source| (peer, source))
        })
    }

    /// A random number that is hard to predict, for the key of a region.
    pub fn new_random_key(&mut self) -> u64 {
        u64::from(self.next_random()) << 32 | u64::from(self.next_random())
    }

    /// Opens the outgoing edge from `source` to `target` at a peer, or another handle to it. After a
    /// refusal this allows messages again. Each handle must be closed once.
    ///
    /// # Errors
    /// [`EdgeError`].
    pub fn edge(&mut self, peer: PeerId, source: u32, target: u32) -> Result<EdgeId, EdgeError> {
        let found = self.peers.get_mut(peer).ok_or(EdgeError::Gone)?;
        found.channel_mut().edge(source, target)
    }

    /// Closes one handle of an outgoing edge. The edge ends with its last handle: the peer is
    /// notified after all its messages, and both sides forget it.
    /// [`Event::EdgeForgotten`](crate::Event::EdgeForgotten) follows.
    pub fn close_edge(&mut self, edge: EdgeId) {
        match self.peers.get_mut(edge.peer) {
            Some(Peer::Session(session)) => session.close_edge(edge, &mut self.shared),
            Some(Peer::Pipe(pipe)) => pipe.channel.close_edge(edge, &mut self.shared),
            None => {}
        }
        self.reschedule(edge.peer);
    }

    /// Begins a message of `total` bytes. The caller fills frames with its records and queues them,
    /// or pushes it into the pipe.
    ///
    /// # Errors
    /// [`BeginError`]. After `NoCredit` credit is requested from the peer until
    /// [`Event::Credit`](crate::Event::Credit) or [`cancel`](Self::cancel).
    #[inline]
    pub fn begin(
        &mut self,
        now: Instant,
        edge: EdgeId,
        total: u64,
    ) -> Result<MessageStart, BeginError> {
        let limit = self.shared.config.max_message_bytes;
        if total > limit {
            return Err(BeginError::TooLong { limit });
        }
        let begun = match self.peers.get_mut(edge.peer) {
            Some(Peer::Session(session)) => session.begin(edge, total, now, &self.shared),
            Some(Peer::Pipe(pipe)) => {
                let begun = pipe.begin(edge, total);
                if !begun.is_ok_and(|begun| begun.is_first) {
                    self.wake_pipe(edge.peer);
                }
                if begun.is_ok() {
                    self.shared.stats.count_begun(total);
                }
                return begun;
            }
            None => return Err(BeginError::Gone),
        };
        match begun {
            Ok(_) => self.shared.stats.count_begun(total),
            Err(BeginError::NoCredit { .. }) => self.reschedule(edge.peer),
            Err(_) => {}
        }
        begun
    }

    /// Undoes the last [`begin`](Self::begin) on an edge. Nothing of that message may have been sent.
    pub fn retract(&mut self, edge: EdgeId, total: u64) {
        if let Some(peer) = self.peers.get_mut(edge.peer) {
            peer.channel_mut().retract(edge, total);
            self.shared.stats.uncount_begun(total);
        }
    }

    /// Begins an unreliable message. Returns its edge's key and its number.
    ///
    /// # Errors
    /// [`BeginError`]. `NoCredit` while an earlier life of the edge is ending.
    pub fn begin_unreliable(&mut self, edge: EdgeId) -> Result<(EdgeKey, u32), BeginError> {
        let begun = match self.peers.get_mut(edge.peer) {
            Some(Peer::Session(session)) => session.channel.begin_unreliable(edge),
            Some(Peer::Pipe(pipe)) => pipe.begin_unreliable(edge),
            None => Err(BeginError::Gone),
        };
        self.wake_pipe(edge.peer);
        begun
    }

    /// Withdraws the message that waits for credit on this edge.
    pub fn cancel(&mut self, edge: EdgeId) {
        match self.peers.get_mut(edge.peer) {
            Some(Peer::Session(session)) => session.cancel(edge),
            Some(Peer::Pipe(pipe)) => pipe.channel.cancel(edge),
            None => {}
        }
    }

    /// Allows messages again after a refusal.
    pub fn clear_refusal(&mut self, edge: EdgeId) {
        if let Some(peer) = self.peers.get_mut(edge.peer) {
            peer.channel_mut().clear_refusal(edge);
        }
    }

    /// Endpoints and life of an outgoing edge.
    #[must_use]
    pub fn edge_key(&mut self, edge: EdgeId) -> Option<EdgeKey> {
        self.peers.get_mut(edge.peer)?.channel_mut().key(edge)
    }

    /// The next message of an outgoing edge.
    #[must_use]
    pub fn edge_position(&self, edge: EdgeId) -> Option<EdgePosition> {
        self.peers.get(edge.peer)?.channel().position(edge)
    }

    /// The number of the next message that an incoming edge delivers; 0 if it is over.
    #[must_use]
    pub fn next_message(&self, edge: EdgeId) -> u64 {
        let peer = self.peers.get(edge.peer);
        peer.map_or(0, |peer| peer.channel().next_message(edge))
    }

    /// Number of outgoing and incoming edges that are not forgotten.
    #[must_use]
    pub fn edges(&self) -> (usize, usize) {
        let channels = self.peers.iter().map(Peer::channel);
        channels.fold((0, 0), |(out, incoming), channel| {
            (
                out + channel.outgoing_len(),
                incoming + channel.incoming_len(),
            )
        })
    }

    /// Queues filled frames, each as one unit. Returns false if the peer is gone; the frames then stay
    /// with the caller.
    pub fn queue(&mut self, peer: PeerId, slots: &[Slot], bulk: bool) -> bool {
        let Some(session) = self.session_mut(peer) else {
            return false;
        };
        session.queue(slots, bulk);
        self.wake(peer);
        true
    }

    /// Queues a frame with unreliable records. It is sent once and then released.
    pub fn queue_unreliable(&mut self, peer: PeerId, slot: Slot, bulk: bool) -> bool {
        let Some(session) = self.session_mut(peer) else {
            return false;
        };
        session.queue_unreliable(slot, bulk);
        self.wake(peer);
        true
    }

    /// The application has consumed a message of `total` bytes from an incoming edge, so that its
    /// room can be granted again.
    pub fn consumed(&mut self, now: Instant, edge: EdgeId, total: u64) {
        let shared = &mut self.shared;
        let tells = match self.peers.get_mut(edge.peer) {
            Some(Peer::Session(session)) => session.consumed(edge, total, now, shared),
            Some(Peer::Pipe(pipe)) => {
                let tell = pipe.channel.consumed(edge, total, now, shared);
                tell != Urgency::None || pipe.channel.has_notice()
            }
            None => false,
        };
        if tells {
            self.reschedule(edge.peer);
        }
        if self.shared.edges_waiting {
            self.retry_long_messages(now);
        }
    }

    /// Bytes of received messages held for the application.
    #[must_use]
    pub fn pool_used(&self) -> u64 {
        self.shared.pool.used()
    }

    /// Bytes that peers may make this process hold, including those that it holds: what is granted,
    /// and what will be granted as the application consumes.
    #[must_use]
    pub fn credit_committed(&self) -> u64 {
        self.shared.committed
    }
}
