//! The edges of one peer: messages in order, credit, refusals, ends. Spec §5.5, §5.6.
//!
//! A [`Channel`] keeps the state of edges and does not know how records travel. Two carriers use
//! it: a [`Session`](crate::session::Session), whose packets may be lost or reordered, and a
//! [`Pipe`](crate::pipe::Pipe), whose records arrive in order. The carrier takes from it what must
//! be sent to the peer: grants and credit requests, of which only the newest counts, and notices,
//! each of which must arrive.
//!
//! Bounds: [`MAX_EDGES`] open edges in each direction. An incoming edge that has ended takes
//! memory only while the application holds messages of it.

mod granting;
mod incoming;
mod outgoing;
mod receiving;
mod sending;
mod status;
mod table;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;
use serde::{Deserialize, Serialize};

use crate::event::{EdgeId, PeerId};
use crate::shared::Shared;
use crate::wire::{CreditRequest, EdgeKey, RefusedReason};
use incoming::EdgeIn;
use outgoing::EdgeOut;
use table::EdgeTable;

pub use status::{IncomingStatus, OutgoingStatus};

/// Most open edges to one peer, and from one peer.
pub const MAX_EDGES: u32 = 1 << 16;
/// Queued refusals of messages for which no edge could be created, beyond which no packet with such a
/// message is accepted.
const MAX_STRAYS: usize = 256;

/// Information for the peer that must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// A message was not accepted.
    Refused {
        key: EdgeKey,
        sequence: u64,
        reason: RefusedReason,
    },
    /// No message from `sequence` on will be sent on an edge.
    End { key: EdgeKey, sequence: u64 },
    /// An edge that ended is forgotten: its two endpoints may be connected again.
    Forgotten { key: EdgeKey },
}

/// How soon a grant must be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// There is nothing new to send.
    None,
    /// Send it with the next packets, or after `ack_delay_ns`.
    Soon,
    /// Send it immediately, because the peer is waiting.
    Now,
}

/// A message that has begun and may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MessageStart {
    /// Key of the edge.
    pub key: EdgeKey,
    /// Its number on the edge.
    pub sequence: u64,
    /// Bytes that fit a packet to this peer, without the trailer; zero for a pipe.
    pub space: usize,
    /// Nothing is queued before it.
    pub is_first: bool,
    /// The peer did not know the edge before.
    pub(crate) is_new: bool,
}

/// An outgoing edge that waits for credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingEdge {
    pub(crate) id: EdgeId,
    pub(crate) key: EdgeKey,
    pub(crate) request: CreditRequest,
    /// The peer knew the edge before this request.
    pub(crate) is_introduced: bool,
}

/// A piece of an arriving message.
#[derive(Clone, Debug)]
pub(crate) struct MessagePiece {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) total: u64,
    /// A part of an operation on memory, which needs no buffer: its data is written in place.
    pub(crate) operation: bool,
    /// Position of its bytes in the carrier's packet or record. They include the operation's head
    /// if each piece carries one.
    pub(crate) bytes: Range<usize>,
}

impl MessagePiece {
    /// True if its bytes begin with an operation's head.
    fn has_head(&self) -> bool {
        self.bytes.len() as u64 > self.length
    }

    /// A piece that contains a whole message.
    pub(crate) fn whole(sequence: u64, bytes: Range<usize>) -> MessagePiece {
        let length = bytes.len() as u64;
        MessagePiece {
            sequence,
            offset: 0,
            length,
            total: length,
            operation: false,
            bytes,
        }
    }
}

/// Result of placing a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// A whole message that is next in order: the caller delivers it.
    Deliver,
    /// An event requests a place for it.
    Held,
    /// No endpoint accepts it.
    Discarded,
    /// The piece contradicts earlier ones.
    Violation,
}

/// Records of refusals between two processes. A sender that has received as many as the other side
/// has made knows the fate of all that was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refusals {
    /// Those that this side has made, some of which may still be queued.
    pub made: u64,
    /// Those that have arrived from the peer.
    pub received: u64,
}

/// State of all edges of one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Channel {
    peer: PeerId,
    /// Number of the first message of each edge.
    first: u64,
    incoming: EdgeTable<EdgeIn>,
    outgoing: EdgeTable<EdgeOut>,
    /// Bytes that may be sent on a new edge before any grant.
    initial_credit: u64,
    /// The incoming edge that was used last.
    last: u32,
    /// Number of incoming edges that have ended and still have unread messages.
    draining: u32,
    /// Those of them that reserve credit for the next edge between the same endpoints.
    reserving: BTreeMap<(u32, u32), u32>,
    next_life: u8,
    next_unreliable: u32,
    /// Incoming edges with a grant to send.
    grants_due: Vec<u32>,
    notices: VecDeque<Notice>,
    refusals: Refusals,
    refusals_queued: usize,
    strays: usize,
    /// Outgoing edges that wait for credit.
    wanting: Vec<u32>,
    /// Outgoing edges that the peer has forgotten, each until all units below a number are settled: a
    /// refusal that arrives before that concerns the life that has ended, which it does not name.
    disputed_ends: Vec<(EdgeKey, u64)>,
    pub(crate) credit_requests_due: bool,
}

impl Channel {
    /// A channel whose edges number their messages from `first` on.
    pub(crate) fn new(peer: PeerId, first: u64) -> Channel {
        Channel {
            peer,
            first,
            incoming: EdgeTable::default(),
            outgoing: EdgeTable::default(),
            initial_credit: 0,
            last: 0,
            draining: 0,
            reserving: BTreeMap::new(),
            next_life: 0,
            next_unreliable: 0,
            grants_due: Vec::new(),
            notices: VecDeque::new(),
            refusals: Refusals::default(),
            refusals_queued: 0,
            strays: 0,
            wanting: Vec::new(),
            disputed_ends: Vec::new(),
            credit_requests_due: false,
        }
    }

    /// Sets the credit with which new edges start.
    pub(crate) fn open(&mut self, initial_credit: u32) {
        self.initial_credit = initial_credit.into();
        for (_, edge) in self.outgoing.iter_mut() {
            edge.grant(initial_credit.into());
        }
    }

    // ---- for the carrier --------------------------------------------------------

    /// True if there are grants to send.
    #[inline]
    pub(crate) fn has_grant(&self) -> bool {
        !self.grants_due.is_empty()
    }

    /// The next grant to send: edge and cumulative bytes.
    pub(crate) fn next_grant(&mut self) -> Option<(EdgeKey, u64)> {
        while let Some(index) = self.grants_due.pop() {
            if let Some(edge) = self.incoming.get(index) {
                return Some((edge.key(), edge.granted()));
            }
        }
        None
    }

    /// True if the peer may know an outgoing edge; `None` if the edge does not exist.
    #[inline]
    pub(crate) fn is_introduced(&self, edge: EdgeId) -> Option<bool> {
        let current = self.outgoing.generation(edge.index) == edge.generation;
        Some(
            self.outgoing
                .get(edge.index)
                .filter(|_| current)?
                .is_known(),
        )
    }

    /// Called before an outgoing edge is announced to the peer.
    pub(crate) fn set_introduced(&mut self, edge: EdgeId) {
        if let Some(out) = self.out_mut(edge) {
            out.set_known();
        }
    }

    /// The refusals of both sides.
    #[inline]
    pub(crate) fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// True while a refusal is queued.
    #[inline]
    pub(crate) fn has_refusals(&self) -> bool {
        self.refusals_queued > 0
    }

    fn queue_refusal(&mut self, key: EdgeKey, sequence: u64, reason: RefusedReason) {
        self.refusals.made += 1;
        self.refusals_queued += 1;
        self.notices.push_back(Notice::Refused {
            key,
            sequence,
            reason,
        });
    }

    /// Number of notices to send.
    pub(crate) fn notices(&self) -> usize {
        self.notices.len()
    }

    /// Moves the first notice behind all others.
    pub(crate) fn postpone_notice(&mut self) {
        self.notices.rotate_left(1);
    }

    /// True if there are notices to send.
    #[inline]
    pub(crate) fn has_notice(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next notice to send.
    pub(crate) fn peek_notice(&self) -> Option<&Notice> {
        self.notices.front()
    }

    /// Removes the first notice, which was sent.
    pub(crate) fn pop_notice(&mut self) {
        let Some(Notice::Refused { key, reason, .. }) = self.notices.pop_front() else {
            return;
        };
        self.refusals_queued -= 1;
        if reason == RefusedReason::TooManyEdges {
            self.strays -= 1;
        }
        if let Some(index) = self.find_in(key)
            && let Some(edge) = self.incoming.get_mut(index)
        {
            edge.refusal_due = false;
        }
    }

    /// True if some edge needs credit that the peer can grant.
    #[inline]
    pub(crate) fn needs_credit(&self) -> bool {
        !self.wanting.is_empty() && self.waits(false)
    }

    /// True if some edge waits until the peer has forgotten its earlier life.
    pub(crate) fn awaits_forgotten(&self) -> bool {
        self.waits(true)
    }

    fn waits(&self, is_ending: bool) -> bool {
        let edges = self.wanting.iter();
        let mut edges = edges.filter_map(|index| self.outgoing.get(*index));
        edges.any(|edge| edge.is_ending() == is_ending)
    }

    /// The request of the edge at this position of the waiting list, if it needs one. `None` past
    /// the end.
    pub(crate) fn credit_request(&mut self, position: usize) -> Option<Option<WaitingEdge>> {
        let index = *self.wanting.get(position)?;
        let id = self.outgoing_id(index);
        let edge = self.outgoing.get_mut(index);
        Some(edge.and_then(|edge| {
            let is_introduced = edge.is_known();
            Some(WaitingEdge {
                id,
                key: edge.key(),
                request: edge.take_credit_request()?,
                is_introduced,
            })
        }))
    }

    /// The requests of the first `sent` waiting edges were sent: the others come first next time.
    pub(crate) fn credit_requests_sent(&mut self, sent: usize) {
        self.credit_requests_due = false;
        if !self.wanting.is_empty() {
            let turn = sent % self.wanting.len();
            self.wanting.rotate_left(turn);
        }
    }

    /// Releases everything that was held for a peer that is gone.
    pub(crate) fn end(self, shared: &mut Shared) {
        for (_, edge) in self.incoming.iter() {
            shared.committed -= edge.committed();
            shared.pool.give_back(edge.held());
            shared.edges_in -= u32::from(!edge.is_draining());
            if edge.is_draining()
                && let Some(endpoint) = shared.endpoints.get_mut(&edge.key().target)
            {
                endpoint.ended_unread = endpoint.ended_unread.saturating_sub(edge.unread());
            }
        }
    }

    /// Hashes everything that affects future behaviour, for [`View`](crate::View).
    pub(crate) fn hash_state(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (&self.incoming, &self.outgoing, self.initial_credit).hash(hasher);
        (&self.grants_due, &self.notices, self.strays).hash(hasher);
        (&self.wanting, self.credit_requests_due, &self.reserving).hash(hasher);
    }
}
