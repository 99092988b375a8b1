//! The receiving half of an edge: message order, reassembly and grants.
//! Spec §5.5, §5.6.
//!
//! [`EdgeIn`] works on numbers and lengths; it never sees payloads. It decides which messages are
//! complete and next in order, and how much the peer may send.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use super::MessagePiece;
use super::status::IncomingStatus;
use crate::config::{Config, charge};
use crate::wire::{CreditRequest, EdgeKey, Fragment};

/// Most messages of one edge that may wait for an earlier one.
const MAX_AHEAD: u64 = 1 << 17;

/// Where to put a piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is a whole message and next in order: deliver it to the endpoint.
    Deliver,
    /// Store it in the message's buffer.
    Hold,
    /// No endpoint accepts it.
    Discard,
}

/// A rule that the peer has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It sent more than it was granted.
    OverCredit,
    /// The piece contradicts others of its message, or its message was delivered before.
    Contradiction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Partial {
    begun: bool,
    discard: bool,
    operation: bool,
    total: u64,
    got: u64,
}

impl Partial {
    /// Credit that it costs. An operation costs as much as an empty message.
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
    /// Bytes of the message; 0 for an operation.
    pub(crate) bytes: u64,
    pub(crate) discard: bool,
}

/// The receiving half of an edge.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(crate) struct EdgeIn {
    key: EdgeKey,
    /// Number of the next message to deliver.
    next: u64,
    /// Messages from `next` on, up to the last one of which a piece has arrived.
    pending: VecDeque<Partial>,
    /// Cumulative bytes that have arrived, were consumed by the application, and are granted.
    charged: u64,
    consumed: u64,
    granted: u64,
    /// Bytes of the pool that this edge uses.
    held: u64,
    /// Lengths of messages longer than the window, which are kept outside the pool.
    unpooled: Vec<u64>,
    /// How far the grant is ahead of `consumed`. It grows when the peer has to wait.
    window: u64,
    /// Cumulative bytes that the peer requested, and what it had charged at that time.
    needed: u64,
    charged_by_peer: u64,
    /// The peer has requested credit since the window was last adjusted. It counts even if that
    /// credit has been granted meanwhile, because the peer had to wait.
    has_requested: bool,
    /// A message longer than the window was granted.
    pub(crate) in_turn: bool,
    /// A refusal is queued for the peer; another one would add nothing.
    pub(crate) refusal_due: bool,
    /// The number after the last message, once the peer has announced it.
    end: Option<u64>,
    draining: bool,
    /// Generation of the endpoint table when it was last queried, and whether the endpoint was
    /// open then.
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
            needed: 0,
            charged_by_peer: 0,
            has_requested: false,
            in_turn: false,
            refusal_due: false,
            end: None,
            draining: false,
            open: (0, false),
        }
    }

    /// See [`IncomingStatus`].
    pub(crate) fn status(&self) -> IncomingStatus {
        IncomingStatus {
            key: self.key,
            next: self.next,
            unread_bytes: self.charged.saturating_sub(self.consumed),
            incomplete: self.pending.iter().filter(|it| it.begun).count(),
            granted: self.granted,
            granted_left: self.granted.saturating_sub(self.charged),
            requested: self.needed.saturating_sub(self.granted),
        }
    }

    #[inline]
    pub(crate) fn key(&self) -> EdgeKey {
        self.key
    }

    /// Number of the next message to deliver.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of the pool that this piece takes: those of the whole message if it is the first piece.
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

    /// Decides where a piece goes. `discard` if no endpoint accepts it.
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

    /// True if whole messages that cost `charge` together, the first numbered `sequence`, are next
    /// in order, within credit and window, on an edge whose end has not been announced.
    #[inline]
    pub(crate) fn expects(&self, sequence: u64, charge: u64) -> bool {
        sequence == self.next
            && self.pending.is_empty()
            && charge <= self.window.min(self.granted - self.charged)
            && self.end.is_none()
    }

    /// Accepts `count` [expected](Self::expects) messages.
    #[inline]
    pub(crate) fn take_next(&mut self, count: u64, charge: u64) {
        self.charged += charge;
        self.held += charge;
        self.next += count;
    }

    /// How many pieces like this one, from its offset on, may arrive without completing their
    /// message, if that has begun. `None` if none.
    #[inline]
    pub(crate) fn expects_pieces(&self, sequence: u64, piece: &Fragment) -> Option<u32> {
        let ahead = usize::try_from(sequence.checked_sub(self.next)?).ok()?;
        let partial = self.pending.get(ahead)?;
        let wanted = partial.begun && !partial.discard && !partial.operation;
        if !wanted || partial.total != piece.total {
            return None;
        }
        let (got, length) = (partial.got.max(piece.offset), piece.payload.len() as u64);
        let left = piece.total.checked_sub(got + 1)? / length;
        u32::try_from(left).ok().filter(|left| *left > 0)
    }

    /// Accepts [expected](Self::expects_pieces) pieces of `length` bytes together.
    #[inline]
    pub(crate) fn take_pieces(&mut self, sequence: u64, length: u64) {
        let ahead = usize::try_from(sequence - self.next);
        if let Some(partial) = ahead.ok().and_then(|ahead| self.pending.get_mut(ahead)) {
            partial.got += length;
        }
    }

    /// True if the next message to be consumed was certainly charged to the pool.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        self.unpooled.is_empty()
    }

    /// Accepts an [expected](Self::expects) message that the application reads at once.
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
        // The first piece has decided for the whole message; `close` may change that.
        partial.got += piece.length;
        Ok(if partial.discard {
            Place::Discard
        } else {
            Place::Hold
        })
    }

    /// True if the unfinished message with this number is an operation.
    pub(crate) fn is_operation(&self, sequence: u64) -> bool {
        let ahead = sequence.checked_sub(self.next);
        let partial = ahead.and_then(|ahead| self.pending.get(usize::try_from(ahead).ok()?));
        partial.is_some_and(|partial| partial.operation)
    }

    /// Completes a message that has begun.
    pub(crate) fn fill(&mut self, sequence: u64) {
        let index = sequence.checked_sub(self.next);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(partial) = index.and_then(|index| self.pending.get_mut(index)) {
            partial.got = partial.total;
        }
    }

    /// Takes the next message if it is complete. To be called until it returns `None`.
    pub(crate) fn pop_complete(&mut self) -> Option<Completed> {
        let front = self.pending.front()?;
        if !front.begun || front.got < front.total {
            return None;
        }
        let completed = Completed {
            sequence: self.next,
            bytes: if front.operation { 0 } else { front.total },
            discard: front.discard,
        };
        if completed.discard {
            // It was never charged to the pool, or `close` has released it.
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

    /// The application has consumed a message. Returns the bytes that the pool gets back.
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

    /// The endpoint was closed: discards all messages that have begun. Returns the bytes that the
    /// pool gets back, and the first message that had arrived in part, whose sender must be
    /// notified. Operations that have begun continue, because each one gets its own answer.
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

    /// Records what the peer needs. Returns false if the peer has charged more than it was granted.
    /// The length of the message is checked when its first piece arrives, because only that can be
    /// refused.
    pub(crate) fn on_credit_request(&mut self, request: CreditRequest) -> bool {
        let message = u64::from(request.message);
        match request.need.checked_sub(message) {
            Some(begun) if begun <= self.granted => {
                self.needed = self.needed.max(request.need);
                self.charged_by_peer = self.charged_by_peer.max(begun);
                self.has_requested = true;
                true
            }
            _ => false,
        }
    }

    /// True if the peer needs more than it was granted.
    pub(crate) fn needs_credit(&self) -> bool {
        self.needed > self.granted
    }

    /// Bytes of memory reserved for this edge: what is granted and not consumed, or its window,
    /// which will be granted as the application consumes.
    pub(crate) fn committed(&self) -> u64 {
        let granted = self.granted - self.consumed;
        match self.draining {
            true => granted,
            false => granted.max(self.window),
        }
    }

    /// False if [`regrant`](Self::regrant) would change nothing: the peer does not wait, holds no
    /// turn for a long message, and little has been consumed.
    #[inline]
    pub(crate) fn may_regrant(&self) -> bool {
        self.in_turn
            || self.needs_credit()
            || self.consumed + self.window >= self.granted + self.window / 2
    }

    /// Raises the grant as far as the window allows. If the peer waits or had to wait, the window
    /// grows by at most `budget` bytes. Returns true if the grant should be sent now.
    pub(crate) fn regrant(&mut self, budget: u64, config: &Config) -> bool {
        let has_requested = core::mem::take(&mut self.has_requested);
        if (has_requested || self.needs_credit()) && self.window < config.edge_window_bytes {
            let useful = self
                .needed
                .saturating_sub(self.consumed)
                .max(2 * self.window);
            let grown = useful.min(config.edge_window_bytes);
            self.window = self
                .window
                .max(grown.min(self.window.saturating_add(budget)));
        }
        let limit = self.consumed + self.window;
        let is_waiting = self.needs_credit();
        if limit <= self.granted {
            return false;
        }
        if (is_waiting && limit >= self.needed) || limit - self.granted >= self.window / 2 {
            self.granted = limit;
            return true;
        }
        false
    }

    /// True if the peer waits for a message longer than the largest window and everything before it
    /// has been consumed, so that only an extra grant lets it through. A request may overtake
    /// earlier messages; those do not count.
    pub(crate) fn needs_oversize(&self) -> bool {
        self.needs_credit()
            && self.has_consumed_all()
            && self.consumed >= self.charged_by_peer
            && self.needed - self.consumed > self.window
    }

    /// True if a message of this length needs such an extra grant.
    #[inline]
    pub(crate) fn is_beyond_window(&self, total: u64) -> bool {
        charge(total) > self.window
    }

    /// Grants exactly what is needed. Returns the cumulative bytes at which the grant ends.
    pub(crate) fn grant_oversize(&mut self) -> u64 {
        self.granted = self.needed;
        self.in_turn = true;
        self.granted
    }

    /// True if some message has arrived in part.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Bytes of the pool that this edge uses.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// True once everything up to `point` has been consumed.
    pub(crate) fn has_consumed(&self, point: u64) -> bool {
        self.consumed >= point
    }

    /// True once everything that has arrived, even in part, has been consumed.
    pub(crate) fn has_consumed_all(&self) -> bool {
        self.consumed == self.charged
    }

    /// Cumulative number of bytes granted.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// The peer has announced that no message from `sequence` on will follow.
    pub(crate) fn end_at(&mut self, sequence: u64) {
        self.end = Some(sequence);
    }

    /// True once the peer has announced its last message.
    #[inline]
    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// True if the edge has ended and all its messages were delivered.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// Bytes that have arrived and were not consumed.
    pub(crate) fn unread(&self) -> u64 {
        self.charged - self.consumed
    }

    /// Releases the unused grant of an edge that has ended, except for bytes that are reserved for
    /// the next life.
    pub(crate) fn drain(&mut self, reserved: u64) {
        self.draining = true;
        self.granted = self.charged + reserved;
        self.needed = 0;
        self.in_turn = false;
    }

    /// The next life has begun, with its own initial credit.
    pub(crate) fn release_reserved(&mut self) {
        self.granted = self.charged;
    }

    /// True if the edge has ended and only the application still holds messages of it.
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

    fn request(edge: &mut EdgeIn, need: u64, message: u32) -> bool {
        edge.on_credit_request(CreditRequest { need, message })
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
    fn early_messages_wait_for_the_one_before() {
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
    fn consuming_messages_renews_the_credit() {
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
    fn a_waiting_peer_gets_a_larger_window_up_to_the_limit() {
        let (mut edge, config) = edge();
        assert!(request(&mut edge, 3000, 3000));
        assert!(edge.regrant(u64::MAX, &config));
        assert_eq!(edge.granted(), 3000);
        assert!(request(&mut edge, 1_000_000, 1_000_000));
        assert!(
            !edge.regrant(u64::MAX, &config),
            "too small to be worth sending"
        );
        assert!(edge.needs_oversize());
        assert_eq!(edge.grant_oversize(), 1_000_000);
    }

    #[test]
    fn an_early_credit_request_is_not_for_a_message_beyond_the_window() {
        let (mut edge, config) = edge();
        edge.window = config.edge_window_bytes;
        edge.granted = 4000;
        assert!(request(&mut edge, 4100, 100));
        assert!(!edge.needs_oversize(), "4000 bytes are on their way");
        assert!(request(&mut edge, 9000, 5000));
        assert!(!edge.needs_oversize());
        whole(&mut edge, 0, 3936);
        edge.consumed(3936);
        assert!(edge.needs_oversize());
        assert!(!request(&mut edge, 9100, 5000), "charged beyond the grant");
        assert!(!request(&mut edge, 9, 10));
    }

    #[test]
    fn closing_releases_what_was_held() {
        let (mut edge, _config) = edge();
        whole(&mut edge, 0, 36);
        whole(&mut edge, 2, 36);
        assert_eq!(edge.close(), (200, Some(2)));
        let kept = (edge.consumed, edge.held);
        assert_eq!(kept, (100, 0), "message 2 waits for 1, then is discarded");
    }
}
