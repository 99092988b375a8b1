//! The edges from the peer: messages put in their place, credit granted, ends. Spec §5.4 to
//! §5.6.

use alloc::vec::Vec;

use super::incoming::{self, EdgeIn, Place};
use super::{Channel, MAX_EDGES, MAX_STRAYS, MessagePiece, Notice, Placed, Urgency};
use crate::config::charge;
use crate::event::{EdgeId, Event};
use crate::holes::widen;
use crate::shared::{Oversize, Shared};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wire::{CreditRequest, EdgeKey, Fragment, MessageRun, RefusedReason};

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

    /// True if a further incoming edge would be one too many.
    fn is_full(&self, shared: &Shared) -> bool {
        self.incoming.len() - self.draining as usize >= MAX_EDGES as usize
            || shared.edges_in >= shared.config.max_edges
    }

    fn open_in(&mut self, key: EdgeKey, shared: &mut Shared) -> Option<u32> {
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

    /// The incoming edge with this key, made on first use; `None` if there are too many.
    #[inline]
    pub(crate) fn find_or_open_in(&mut self, key: EdgeKey, shared: &mut Shared) -> Option<u32> {
        let index = match self.find_in(key) {
            Some(index) => index,
            None => self.open_in(key, shared)?,
        };
        self.last = index;
        Some(index)
    }

    /// Bytes of the pool that a piece would take.
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

    /// The number of a message on an incoming edge, from its low 32 bits.
    #[inline]
    pub(crate) fn widen(&self, index: u32, sequence: u32) -> u64 {
        let edge = self.incoming.get(index);
        edge.map_or(sequence.into(), |edge| widen(sequence, edge.next()))
    }

    /// A message has come for which no edge could be made: its sender is told.
    pub(crate) fn refuse_stray(&mut self, key: EdgeKey, sequence: u32, shared: &mut Shared) {
        shared.stats.messages_refused += 1;
        if self.strays < MAX_STRAYS {
            self.strays += 1;
            self.notices.push_back(Notice::Refused {
                key,
                sequence: sequence.into(),
                reason: RefusedReason::TooManyEdges,
            });
        }
    }

    /// Takes a whole message if it is what nearly all are: the next of an edge that is not
    /// about to end, within its credit and window, for an open endpoint. If not, nothing has
    /// changed and [`place`](Self::place) decides.
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
            note_taken(1, charge, shared);
        }
        expected
    }

    /// Takes a whole message as [`take_next`](Self::take_next) does, and as
    /// [consumed](Self::consumed): its reader has it at once. `None` if not, and nothing has
    /// changed.
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
        shared.stats.messages_delivered += 1;
        shared.committed = shared.committed + incoming.committed() - before;
        Some(match incoming.may_regrant() {
            true => self.regrant(edge.index, now, shared),
            false => Urgency::None,
        })
    }

    /// The edge and the charge of a run of messages, if all of them are what nearly all are.
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

    /// Takes a run of messages that it [expects](Self::expects_run).
    #[inline]
    pub(crate) fn take_run(
        &mut self,
        (index, charge): (u32, u64),
        count: u32,
        shared: &mut Shared,
    ) -> EdgeId {
        if let Some(edge) = self.incoming.get_mut(index) {
            edge.take_next(count.into(), charge);
            note_taken(count, charge, shared);
        }
        self.last = index;
        self.incoming_id(index)
    }

    /// The edge of a piece, if it is what nearly all pieces are: one more of a message that
    /// has begun, but not its last.
    #[inline]
    pub(crate) fn expects_piece(&self, piece: &Fragment, shared: &Shared) -> Option<u32> {
        let index = self.find_in(piece.key)?;
        let edge = self.incoming.get(index)?;
        let sequence = widen(piece.sequence, edge.next());
        let expected = edge.key() == piece.key
            && is_known_open(edge, shared)
            && edge.expects_piece(sequence, piece.payload.len() as u64, piece.total);
        expected.then_some(index)
    }

    /// Takes a piece that it [expects](Self::expects_piece).
    #[inline]
    pub(crate) fn take_piece(&mut self, index: u32, piece: Fragment, shared: &mut Shared) {
        let edge = self.incoming_id(index);
        if let Some(incoming) = self.incoming.get_mut(index) {
            let sequence = widen(piece.sequence, incoming.next());
            incoming.take_piece(sequence, piece.payload.len() as u64);
            let is_beyond_window = incoming.is_beyond_window(piece.total);
            shared.event(Event::Hold {
                edge,
                target: piece.key.target,
                sequence,
                offset: piece.offset,
                total: piece.total,
                operation: false,
                bytes: piece.payload,
            });
            if is_beyond_window {
                self.begin_oversize(index, shared);
            }
        }
        self.last = index;
    }

    /// Puts a piece of a message in its place. Grants follow where that frees credit.
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
            self.begin_oversize(index, shared);
        }
        if place == Ok(Place::Deliver) {
            shared.stats.messages_delivered += 1;
            return (Placed::Deliver, Urgency::None);
        }
        self.place_rare(index, piece, place, refusal, committed, now, shared)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the cold half of `place`, kept apart for its size"
    )]
    fn place_rare(
        &mut self,
        index: u32,
        piece: MessagePiece,
        place: Result<Place, incoming::Violation>,
        refusal: Option<RefusedReason>,
        committed: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> (Placed, Urgency) {
        let id = self.incoming_id(index);
        let placed = match place {
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
                if let Some(reason) = refusal {
                    self.refuse(index, piece.sequence, reason);
                }
                Placed::Discarded
            }
            Err(violation) => {
                shared.count(DropReason::Violation);
                // It was acknowledged with its packet: its sender must not think it taken.
                if violation == incoming::Violation::OverCredit {
                    self.refuse(index, piece.sequence, RefusedReason::OverCredit);
                }
                return (Placed::Violation, Urgency::None);
            }
        };
        (placed, self.advance(index, committed, now, shared))
    }

    /// Hands over what has become complete and renews the grant; the edge may be over.
    fn advance(
        &mut self,
        index: u32,
        committed: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        self.hand_over_complete(index, shared);
        let mut tell = Urgency::None;
        if let Some(edge) = self.incoming.get(index)
            && edge.committed() != committed
        {
            shared.committed = shared.committed + edge.committed() - committed;
            tell = self.regrant(index, now, shared);
        }
        self.check_over(index, shared);
        tell
    }

    /// The number of the message that this edge hands over next; 0 if it is over.
    pub(crate) fn next_message(&self, edge: EdgeId) -> u64 {
        let incoming = self.incoming.get(edge.index);
        let incoming = incoming.filter(|_| self.is_current(edge));
        incoming.map_or(0, EdgeIn::next)
    }

    /// True if what has begun under this number is an operation.
    pub(crate) fn is_operation(&self, edge: EdgeId, sequence: u64) -> bool {
        let incoming = self.incoming.get(edge.index);
        incoming.is_some_and(|incoming| incoming.is_operation(sequence))
    }

    /// All bytes of a message that was held from its beginning have been filled in
    /// without the channel.
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

    /// True if this edge is still the one at its position.
    #[inline]
    pub(crate) fn is_current(&self, edge: EdgeId) -> bool {
        self.incoming.generation(edge.index) == edge.generation
    }

    /// After [`Placed::Deliver`]: what to hand over, and to whom. The edge may end with it.
    #[inline]
    pub(crate) fn delivered(&mut self, index: u32, shared: &mut Shared) -> (EdgeId, EdgeKey) {
        let id = self.incoming_id(index);
        let key = self.incoming.get(index).map(EdgeIn::key);
        if self.incoming.get(index).is_some_and(EdgeIn::has_end) {
            self.check_over(index, shared);
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
            self.notices.push_back(Notice::Refused {
                key: of,
                sequence,
                reason,
            });
            return;
        }
        // What waits to be told speaks of all from its message on.
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

    fn hand_over_complete(&mut self, index: u32, shared: &mut Shared) {
        let id = self.incoming_id(index);
        let Some(edge) = self.incoming.get_mut(index) else {
            return;
        };
        let key = edge.key();
        while let Some(message) = edge.pop_complete() {
            if !message.discard {
                shared.stats.messages_delivered += 1;
                shared.event(Event::Complete {
                    edge: id,
                    source: key.source,
                    target: key.target,
                    sequence: message.sequence,
                });
            }
        }
    }

    /// Forgets an edge that has ended and all of whose messages have been handed over. Its
    /// place is kept while the application has some of them.
    fn check_over(&mut self, index: u32, shared: &mut Shared) {
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
                // A next life has its first credit beside what lies unread of this: of that
                // an endpoint may hold a window, and the pool must have room for both, as
                // for a window that grows.
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

    /// The application gave back a message of `total` bytes. Whether the peer must be told.
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
                self.check_over(edge.index, shared);
                return Urgency::None;
            }
        }
        match incoming.may_regrant() {
            true => self.regrant(edge.index, now, shared),
            false => Urgency::None,
        }
    }

    /// An endpoint was closed: gives back what its edges held. Whose messages had
    /// arrived in part is told that they are not taken.
    pub(crate) fn close_target(
        &mut self,
        target: u32,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        let mut tell = Urgency::None;
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
            // One that waits for its turn would wait for ever.
            tell = tell.max(self.regrant(index, now, shared));
            self.check_over(index, shared);
        }
        tell
    }

    /// Endpoints that send to `target` and have not ended.
    pub(crate) fn sources(&self, target: u32) -> impl Iterator<Item = u32> + '_ {
        let edges = self.incoming.range(target);
        edges.filter_map(|index| Some(self.incoming.get(index)?.key().source))
    }

    /// True if the rest of some message must come.
    pub(crate) fn awaits_pieces(&self) -> bool {
        self.incoming.iter().any(|(_, edge)| edge.is_waiting())
    }

    /// Incoming edges, those included that have ended and whose messages wait to be read.
    pub(crate) fn incoming_len(&self) -> usize {
        self.incoming.len()
    }

    // ---- grants ------------------------------------------------------------------

    /// Renews an edge's credit; how soon the peer must be told.
    fn regrant(&mut self, index: u32, now: Instant, shared: &mut Shared) -> Urgency {
        let id = self.incoming_id(index);
        let Some(edge) = self.incoming.get_mut(index) else {
            return Urgency::None;
        };
        let before = edge.committed();
        let wanting = edge.is_wanting();
        let mut tell = edge.regrant(shared.credit_budget(), &shared.config);
        let target = edge.key().target;
        if let Some(endpoint) = shared.endpoints.get_mut(&target) {
            // A sender that changed its mind may leave a part of its grant unused.
            let is_over = |turn: Oversize| {
                edge.has_consumed(turn.end) || turn.begun && edge.has_consumed_all()
            };
            if endpoint
                .oversize
                .is_some_and(|turn| turn.edge == id && is_over(turn))
            {
                endpoint.oversize = None;
                edge.in_turn = false;
            }
            if edge.wants_oversize() {
                // What our own turn brings may still be on its way.
                let free = endpoint
                    .oversize
                    .is_none_or(|turn| turn.is_forfeit(shared.stepped_at, &shared.config));
                if free {
                    endpoint.oversize = Some(Oversize {
                        edge: id,
                        end: edge.grant_oversize(),
                        begun: false,
                        granted_at: now,
                    });
                    endpoint.waiting.retain(|waiting| *waiting != id);
                    tell = true;
                } else if !endpoint.waiting.contains(&id) {
                    endpoint.waiting.push_back(id);
                    shared.edges_waiting = true;
                }
            }
        } else if edge.wants_oversize() {
            // Nobody takes it: let it come and be refused.
            edge.grant_oversize();
            tell = true;
        }
        shared.committed = shared.committed + edge.committed() - before;
        if !tell {
            return Urgency::None;
        }
        self.grant_due(index);
        match wanting {
            true => Urgency::Now,
            false => Urgency::Soon,
        }
    }

    /// Looks again at an edge that waited for another's over-long message.
    pub(crate) fn retry_grant(
        &mut self,
        edge: EdgeId,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        match self.incoming.get_exact(edge.index, edge.generation) {
            Some(_) => self.regrant(edge.index, now, shared),
            None => Urgency::None,
        }
    }

    /// The message that an edge's turn is for has begun to arrive.
    fn begin_oversize(&mut self, index: u32, shared: &mut Shared) {
        let id = self.incoming_id(index);
        if let Some(edge) = self.incoming.get(index)
            && let Some(endpoint) = shared.endpoints.get_mut(&edge.key().target)
            && let Some(turn) = &mut endpoint.oversize
            && turn.edge == id
        {
            turn.begun = true;
        }
    }

    fn grant_due(&mut self, index: u32) {
        if !self.grants_due.contains(&index) {
            self.grants_due.push(index);
        }
    }

    /// A wish for credit. `may_open` unless it may be one of an edge that was forgotten.
    pub(crate) fn on_credit_request(
        &mut self,
        key: EdgeKey,
        wish: CreditRequest,
        may_open: bool,
        now: Instant,
        shared: &mut Shared,
    ) -> Urgency {
        let index = match self.find_in(key) {
            Some(index) => Some(index),
            None if may_open => self.open_in(key, shared),
            None => None,
        };
        let Some(index) = index else {
            return Urgency::None;
        };
        let Some(edge) = self.incoming.get_mut(index) else {
            return Urgency::None;
        };
        if edge.key() != key {
            // One of an earlier life came late.
            return Urgency::None;
        }
        if !edge.want(wish) {
            shared.count(DropReason::Violation);
            return Urgency::None;
        }
        self.regrant(index, now, shared);
        // Whatever was granted may have been lost on the way: say it again.
        self.grant_due(index);
        Urgency::Now
    }

    /// The peer sends nothing from `sequence` on.
    pub(crate) fn on_end(&mut self, key: EdgeKey, sequence: u32, shared: &mut Shared) {
        let index = match self.find_in(key) {
            Some(index) => Some(index),
            // Its messages are still on their way.
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
        self.check_over(index, shared);
    }
}

/// True if the endpoint is open by what was last seen of the endpoint table.
#[inline]
fn is_known_open(edge: &EdgeIn, shared: &Shared) -> bool {
    edge.open == (shared.endpoints_generation, true)
}

#[inline]
fn note_taken(count: u32, charge: u64, shared: &mut Shared) {
    shared.pool.take(charge);
    shared.stats.messages_delivered += u64::from(count);
}

/// Why this message would find nobody, if so. The endpoint table is asked again
/// only after it changed.
#[inline]
fn refusal_for(edge: &mut EdgeIn, piece: &MessagePiece, shared: &Shared) -> Option<RefusedReason> {
    if edge.open.0 != shared.endpoints_generation {
        let open = shared.endpoints.contains_key(&edge.key().target);
        edge.open = (shared.endpoints_generation, open);
    }
    // Whether an operation is allowed its owner decides, and answers.
    if !edge.open.1 && !piece.operation {
        return Some(RefusedReason::NoEndpoint);
    }
    (piece.total > crate::config::MAX_MESSAGE_BYTES).then_some(RefusedReason::TooLong)
}
