//! The edges of one peer: messages in order, credit, refusals, ends. Spec §5.5, §5.6.
//!
//! A [`Channel`] knows edges, not how records travel. Two carriers use it: a
//! [`Session`](crate::session::Session) of packets that may be lost or overtake each
//! other, and a [`Pipe`](crate::pipe::Pipe) of records in order. What the peer must be
//! told lies here until the carrier takes it: *grants* and *wishes*, of which the newest
//! says all, and *notices*, each of which must arrive.
//!
//! Bounds: [`MAX_EDGES`] edges each way that have not ended; an incoming edge that has
//! ended takes room only while the application has messages of it.

mod incoming;
mod outgoing;
mod receiving;
mod sending;
mod table;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use crate::event::{EdgeId, PeerId};
use crate::shared::Shared;
use crate::wire::{CreditRequest, EdgeKey, RefusedReason};
use incoming::EdgeIn;
use outgoing::EdgeOut;
use table::EdgeTable;

/// Edges to one peer, and from one peer, that have not ended.
pub const MAX_EDGES: u32 = 1 << 16;
/// Refusals of messages for which no edge could be made that wait to be told. A peer that
/// keeps to [`MAX_EDGES`] gets none.
const MAX_STRAYS: usize = 256;

/// Something that the peer must be told, and that must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Notice {
    /// A message was not taken.
    Refused {
        key: EdgeKey,
        sequence: u64,
        reason: RefusedReason,
    },
    /// No message from `sequence` on will be sent on an edge.
    End { key: EdgeKey, sequence: u64 },
    /// An edge that ended is forgotten: its ends may be used again.
    Forgotten { key: EdgeKey },
}

/// How soon a grant must be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Nothing new.
    None,
    /// With the next packets, or a little later.
    Soon,
    /// At once: the peer waits.
    Now,
}

/// A message that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStart {
    /// Its edge.
    pub key: EdgeKey,
    /// Its number on the edge.
    pub sequence: u64,
    /// Bytes that a packet to this peer holds, trailer excluded; zero for a pipe.
    pub space: usize,
    /// Nothing waits to be sent before it.
    pub is_first: bool,
    /// The peer had not heard of the edge.
    pub(crate) is_new: bool,
}

/// A piece of an arriving message.
#[derive(Clone, Debug)]
pub(crate) struct MessagePiece {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) total: u64,
    /// It is of an operation on memory, which needs no room: its data go where they belong.
    pub(crate) operation: bool,
    /// Where its bytes lie in what the carrier was given, with the operation's head if that
    /// comes with each piece.
    pub(crate) bytes: Range<usize>,
}

impl MessagePiece {
    /// True if its bytes begin with the head of an operation.
    fn has_head(&self) -> bool {
        self.bytes.len() as u64 > self.length
    }

    /// The piece that is all of a message with so many bytes, which its carrier was given.
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

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// A whole message, next in order: the caller hands it over.
    Deliver,
    /// An event tells where it goes.
    Held,
    /// Nobody wants it.
    Discarded,
    /// It contradicts what came before.
    Violation,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    peer: PeerId,
    /// The first message's number.
    first: u64,
    incoming: EdgeTable<EdgeIn>,
    outgoing: EdgeTable<EdgeOut>,
    /// Bytes that the peer takes on a new edge before any grant.
    initial_credit: u64,
    /// The incoming edge found last.
    last: u32,
    /// Incoming edges that have ended and whose messages are not all consumed.
    draining: u32,
    /// Those of them that reserve credit for the next life between the same endpoints.
    reserving: BTreeMap<(u32, u32), u32>,
    next_life: u8,
    next_unreliable: u32,
    /// Incoming edges with a grant to be told.
    grants_due: Vec<u32>,
    notices: VecDeque<Notice>,
    strays: usize,
    /// Outgoing edges that wait for credit.
    wanting: Vec<u32>,
    pub(crate) credit_requests_due: bool,
}

impl Channel {
    /// Messages of each edge are numbered from `first` on.
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
            strays: 0,
            wanting: Vec::new(),
            credit_requests_due: false,
        }
    }

    /// The peer has told what it takes on a new edge.
    pub(crate) fn open(&mut self, initial_credit: u32) {
        self.initial_credit = initial_credit.into();
        for (_, edge) in self.outgoing.iter_mut() {
            edge.grant(initial_credit.into());
        }
    }

    // ---- what the carrier takes ------------------------------------------------

    /// True if there are grants to be told.
    #[inline]
    pub(crate) fn has_grant(&self) -> bool {
        !self.grants_due.is_empty()
    }

    /// The next grant to be told: edge and cumulative bytes.
    pub(crate) fn next_grant(&mut self) -> Option<(EdgeKey, u64)> {
        while let Some(index) = self.grants_due.pop() {
            if let Some(edge) = self.incoming.get(index) {
                return Some((edge.key(), edge.granted()));
            }
        }
        None
    }

    /// Whether the peer may have heard of an outgoing edge; `None` if there is no such edge.
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

    /// The peer hears of an outgoing edge.
    pub(crate) fn set_introduced(&mut self, edge: EdgeId) {
        if let Some(out) = self.out_mut(edge) {
            out.set_known();
        }
    }

    /// Notices to be told.
    pub(crate) fn notices(&self) -> usize {
        self.notices.len()
    }

    /// The notice seen last comes after all others.
    pub(crate) fn postpone_notice(&mut self) {
        self.notices.rotate_left(1);
    }

    /// True if there are notices to be told.
    #[inline]
    pub(crate) fn has_notice(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next notice to be told.
    pub(crate) fn peek_notice(&self) -> Option<&Notice> {
        self.notices.front()
    }

    /// The notice seen last is on its way.
    pub(crate) fn pop_notice(&mut self) {
        let Some(Notice::Refused { key, reason, .. }) = self.notices.pop_front() else {
            return;
        };
        if reason == RefusedReason::TooManyEdges {
            self.strays -= 1;
        }
        if let Some(index) = self.find_in(key)
            && let Some(edge) = self.incoming.get_mut(index)
        {
            edge.refusal_due = false;
        }
    }

    /// True if some edge waits for credit that the peer can be asked for.
    #[inline]
    pub(crate) fn is_wanting(&self) -> bool {
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

    /// The wish at a position of the list of edges that wait: the edge, its key, what it
    /// wants, and whether the peer had heard of it. `None` past the end.
    pub(crate) fn want(
        &mut self,
        position: usize,
    ) -> Option<Option<(EdgeId, EdgeKey, CreditRequest, bool)>> {
        let index = *self.wanting.get(position)?;
        let id = self.outgoing_id(index);
        let edge = self.outgoing.get_mut(index);
        Some(edge.and_then(|edge| {
            let known = edge.is_known();
            Some((id, edge.key(), edge.take_credit_request()?, known))
        }))
    }

    /// `told` wishes were told: the others come first next time.
    pub(crate) fn credit_requests_sent(&mut self, told: usize) {
        self.credit_requests_due = false;
        if !self.wanting.is_empty() {
            let turn = told % self.wanting.len();
            self.wanting.rotate_left(turn);
        }
    }

    /// The peer is gone: everything that was held for it is given back.
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

    /// Everything that decides what happens next, for [`View`](crate::View).
    pub(crate) fn hash_state(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (&self.incoming, &self.outgoing, self.initial_credit).hash(hasher);
        (&self.grants_due, &self.notices, self.strays).hash(hasher);
        (&self.wanting, self.credit_requests_due, &self.reserving).hash(hasher);
    }
}
