//! The pipes of a machine: processes of the same node.

use alloc::boxed::Box;

use crate::channel::MessageStart;
use crate::error::{BeginError, ConnectError, ProtocolViolation};
use crate::event::{EdgeId, Event, GoneReason, PeerId};
use crate::machine::{Machine, Peer};
use crate::pipe::{Delivery, Pipe};
use crate::time::Instant;
use crate::wire::{Greeting, OPERATION_BYTES, PipeKind, PipeRecord, PipeTag};

impl Machine {
    /// What this process tells others of its node.
    #[must_use]
    pub fn greeting(&self) -> Greeting {
        Greeting {
            node: self.shared.config.node,
            incarnation: self.incarnation,
            initial_credit_bytes: self.shared.config.initial_credit_bytes,
        }
    }

    /// A pipe to a process of this node is open. [`Event::Connected`] follows.
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

    /// A pipe has ended. [`Event::Gone`] follows.
    pub fn close_pipe(&mut self, peer: PeerId, reason: GoneReason) {
        if self.peers.pipe_mut(peer).is_some() {
            self.remove(peer, reason);
        }
    }

    /// Begins a message of `total` bytes that its caller pushes whole, at once if nothing waits
    /// that it must not overtake: true. Else records at hand go first.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    #[inline]
    pub fn begin_whole(&mut self, edge: EdgeId, total: u64) -> Result<bool, BeginError> {
        let pipe = self.peers.pipe_mut(edge.peer).ok_or(BeginError::Gone)?;
        match pipe.begin(edge, total) {
            Ok(begun) if begun.is_first => Ok(true),
            begun => {
                self.wake_pipe(edge.peer);
                begun.map(|_| false)
            }
        }
    }

    /// Takes a whole message of `length` bytes on the edge that the peer gave this number.
    /// `None` if events tell where it goes (its bytes are all of the record's), or nobody
    /// wants it.
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

    /// Takes a whole message as [`on_pipe_message`](Self::on_pipe_message) does if `reader`, the
    /// endpoint it is for, has it at once: it is [consumed](Self::consumed) with that. `None`,
    /// and nothing has changed, if it is for another, or anything about it is unusual.
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
            self.retry_oversize(now);
        }
        Some(delivery)
    }

    /// Takes any other record of a pipe. `payload` are the bytes of a control record; a
    /// piece or an unreliable message is known by its `length`.
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

    /// The tag under which a message of this edge is pushed, or an operation with its head.
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

    /// The tag under which an unreliable message, or a piece, of this edge is pushed.
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

    /// True if records wait that no message may overtake.
    #[inline]
    #[must_use]
    pub fn has_queued_records(&self, peer: PeerId) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Pipe(pipe)) => pipe.has_queued(),
            _ => false,
        }
    }

    /// The next pipe with records to push; it is not named again before it has new ones.
    pub fn poll_ready_pipe(&mut self) -> Option<PeerId> {
        while let Some(peer) = self.ready_pipes.pop_front() {
            if let Some(pipe) = self.peers.pipe_mut(peer) {
                pipe.is_ready = false;
                return Some(peer);
            }
        }
        None
    }

    /// True if [`poll_ready_pipe`](Self::poll_ready_pipe) may have something.
    #[inline]
    #[must_use]
    pub fn has_ready_pipe(&self) -> bool {
        !self.ready_pipes.is_empty()
    }

    /// The next record to push to a peer; the same until [`pop_record`](Self::pop_record).
    pub fn poll_record(&mut self, peer: PeerId) -> Option<PipeRecord> {
        self.peers.pipe_mut(peer)?.poll_record()
    }

    /// The record seen last has been pushed.
    pub fn pop_record(&mut self, peer: PeerId) {
        if let Some(pipe) = self.peers.pipe_mut(peer) {
            pipe.pop_record();
        }
    }

    /// A long message that has begun, or the data of an operation with this `head`, lies at an address and stays
    /// there until [`Event::OfferDone`], or until [`pieces_sent`](Self::pieces_sent) after
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

    /// A long message that has begun comes in pieces, which are pushed behind all records
    /// that wait, those of one edge message by message; then [`pieces_sent`](Self::pieces_sent). Not
    /// while an earlier one of its edge is offered: its pieces might be asked for meanwhile.
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

    /// All pieces of a message have been pushed.
    pub fn pieces_sent(&mut self, edge: EdgeId, sequence: u64) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.pieces_sent(edge, sequence);
            self.wake_pipe(edge.peer);
        }
    }

    /// The message of an [`Event::Fetch`] is here.
    pub fn fetch_completed(&mut self, now: Instant, edge: EdgeId, number: u32, sequence: u64) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.fetch_completed(edge, number, sequence, now, &mut self.shared);
            self.wake_pipe(edge.peer);
        }
    }

    /// The message of an [`Event::Fetch`] cannot be copied from where it lies.
    pub fn fetch_failed(&mut self, edge: EdgeId, number: u32, sequence: u64, total: u64) {
        if let Some(pipe) = self.peers.pipe_mut(edge.peer) {
            pipe.fetch_failed(edge, number, sequence, total);
            self.wake_pipe(edge.peer);
        }
    }

    /// What is pushed last when this process leaves in order.
    #[must_use]
    pub fn bye_record() -> PipeRecord {
        let tag = PipeTag {
            kind: PipeKind::Bye,
            extra: 0,
            number: 0,
        };
        PipeRecord::new(tag, &[])
    }

    /// A pipe may have records to push.
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
