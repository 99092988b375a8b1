//! Long messages between processes of a node: one copy, made by the receiver.
//!
//! The sender offers where the message lies; the receiver fetches it into a buffer of its
//! own, a part in each turn. Where the kernel does not allow that, it asks for the message,
//! which then goes through the ring in pieces. A sender that will not wait has its message
//! copied, and that copy is offered.

use std::collections::VecDeque;
use std::io;

use dipole_link::shm::{ConnId, PushError};
use dipole_proto::{EdgeId, Instant, Machine, PeerId};
use rustc_hash::FxHashMap;

use super::{Blocked, SharedMemory};
use crate::engine::core::Core;
use crate::engine::packer::blocked;
use crate::inbox::Buffer;

/// Bytes of a long message fetched in one turn, so that others get theirs.
const FETCH_BYTES: usize = 1 << 20;
/// Bytes of a long message in one record, where it cannot be fetched.
const PIECE_BYTES: usize = 16 << 10;

/// What the machine says of long messages.
#[derive(Debug)]
pub(in crate::engine) enum LongNews {
    /// One can be copied from the peer's memory.
    Fetch {
        edge: EdgeId,
        sequence: u64,
        number: u32,
        total: u64,
        address: u64,
    },
    /// The peer has copied one of ours.
    Taken { edge: EdgeId, sequence: u64 },
    /// The peer wants one of ours in pieces.
    Stream { edge: EdgeId, sequence: u64 },
}

/// A long message that was offered.
pub(crate) type OfferId = (EdgeId, u64);

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

/// A message of ours that the peer has not taken.
#[derive(Debug)]
struct Offer {
    length: usize,
    /// How much has gone by the ring; `None` while the peer may fetch it.
    streamed: Option<usize>,
    /// The message itself, where its sender does not wait.
    copy: Option<Buffer>,
}

/// Messages of ours that peers have not taken.
#[derive(Debug, Default)]
pub(super) struct Offers {
    offers: FxHashMap<OfferId, Offer>,
    /// Bytes of copies among them.
    copied_bytes: usize,
    /// Copies that go in pieces, in the order in which they were asked for.
    streams: Vec<OfferId>,
}

impl Offers {
    /// True if copies go in pieces.
    #[inline]
    pub(super) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    fn remove(&mut self, id: OfferId) {
        if let Some(offer) = self.offers.remove(&id)
            && offer.copy.is_some()
        {
            self.copied_bytes -= offer.length;
        }
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        let gone: Vec<OfferId> = self.offers.keys().copied().collect();
        for id in gone.into_iter().filter(|(edge, _)| edge.peer == peer) {
            self.remove(id);
        }
        self.streams.retain(|(edge, _)| edge.peer != peer);
    }
}

impl SharedMemory {
    /// Offers a long message, which must stay where it is until
    /// [`continue_offer`](Self::continue_offer) says that it was taken. With `copy` it is
    /// copied into that and the caller's need not stay.
    pub(in crate::engine) fn offer(
        &mut self,
        machine: &mut Machine,
        now: Instant,
        edge: EdgeId,
        payload: &[u8],
        copy: Option<Buffer>,
    ) -> Result<OfferId, Blocked> {
        let total = payload.len() as u64;
        let begun = machine.begin(now, edge, total);
        if begun.is_err() {
            self.push_records(machine);
        }
        let begun = begun.map_err(blocked)?;
        let copy = copy.map(|mut copy| {
            copy.bytes_mut().copy_from_slice(payload);
            copy
        });
        let lies = copy.as_ref().map_or(payload, Buffer::bytes);
        machine.offer(edge, begun, total, self.hub.address_of(lies));
        let id = (edge, begun.sequence);
        if copy.is_some() {
            self.offers.copied_bytes += payload.len();
        }
        let offer = Offer {
            length: payload.len(),
            streamed: None,
            copy,
        };
        self.offers.offers.insert(id, offer);
        self.push_records(machine);
        self.wake_peers();
        Ok(id)
    }

    /// Bytes of copies of offered messages.
    pub(in crate::engine) fn copied_bytes(&self) -> usize {
        self.offers.copied_bytes
    }

    /// Goes on with a message that was offered; true once it has been taken.
    pub(in crate::engine) fn continue_offer(
        &mut self,
        machine: &mut Machine,
        id: OfferId,
        payload: &[u8],
    ) -> Result<bool, Blocked> {
        let connection = self.connection(id.0.peer).ok_or(Blocked::Gone(None))?;
        match self.offers.offers.get(&id) {
            None => return Ok(true),
            Some(offer) if offer.copy.is_some() => return Ok(true),
            Some(offer) if offer.streamed.is_none() => {
                self.hub.want_room(connection);
                return Ok(false);
            }
            Some(_) => {}
        }
        let Some(mut offer) = self.offers.offers.remove(&id) else {
            return Ok(true);
        };
        if self.push_pieces(connection, id, &mut offer, payload) {
            machine.streamed(id.0, id.1);
            return Ok(true);
        }
        self.offers.offers.insert(id, offer);
        self.hub.want_room(connection);
        Ok(false)
    }

    /// The caller of an offered message gives up waiting though its memory may be read: the
    /// connection must end.
    pub(in crate::engine) fn abandon(&mut self, id: OfferId, core: &mut Core) {
        if self.offers.offers.contains_key(&id)
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
        if !self.offers.streams.is_empty() {
            self.stream_copies(&mut core.machine);
        }
        if !self.fetches.is_empty() {
            self.fetch(now, core);
        }
    }

    fn take_news(&mut self, core: &mut Core) {
        for news in core.long_news.drain(..) {
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
                LongNews::Taken { edge, sequence } => self.offers.remove((edge, sequence)),
                LongNews::Stream { edge, sequence } => {
                    let id = (edge, sequence);
                    if let Some(offer) = self.offers.offers.get_mut(&id) {
                        offer.streamed.get_or_insert(0);
                        if offer.copy.is_some() {
                            self.offers.streams.push(id);
                        }
                    }
                }
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
        let fetched = match core.dispatch.assembly(edge, sequence) {
            Some(room) => {
                let begin = usize::try_from(fetch.got).expect("a position in memory");
                let end = room.len().min(begin + FETCH_BYTES);
                let address = fetch.address.wrapping_add(fetch.got);
                fetch.got = end as u64;
                match self.hub.can_pull(connection) {
                    true => self.hub.pull(connection, address, &mut room[begin..end]),
                    false => Err(io::ErrorKind::PermissionDenied.into()),
                }
            }
            // Its endpoint was closed.
            None => {
                fetch.got = total;
                Ok(())
            }
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

    /// Sends pieces of copied long messages that cannot be fetched.
    fn stream_copies(&mut self, machine: &mut Machine) {
        let mut waiting: Vec<OfferId> = Vec::new();
        for id in std::mem::take(&mut self.offers.streams) {
            let Some(connection) = self.connection(id.0.peer) else {
                continue;
            };
            let Some(mut offer) = self.offers.offers.remove(&id) else {
                continue;
            };
            let Some(copy) = offer.copy.take() else {
                continue;
            };
            if self.push_pieces(connection, id, &mut offer, copy.bytes()) {
                self.offers.copied_bytes -= offer.length;
                machine.streamed(id.0, id.1);
                continue;
            }
            self.hub.want_room(connection);
            offer.copy = Some(copy);
            self.offers.offers.insert(id, offer);
            waiting.push(id);
        }
        self.offers.streams = waiting;
    }

    /// Pushes as much of a long message as the ring takes; true when all of it has gone.
    fn push_pieces(
        &mut self,
        connection: ConnId,
        id: OfferId,
        offer: &mut Offer,
        payload: &[u8],
    ) -> bool {
        // Pieces of an edge come one message after the other.
        let mut others = self.offers.offers.iter();
        let is_next = others.all(|((edge, sequence), other)| {
            *edge != id.0 || *sequence > id.1 || other.streamed.is_none()
        });
        let Some(streamed) = offer.streamed.as_mut().filter(|_| is_next) else {
            return false;
        };
        let tag = Machine::piece_tag(id.0, false);
        while *streamed < offer.length {
            let end = offer.length.min(*streamed + PIECE_BYTES);
            match self.hub.push(connection, tag, &payload[*streamed..end]) {
                Ok(()) => *streamed = end,
                Err(PushError::Full) => break,
                // Its end is reported by `poll_connections`.
                Err(_) => return false,
            }
        }
        self.hub.ring(connection);
        *streamed == offer.length
    }
}
