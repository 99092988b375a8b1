//! Long messages between processes of a node, through the ring or fetched: see `transfer.rs`.
//!
//! Through the ring a message is announced and comes in pieces. To be fetched it is offered
//! where it lies: the receiver copies it into a buffer of its own, a part in each turn. Where
//! the kernel does not allow that, it asks for the message, which then comes in pieces. What is
//! left of a message whose sender will not wait is copied first.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use dipole_link::shm::{ConnId, MAX_RECORD_BYTES};
use dipole_proto::{EdgeId, Instant, Machine, PeerId};
use rustc_hash::FxHashMap;

use super::transfer::Transfer;
use super::{SharedMemory, find_mut};
use crate::content::Content;
use crate::core::Core;
use crate::inbox::Buffers;
use crate::long_messages::{LongId, LongNews};
use crate::packer::blocked;
use crate::posted::{Keep, Rest};
use crate::target::Blocked;

/// Bytes of a long message fetched in one turn, so that others get theirs.
const FETCH_BYTES: usize = 1 << 20;
/// Parts of a long message that go through the ring, so that the first is copied out while the
/// others are copied in; and how long they are at least.
const PIECES: usize = 8;
const MIN_PIECE_BYTES: usize = 16 << 10;
/// Shorter parts would cost more than they save, whatever a profile says.
const LEAST_PIECE_BYTES: usize = 1 << 10;

/// A message that is being copied from a peer's memory.
#[derive(Debug)]
struct Fetch {
    edge: EdgeId,
    sequence: u64,
    number: u32,
    total: u64,
    address: u64,
    got: u64,
}

/// Messages to be copied from peers' memory, in turn.
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

/// A message of ours that the peer has not taken, or that has not gone to its last piece.
#[derive(Debug)]
struct Outgoing {
    length: usize,
    /// How much has gone by the ring; `None` while the peer may fetch it.
    streamed: Option<usize>,
    /// What is left of it, where its sender does not wait.
    rest: Option<Rest>,
    /// Its region was closed while the peer might fetch it.
    withdrawn: bool,
    begun_ns: u64,
}

/// Long messages of ours that are under way.
#[derive(Debug, Default)]
pub(super) struct OutgoingLong {
    messages: FxHashMap<LongId, Outgoing>,
    /// Bytes of copies among them.
    copied_bytes: usize,
    /// How many are withdrawn.
    withdrawn: usize,
    /// Parts in which they go through the ring, if that was measured.
    piece_bytes: Option<usize>,
    /// Those that go in pieces though their senders do not wait, in the order in which that was decided.
    streams: Vec<LongId>,
}

impl OutgoingLong {
    /// True if copies go in pieces.
    #[inline]
    pub(super) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Sends parts of this length, where the ring takes them.
    pub(super) fn choose(&mut self, piece_bytes: Option<usize>) {
        self.piece_bytes =
            piece_bytes.map(|bytes| bytes.clamp(LEAST_PIECE_BYTES, MAX_RECORD_BYTES));
    }

    /// Bytes of copies for one peer.
    fn copied_to(&self, peer: PeerId) -> usize {
        let messages = self.messages.iter();
        let of = messages.filter(|((edge, _), _)| edge.peer == peer);
        of.filter_map(|(_, message)| message.rest.as_ref())
            .map(Rest::copied_bytes)
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

    /// A peer is gone: so are the messages to it.
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
    /// Begins a long message, which must stay where it is until
    /// [`continue_long`](Self::continue_long) says that it is no longer needed, unless what is
    /// left of it is to be kept.
    pub(crate) fn begin_long(
        &mut self,
        machine: &mut Machine,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
        keep: Keep<'_>,
    ) -> Result<LongId, Blocked> {
        let (payload, total) = (content.payload, content.payload.len() as u64);
        // Before the message has begun: it could not be taken back.
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
                self.note_streamed(machine, (connection, id), &message);
                self.wake_peers();
                return Ok(id);
            }
            self.hub.want_room(connection);
        }
        let skipped = message.streamed.unwrap_or(0);
        message.rest = match keep {
            Keep::No => None,
            Keep::Copy(buffers) => Some(Rest::copy(payload, skipped, buffers)),
            Keep::Shared(bytes, posted) => Some(Rest::shared(bytes, posted)),
            Keep::Region(part) => Some(Rest::region(part)),
        };
        let rest = message.rest.as_ref();
        self.outgoing.copied_bytes += rest.map_or(0, Rest::copied_bytes);
        if transfer == Transfer::Fetch {
            let lies = rest.and_then(Rest::copied).unwrap_or(payload);
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

    /// How the next long message of an edge goes. While one is offered, whose pieces might be
    /// asked for, no other can come in pieces.
    fn transfer(&self, connection: ConnId, edge: EdgeId) -> Transfer {
        let mut others = self.outgoing.messages.iter();
        if others.any(|((other, _), message)| *other == edge && message.streamed.is_none()) {
            return Transfer::Fetch;
        }
        let found = self.find(connection);
        found.map_or(Transfer::Fetch, |found| found.transfer.current())
    }

    /// A message has gone to its last piece, all of it from where its caller has it.
    fn note_streamed(
        &mut self,
        machine: &mut Machine,
        (connection, id): (ConnId, LongId),
        message: &Outgoing,
    ) {
        machine.streamed(id.0, id.1);
        self.note_time(connection, Transfer::Ring, message);
    }

    fn note_time(&mut self, connection: ConnId, transfer: Transfer, message: &Outgoing) {
        let ns = self.hub.now_ns().saturating_sub(message.begun_ns);
        if let Some(found) = find_mut(&mut self.connections, connection) {
            found.transfer.note(transfer, message.length, ns);
        }
    }

    /// True if nothing is left of a long message that has begun.
    pub(crate) fn has_sent(&self, id: LongId) -> bool {
        !self.outgoing.messages.contains_key(&id)
    }

    /// Whether a copy of so many more bytes may be kept for a peer, of `most` in all.
    pub(crate) fn may_keep(&self, peer: PeerId, bytes: usize, most: usize) -> bool {
        let all = self.outgoing.copied_bytes;
        let left = most.saturating_sub(all);
        all == 0 || all + bytes <= left || self.outgoing.copied_to(peer) + bytes <= left
    }

    /// Goes on with a long message; true once the caller's is no longer needed.
    pub(crate) fn continue_long(
        &mut self,
        machine: &mut Machine,
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
            self.note_streamed(machine, (connection, id), &message);
            return Ok(true);
        }
        self.outgoing.messages.insert(id, message);
        self.hub.want_room(connection);
        Ok(false)
    }

    /// The caller of a long message gives up waiting though its memory may be read, or pieces
    /// are missing: the connection must end.
    pub(crate) fn abandon(&mut self, id: LongId, core: &mut Core) {
        if self.outgoing.messages.contains_key(&id)
            && let Some(connection) = self.connection(id.0.peer)
        {
            self.hub.close(connection);
            self.end(connection, dipole_proto::GoneReason::Closed, core);
        }
    }

    /// Takes the machine's news of long messages and goes on with those under way.
    #[inline]
    pub(super) fn poll_long(&mut self, now: Instant, core: &mut Core) {
        if !core.long_news.is_empty() {
            self.take_news(core);
        }
        if self.outgoing.has_streams() {
            self.stream_rests(core);
        }
        if !self.fetches.is_empty() {
            self.fetch(now, core);
        }
    }

    fn take_news(&mut self, core: &mut Core) {
        let mut all = std::mem::take(&mut core.long_news);
        for news in all.drain(..) {
            match news {
                LongNews::Fetch {
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
                    got: 0,
                }),
                LongNews::Taken { edge, sequence } => {
                    let Some(mut message) = self.outgoing.remove((edge, sequence)) else {
                        continue;
                    };
                    // Of a copy it would be the time to make that, too.
                    let is_whole = message.rest.as_ref().is_none_or(|it| it.key().is_some());
                    if is_whole && let Some(connection) = self.connection(edge.peer) {
                        self.note_time(connection, Transfer::Fetch, &message);
                    }
                    if let Some(rest) = message.rest.take() {
                        rest.release(edge, true, &core.peers, &mut core.sent_posts);
                    }
                }
                LongNews::Stream { edge, sequence } => self.stream_wanted((edge, sequence)),
            }
        }
        core.long_news = all;
        self.show_again();
    }

    /// A region is closed. What is on its way from there goes on from a copy; what a peer has
    /// been offered there, or fetches just now, it will ask for.
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
            let copy = rest.show(|bytes| Rest::copy(bytes, skipped, buffers));
            if message.streamed.is_none() {
                self.hub.block_pulls();
                message.withdrawn = true;
                *withdrawn += 1;
            }
            *copied_bytes -= rest.copied_bytes();
            // Of memory that was revoked before nothing is left.
            *rest = copy.unwrap_or_else(|| Rest::copy(&vec![0; message.length], skipped, buffers));
            *copied_bytes += rest.copied_bytes();
        }
    }

    /// Peers may fetch again once they have asked for all that was withdrawn, or had fetched it.
    pub(super) fn show_again(&mut self) {
        if self.outgoing.withdrawn == 0 {
            self.hub.allow_pulls();
        }
    }

    /// The peer cannot fetch a message.
    fn stream_wanted(&mut self, id: LongId) {
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

    /// Copies a part of the message whose turn it is.
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
        let begin = usize::try_from(fetch.got).expect("a position in memory");
        let left = usize::try_from(total).expect("a length in memory") - begin;
        let length = left.min(FETCH_BYTES);
        let address = fetch.address.wrapping_add(fetch.got);
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
        fetch.got = match room {
            Some(()) => fetch.got + length as u64,
            // Its endpoint was closed, or the operation is not allowed.
            None => total,
        };
        match fetched {
            Ok(()) if fetch.got < total => self.fetches.waiting.push_front(fetch),
            Ok(()) => {
                core.machine.fetched(now, edge, number, sequence);
                core.handle_events(&[][..]);
            }
            Err(_) => core.machine.cannot_fetch(edge, number, sequence, total),
        }
    }

    /// Sends pieces of long messages that were kept.
    fn stream_rests(&mut self, core: &mut Core) {
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
            let has_gone = rest.show(|bytes| {
                let left = (bytes, rest.skipped);
                self.push_pieces(machine, (connection, id), &mut message, left)
            });
            if has_gone == Some(true) {
                self.outgoing.copied_bytes -= rest.copied_bytes();
                machine.streamed(id.0, id.1);
                if rest.key().is_some() {
                    self.note_time(connection, Transfer::Ring, &message);
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

    /// Pushes as much of a long message as the ring takes, `payload` without the bytes that are
    /// `skipped`; true when all of it has gone.
    fn push_pieces(
        &mut self,
        machine: &Machine,
        (connection, id): (ConnId, LongId),
        message: &mut Outgoing,
        (payload, skipped): (&[u8], usize),
    ) -> bool {
        // Pieces of an edge come one message after the other, behind what announces them.
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
            // It is copied out while the next is copied in.
            self.hub.wake_peer(connection);
        }
        *streamed == message.length
    }
}
