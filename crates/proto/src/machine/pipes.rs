//! The pipes of a machine, to processes of the same node.

use alloc::boxed::Box;

use crate::channel::MessageStart;
use crate::error::{BeginError, ConnectError, ProtocolViolation};
use crate::event::{EdgeId, Event, GoneReason, PeerId};
use crate::machine::{Machine, Peer};
use crate::pipe::{Delivery, Pipe};
use crate::time::Instant;
use crate::wire::{Greeting, OPERATION_BYTES, PipeKind, PipeRecord, PipeTag};

impl Machine {
    /// Returns the greeting that this process sends when a pipe opens.
    #[must_use]
    pub fn greeting(&self) -> Greeting {
        Greeting {
            node: self.shared.config.node,
            incarnation: self.incarnation,
            initial_credit_bytes: self.shared.config.initial_credit_bytes,
        }
    }

    /// Adds the pipe to a process of this node. [`Event::Connected`] follows.
    ///
    /// # Errors
    /// [`ConnectError::TooManyPeers`].
    pub fn open_pipe(&mut self, remote: Greeting) -> Result<PeerId, ConnectError> {
        let limit = self.shared.config.max_peers;
        let random = self.next_random();
        let first = self.shared.config.first_number.into();
        let added = self.peers.add(limit, random, |id| {
            Peer::Pipe(Box::new(Pipe::new(id, remote, first)))
        });
        let peer = added.ok_or(ConnectError::TooManyPeers { limit })?;
        self.shared.event(Event::Connected {
            peer,
            node: remote.node,
            incarnation: remote.incarnation,
        });
        Ok(peer)
    }

    /// Removes a pipe that has ended. [`Event::Gone`] follows.
    pub fn close_pipe(&mut self, peer: PeerId, reason: GoneReason) {
        if self.peers.pipe_mut(peer).is_some() {
            self.remove(peer, reason);
        }
    }

    /// Begins a message of `total` bytes that the caller pushes as one record. Returns true if it
    /// may do so at once, and false if queued records must go first.
    ///
    /// # Errors
    /// The errors of [`begin`](Self::begin).
    #[inline]
    pub fn begin_whole(&mut self, edge: EdgeId, total: u64) -> Result<bool, BeginError> {
        let pipe = self.peers.pipe_mut(edge.peer).ok_or(BeginError::Gone)?;
        let begun = pipe.begin(edge, total);
        if begun.is_ok() {
            self.shared.stats.count_begun(total);
        }
        match begun {
            Ok(begun) if begun.is_first => Ok(true),
            begun => {
                self.wake_pipe(edge.peer);
                begun.map(|_| false)
            }
        }
    }

    /// Handles a whole message of `length` bytes on the edge to which the peer has given this number.
    /// Returns `None` if events say where it goes, or if no endpoint accepts it. The events refer to
    /// the payload of the record.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the pipe must be closed.
    #[inline]
    pub fn on_pipe_message(
        &mut self,
        now: Instant,
        peer: PeerId,
        number: u32,
        length: usize,
    ) -> Result<Option<Delivery>, ProtocolViolation> {
        let Some(Peer::Pipe(pipe)) = self.peers.get_mut(peer) else {
            return Ok(None);
        };
        let delivery = pipe.on_message(number, length, now, &mut self.shared)?;
        if delivery.is_none() {
            self.wake_pipe(peer);
        }
        Ok(delivery)
    }

    /// Fast path of [`on_pipe_message`](Self::on_pipe_message) for a message that the endpoint
    /// `reader` [consumes](Self::consumed) at once. Returns `None` and changes nothing if the message
    /// is for another endpoint or is not a common case.
    #[inline]
    pub fn on_pipe_message_read(
        &mut self,
        now: Instant,
        peer: PeerId,
        number: u32,
        length: usize,
        reader: u32,
    ) -> Option<Delivery> {
        let Some(Peer::Pipe(pipe)) = self.peers.get_mut(peer) else {
            return None;
        };
        let shared = &mut self.shared;
        let (delivery, tells) = pipe.on_message_read(number, length, reader, now, shared)?;
        if tells {
            self.wake_pipe(peer);
        }
        if self.shared.edges_waiting {
            self.retry_long_messages(now);
        }
        Some(delivery)
    }

    /// Handles any other record of a pipe. `payload` contains the bytes of a control record; for a
    /// piece or an unreliable message only its `length` matters.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the pipe must be closed.
    pub fn on_pipe_record(
        &mut self,
        now: Instant,
        peer: PeerId,
        tag: PipeTag,
        payload: &[u8],
        length: usize,
    ) -> Result<(), ProtocolViolation> {
        if let Some(pipe) = self.peers.pipe_mut(peer) {
            let taken = pipe.on_record(tag, payload, length, now, &mut self.shared);
            self.wake_pipe(peer);
            taken?;
        }
        Ok(())
    }

    /// The tag of a message, or of an operation with its head, on this edge.
    #[inline]
    #[must_use]
    pub fn message_tag(edge: EdgeId, operation: bool) -> u64 {
        let kind = match operation {
            true => PipeKind::Operation,
            false => PipeKind::Message,
        };
        PipeTag {
            kind,
            extra: 0,
            number: edge.index,
        }
        .to_word()
    }

    /// The tag of an unreliable message, or of a piece, on this edge.
    #[must_use]
    pub fn piece_tag(edge: EdgeId, unreliable: bool) -> u64 {
        let kind = match unreliable {
            true => PipeKind::Unreliable,
            false => PipeKind::Piece,
        };
        PipeTag {
            kind,
            extra: 0,
            number: edge.index,
        }
        .to_word()
    }

    /// True if records are queued that no message may overtake.
    #[inline]
    #[must_use]
    pub fn has_queued_records(&self, peer: PeerId) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Pipe(pipe)) => pipe.has_queued(),
            _ => false,
        }
    }

    /// The next pipe with records to push. It is returned again only when it has new ones.
    pub fn poll_ready_pipe(&mut self) -> Option<PeerId> {
        while let Some(peer) = self.ready_pipes.pop_front() {
            if let Some(pipe) = self.peers.pipe_mut(peer) {
                pipe.is_ready = false;
                return Some(peer);
            }
        }
        None
    }

    /// True if [`poll_ready_pipe`](Self::poll_ready_pipe) may return a pipe.
    #[inline]
    #[must_use]
    pub fn has_ready_pipe(&self) -> bool {
        !self.ready_pipes.is_empty()
    }

    /// The next record to push to a peer. It stays the same until [`pop_record`](Self::pop_record).
    pub fn poll_record(&mut self, peer: PeerId) -> Option<PipeRecord> {
        self.peers.pipe_mut(peer)?.poll_record()
    }

    /// Removes the record that was pushed.
    pub fn pop_record(&mut self, peer: PeerId) {
        if let Some(pipe) = self.peers.pipe_mut(peer) {
            pipe.pop_record();
        }
    }

    /// Offers a long message, or the data of the operation with this `head`. Its bytes must stay at
    /// their address until [`Event::OfferDone`], or until [`pieces_sent`](Self::pieces_sent) after
    /// [`Event::PiecesRequested`].
    pub fn offer(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        (total, address): (u64, u64),
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.offer(edge, begun, (total, address), head);
            self.wake_pipe(edge.peer);
        }
    }

    /// Announces a long message in pieces. They are pushed after all queued records, those of one edge
    /// message by message, and then [`pieces_sent`](Self::pieces_sent) is called. An edge must not
    /// have an earlier message on offer, whose pieces might be requested meanwhile.
    pub fn announce(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        total: u64,
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.announce(edge, begun, total, head);
            self.wake_pipe(edge.peer);
        }
    }

    /// All pieces of a message were pushed.
    pub fn pieces_sent(&mut self, edge: EdgeId, sequence: u64) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.pieces_sent(edge, sequence);
            self.wake_pipe(edge.peer);
        }
    }

    /// The message of an [`Event::Fetch`] was copied.
    pub fn fetch_completed(&mut self, now: Instant, edge: EdgeId, number: u32, sequence: u64) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.fetch_completed(edge, number, sequence, now, &mut self.shared);
            self.wake_pipe(edge.peer);
        }
    }

    /// The message of an [`Event::Fetch`] cannot be copied from the peer's memory.
    pub fn fetch_failed(&mut self, edge: EdgeId, number: u32, sequence: u64, total: u64) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.fetch_failed(edge, number, sequence, total);
            self.wake_pipe(edge.peer);
        }
    }

    /// The last record that a process pushes when it ends normally.
    #[must_use]
    pub fn bye_record() -> PipeRecord {
        let tag = PipeTag {
            kind: PipeKind::Bye,
            extra: 0,
            number: 0,
        };
        PipeRecord::new(tag, &[])
    }

    /// Queues a pipe if it has records to push.
    pub(super) fn wake_pipe(&mut self, peer: PeerId) {
        if let Some(pipe) = self.peers.pipe_mut(peer)
            && !pipe.is_ready
            && pipe.has_record()
        {
            pipe.is_ready = true;
            self.ready_pipes.push_back(peer);
        }
    }
}
