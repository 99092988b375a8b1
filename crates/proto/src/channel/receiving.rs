//! The edges from the peer: placement of pieces, delivery, refusals, ends. Spec §5.4, §5.5.

use alloc::vec::Vec;

use super::incoming::{self, EdgeIn, Place};
use super::{Channel, MAX_EDGES, MAX_STRAYS, MessagePiece, Notice, Placed, Urgency};
use crate::config::{MESSAGE_OVERHEAD_BYTES, charge};
use crate::event::{EdgeId, Event};
use crate::holes::widen;
use crate::shared::Shared;
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wire::{EdgeKey, Fragment, MessageRun, RefusedReason};

/// Where an arriving piece goes, and why its message is refused, if it is.
#[derive(Clone, Copy, Debug)]
struct Decision {
    place: Result<Place, incoming::Violation>,
    refusal: Option<RefusedReason>,
}

impl Channel {
    /// The incoming edge with this key.
    #[inline]
    pub(crate) fn find_in(&self, key: EdgeKey) -> Option<u32> {
        if let Some(last) = self.incoming.get(self.last)
            && last.key().ends() == key.ends()
            && !last.is_draining()
        {
            return Some(self.last);
        }
        self.incoming.find((key.target, key.source))
    }

    /// True if no further incoming edge may be opened.
    fn is_full(&self, shared: &Shared) -> bool {
        self.incoming.len() - self.draining as usize >= MAX_EDGES as usize
            || shared.edges_in >= shared.config.max_edges
    }

    pub(super) fn open_in(&mut self, key: EdgeKey, shared: &mut Shared) -> Option<u32> {
        if self.is_full(shared) {
            shared.count(DropReason::EdgesFull);
            return None;
        }
        let ends = (key.target, key.source);
        if let Some(former) = self.reserving.remove(&ends)
            && let Some(former) = self.incoming.get_mut(former)
        {
            shared.committed -= former.committed();
            former.release_reserved();
            shared.committed += former.committed();
        }
        let edge = EdgeIn::new(key, &shared.config);
        shared.committed += edge.committed();
        shared.edges_in += 1;
        Some(self.incoming.insert(ends, edge))
    }

    /// The incoming edge with this key, opened if necessary; `None` if there are too many.
    #[inline]
    pub(crate) fn find_or_open_in(&mut self, key: EdgeKey, shared: &mut Shared) -> Option<u32> {
        let index = match self.find_in(key) {
            Some(index) => index,
            None => self.open_in(key, shared)?,
        };
        self.last = index;
        Some(index)
    }

    /// Bytes of the pool that a piece takes.
    #[inline]
    pub(crate) fn pool_cost(
        &self,
        key: EdgeKey,
        sequence: u32,
        total: u64,
        operation: bool,
    ) -> u64 {
        let edge = self.find_in(key).and_then(|index| self.incoming.get(index));
        match edge {
            Some(edge) => edge.pool_cost(widen(sequence, edge.next()), total, operation),
            None if operation => charge(0),
            None => charge(total),
        }
    }

    /// The full number of a message on an incoming edge, from its low 32 bits.
    #[inline]
    pub(crate) fn widen(&self, index: u32, sequence: u32) -> u64 {
        let edge = self.incoming.get(index);
        edge.map_or(sequence.into(), |edge| widen(sequence, edge.next()))
    }

    /// Refuses a message for which no edge could be opened.
    pub(crate) fn refuse_stray(&mut self, key: EdgeKey, sequence: u32, shared: &mut Shared) {
        shared.stats.messages_refused += 1;
        self.strays += 1;
        self.queue_refusal(key, sequence.into(), RefusedReason::TooManyEdges);
    }

    /// True if a message would have to be refused for want of an edge, and so many refusals wait that
    /// it must come again.
    #[inline]
    pub(crate) fn is_stray_too_many(&self, key: EdgeKey, shared: &Shared) -> bool {
        self.strays >= MAX_STRAYS && self.is_full(shared) && self.find_in(key).is_none()
    }

    /// Fast path for a whole message: accepts it if it is the next one of an edge that is not about
    /// to end, within credit and window, and its endpoint is open. Otherwise returns false and
    /// changes nothing; [`place`](Self::place) handles the other cases.
    #[inline]
    pub(crate) fn take_next(
        &mut self,
        edge: EdgeId,
        sequence: u64,
        total: u64,
        shared: &mut Shared,
    ) -> bool {
        let charge = charge(total);
        let Some(incoming) = self.incoming.get_exact(edge.index, edge.generation) else {
            return false;
        };
        let expected = is_known_open(incoming, shared) && incoming.expects(sequence, charge);
        if expected {
            incoming.take_next(1, charge);
            count_accepted(1, charge, shared);
        }
        expected
    }

    /// Like [`take_next`](Self::take_next), for a message that is [consumed](Self::consumed) at
    /// once. Returns `None` and changes nothing if it does not apply.
    #[inline]
    pub(crate) fn take_read(
        &mut self,
        edge: EdgeId,
        sequence: u64,
        total: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> Option<Urgency> {
        let charge = charge(total);
        let incoming = self.incoming.get_exact(edge.index, edge.generation)?;
        let expected = is_known_open(incoming, shared)
            && incoming.expects(sequence, charge)
            && incoming.is_pooled();
        if !expected {
            return None;
        }
        let before = incoming.committed();
        incoming.take_read(charge);
        shared.stats.count_delivered(1, total);
        shared.committed = shared.committed + incoming.committed() - before;
        Some(match incoming.may_regrant() {
            true => self.regrant(edge.index, now, shared),
            false => Urgency::None,
        })
    }

    /// The edge and the charge of a run of messages, if the fast path applies to all of them.
    #[inline]
    pub(crate) fn expects_run(&self, run: &MessageRun, shared: &Shared) -> Option<(u32, u64)> {
        let index = self.find_in(run.key)?;
        let edge = self.incoming.get(index)?;
        let charge = run.payload_bytes() as u64 + u64::from(run.count) * charge(0);
        let sequence = widen(run.sequence, edge.next());
        let expected =
            edge.key() == run.key && is_known_open(edge, shared) && edge.expects(sequence, charge);
        expected.then_some((index, charge))
    }

    /// Accepts an [expected](Self::expects_run) run of messages.
    #[inline]
    pub(crate) fn take_run(
        &mut self,
        (index, charge): (u32, u64),
        count: u32,
        shared: &mut Shared,
    ) -> EdgeId {
        if let Some(edge) = self.incoming.get_mut(index) {
            edge.take_next(count.into(), charge);
            count_accepted(count, charge, shared);
        }
        self.last = index;
        self.incoming_id(index)
    }

    /// The edge of a piece of a message that has begun, and how many such pieces may arrive before
    /// the last one.
    #[inline]
    pub(crate) fn expects_pieces(&self, piece: &Fragment, shared: &Shared) -> Option<(u32, u32)> {
        let index = self.find_in(piece.key)?;
        let edge = self.incoming.get(index)?;
        let sequence = widen(piece.sequence, edge.next());
        if edge.key() != piece.key || !is_known_open(edge, shared) {
            return None;
        }
        let left = edge.expects_pieces(sequence, piece)?;
        Some((index, left))
    }

    /// Accepts [expected](Self::expects_pieces) pieces of `length` bytes together, the first of which is
    /// given.
    #[inline]
    pub(crate) fn take_pieces(
        &mut self,
        index: u32,
        (piece, length): (&Fragment, u64),
        shared: &mut Shared,
    ) {
        let edge = self.incoming_id(index);
        if let Some(incoming) = self.incoming.get_mut(index) {
            let sequence = widen(piece.sequence, incoming.next());
            incoming.take_pieces(sequence, length);
            let is_beyond_window = incoming.is_beyond_window(piece.total);
            shared.event(Event::Hold {
                edge,
                target: piece.key.target,
                sequence,
                offset: piece.offset,
                total: piece.total,
                operation: false,
                bytes: 0..usize::try_from(length).unwrap_or(usize::MAX),
            });
            if is_beyond_window {
                self.on_oversize_begun(index, shared);
            }
        }
        self.last = index;
    }

    /// Places a piece of a message. Updates the grant if that frees credit.
    #[inline]
    pub(crate) fn place(
        &mut self,
        index: u32,
        piece: MessagePiece,
        now: Instant,
        shared: &mut Shared,
    ) -> (Placed, Urgency) {
        let Some(edge) = self.incoming.get_mut(index) else {
            return (Placed::Violation, Urgency::None);
        };
        let refusal = refusal_for(edge, &piece, shared);
        let (held, committed) = (edge.held(), edge.committed());
        let place = edge.place(&piece, refusal.is_some());
        shared.pool.take(edge.held() - held);
        if edge.is_beyond_window(piece.total) && !piece.operation {
            self.on_oversize_begun(index, shared);
        }
        if place == Ok(Place::Deliver) {
            let bytes = if piece.operation { 0 } else { piece.total };
            shared.stats.count_delivered(1, bytes);
            return (Placed::Deliver, Urgency::None);
        }
        let decision = Decision { place, refusal };
        let placed = self.place_rare(index, piece, decision, shared);
        let urgency = match placed {
            Placed::Violation => Urgency::None,
            _ => self.advance(index, committed, now, shared),
        };
        (placed, urgency)
    }

    /// The rare cases of [`place`](Self::place), in a function of their own to keep that small.
    fn place_rare(
        &mut self,
        index: u32,
        piece: MessagePiece,
        decision: Decision,
        shared: &mut Shared,
    ) -> Placed {
        let id = self.incoming_id(index);
        match decision.place {
            Ok(Place::Hold) => {
                let target = self.incoming.get(index).map(|edge| edge.key().target);
                shared.event(Event::Hold {
                    edge: id,
                    target: target.unwrap_or_default(),
                    sequence: piece.sequence,
                    offset: piece.offset,
                    total: piece.total,
                    operation: piece.has_head(),
                    bytes: piece.bytes,
                });
                Placed::Held
            }
            Ok(Place::Discard | Place::Deliver) => {
                shared.stats.messages_refused += 1;
                if let Some(reason) = decision.refusal {
                    self.refuse(index, piece.sequence, reason);
                }
                Placed::Discarded
            }
            Err(violation) => {
                shared.count(DropReason::Violation);
                // The packet was acknowledged, so without a refusal the sender would believe it accepted.
                if violation == incoming::Violation::OverCredit {
                    self.refuse(index, piece.sequence, RefusedReason::OverCredit);
                }
                Placed::Violation
            }
        }
    }

    /// Delivers the messages that are complete, and renews the grant. The edge may be over then.
    fn advance(
        &mut self,
        index: u32,
        committed: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        self.deliver_complete(index, shared);
        let mut urgency = Urgency::None;
        if let Some(edge) = self.incoming.get(index)
            && edge.committed() != committed
        {
            shared.committed = shared.committed + edge.committed() - committed;
            urgency = self.regrant(index, now, shared);
        }
        self.forget_if_over(index, shared);
        urgency
    }

    /// The number of the next message that this edge delivers; 0 if it is over.
    pub(crate) fn next_message(&self, edge: EdgeId) -> u64 {
        let incoming = self.incoming.get(edge.index);
        let incoming = incoming.filter(|_| self.is_current(edge));
        incoming.map_or(0, EdgeIn::next)
    }

    /// True if the unfinished message with this number is an operation.
    pub(crate) fn is_operation(&self, edge: EdgeId, sequence: u64) -> bool {
        let incoming = self.incoming.get(edge.index);
        incoming.is_some_and(|incoming| incoming.is_operation(sequence))
    }

    /// All bytes of a message were stored without going through the channel.
    pub(crate) fn filled(
        &mut self,
        edge: EdgeId,
        sequence: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        let Some(incoming) = self.incoming.get_exact(edge.index, edge.generation) else {
            return Urgency::None;
        };
        let committed = incoming.committed();
        incoming.fill(sequence);
        self.advance(edge.index, committed, now, shared)
    }

    /// True if this id is still valid.
    #[inline]
    pub(crate) fn is_current(&self, edge: EdgeId) -> bool {
        self.incoming.generation(edge.index) == edge.generation
    }

    /// The edge and key of a message after [`Placed::Deliver`]. The edge may end with it.
    #[inline]
    pub(crate) fn delivered(&mut self, index: u32, shared: &mut Shared) -> (EdgeId, EdgeKey) {
        let id = self.incoming_id(index);
        let key = self.incoming.get(index).map(EdgeIn::key);
        if self.incoming.get(index).is_some_and(EdgeIn::has_end) {
            self.forget_if_over(index, shared);
        }
        (id, key.unwrap_or_default())
    }

    fn refuse(&mut self, index: u32, sequence: u64, reason: RefusedReason) {
        let Some(edge) = self.incoming.get_mut(index) else {
            return;
        };
        let of = edge.key();
        if !edge.refusal_due {
            edge.refusal_due = true;
            self.queue_refusal(of, sequence, reason);
            return;
        }
        // The queued refusal covers all messages from its number on.
        for notice in &mut self.notices {
            if let Notice::Refused {
                key,
                sequence: first,
                ..
            } = notice
                && *key == of
            {
                *first = (*first).min(sequence);
            }
        }
    }

    fn deliver_complete(&mut self, index: u32, shared: &mut Shared) {
        let id = self.incoming_id(index);
        let Some(edge) = self.incoming.get_mut(index) else {
            return;
        };
        let key = edge.key();
        while let Some(message) = edge.pop_complete() {
            if !message.discard {
                shared.stats.count_delivered(1, message.bytes);
                shared.event(Event::Complete {
                    edge: id,
                    source: key.source,
                    target: key.target,
                    sequence: message.sequence,
                });
            }
        }
    }

    /// Forgets an edge that has ended and whose messages were all delivered. Its entry stays while
    /// the application holds some of them.
    fn forget_if_over(&mut self, index: u32, shared: &mut Shared) {
        let Some(edge) = self.incoming.get_mut(index) else {
            return;
        };
        if !edge.is_over() {
            return;
        }
        let (key, before) = (edge.key(), edge.committed());
        let ends = (key.target, key.source);
        if !edge.is_draining() {
            let unread = edge.unread();
            let mut next_life = 0;
            if unread > 0
                && let Some(endpoint) = shared.endpoints.get_mut(&key.target)
            {
                // The next life gets its initial credit in addition to what is unread of this one. An
                // endpoint may hold one window of such messages, and the pool must have room for both.
                next_life = shared.config.initial_credit_bytes.into();
                let others = shared.committed - before;
                let room = shared.pool.budget().saturating_sub(others);
                let limit = shared.config.edge_window_bytes;
                if endpoint.ended_unread + unread > limit || unread + next_life > room {
                    return;
                }
                endpoint.ended_unread += unread;
                self.reserving.insert(ends, index);
            }
            edge.drain(next_life);
            shared.committed = shared.committed + edge.committed() - before;
            shared.edges_in -= 1;
            self.draining += 1;
            self.notices.push_back(Notice::Forgotten { key });
            self.grants_due.retain(|due| *due != index);
            let id = self.incoming_id(index);
            shared.forget_edge(id, key.target);
            self.incoming.hide(ends, index);
        }
        if let Some(edge) = self.incoming.get(index)
            && edge.has_consumed_all()
        {
            shared.committed -= edge.committed();
            if self.reserving.get(&ends) == Some(&index) {
                self.reserving.remove(&ends);
            }
            self.draining -= 1;
            self.incoming.remove(ends, index);
        }
    }

    /// The application has consumed a message of `total` bytes.
    #[inline]
    pub(crate) fn consumed(
        &mut self,
        edge: EdgeId,
        total: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        let Some(incoming) = self.incoming.get_exact(edge.index, edge.generation) else {
            return Urgency::None;
        };
        let before = incoming.committed();
        let freed = incoming.consumed(total);
        shared.pool.give_back(freed);
        shared.committed = shared.committed + incoming.committed() - before;
        if incoming.has_end() {
            if incoming.is_draining()
                && let Some(endpoint) = shared.endpoints.get_mut(&incoming.key().target)
            {
                endpoint.ended_unread = endpoint.ended_unread.saturating_sub(charge(total));
            }
            if incoming.is_over() {
                self.forget_if_over(edge.index, shared);
                return Urgency::None;
            }
        }
        match incoming.may_regrant() {
            true => self.regrant(edge.index, now, shared),
            false => Urgency::None,
        }
    }

    /// Releases what the edges of a closed endpoint hold, and refuses messages that have arrived in
    /// part.
    pub(crate) fn close_target(
        &mut self,
        target: u32,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        let mut urgency = Urgency::None;
        let concerned: Vec<u32> = match self.draining {
            0 => self.incoming.range(target).collect(),
            _ => {
                let edges = self.incoming.iter();
                let edges = edges.filter(|(_, edge)| edge.key().target == target);
                edges.map(|(index, _)| index).collect()
            }
        };
        for index in concerned {
            let Some(edge) = self.incoming.get_mut(index) else {
                continue;
            };
            let before = edge.committed();
            let (freed, partial) = edge.close();
            shared.pool.give_back(freed);
            shared.committed = shared.committed + edge.committed() - before;
            if let Some(sequence) = partial {
                self.refuse(index, sequence, RefusedReason::Closed);
            }
            // An edge that waits for its turn would wait forever.
            urgency = urgency.max(self.regrant(index, now, shared));
            self.forget_if_over(index, shared);
        }
        urgency
    }

    /// Endpoints with open edges to `target`.
    pub(crate) fn sources(&self, target: u32) -> impl Iterator<Item = u32> + '_ {
        let edges = self.incoming.range(target);
        edges.filter_map(|index| Some(self.incoming.get(index)?.key().source))
    }

    /// True if some message has arrived in part.
    pub(crate) fn awaits_pieces(&self) -> bool {
        self.incoming.iter().any(|(_, edge)| edge.is_waiting())
    }

    /// Number of incoming edges, including those that have ended and have unread messages.
    pub(crate) fn incoming_len(&self) -> usize {
        self.incoming.len()
    }

    /// The peer sends no message from `sequence` on.
    pub(crate) fn on_end(&mut self, key: EdgeKey, sequence: u32, shared: &mut Shared) {
        let index = match self.find_in(key) {
            Some(index) => Some(index),
            // Its messages have not arrived yet.
            None if widen(sequence, self.first) != self.first => self.open_in(key, shared),
            None => None,
        };
        let Some(index) = index else {
            self.notices.push_back(Notice::Forgotten { key });
            return;
        };
        if let Some(edge) = self.incoming.get_mut(index) {
            edge.end_at(widen(sequence, edge.next()));
        }
        self.forget_if_over(index, shared);
    }
}

/// True if the endpoint was open when the endpoint table was last queried, and the table has not
/// changed since.
#[inline]
fn is_known_open(edge: &EdgeIn, shared: &Shared) -> bool {
    edge.open == (shared.endpoints_generation, true)
}

#[inline]
fn count_accepted(count: u32, charge: u64, shared: &mut Shared) {
    shared.pool.take(charge);
    let overhead = u64::from(count) * MESSAGE_OVERHEAD_BYTES;
    shared
        .stats
        .count_delivered(count.into(), charge.saturating_sub(overhead));
}

/// Why this message must be refused, if it must. The endpoint table is queried only after a
/// change.
#[inline]
fn refusal_for(edge: &mut EdgeIn, piece: &MessagePiece, shared: &Shared) -> Option<RefusedReason> {
    if edge.open.0 != shared.endpoints_generation {
        let open = shared.endpoints.contains_key(&edge.key().target);
        edge.open = (shared.endpoints_generation, open);
    }
    // Operations are checked by the owner of the memory, who answers each of them.
    if !edge.open.1 && !piece.operation {
        return Some(RefusedReason::NoEndpoint);
    }
    (piece.total > shared.config.max_message_bytes).then_some(RefusedReason::TooLong)
}
