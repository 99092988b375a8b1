//! The edges to the peer: opening, sending, refusals, ends. Spec §5.5, §5.6.

use alloc::vec::Vec;

use super::outgoing::{Closed, EdgeOut};
use super::{Channel, MAX_EDGES, MessageStart, Notice};
use crate::error::{BeginError, EdgeError};
use crate::event::{EdgeId, EdgePosition, Event};
use crate::holes::widen;
use crate::shared::Shared;
use crate::wire::{EdgeKey, RefusedReason};

impl Channel {
    /// Opens a handle to the edge between two endpoints, which is created on first use.
    pub(crate) fn edge(&mut self, source: u32, target: u32) -> Result<EdgeId, EdgeError> {
        if let Some(index) = self.outgoing.find((source, target)) {
            if let Some(edge) = self.outgoing.get_mut(index) {
                edge.open_again();
            }
            return Ok(self.outgoing_id(index));
        }
        if self.outgoing.len() >= MAX_EDGES as usize {
            return Err(EdgeError::TooMany { limit: MAX_EDGES });
        }
        let key = EdgeKey {
            source,
            target,
            life: self.next_life_number(),
        };
        let edge = EdgeOut::new(key, self.initial_credit, self.first);
        let index = self.outgoing.insert((source, target), edge);
        Ok(self.outgoing_id(index))
    }

    fn next_life_number(&mut self) -> u8 {
        let life = self.next_life;
        self.next_life = (life + 1) % EdgeKey::LIVES;
        life
    }

    pub(super) fn outgoing_id(&self, index: u32) -> EdgeId {
        EdgeId {
            peer: self.peer,
            index,
            generation: self.outgoing.generation(index),
        }
    }

    #[inline]
    pub(crate) fn incoming_id(&self, index: u32) -> EdgeId {
        EdgeId {
            peer: self.peer,
            index,
            generation: self.incoming.generation(index),
        }
    }

    #[inline]
    pub(super) fn out_mut(&mut self, edge: EdgeId) -> Option<&mut EdgeOut> {
        self.outgoing.get_exact(edge.index, edge.generation)
    }

    /// Why the peer refuses messages of an outgoing edge, if it has refused one.
    pub(crate) fn refusal(&self, edge: EdgeId) -> Option<RefusedReason> {
        self.out(edge)?.refused()
    }

    fn out(&self, edge: EdgeId) -> Option<&EdgeOut> {
        let is_same = self.outgoing.generation(edge.index) == edge.generation;
        self.outgoing.get(edge.index).filter(|_| is_same)
    }

    /// Endpoints and life of an outgoing edge.
    pub(crate) fn key(&mut self, edge: EdgeId) -> Option<EdgeKey> {
        Some(self.out_mut(edge)?.key())
    }

    /// The next message of an outgoing edge.
    pub(crate) fn position(&self, edge: EdgeId) -> Option<EdgePosition> {
        let out = self.out(edge)?;
        Some(EdgePosition {
            life: out.key().life,
            sequence: out.next(),
        })
    }

    /// Begins a message of `total` bytes.
    #[inline]
    pub(crate) fn begin(&mut self, edge: EdgeId, total: u64) -> Result<MessageStart, BeginError> {
        let out = (self.outgoing).get_exact(edge.index, edge.generation);
        let out = out.ok_or(BeginError::Gone)?;
        if let Some(reason) = out.refused() {
            return Err(BeginError::Refused(reason));
        }
        let is_new = !out.is_known();
        if let Some(sequence) = out.begin(total) {
            let key = out.key();
            // A longer message may have waited and been withdrawn.
            if !self.wanting.is_empty() {
                self.wanting.retain(|wanting| *wanting != edge.index);
            }
            return Ok(MessageStart {
                key,
                sequence,
                space: 0,
                is_first: true,
                is_new,
            });
        }
        let (left, is_ending) = (out.left(), out.is_ending());
        if !self.wanting.contains(&edge.index) {
            self.wanting.push(edge.index);
            self.credit_requests_due |= !is_ending;
        }
        Err(BeginError::NoCredit { left })
    }

    /// Undoes the last [`begin`](Self::begin). Nothing of that message may have been sent.
    pub(crate) fn retract(&mut self, edge: EdgeId, total: u64) {
        if let Some(out) = self.out_mut(edge) {
            out.retract(total);
        }
    }

    /// Numbers an unreliable message. All edges share one sequence, because lives are reused and
    /// pieces of an earlier one may still be at the receiver.
    pub(crate) fn begin_unreliable(&mut self, edge: EdgeId) -> Result<(EdgeKey, u32), BeginError> {
        let out = self.out_mut(edge).ok_or(BeginError::Gone)?;
        if out.is_ending() {
            // The end of its earlier life was announced.
            return Err(BeginError::NoCredit { left: 0 });
        }
        let key = out.key();
        self.next_unreliable = self.next_unreliable.wrapping_add(1);
        Ok((key, self.next_unreliable))
    }

    /// Withdraws the message that waits for credit on this edge.
    pub(crate) fn cancel(&mut self, edge: EdgeId) {
        if let Some(out) = self.out_mut(edge) {
            out.give_up();
            self.wanting.retain(|wanting| *wanting != edge.index);
        }
    }

    /// Allows messages again after a refusal.
    pub(crate) fn clear_refusal(&mut self, edge: EdgeId) {
        // Opening and closing a handle does exactly that.
        if let Some(out) = self.out_mut(edge) {
            out.open_again();
            out.close(false);
        }
    }

    /// Closes one handle of an outgoing edge. The edge ends with its last handle.
    pub(crate) fn close_edge(&mut self, edge: EdgeId, shared: &mut Shared) {
        if let Some(out) = self.out_mut(edge) {
            let closed = out.close(false);
            self.closed(edge.index, closed, shared);
        }
    }

    /// Ends all edges of a source endpoint that was closed.
    pub(crate) fn close_source(&mut self, source: u32, shared: &mut Shared) {
        let edges: Vec<u32> = self.outgoing.range(source).collect();
        for index in edges {
            if let Some(out) = self.outgoing.get_mut(index) {
                let closed = out.close(true);
                self.closed(index, closed, shared);
            }
        }
    }

    fn closed(&mut self, index: u32, closed: Closed, shared: &mut Shared) {
        if closed == Closed::Nothing {
            return;
        }
        self.wanting.retain(|wanting| *wanting != index);
        let Some(out) = self.outgoing.get(index) else {
            return;
        };
        let (key, sequence) = (out.key(), out.next());
        match closed {
            Closed::Urgency => self.notices.push_back(Notice::End { key, sequence }),
            Closed::Forget => self.forget_outgoing(index, shared),
            Closed::Nothing => {}
        }
    }

    fn forget_outgoing(&mut self, index: u32, shared: &mut Shared) {
        let edge = self.outgoing_id(index);
        if let Some(out) = self.outgoing.get(index) {
            let key = out.key();
            self.outgoing.remove((key.source, key.target), index);
            shared.event(Event::EdgeForgotten { edge });
        }
    }

    /// Number of outgoing edges, including those that are ending.
    pub(crate) fn outgoing_len(&self) -> usize {
        self.outgoing.len()
    }

    /// Applies a credit grant from the receiver.
    pub(crate) fn on_credit(&mut self, key: EdgeKey, limit: u64, shared: &mut Shared) {
        let Some(index) = self.outgoing.find((key.source, key.target)) else {
            return;
        };
        let Some(out) = self.outgoing.get_mut(index) else {
            return;
        };
        // A late grant of an earlier life has another key.
        if out.key() == key && !out.is_ending() && out.grant(limit) {
            self.wanting.retain(|wanting| *wanting != index);
            let edge = self.outgoing_id(index);
            shared.event(Event::Credit { edge });
        }
    }

    /// The peer refuses messages from `sequence` on.
    pub(crate) fn on_refused(
        &mut self,
        (source, target): (u32, u32),
        sequence: u32,
        reason: RefusedReason,
        shared: &mut Shared,
    ) {
        self.refusals.received += 1;
        let mut refused = Event::Refused {
            peer: self.peer,
            ends: (source, target),
            edge: None,
            sequence: sequence.into(),
            before: EdgePosition::default(),
            reason,
        };
        // The end of the edge may have overtaken the refusal.
        if let Some(index) = self.outgoing.find((source, target))
            && let Some(out) = self.outgoing.get_mut(index)
        {
            let widened = widen(sequence, out.next());
            let (life, before) = (out.key().life, out.refuse(widened, reason));
            if before == u64::MAX {
                self.wanting.retain(|wanting| *wanting != index);
            }
            let id = self.outgoing_id(index);
            if let Event::Refused {
                edge,
                sequence,
                before: limit,
                ..
            } = &mut refused
            {
                (*edge, *sequence) = (Some(id), widened);
                *limit = EdgePosition {
                    life,
                    sequence: before,
                };
            }
        }
        shared.event(refused);
    }

    /// The peer has forgotten an edge that ended, but may have refused messages of it: the end takes
    /// effect when all units below `unit` are settled.
    pub(crate) fn on_disputed_end(&mut self, key: EdgeKey, unit: u64) {
        let found = self.outgoing.find((key.source, key.target));
        let out = found.and_then(|index| self.outgoing.get(index));
        // At most one per edge, whatever the peer sends.
        let is_known = self.disputed_ends.iter().any(|(known, _)| *known == key);
        if out.is_some_and(|out| out.key() == key) && !is_known {
            self.disputed_ends.push((key, unit));
        }
    }

    /// All units below `unit` are settled.
    pub(crate) fn on_settled(&mut self, unit: u64, shared: &mut Shared) {
        while let Some(at) = (self.disputed_ends.iter()).position(|(_, below)| *below <= unit) {
            let (key, _) = self.disputed_ends.remove(at);
            self.on_forgotten(key, shared);
        }
    }

    /// Hashes the ends that wait for units, relative to the unit `base`.
    pub(crate) fn hash_disputed_ends(&self, base: u64, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        let ends = self.disputed_ends.iter();
        ends.for_each(|(key, unit)| (key, unit.saturating_sub(base)).hash(hasher));
    }

    /// The peer has forgotten an edge that ended.
    pub(crate) fn on_forgotten(&mut self, key: EdgeKey, shared: &mut Shared) {
        let Some(index) = self.outgoing.find((key.source, key.target)) else {
            return;
        };
        let (life, credit, first) = (self.next_life, self.initial_credit, self.first);
        let Some(out) = self.outgoing.get_mut(index).filter(|out| out.key() == key) else {
            return;
        };
        let waited = out.was_short();
        match out.forgotten(life, credit, first) {
            None => {}
            Some(false) => self.forget_outgoing(index, shared),
            Some(true) => {
                self.next_life_number();
                if waited {
                    self.wanting.retain(|wanting| *wanting != index);
                    let edge = self.outgoing_id(index);
                    shared.event(Event::Credit { edge });
                }
            }
        }
    }
}
