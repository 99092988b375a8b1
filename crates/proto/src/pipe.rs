//! A peer on the same node, whose records arrive in order and are never lost. Spec §9.
//!
//! The [`Channel`] does most of the work. A pipe assigns numbers to edges, counts messages instead
//! of numbering them, and transfers long messages either in pieces or by letting the receiver copy
//! them from the sender's memory. A peer that breaks a rule is cut off, because no network can be
//! the cause.

mod incoming;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, MessageStart, Notice};
use crate::error::{BeginError, ProtocolViolation};
use crate::event::{EdgeId, PeerId};
use crate::holes::low;
use crate::shared::Shared;
use crate::wire::{
    EdgeKey, Greeting, Malformed, OPERATION_BYTES, PipeKind, PipeRecord, PipeTag, ends_to_word,
};

/// Most records queued while the peer does not read its ring. A correct peer causes only a few
/// per edge.
const MAX_QUEUED: usize = 4 * crate::channel::MAX_EDGES as usize;

/// An edge from the peer, found by the number that the peer has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Inbound {
    edge: EdgeId,
    key: EdgeKey,
    /// Number of the next message.
    arrived: u64,
    unreliable: u32,
}

/// A message that arrives in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Stream {
    sequence: u64,
    total: u64,
    operation: bool,
    got: u64,
}

/// A long message of this side that the peer may be copying, or that is sent in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Long {
    edge: EdgeId,
    key: EdgeKey,
    sequence: u64,
    /// The peer may still request it in pieces.
    offered: bool,
}

/// A whole message to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// The edge whose credit it uses.
    pub edge: EdgeId,
    /// Sending and receiving endpoint.
    pub key: EdgeKey,
}

/// State of a peer on the same node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pipe {
    pub(crate) id: PeerId,
    pub(crate) remote: Greeting,
    pub(crate) channel: Channel,
    inbound: Vec<Option<Inbound>>,
    /// Messages that arrive in pieces, by number of their edge, in order.
    streams: BTreeMap<u32, VecDeque<Stream>>,
    /// Long messages of this side that are not finished.
    long: Vec<Long>,
    /// Records that messages must not overtake.
    queue: VecDeque<PipeRecord>,
    /// It is in the machine's list of pipes with records to push.
    pub(crate) is_ready: bool,
}

impl Pipe {
    /// A pipe whose edges number their messages from `first` on.
    pub(crate) fn new(id: PeerId, remote: Greeting, first: u64) -> Pipe {
        let mut channel = Channel::new(id, first);
        channel.open(remote.initial_credit_bytes);
        Pipe {
            id,
            remote,
            channel,
            inbound: Vec::new(),
            streams: BTreeMap::new(),
            long: Vec::new(),
            queue: VecDeque::new(),
            is_ready: false,
        }
    }

    /// Long messages of this side that are not finished.
    pub(crate) fn long_messages(&self) -> usize {
        self.long.len()
    }

    // ---- sending ---------------------------------------------------------------

    /// Begins a message. The caller pushes it after all queued records.
    #[inline]
    pub(crate) fn begin(&mut self, edge: EdgeId, total: u64) -> Result<MessageStart, BeginError> {
        let mut begun = self.channel.begin(edge, total)?;
        if begun.is_new {
            self.introduce(edge);
        }
        begun.is_first = !self.has_queued();
        Ok(begun)
    }

    /// Begins a message that may be dropped.
    pub(crate) fn begin_unreliable(&mut self, edge: EdgeId) -> Result<(EdgeKey, u32), BeginError> {
        let begun = self.channel.begin_unreliable(edge)?;
        if self.channel.is_introduced(edge) == Some(false) {
            self.channel.set_introduced(edge);
            self.introduce(edge);
        }
        Ok(begun)
    }

    /// Queues the record with the number of an edge.
    #[cold]
    fn introduce(&mut self, edge: EdgeId) {
        if let Some(key) = self.channel.key(edge) {
            let tag = PipeTag {
                kind: PipeKind::Open,
                extra: key.life,
                number: edge.index,
            };
            self.queue
                .push_back(PipeRecord::new(tag, &[ends_to_word(key)]));
        }
    }

    /// A long message is at `address` until
    /// [`Event::OfferDone`](crate::Event::OfferDone) or
    /// [`Event::PiecesRequested`](crate::Event::PiecesRequested).
    pub(crate) fn offer(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        (total, address): (u64, u64),
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        self.queue_long(PipeKind::Offer, edge, begun, &[total, address], head);
    }

    /// A long message follows in pieces.
    pub(crate) fn announce(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        total: u64,
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        debug_assert!(
            !self.has_offered(edge),
            "pieces of an offered message would be mixed with those of a later one"
        );
        self.queue_long(PipeKind::Announce, edge, begun, &[total], head);
    }

    fn queue_long(
        &mut self,
        kind: PipeKind,
        edge: EdgeId,
        begun: MessageStart,
        words: &[u64],
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        self.long.push(Long {
            edge,
            key: begun.key,
            sequence: begun.sequence,
            offered: kind == PipeKind::Offer,
        });
        let tag = PipeTag {
            kind,
            extra: 0,
            number: edge.index,
        };
        let record = PipeRecord::new(tag, words);
        self.queue.push_back(match head {
            Some(head) => record.with_head(head),
            None => record,
        });
    }

    /// All pieces of a message were pushed.
    pub(crate) fn pieces_sent(&mut self, edge: EdgeId, sequence: u64) {
        self.long
            .retain(|long| (long.edge, long.sequence) != (edge, sequence));
    }

    /// True while a message of this edge is offered, whose pieces may be requested.
    pub(crate) fn has_offered(&self, edge: EdgeId) -> bool {
        self.long
            .iter()
            .any(|long| long.offered && long.edge == edge)
    }

    /// True while long messages are not finished.
    pub(crate) fn has_long(&self) -> bool {
        !self.long.is_empty()
    }

    // ---- records to push -----------------------------------------------------------

    /// True if records are queued that no message may overtake.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if [`poll_record`](Self::poll_record) may return a record.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        self.has_queued()
            || self.channel.has_grant()
            || self.channel.has_notice()
            || self.channel.credit_requests_due
    }

    /// The next record to push. It stays the same until [`pop_record`](Self::pop_record).
    pub(crate) fn poll_record(&mut self) -> Option<PipeRecord> {
        if self.queue.is_empty() {
            self.queue_pending();
        }
        self.queue.front().copied()
    }

    /// Removes the record that was pushed.
    pub(crate) fn pop_record(&mut self) {
        self.queue.pop_front();
    }

    /// Turns notices, grants and credit requests into records.
    fn queue_pending(&mut self) {
        self.queue_notices();
        while let Some((key, limit)) = self.channel.next_grant() {
            self.queue_keyed(PipeKind::Credit, key, limit);
        }
        if !self.channel.credit_requests_due {
            return;
        }
        let mut position = 0;
        while let Some(waiting) = self.channel.credit_request(position) {
            position += 1;
            if let Some(waiting) = waiting {
                if !waiting.is_introduced {
                    self.introduce(waiting.id);
                }
                let tag = PipeTag {
                    kind: PipeKind::CreditRequest,
                    extra: waiting.key.life,
                    number: waiting.request.message,
                };
                let words = [ends_to_word(waiting.key), waiting.request.need];
                self.queue.push_back(PipeRecord::new(tag, &words));
            }
        }
        self.channel.credit_requests_sent(0);
    }

    fn queue_notices(&mut self) {
        // The end of an edge must follow its long messages.
        for _ in 0..self.channel.notices() {
            let Some(notice) = self.channel.peek_notice().copied() else {
                return;
            };
            if let Notice::End { key, .. } = notice
                && self.long.iter().any(|long| long.key == key)
            {
                self.channel.postpone_notice();
                continue;
            }
            self.channel.pop_notice();
            match notice {
                Notice::Refused {
                    key,
                    sequence,
                    reason,
                } => {
                    let tag = PipeTag {
                        kind: PipeKind::Refused,
                        extra: u8::try_from(reason.code()).unwrap_or(u8::MAX),
                        number: low(sequence),
                    };
                    self.queue
                        .push_back(PipeRecord::new(tag, &[ends_to_word(key)]));
                }
                Notice::End { key, sequence } => {
                    self.queue_keyed(PipeKind::End, key, sequence);
                }
                Notice::Forgotten { key } => self.queue_keyed(PipeKind::Forgotten, key, 0),
            }
        }
    }

    fn queue_keyed(&mut self, kind: PipeKind, key: EdgeKey, value: u64) {
        let tag = PipeTag {
            kind,
            extra: key.life,
            number: 0,
        };
        self.queue
            .push_back(PipeRecord::new(tag, &[ends_to_word(key), value]));
    }

    /// Releases everything that was held for a peer that is gone.
    pub(crate) fn end(self, shared: &mut Shared) {
        self.channel.end(shared);
        shared.forget_peer(self.id);
    }

    /// Hashes everything that affects future behaviour.
    pub(crate) fn hash_state(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        self.channel.hash_state(hasher);
        (self.id, self.remote.incarnation, &self.inbound).hash(hasher);
        (&self.streams, &self.long, &self.queue).hash(hasher);
    }
}

impl From<Malformed> for ProtocolViolation {
    fn from(_: Malformed) -> ProtocolViolation {
        ProtocolViolation("a malformed record")
    }
}
