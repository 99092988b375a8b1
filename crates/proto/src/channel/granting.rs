//! Credit for the edges from the peer. Spec §5.6.

use super::{Channel, Urgency};
use crate::event::EdgeId;
use crate::shared::{Oversize, Shared};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wire::{CreditRequest, EdgeKey};

impl Channel {
    /// Renews an edge's credit.
    pub(super) fn regrant(&mut self, index: u32, now: Instant, shared: &mut Shared) -> Urgency {
        let id = self.incoming_id(index);
        let Some(edge) = self.incoming.get_mut(index) else {
            return Urgency::None;
        };
        let before = edge.committed();
        let needs_credit = edge.needs_credit();
        let mut urgency = edge.regrant(shared.credit_budget(), &shared.config);
        let target = edge.key().target;
        if let Some(endpoint) = shared.endpoints.get_mut(&target) {
            // The sender may have withdrawn its message and leave a part of the grant unused.
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
            if edge.needs_oversize() {
                // The message of this edge's own turn may still be on its way.
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
                    urgency = true;
                } else if !endpoint.waiting.contains(&id) {
                    endpoint.waiting.push_back(id);
                    shared.edges_waiting = true;
                }
            }
        } else if edge.needs_oversize() {
            // The endpoint is closed: let the message arrive and be refused.
            edge.grant_oversize();
            urgency = true;
        }
        shared.committed = shared.committed + edge.committed() - before;
        if !urgency {
            return Urgency::None;
        }
        self.grant_due(index);
        match needs_credit {
            true => Urgency::Now,
            false => Urgency::Soon,
        }
    }

    /// Tries again to grant credit to an edge that waited for another one's long message.
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

    /// The long message for which an edge has its turn has begun to arrive.
    pub(super) fn on_oversize_begun(&mut self, index: u32, shared: &mut Shared) {
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

    /// Handles a credit request. `may_open` is false if it may be for an edge that was forgotten.
    pub(crate) fn on_credit_request(
        &mut self,
        key: EdgeKey,
        request: CreditRequest,
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
            // A late request of an earlier life.
            return Urgency::None;
        }
        if !edge.on_credit_request(request) {
            shared.count(DropReason::Violation);
            return Urgency::None;
        }
        self.regrant(index, now, shared);
        // An earlier grant may have been lost, so it is sent again.
        self.grant_due(index);
        Urgency::Now
    }
}
