//! Long messages between processes of a node: through the ring or by fetching, see `transfer.rs`.
//!
//! Through the ring, a message is announced and sent in pieces. For fetching, the sender offers
//! the message in its own memory, and the receiver copies it into a buffer, part by part. If the
//! kernel does not permit that, the receiver requests the message in pieces. If the sender does
//! not wait, the rest of the message is copied first.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use dipole_link::shm::{ConnId, MAX_RECORD_BYTES};
use dipole_proto::{EdgeId, Instant, Machine, PeerId};
use dipole_record::RecordedMachine;
use rustc_hash::FxHashMap;

use super::transfer::{Sent, Transfer};
use super::{SharedMemory, find_mut};
use crate::content::Content;
use crate::core::Core;
use crate::inbox::Buffers;
use crate::long_messages::{LongEvent, LongId};
use crate::packer::blocked;
use crate::posted::{PayloadOwner, Remainder};
use crate::target::Blocked;

/// Bytes of a long message fetched per poll, so that messages share the time.
const FETCH_BYTES: usize = 1 << 20;
/// Pieces per message sent through the ring, so that the receiver copies one out while the sender
/// copies the next one in; and their minimum length.
const PIECES: usize = 8;
const MIN_PIECE_BYTES: usize = 16 << 10;
/// Lower limit for the value from a profile.
const PROFILE_MIN_PIECE_BYTES: usize = 1 << 10;

/// A message being fetched from a peer's memory.
#[derive(Debug)]
struct Fetch {
    edge: EdgeId,
    sequence: u64,
    number: u32,
    total: u64,
    address: u64,
    fetched_bytes: u64,
}

/// Messages to fetch, in turn.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    waiting: VecDeque<Fetch>,
}

impl Fetches {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.waiting.retain(|fetch| fetch.edge.peer != peer);
    }
}

/// An outgoing message that the peer has not fetched, or that has not been sent completely.
#[derive(Debug)]
struct Outgoing {
    length: usize,
    /// Bytes sent through the ring; `None` while the peer may fetch it.
    streamed: Option<usize>,
    /// The rest of the message, if it is sent in the background.
    rest: Option<Remainder>,
    /// Its region was closed while the peer might be fetching it.
    withdrawn: bool,
    begun_ns: u64,
}

/// All outgoing long messages.
#[derive(Debug, Default)]
pub(super) struct OutgoingLong {
    messages: FxHashMap<LongId, Outgoing>,
    /// Bytes of their copies.
    copied_bytes: usize,
    /// Number of withdrawn messages.
    withdrawn: usize,
    /// Length of pieces in the ring, if it was measured.
    piece_bytes: Option<usize>,
    /// Background messages sent in pieces, in order.
    streams: Vec<LongId>,
}

impl OutgoingLong {
    /// True if any background messages are sent in pieces.
    #[inline]
    pub(super) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Sets the length of pieces in the ring.
    pub(super) fn set_piece_bytes(&mut self, piece_bytes: Option<usize>) {
        self.piece_bytes =
            piece_bytes.map(|bytes| bytes.clamp(PROFILE_MIN_PIECE_BYTES, MAX_RECORD_BYTES));
    }

    /// Bytes copied for one peer.
    fn copied_to(&self, peer: PeerId) -> usize {
        let messages = self.messages.iter();
        let of = messages.filter(|((edge, _), _)| edge.peer == peer);
        of.filter_map(|(_, message)| message.rest.as_ref())
            .map(Remainder::copied_bytes)
            .sum()
    }

    fn remove(&mut self, id: LongId) -> Option<Outgoing> {
        let message = self.messages.remove(&id)?;
        if let Some(rest) = &message.rest {
            self.copied_bytes -= rest.copied_bytes();
        }
        self.withdrawn -= usize::from(message.withdrawn);
        Some(message)
    }

    /// Drops the messages to a peer that is gone.
    pub(super) fn forget(&mut self, peer: PeerId, core: &mut Core) {
        let gone: Vec<LongId> = self.messages.keys().copied().collect();
        for id in gone.into_iter().filter(|(edge, _)| edge.peer == peer) {
            if let Some(rest) = self.remove(id).and_then(|message| message.rest) {
                rest.release(id.0, false, &core.peers, &mut core.sent_posts);
            }
        }
        self.streams.retain(|(edge, _)| edge.peer != peer);
    }
}

impl SharedMemory {
    /// Begins a long message. Its bytes must stay valid until
    /// [`continue_long`](Self::continue_long) returns true, unless `keep` provides for them.
    pub(crate) fn begin_long(
        &mut self,
        machine: &mut RecordedMachine,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
        keep: PayloadOwner<'_>,
    ) -> Result<LongId, Blocked> {
        let (payload, total) = (content.payload, content.payload.len() as u64);
        // Check this first, because a message that has begun cannot be taken back.
        let connection = self.connection(edge.peer).ok_or(Blocked::Gone(None))?;
        let begun = machine.begin(now, edge, content.charged_bytes());
        if begun.is_err() {
            self.push_records(machine);
        }
        let begun = begun.map_err(blocked)?;
        let id = (edge, begun.sequence);
        let mut message = Outgoing {
            length: payload.len(),
            streamed: None,
            rest: None,
            withdrawn: false,
            begun_ns: self.hub.now_ns(),
        };
        let transfer = self.transfer(connection, edge);
        if transfer == Transfer::Ring {
            machine.announce(edge, begun, total, content.head);
            self.push_records(machine);
            message.streamed = Some(0);
            if self.push_pieces(machine, (connection, id), &mut message, (payload, 0)) {
                self.on_streamed(machine, (connection, id), &message);
                self.wake_peers();
                return Ok(id);
            }
            self.hub.want_room(connection);
        }
        let skipped = message.streamed.unwrap_or(0);
        message.rest = match keep {
            PayloadOwner::Caller => None,
            PayloadOwner::Copy(buffers) => Some(Remainder::copy(payload, skipped, buffers)),
            PayloadOwner::Shared(bytes, posted) => Some(Remainder::shared(bytes, posted)),
            PayloadOwner::Region(part) => Some(Remainder::region(part)),
        };
        let rest = message.rest.as_ref();
        self.outgoing.copied_bytes += rest.map_or(0, Remainder::copied_bytes);
        if transfer == Transfer::Fetch {
            let lies = rest.and_then(Remainder::copied).unwrap_or(payload);
            let place = (total, self.hub.address_of(lies));
            machine.offer(edge, begun, place, content.head);
            self.push_records(machine);
        } else if message.rest.is_some() {
            self.outgoing.streams.push(id);
        }
        self.outgoing.messages.insert(id, message);
        self.wake_peers();
        Ok(id)
    }

    /// Chooses how to send the next long message of an edge. While an earlier one is offered, whose
    /// pieces may be requested, later ones must not use the ring.
    fn transfer(&self, connection: ConnId, edge: EdgeId) -> Transfer {
        let mut others = self.outgoing.messages.iter();
        if others.any(|((other, _), message)| *other == edge && message.streamed.is_none()) {
            return Transfer::Fetch;
        }
        let found = self.find(connection);
        found.map_or(Transfer::Fetch, |found| found.transfer.current())
    }

    /// A message was sent completely through the ring from the caller's memory.
    fn on_streamed(
        &mut self,
        machine: &mut RecordedMachine,
        (connection, id): (ConnId, LongId),
        message: &Outgoing,
    ) {
        machine.pieces_sent(id.0, id.1);
        self.record_time(connection, Transfer::Ring, message);
    }

    fn record_time(&mut self, connection: ConnId, transfer: Transfer, message: &Outgoing) {
        let sent = Sent {
            bytes: message.length as u64,
            begun_ns: message.begun_ns,
            ended_ns: self.hub.now_ns(),
        };
        let hub = &mut self.hub;
        if let Some(found) = find_mut(&mut self.connections, connection) {
            let unread = || hub.unread_bytes(connection);
            found.transfer.note(transfer, sent, unread);
        }
    }

    /// True if a message has been sent completely.
    pub(crate) fn has_sent(&self, id: LongId) -> bool {
        !self.outgoing.messages.contains_key(&id)
    }

    /// True if this many more bytes may be copied for a peer, with a total limit of `most`.
    pub(crate) fn can_copy(&self, peer: PeerId, bytes: usize, most: usize) -> bool {
        let all = self.outgoing.copied_bytes;
        let left = most.saturating_sub(all);
        all == 0 || all + bytes <= left || self.outgoing.copied_to(peer) + bytes <= left
    }

    /// Continues a long message; true once the caller's bytes are no longer needed.
    pub(crate) fn continue_long(
        &mut self,
        machine: &mut RecordedMachine,
        id: LongId,
        payload: &[u8],
    ) -> Result<bool, Blocked> {
        let connection = self.connection(id.0.peer).ok_or(Blocked::Gone(None))?;
        match self.outgoing.messages.get(&id) {
            None => return Ok(true),
            Some(message) if message.rest.is_some() => return Ok(true),
            Some(message) if message.streamed.is_none() => {
                self.hub.want_room(connection);
                return Ok(false);
            }
            Some(_) => {}
        }
        let Some(mut message) = self.outgoing.messages.remove(&id) else {
            return Ok(true);
        };
        if self.push_pieces(machine, (connection, id), &mut message, (payload, 0)) {
            self.on_streamed(machine, (connection, id), &message);
            return Ok(true);
        }
        self.outgoing.messages.insert(id, message);
        self.hub.want_room(connection);
        Ok(false)
    }

    /// The caller abandons a long message that may be read from its memory or lacks pieces, so the
    /// connection must end.
    pub(crate) fn abandon(&mut self, id: LongId, core: &mut Core) {
        if self.outgoing.messages.contains_key(&id)
            && let Some(connection) = self.connection(id.0.peer)
        {
            self.hub.close(connection);
            self.end(connection, dipole_proto::GoneReason::Closed, core);
        }
    }

    /// Handles events of long messages and continues those in progress.
    #[inline]
    pub(super) fn poll_long(&mut self, now: Instant, core: &mut Core) {
        if !core.long_events.is_empty() {
            self.handle_long_events(core);
        }
        if self.outgoing.has_streams() {
            self.stream_background(core);
        }
        if !self.fetches.is_empty() {
            self.fetch(now, core);
        }
    }

    fn handle_long_events(&mut self, core: &mut Core) {
        let mut all = std::mem::take(&mut core.long_events);
        for event in all.drain(..) {
            match event {
                LongEvent::Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    address,
                } => self.fetches.waiting.push_back(Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    address,
                    fetched_bytes: 0,
                }),
                LongEvent::Taken { edge, sequence } => {
                    let Some(mut message) = self.outgoing.remove((edge, sequence)) else {
                        continue;
                    };
                    // For a copied message the time would include copying it.
                    let is_whole = message.rest.as_ref().is_none_or(|it| it.key().is_some());
                    if is_whole && let Some(connection) = self.connection(edge.peer) {
                        self.record_time(connection, Transfer::Fetch, &message);
                    }
                    if let Some(rest) = message.rest.take() {
                        rest.release(edge, true, &core.peers, &mut core.sent_posts);
                    }
                }
                LongEvent::Stream { edge, sequence } => self.on_stream_wanted((edge, sequence)),
            }
        }
        core.long_events = all;
        self.allow_fetch_again();
    }

    /// Handles the closing of a region. Messages being sent from it continue from a copy. If a peer
    /// was offered one or is fetching it, it will request it in pieces.
    pub(crate) fn close_region(&mut self, key: u64, buffers: &Arc<Buffers>) {
        let OutgoingLong {
            messages,
            copied_bytes,
            withdrawn,
            ..
        } = &mut self.outgoing;
        for message in messages.values_mut() {
            let Some(rest) = message.rest.as_mut().filter(|it| it.key() == Some(key)) else {
                continue;
            };
            let skipped = message.streamed.unwrap_or(0);
            let copy = rest.with_bytes(|bytes| Remainder::copy(bytes, skipped, buffers));
            if message.streamed.is_none() {
                self.hub.block_pulls();
                message.withdrawn = true;
                *withdrawn += 1;
            }
            *copied_bytes -= rest.copied_bytes();
            // Nothing is left of memory that was revoked before.
            *rest =
                copy.unwrap_or_else(|| Remainder::copy(&vec![0; message.length], skipped, buffers));
            *copied_bytes += rest.copied_bytes();
        }
    }

    /// Allows fetching again once peers have requested or fetched all withdrawn messages.
    pub(super) fn allow_fetch_again(&mut self) {
        if self.outgoing.withdrawn == 0 {
            self.hub.allow_pulls();
        }
    }

    /// The peer cannot fetch a message and requests it in pieces.
    fn on_stream_wanted(&mut self, id: LongId) {
        let connection = self.connection(id.0.peer);
        if let Some(found) = connection.and_then(|id| find_mut(&mut self.connections, id)) {
            found.transfer.cannot_fetch();
        }
        if let Some(message) = self.outgoing.messages.get_mut(&id)
            && message.streamed.is_none()
        {
            message.streamed = Some(0);
            self.outgoing.withdrawn -= usize::from(std::mem::take(&mut message.withdrawn));
            if message.rest.is_some() {
                self.outgoing.streams.push(id);
            }
        }
    }

    /// Fetches a part of the next message.
    fn fetch(&mut self, now: Instant, core: &mut Core) {
        let Some(mut fetch) = self.fetches.waiting.pop_front() else {
            return;
        };
        let Some(connection) = self.connection(fetch.edge.peer) else {
            return;
        };
        let Fetch {
            edge,
            sequence,
            number,
            total,
            ..
        } = fetch;
        let begin = usize::try_from(fetch.fetched_bytes).expect("offsets fit into memory");
        let left = usize::try_from(total).expect("lengths fit into memory") - begin;
        let length = left.min(FETCH_BYTES);
        let address = fetch.address.wrapping_add(fetch.fetched_bytes);
        let mut fetched = Ok(());
        let hub = &mut self.hub;
        let pull = |room: &mut [u8]| {
            fetched = match hub.can_pull(connection) {
                true => hub.pull(connection, address, room),
                false => Err(io::ErrorKind::PermissionDenied.into()),
            }
        };
        let room = match core.operations.is_arriving(edge, sequence) {
            true => (core.operations).fill((edge, sequence), (begin, length), pull),
            false => (core.dispatch).fill((edge, sequence), (begin, length), pull),
        };
        fetch.fetched_bytes = match room {
            Some(()) => fetch.fetched_bytes + length as u64,
            // Its endpoint was closed, or the operation is not allowed.
            None => total,
        };
        match fetched {
            Ok(()) if fetch.fetched_bytes < total => self.fetches.waiting.push_front(fetch),
            Ok(()) => {
                core.machine.fetch_completed(now, edge, number, sequence);
                core.handle_events(&[][..]);
            }
            Err(_) => core.machine.fetch_failed(edge, number, sequence, total),
        }
    }

    /// Sends pieces of background messages.
    fn stream_background(&mut self, core: &mut Core) {
        let mut waiting: Vec<LongId> = Vec::new();
        for id in std::mem::take(&mut self.outgoing.streams) {
            let Some(connection) = self.connection(id.0.peer) else {
                continue;
            };
            let Some(mut message) = self.outgoing.messages.remove(&id) else {
                continue;
            };
            let Some(rest) = message.rest.take() else {
                continue;
            };
            let machine = &mut core.machine;
            let has_gone = rest.with_bytes(|bytes| {
                let left = (bytes, rest.skipped);
                self.push_pieces(machine, (connection, id), &mut message, left)
            });
            if has_gone == Some(true) {
                self.outgoing.copied_bytes -= rest.copied_bytes();
                machine.pieces_sent(id.0, id.1);
                if rest.key().is_some() {
                    self.record_time(connection, Transfer::Ring, &message);
                }
                rest.release(id.0, true, &core.peers, &mut core.sent_posts);
                continue;
            }
            self.hub.want_room(connection);
            message.rest = Some(rest);
            self.outgoing.messages.insert(id, message);
            waiting.push(id);
        }
        self.outgoing.streams = waiting;
    }

    /// Sends as much of a long message as the ring has room for. `payload` is the message without
    /// its first `skipped` bytes. True when all of it has been sent.
    fn push_pieces(
        &mut self,
        machine: &Machine,
        (connection, id): (ConnId, LongId),
        message: &mut Outgoing,
        (payload, skipped): (&[u8], usize),
    ) -> bool {
        // An edge's long messages are sent one after the other, each after its announcement.
        let mut others = self.outgoing.messages.iter();
        let is_next = others.all(|((edge, sequence), other)| {
            *edge != id.0 || *sequence > id.1 || other.streamed.is_none()
        });
        let may_go = is_next && !machine.has_queued_records(id.0.peer);
        let Some(streamed) = message.streamed.as_mut().filter(|_| may_go) else {
            return false;
        };
        let tag = Machine::piece_tag(id.0, false);
        let usual = (message.length / PIECES).clamp(MIN_PIECE_BYTES, MAX_RECORD_BYTES);
        let length = self.outgoing.piece_bytes.unwrap_or(usual);
        while *streamed < message.length {
            let end = message.length.min(*streamed + length);
            let piece = &payload[*streamed - skipped..end - skipped];
            match self.hub.push(connection, tag, piece) {
                Ok(()) => *streamed = end,
                // Its end is reported by `poll_connections`.
                Err(_) => break,
            }
            // The receiver copies it out while the next one is copied in.
            self.hub.wake_peer(connection);
        }
        *streamed == message.length
    }
}
