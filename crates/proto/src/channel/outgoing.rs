//! The sending half of an edge: numbers messages, charges them to the granted credit, and ends.
//! Spec §5.5, §5.6.

use super::status::OutgoingStatus;
use crate::config::charge;
use crate::wire::{CreditRequest, EdgeKey, RefusedReason};
use serde::{Deserialize, Serialize};

/// Stage in the life of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum State {
    Open,
    /// The end was announced and the peer has not yet forgotten the edge.
    Ending {
        /// Handles opened meanwhile: the edge starts again once it is forgotten.
        reopened: u32,
    },
}

/// Sending half of an edge.
#[derive(Clone, Debug, Hash, Serialize, Deserialize)]
pub(crate) struct EdgeOut {
    key: EdgeKey,
    state: State,
    /// Handles that the caller has not closed.
    users: u32,
    next: u64,
    charged: u64,
    limit: u64,
    /// Cumulative bytes that the waiting message needs.
    need: Option<u64>,
    /// There was too little credit since the last grant that was reported.
    was_short: bool,
    /// The peer may know this edge, so its end must be announced.
    is_known: bool,
    /// The peer has refused messages.
    refused: Option<RefusedReason>,
    /// The first message since the edge was last opened: late refusals of earlier ones do not concern it.
    refusable_from: u64,
}

/// Action required after a handle was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Nothing: other handles are open, or the edge has ended already.
    Nothing,
    /// The peer does not know the edge: it can be forgotten at once.
    Forget,
    /// The end must be announced to the peer.
    Urgency,
}

impl EdgeOut {
    /// Messages are numbered from `first` on.
    pub(crate) fn new(key: EdgeKey, initial_credit: u64, first: u64) -> EdgeOut {
        EdgeOut {
            key,
            state: State::Open,
            users: 1,
            next: first,
            charged: 0,
            limit: initial_credit,
            need: None,
            was_short: false,
            is_known: false,
            refused: None,
            refusable_from: first,
        }
    }

    pub(crate) fn key(&self) -> EdgeKey {
        self.key
    }

    /// The number after the last message that has begun.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a handle. Messages may be sent again after a refusal.
    pub(crate) fn open_again(&mut self) {
        self.refused = None;
        self.refusable_from = self.next;
        match &mut self.state {
            State::Open => self.users += 1,
            State::Ending { reopened } => *reopened += 1,
        }
    }

    /// Closes one handle, or all of them.
    pub(crate) fn close(&mut self, all: bool) -> Closed {
        match &mut self.state {
            State::Open => {
                self.users = match all {
                    true => 0,
                    false => self.users.saturating_sub(1),
                };
                if self.users > 0 {
                    return Closed::Nothing;
                }
                self.need = None;
                if !self.is_known {
                    return Closed::Forget;
                }
                self.state = State::Ending { reopened: 0 };
                Closed::Urgency
            }
            State::Ending { reopened } => {
                *reopened = match all {
                    true => 0,
                    false => reopened.saturating_sub(1),
                };
                Closed::Nothing
            }
        }
    }

    /// The peer has forgotten the edge. Returns true if the edge starts again under `life`, and
    /// false if it has no handles left.
    pub(crate) fn forgotten(&mut self, life: u8, initial_credit: u64, first: u64) -> Option<bool> {
        let State::Ending { reopened } = self.state else {
            return None;
        };
        if reopened == 0 {
            return Some(false);
        }
        *self = EdgeOut {
            users: reopened,
            ..EdgeOut::new(EdgeKey { life, ..self.key }, initial_credit, first)
        };
        Some(true)
    }

    /// True if the peer may know this edge.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Called before this edge is announced to the peer.
    pub(crate) fn set_known(&mut self) {
        self.is_known = true;
    }

    /// True while the peer has not yet forgotten the earlier life of this edge.
    pub(crate) fn is_ending(&self) -> bool {
        self.state != State::Open
    }

    /// Why the peer refuses messages, if it does.
    pub(crate) fn refused(&self) -> Option<RefusedReason> {
        self.refused
    }

    /// The peer refuses messages from `sequence` on. Returns the first one that is not concerned, because
    /// the edge was opened again before it, or `u64::MAX`.
    pub(crate) fn refuse(&mut self, sequence: u64, reason: RefusedReason) -> u64 {
        if sequence < self.refusable_from {
            return self.refusable_from;
        }
        self.refused = Some(reason);
        self.need = None;
        u64::MAX
    }

    /// Begins a message of `total` bytes if there is enough credit. Returns its number.
    #[inline]
    pub(crate) fn begin(&mut self, total: u64) -> Option<u64> {
        let need = self.charged + charge(total);
        if need > self.limit || self.is_ending() {
            self.need = Some(need);
            self.was_short = true;
            return None;
        }
        self.need = None;
        self.charged = need;
        self.is_known = true;
        self.next += 1;
        Some(self.next - 1)
    }

    /// Undoes the last [`begin`](Self::begin). Nothing of that message may have been sent.
    pub(crate) fn retract(&mut self, total: u64) {
        self.charged -= charge(total);
        self.next -= 1;
    }

    /// The credit that is missing. The request is about to be sent.
    pub(crate) fn take_credit_request(&mut self) -> Option<CreditRequest> {
        let need = self.need.filter(|need| *need > self.limit)?;
        if self.is_ending() {
            return None;
        }
        self.is_known = true;
        let message = u32::try_from(need - self.charged).unwrap_or(u32::MAX);
        Some(CreditRequest { need, message })
    }

    /// True if a message waits for credit, or for the edge to start again.
    pub(crate) fn is_waiting(&self) -> bool {
        self.need.is_some_and(|need| need > self.limit) || self.need.is_some() && self.is_ending()
    }

    /// Withdraws the message that waits.
    pub(crate) fn give_up(&mut self) {
        self.need = None;
    }

    /// True if there was too little credit since the last grant that was reported.
    pub(crate) fn was_short(&self) -> bool {
        self.was_short
    }

    /// Applies a grant. Returns true if a message that found too little credit may be tried again.
    pub(crate) fn grant(&mut self, limit: u64) -> bool {
        let has_grown = limit > self.limit;
        self.limit = self.limit.max(limit);
        let may_retry = has_grown && self.was_short && !self.is_waiting();
        self.was_short &= !may_retry;
        may_retry
    }

    /// See [`OutgoingStatus`].
    pub(crate) fn status(&self) -> OutgoingStatus {
        let missing = self.need.filter(|_| self.is_waiting());
        OutgoingStatus {
            key: self.key,
            next: self.next,
            credit_left: self.left(),
            limit: self.limit,
            credit_missing: missing.map(|need| need.saturating_sub(self.limit)),
            is_ending: self.is_ending(),
            refused: self.refused,
        }
    }

    /// Bytes of credit left.
    pub(crate) fn left(&self) -> u64 {
        self.limit - self.charged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge() -> EdgeOut {
        let key = EdgeKey {
            source: 1,
            target: 2,
            life: 3,
        };
        EdgeOut::new(key, 1000, 0)
    }

    #[test]
    fn an_edge_unknown_to_the_peer_is_forgotten_at_once() {
        let mut edge = edge();
        edge.open_again();
        assert_eq!(edge.close(false), Closed::Nothing);
        assert_eq!(edge.close(false), Closed::Forget);
    }

    #[test]
    fn an_edge_reopened_while_ending_starts_again_with_its_initial_credit() {
        let mut edge = edge();
        assert_eq!(edge.begin(900), Some(0));
        assert_eq!(edge.close(false), Closed::Urgency);
        edge.open_again();
        assert_eq!(edge.begin(900), None, "the peer has not forgotten it yet");
        assert!(edge.is_waiting());
        assert_eq!(
            edge.take_credit_request(),
            None,
            "no request for the life that has ended"
        );
        assert_eq!(edge.forgotten(4, 1000, 0), Some(true));
        assert_eq!((edge.key().life, edge.begin(900)), (4, Some(0)));
    }

    #[test]
    fn an_edge_that_was_not_reopened_is_gone_once_it_is_forgotten() {
        let mut edge = edge();
        edge.begin(1);
        assert_eq!(edge.forgotten(4, 1000, 0), None, "it has not ended");
        edge.close(false);
        assert_eq!(edge.forgotten(4, 1000, 0), Some(false));
    }

    #[test]
    fn a_late_refusal_does_not_concern_messages_after_the_edge_was_opened_again() {
        let mut edge = edge();
        assert_eq!(edge.begin(1), Some(0));
        edge.open_again();
        assert_eq!(edge.begin(1), Some(1));
        assert_eq!(edge.refuse(0, RefusedReason::Closed), 1);
        assert_eq!(edge.refused(), None);
        assert_eq!(edge.refuse(1, RefusedReason::Closed), u64::MAX);
        assert_eq!(edge.refused(), Some(RefusedReason::Closed));
    }

    #[test]
    fn a_retracted_message_costs_nothing() {
        let mut edge = edge();
        assert_eq!(edge.begin(936), Some(0));
        edge.retract(936);
        assert_eq!((edge.left(), edge.begin(936)), (1000, Some(0)));
    }
}
