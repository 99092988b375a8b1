//! The receiving half of an edge: messages in order, pieces put together, grants.
//! Spec §5.5, §5.6.
//!
//! [`EdgeIn`] puts pieces in their place (it knows numbers and lengths, no bytes),
//! says what is complete and next in order, and how much the peer may send.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::MessagePiece;
use crate::config::{Config, MAX_MESSAGE_BYTES, charge};
use crate::wire::{CreditRequest, EdgeKey};

/// Messages of one edge that may be waiting for an earlier one.
const MAX_AHEAD: u64 = 1 << 17;

/// Where a piece of a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Whole and next in order: straight to the endpoint.
    Deliver,
    /// Keep it in the message's buffer.
    Hold,
    /// Nobody wants it.
    Discard,
}

/// What a peer did against the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// More than it was granted.
    OverCredit,
    /// A piece that contradicts the message's other pieces, or was delivered before.
    Contradiction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Partial {
    begun: bool,
    discard: bool,
    operation: bool,
    total: u64,
    got: u64,
}

impl Partial {
    /// What it is charged: an operation as a message without bytes.
    fn charge(&self) -> u64 {
        charge_for(self.total, self.operation)
    }
}

#[inline]
fn charge_for(total: u64, operation: bool) -> u64 {
    match operation {
        true => charge(0),
        false => charge(total),
    }
}

/// A message that is complete and next in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) sequence: u64,
    pub(crate) discard: bool,
}

/// The receiving half of an edge.
#[derive(Clone, Debug, Hash)]
pub(crate) struct EdgeIn {
    key: EdgeKey,
    /// The next message to hand over.
    next: u64,
    /// Messages from `next` on of which something has arrived.
    pending: VecDeque<Partial>,
    /// Cumulative bytes: seen, consumed by the application, granted.
    charged: u64,
    consumed: u64,
    granted: u64,
    /// Bytes of the pool held by this edge.
    held: u64,
    /// Lengths of messages held outside the pool: those longer than the window.
    unpooled: Vec<u64>,
    /// How far ahead of `consumed` grants go; grows when the peer has to wait.
    window: u64,
    /// Cumulative bytes that the peer requested, and what it had charged at that time.
    wanted: u64,
    begun: u64,
    /// It has requested credit since the window was last checked: it had to wait, even if what it
    /// waits for has been granted meanwhile.
    asked: bool,
    /// It was granted a message longer than the window.
    pub(crate) in_turn: bool,
    /// A refusal is on its way to the peer: further ones say nothing new.
    pub(crate) refusal_due: bool,
    /// The number after the last message, once the peer has sent it.
    end: Option<u64>,
    draining: bool,
    /// Whether the endpoint is open, and the generation of the endpoint table
    /// for which that was looked up.
    pub(crate) open: (u64, bool),
}

impl EdgeIn {
    pub(crate) fn new(key: EdgeKey, config: &Config) -> EdgeIn {
        EdgeIn {
            key,
            next: config.first_number.into(),
            pending: VecDeque::new(),
            charged: 0,
            consumed: 0,
            granted: u64::from(config.initial_credit_bytes),
            held: 0,
            unpooled: Vec::new(),
            window: u64::from(config.initial_credit_bytes),
            wanted: 0,
            begun: 0,
            asked: false,
            in_turn: false,
            refusal_due: false,
            end: None,
            draining: false,
            open: (0, false),
        }
    }

    /// Its endpoints and life.
    #[inline]
    pub(crate) fn key(&self) -> EdgeKey {
        self.key
    }

    /// The next message to hand over.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of the pool that this piece would take: those of its whole message
    /// when it is the first of it.
    pub(crate) fn pool_cost(&self, sequence: u64, total: u64, operation: bool) -> u64 {
        let Some(index) = sequence.checked_sub(self.next) else {
            return 0;
        };
        let begun = usize::try_from(index)
            .ok()
            .and_then(|index| self.pending.get(index))
            .is_some_and(|partial| partial.begun);
        let charge = charge_for(total, operation);
        if begun || charge > self.window {
            0
        } else {
            charge
        }
    }

    /// Puts a piece in its place. `discard` when no endpoint takes it.
    #[inline]
    pub(crate) fn place(
        &mut self,
        piece: &MessagePiece,
        discard: bool,
    ) -> Result<Place, Violation> {
        let whole = piece.offset == 0 && piece.length == piece.total;
        if piece.sequence == self.next && whole && self.pending.is_empty() {
            let charge = charge_for(piece.total, piece.operation);
            self.charge(charge, discard)?;
            self.next += 1;
            if discard {
                self.consumed += charge;
                return Ok(Place::Discard);
            }
            return Ok(Place::Deliver);
        }
        self.place_ahead(piece, discard)
    }

    /// True if whole messages, the first with this number and charged `charge` together, are
    /// next, lie within credit and window, and are not the last of an edge that ends.
    #[inline]
    pub(crate) fn expects(&self, sequence: u64, charge: u64) -> bool {
        sequence == self.next
            && self.pending.is_empty()
            && charge <= self.window.min(self.granted - self.charged)
            && self.end.is_none()
    }

    /// Takes `count` messages that it [expects](Self::expects).
    #[inline]
    pub(crate) fn take_next(&mut self, count: u64, charge: u64) {
        self.charged += charge;
        self.held += charge;
        self.next += count;
    }

    /// True if a piece is of a message that has begun and is wanted, and not the last missing.
    #[inline]
    pub(crate) fn expects_piece(&self, sequence: u64, length: u64, total: u64) -> bool {
        let partial = sequence
            .checked_sub(self.next)
            .and_then(|ahead| self.pending.get(usize::try_from(ahead).ok()?));
        partial.is_some_and(|partial| {
            let wanted = partial.begun && !partial.discard && !partial.operation;
            wanted && partial.total == total && partial.got + length < total
        })
    }

    /// Takes a piece that it [expects](Self::expects_piece).
    #[inline]
    pub(crate) fn take_piece(&mut self, sequence: u64, length: u64) {
        let ahead = usize::try_from(sequence - self.next);
        if let Some(partial) = ahead.ok().and_then(|ahead| self.pending.get_mut(ahead)) {
            partial.got += length;
        }
    }

    /// True if what is given back next surely had its room in the pool.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        self.unpooled.is_empty()
    }

    /// Takes a message that it [expects](Self::expects) and that is read at once.
    #[inline]
    pub(crate) fn take_read(&mut self, charge: u64) {
        self.charged += charge;
        self.consumed += charge;
        self.next += 1;
    }

    fn place_ahead(&mut self, piece: &MessagePiece, discard: bool) -> Result<Place, Violation> {
        let (total, operation) = (piece.total, piece.operation);
        let ahead = (piece.sequence)
            .checked_sub(self.next)
            .filter(|ahead| *ahead < MAX_AHEAD)
            .ok_or(Violation::Contradiction)?;
        let index = usize::try_from(ahead).map_err(|_| Violation::Contradiction)?;
        if !self.pending.get(index).is_some_and(|partial| partial.begun) {
            self.charge(charge_for(total, operation), discard)?;
            if self.pending.len() <= index {
                self.pending.resize(index + 1, Partial::default());
            }
            self.pending[index] = Partial {
                begun: true,
                discard,
                operation,
                total,
                got: 0,
            };
        }
        let partial = &mut self.pending[index];
        let is_same = partial.total == total && partial.operation == operation;
        if !is_same || partial.got + piece.length > total {
            return Err(Violation::Contradiction);
        }
        // The first piece decided about the whole message; `close` changes that.
        partial.got += piece.length;
        Ok(if partial.discard {
            Place::Discard
        } else {
            Place::Hold
        })
    }

    /// True if what has begun under this number is an operation.
    pub(crate) fn is_operation(&self, sequence: u64) -> bool {
        let ahead = sequence.checked_sub(self.next);
        let partial = ahead.and_then(|ahead| self.pending.get(usize::try_from(ahead).ok()?));
        partial.is_some_and(|partial| partial.operation)
    }

    /// The rest of a message that has begun is there.
    pub(crate) fn fill(&mut self, sequence: u64) {
        let index = sequence.checked_sub(self.next);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(partial) = index.and_then(|index| self.pending.get_mut(index)) {
            partial.got = partial.total;
        }
    }

    /// The next message if it is complete; call until `None` after each placing.
    pub(crate) fn pop_complete(&mut self) -> Option<Completed> {
        let front = self.pending.front()?;
        if !front.begun || front.got < front.total {
            return None;
        }
        let completed = Completed {
            sequence: self.next,
            discard: front.discard,
        };
        if completed.discard {
            // It never held anything of the pool, or gave it back in `close`.
            self.consumed += front.charge();
        }
        self.pending.pop_front();
        self.next += 1;
        Some(completed)
    }

    fn charge(&mut self, charge: u64, discard: bool) -> Result<(), Violation> {
        let charged = self
            .charged
            .checked_add(charge)
            .filter(|charged| *charged <= self.granted)
            .ok_or(Violation::OverCredit)?;
        self.charged = charged;
        if !discard {
            if charge > self.window {
                self.unpooled.push(charge);
            } else {
                self.held += charge;
            }
        }
        Ok(())
    }

    /// The application has given a message back; bytes returned to the pool.
    pub(crate) fn consumed(&mut self, total: u64) -> u64 {
        let charge = charge(total);
        self.consumed += charge;
        if let Some(index) = self
            .unpooled
            .iter()
            .position(|unpooled| *unpooled == charge)
        {
            self.unpooled.swap_remove(index);
            return 0;
        }
        let freed = charge.min(self.held);
        self.held -= freed;
        freed
    }

    /// The endpoint was closed: no message held is wanted. Bytes returned to the pool, and
    /// the first message of which a part had arrived: its sender must be told. Operations that
    /// have begun go on, since each is answered by itself, and keep their room.
    pub(crate) fn close(&mut self) -> (u64, Option<u64>) {
        let (mut waiting, mut kept, mut first) = (0, 0, None);
        for (sequence, partial) in (self.next..).zip(&mut self.pending) {
            if partial.begun {
                waiting += partial.charge();
                if partial.operation {
                    kept += partial.charge();
                } else if !partial.discard {
                    first.get_or_insert(sequence);
                }
            }
            partial.discard = !partial.operation;
        }
        self.consumed = self.charged - waiting;
        self.unpooled.clear();
        let freed = self.held.saturating_sub(kept);
        self.held -= freed;
        (freed, first)
    }

    /// Notes what the peer waits for; false if no message can need that much, or it has
    /// charged more than it was granted.
    pub(crate) fn want(&mut self, wish: CreditRequest) -> bool {
        let message = u64::from(wish.message);
        match wish.need.checked_sub(message) {
            Some(begun) if begun <= self.granted && message <= charge(MAX_MESSAGE_BYTES) => {
                self.wanted = self.wanted.max(wish.need);
                self.begun = self.begun.max(begun);
                self.asked = true;
                true
            }
            _ => false,
        }
    }

    /// True if the peer waits for more than it was granted.
    pub(crate) fn is_wanting(&self) -> bool {
        self.wanted > self.granted
    }

    /// Bytes of memory that are spoken for: what is granted and not consumed, or its window,
    /// as far as which the grant follows what is consumed.
    pub(crate) fn committed(&self) -> u64 {
        let granted = self.granted - self.consumed;
        match self.draining {
            true => granted,
            false => granted.max(self.window),
        }
    }

    /// False while [`regrant`](Self::regrant) would change nothing: the peer does not wait,
    /// has no turn to end, and little has been consumed.
    #[inline]
    pub(crate) fn may_regrant(&self) -> bool {
        self.in_turn
            || self.is_wanting()
            || self.consumed + self.window >= self.granted + self.window / 2
    }

    /// Raises the grant as far as the window allows, the window growing by at most `budget`
    /// bytes if the peer waits or had to; true if it should be told now.
    pub(crate) fn regrant(&mut self, budget: u64, config: &Config) -> bool {
        let asked = core::mem::take(&mut self.asked);
        if (asked || self.is_wanting()) && self.window < config.edge_window_bytes {
            let useful = self
                .wanted
                .saturating_sub(self.consumed)
                .max(2 * self.window);
            let grown = useful.min(config.edge_window_bytes);
            self.window = self
                .window
                .max(grown.min(self.window.saturating_add(budget)));
        }
        let limit = self.consumed + self.window;
        let wanting = self.is_wanting();
        if limit <= self.granted {
            return false;
        }
        if (wanting && limit >= self.wanted) || limit - self.granted >= self.window / 2 {
            self.granted = limit;
            return true;
        }
        false
    }

    /// True if the peer waits for a message longer than the window can grow, and
    /// everything before it has been consumed: nothing else will let it in. A wish may have
    /// overtaken messages before it; they are no part of what it waits for.
    pub(crate) fn wants_oversize(&self) -> bool {
        self.is_wanting()
            && self.has_consumed_all()
            && self.consumed >= self.begun
            && self.wanted - self.consumed > self.window
    }

    /// True if a message of this length can only come by such a grant.
    #[inline]
    pub(crate) fn is_beyond_window(&self, total: u64) -> bool {
        charge(total) > self.window
    }

    /// Grants exactly what is wanted; the cumulative point at which that ends.
    pub(crate) fn grant_oversize(&mut self) -> u64 {
        self.granted = self.wanted;
        self.in_turn = true;
        self.granted
    }

    /// True if the rest of some message must come.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Bytes of the pool held.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// True once everything up to `point` has been consumed.
    pub(crate) fn has_consumed(&self, point: u64) -> bool {
        self.consumed >= point
    }

    /// True once everything that has begun to arrive has been consumed.
    pub(crate) fn has_consumed_all(&self) -> bool {
        self.consumed == self.charged
    }

    /// Cumulative bytes granted.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// The source announced its last message.
    pub(crate) fn end_at(&mut self, sequence: u64) {
        self.end = Some(sequence);
    }

    /// True once the source has announced its last message.
    #[inline]
    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// True if the edge has ended and everything on it was handed over.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// Bytes that have come and were not consumed.
    pub(crate) fn unread(&self) -> u64 {
        self.charged - self.consumed
    }

    /// Nothing more will come: what was granted beyond what came is free, but for what is
    /// reserved for the next life.
    pub(crate) fn drain(&mut self, reserved: u64) {
        self.draining = true;
        self.granted = self.charged + reserved;
        self.wanted = 0;
        self.in_turn = false;
    }

    /// The next life has begun, with a first credit of its own.
    pub(crate) fn release_reserved(&mut self) {
        self.granted = self.charged;
    }

    /// True if only the application still has messages of it.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::outgoing::EdgeOut;

    fn edge() -> (EdgeIn, Config) {
        let config = Config {
            initial_credit_bytes: 1000,
            edge_window_bytes: 4000,
            ..Config::default()
        };
        let key = EdgeKey {
            source: 1,
            target: 2,
            life: 0,
        };
        (EdgeIn::new(key, &config), config)
    }

    fn want(edge: &mut EdgeIn, need: u64, message: u32) -> bool {
        edge.want(CreditRequest { need, message })
    }

    fn whole(edge: &mut EdgeIn, sequence: u64, length: u64) -> Place {
        edge.place(&piece(sequence, (0, length, length)), false)
            .expect("within credit")
    }

    fn piece(sequence: u64, (offset, length, total): (u64, u64, u64)) -> MessagePiece {
        MessagePiece {
            offset,
            length,
            total,
            ..MessagePiece::whole(sequence, 0..0)
        }
    }

    #[test]
    fn messages_that_overtake_wait_for_the_one_before() {
        let (mut edge, _config) = edge();
        assert_eq!(whole(&mut edge, 1, 10), Place::Hold);
        assert_eq!(edge.pop_complete(), None);
        assert_eq!(whole(&mut edge, 0, 10), Place::Hold);
        let order: alloc::vec::Vec<u64> =
            core::iter::from_fn(|| edge.pop_complete().map(|message| message.sequence)).collect();
        assert_eq!(order, [0, 1]);
        assert_eq!(whole(&mut edge, 2, 10), Place::Deliver);
    }

    #[test]
    fn pieces_in_any_order_make_one_message() {
        let (mut edge, _config) = edge();
        for offset in [20, 0, 10] {
            let placed = edge.place(&piece(0, (offset, 10, 30)), false);
            assert_eq!(placed, Ok(Place::Hold));
        }
        assert!(edge.pop_complete().is_some());
        assert_eq!(
            edge.place(&piece(0, (0, 10, 30)), false),
            Err(Violation::Contradiction)
        );
    }

    #[test]
    fn credit_is_what_was_granted_and_consuming_renews_it() {
        let (mut edge, config) = edge();
        let mut out = EdgeOut::new(edge.key(), 1000, 0);
        assert_eq!(out.begin(936), Some(0));
        assert_eq!(out.begin(0), None);
        assert_eq!(whole(&mut edge, 0, 936), Place::Deliver);
        let placed = edge.place(&piece(1, (0, 1, 1)), false);
        assert_eq!(placed, Err(Violation::OverCredit));
        assert_eq!(edge.consumed(936), 1000);
        assert!(edge.regrant(0, &config));
        assert!(out.grant(edge.granted()));
        assert_eq!(out.begin(0), Some(1));
    }

    #[test]
    fn a_peer_that_waits_gets_a_wider_window_up_to_the_bound() {
        let (mut edge, config) = edge();
        assert!(want(&mut edge, 3000, 3000));
        assert!(edge.regrant(u64::MAX, &config));
        assert_eq!(edge.granted(), 3000);
        assert!(want(&mut edge, 1_000_000, 1_000_000));
        assert!(
            !edge.regrant(u64::MAX, &config),
            "too little to be worth telling"
        );
        assert!(edge.wants_oversize());
        assert_eq!(edge.grant_oversize(), 1_000_000);
    }

    #[test]
    fn a_wish_that_overtakes_messages_is_not_for_one_beyond_the_window() {
        let (mut edge, config) = edge();
        edge.window = config.edge_window_bytes;
        edge.granted = 4000;
        assert!(want(&mut edge, 4100, 100));
        assert!(!edge.wants_oversize(), "4000 bytes are on their way");
        assert!(want(&mut edge, 9000, 5000));
        assert!(!edge.wants_oversize());
        whole(&mut edge, 0, 3936);
        edge.consumed(3936);
        assert!(edge.wants_oversize());
        assert!(!want(&mut edge, 9100, 5000), "charged beyond the grant");
        assert!(!want(&mut edge, 9, 10));
    }

    #[test]
    fn closing_gives_back_what_was_held() {
        let (mut edge, _config) = edge();
        whole(&mut edge, 0, 36);
        whole(&mut edge, 2, 36);
        assert_eq!(edge.close(), (200, Some(2)));
        let kept = (edge.consumed, edge.held);
        assert_eq!(kept, (100, 0), "message 2 waits for 1, then is discarded");
    }
}
