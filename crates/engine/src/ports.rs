//! Messages of ports, which their handlers get in the engine's memory or in slots of the port.
//!
//! Free slots are offered to arriving messages, like the memory of posted receives. The owner of
//! the slots keeps track of which are free.

use dipole_link::Region as Memory;
use dipole_proto::{Instant, PeerId};

use super::Engine;
use super::endpoints::{Notifies, PortRef};
use super::receives::OfferState;
use crate::address::Address;
use crate::inbox::Message;

/// The next message of a port with slots.
#[derive(Debug)]
pub enum Landed {
    /// It is in a slot.
    Slot {
        /// Index of the slot among the free ones.
        index: usize,
        /// Length of the message.
        length: usize,
        /// The endpoint that sent it.
        source: Address,
        /// The process that sent it.
        peer: PeerId,
    },
    /// It is longer than a slot, or the notice of a put.
    Outside(Message),
}

impl Engine {
    /// From now on, an endpoint's messages are passed to a port's handler.
    pub fn set_port(&mut self, endpoint: u32, port: PortRef) {
        let dispatch = &mut self.core.dispatch;
        if let Some(state) = dispatch.endpoints.get_mut(endpoint) {
            state.notifies = Notifies::Port(port);
            state.listed = !state.inbox.is_empty();
            dispatch.ports.extend(state.listed.then_some(endpoint));
        }
    }

    /// True if a port has a message and its handler is not running.
    #[inline]
    pub fn has_port_message(&self) -> bool {
        !self.core.dispatch.ports.is_empty()
    }

    /// The next port with messages, and its endpoint. The endpoint is skipped until
    /// [`port_returned`](Self::port_returned).
    pub fn next_port(&mut self) -> Option<(u32, PortRef)> {
        loop {
            let endpoint = self.core.dispatch.ports.pop_front()?;
            let state = self.core.dispatch.endpoints.get(endpoint);
            if let Some(Notifies::Port(port)) = state.map(|state| state.notifies) {
                return Some((endpoint, port));
            }
        }
    }

    /// The handler of a port returned, or a slot became free: its next message may be handled.
    #[inline]
    pub fn port_returned(&mut self, endpoint: u32, port: PortRef) {
        let dispatch = &mut self.core.dispatch;
        if let Some(state) = dispatch.endpoints.get_mut(endpoint)
            && state.notifies == Notifies::Port(port)
        {
            state.listed = !state.inbox.is_empty();
            dispatch.ports.extend(state.listed.then_some(endpoint));
        }
    }

    /// Offers a free slot of a port to messages that arrive, unless it is offered already. It must
    /// not be revoked before the endpoint is closed.
    pub fn offer_slot(&mut self, endpoint: u32, port: PortRef, slot: &Memory) {
        let dispatch = &mut self.core.dispatch;
        let state = dispatch.endpoints.get(endpoint);
        if state.is_some_and(|state| state.notifies == Notifies::Port(port)) {
            dispatch.offer_slot(endpoint, slot);
        }
    }

    /// Takes the oldest message of a port whose `free` slots have `slot_bytes` each; `None` if
    /// there are no messages, or no free slots. A message that did not arrive in a slot is copied
    /// into one.
    pub fn take_landed<'a>(
        &mut self,
        now: Instant,
        endpoint: u32,
        slot_bytes: usize,
        free: impl Fn(usize) -> Option<&'a Memory>,
    ) -> Option<Landed> {
        let dispatch = &mut self.core.dispatch;
        let next = dispatch.endpoints.get(endpoint)?.inbox.next_payload();
        let Some(length) = next.filter(|length| *length <= slot_bytes) else {
            return self.pop(now, endpoint).map(Landed::Outside);
        };
        let offered = |slot: &Memory| dispatch.receives.with(endpoint, slot);
        let all = || (0..).map_while(&free);
        let placed = dispatch.next_placed(endpoint);
        let chosen = match placed {
            Some(offer) => all().position(|slot| offered(slot).is_some_and(|it| it.id == offer)),
            None => all()
                .position(|slot| offered(slot).is_none_or(|it| it.state == OfferState::Free))
                // All hold later messages or parts of them; one of these moves out.
                .or_else(|| free(0).map(|_| 0)),
        };
        let index = chosen?;
        let slot = free(index)?;
        let is_there = dispatch.take_placed(endpoint, slot);
        if !is_there {
            self.withdraw(endpoint, slot);
        }
        let message = self.pop(now, endpoint)?;
        if !is_there && slot.write(0, &message).is_err() {
            return Some(Landed::Outside(message));
        }
        Some(Landed::Slot {
            index,
            length,
            source: message.source(),
            peer: message.peer(),
        })
    }
}
