//! Opening and closing endpoints, and taking messages that have arrived.

use dipole_link::Region as Memory;
use dipole_proto::{Instant, PeerId};

use super::Engine;
use super::endpoints::Notifies;
use super::receives::OfferState;
use crate::address::{Address, EndpointId};
use crate::inbox::{Charge, Token};
use crate::inbox::{Message, Pool};

/// Length and source of a message stored in the caller's memory, or the length of one that does
/// not fit.
type Taken = Result<(usize, Address), usize>;

impl Engine {
    /// Opens an inbox for messages to `endpoint`.
    pub fn open_endpoint(&mut self, endpoint: u32) {
        self.core.open_endpoint(endpoint);
        self.core.refusals.forget_source(endpoint);
    }

    /// Closes an inbox: unread messages are dropped, new ones are refused, and its edges end.
    pub fn close_endpoint(&mut self, endpoint: u32) {
        self.forget_export(endpoint);
        self.tend_operations(self.stepped_at);
        self.close_regions_of(endpoint);
        self.flush_all();
        self.core.close_endpoint(self.stepped_at, endpoint);
        self.core.handle_events(&[][..]);
        self.push_records();
    }

    /// Takes the oldest message of an endpoint and grants its room again.
    #[inline]
    pub fn take(&mut self, now: Instant, endpoint: u32) -> Option<Message> {
        self.core.dispatch.withdraw(endpoint);
        self.pop(now, endpoint)
    }

    /// Takes the oldest message without withdrawing offers.
    #[inline]
    pub(super) fn pop(&mut self, now: Instant, endpoint: u32) -> Option<Message> {
        let state = self.core.dispatch.endpoints.get_mut(endpoint)?;
        let Token { charge, message } = state.inbox.pop()?;
        let exported = state.notifies == Notifies::Descriptor;
        if let Charge::Edge(edge) = charge {
            let machine = &mut self.core.machine;
            machine.consumed(now, edge, message.length() as u64);
            if machine.has_ready_pipe() {
                self.push_records();
            }
        }
        if exported {
            self.unsignal(endpoint);
        }
        Some(message)
    }

    /// Stores the oldest message of an endpoint in the caller's memory; returns its length and
    /// source. If no message is waiting, the memory is offered for the next long message, and must be
    /// [withdrawn](Self::withdraw) before it is revoked.
    ///
    /// # Errors
    /// The length of a message that does not fit, which stays in the queue.
    pub fn take_into(&mut self, now: Instant, endpoint: u32, memory: &Memory) -> Option<Taken> {
        let Some((_, length)) = self.next_arrival(endpoint) else {
            self.core.dispatch.offer(endpoint, memory);
            return None;
        };
        if length > memory.bytes() {
            return Some(Err(length));
        }
        let message = if self.core.dispatch.take_placed(endpoint, memory) {
            self.pop(now, endpoint)?
        } else {
            let message = self.take(now, endpoint)?;
            memory.write(0, &message).ok()?;
            message
        };
        Some(Ok((length, message.source())))
    }

    /// Stores the oldest message of an endpoint in the memory of a posted receive; returns the
    /// index of the receive, and the message's length and source. This is the receive whose memory
    /// already holds the message, unless an earlier one is empty; otherwise the first empty one.
    /// For later messages, the first receives should be [offered](Self::offer_posted).
    ///
    /// # Errors
    /// The length of a message that does not fit, which stays in the queue.
    pub fn take_posted<'a>(
        &mut self,
        now: Instant,
        endpoint: u32,
        posted: impl Fn(usize) -> Option<&'a Memory>,
    ) -> Option<(usize, Taken)> {
        let (_, length) = self.next_arrival(endpoint)?;
        let dispatch = &mut self.core.dispatch;
        let all = || (0..).map_while(&posted);
        let placed = dispatch.next_placed(endpoint);
        let is_empty = |memory: &Memory| {
            let offered = dispatch.receives.with(endpoint, memory);
            offered.is_none_or(|it| it.state == OfferState::Free)
        };
        let lies_in = |memory: &Memory| {
            let offered = dispatch.receives.with(endpoint, memory);
            placed.is_some() && offered.map(|it| it.id) == placed
        };
        // If all hold pieces of other messages, the first one is used.
        let at = all()
            .position(|it| is_empty(it) || lies_in(it))
            .unwrap_or(0);
        let memory = posted(at)?;
        if length > memory.bytes() {
            self.withdraw(endpoint, memory);
            return Some((at, Err(length)));
        }
        if dispatch.take_placed(endpoint, memory) {
            let message = self.pop(now, endpoint)?;
            return Some((at, Ok((length, message.source()))));
        }
        if let Some(offer) = placed {
            dispatch.withdraw_offered(endpoint, offer);
        }
        self.withdraw(endpoint, memory);
        let message = self.pop(now, endpoint)?;
        memory.write(0, &message).ok()?;
        Some((at, Ok((length, message.source()))))
    }

    /// Number of offers of an endpoint.
    pub fn offered(&self, endpoint: u32) -> usize {
        self.core.dispatch.receives.of(endpoint).count()
    }

    /// Offers the memory of a posted receive for a long message, unless it is offered already. It
    /// must be [withdrawn](Self::withdraw) before it is revoked, except after
    /// [`take_posted`](Self::take_posted) returned it.
    pub fn offer_posted(&mut self, endpoint: u32, memory: &Memory) {
        self.core.dispatch.offer_more(endpoint, memory);
    }

    /// Withdraws memory that was offered for the next long message.
    pub fn withdraw(&mut self, endpoint: u32, memory: &Memory) {
        let dispatch = &mut self.core.dispatch;
        if let Some(offer) = dispatch.receives.with(endpoint, memory).map(|it| it.id) {
            dispatch.withdraw_offered(endpoint, offer);
        }
    }

    /// Takes at most `limit` messages of an endpoint, oldest first; returns their number.
    pub fn take_many(
        &mut self,
        now: Instant,
        endpoint: u32,
        limit: usize,
        messages: &mut impl Extend<Message>,
    ) -> usize {
        self.core.dispatch.withdraw(endpoint);
        let Some(state) = self.core.dispatch.endpoints.get_mut(endpoint) else {
            return 0;
        };
        let machine = &mut self.core.machine;
        let mut taken = 0;
        while taken < limit
            && let Some(Token { charge, message }) = state.inbox.pop()
        {
            if let Charge::Edge(edge) = charge {
                machine.consumed(now, edge, message.len() as u64);
            }
            messages.extend(Some(message));
            taken += 1;
        }
        let exported = state.notifies == Notifies::Descriptor;
        if machine.has_ready_pipe() {
            self.push_records();
        }
        if exported && taken > 0 {
            self.unsignal(endpoint);
        }
        taken
    }

    /// True if a message is waiting at this endpoint.
    #[inline]
    #[must_use]
    pub fn has_message(&self, endpoint: u32) -> bool {
        let state = self.core.dispatch.endpoints.get(endpoint);
        state.is_some_and(|state| !state.inbox.is_empty())
    }

    /// Gives an endpoint a contiguous pool of `bytes`; returns its location.
    pub fn set_pool(&mut self, endpoint: u32, bytes: usize) -> Option<Pool> {
        let state = self.core.dispatch.endpoints.get_mut(endpoint)?;
        state.inbox.set_arena(bytes)
    }

    /// Source and length of the oldest message of an endpoint.
    #[inline]
    #[must_use]
    pub fn next_arrival(&self, endpoint: u32) -> Option<(Address, usize)> {
        let state = self.core.dispatch.endpoints.get(endpoint)?;
        let message = state.inbox.next()?;
        Some((message.source(), message.length()))
    }

    /// Endpoints that have sent to this one and are still open.
    #[must_use]
    pub fn sources(&self, endpoint: u32) -> Vec<Address> {
        let sources = self.core.machine.sources(endpoint);
        let addresses = sources.map(|(peer, source)| Address {
            node: self.core.peers.node(peer),
            endpoint: EndpointId(source),
        });
        addresses.collect()
    }

    /// The process of an endpoint that has sent to this one and is still open.
    pub fn peer_of_source(&self, endpoint: u32, source: Address) -> Option<PeerId> {
        let mut sources = self.core.machine.sources(endpoint);
        let is_it = |(peer, from): &(PeerId, u32)| {
            *from == source.endpoint.0 && self.core.peers.node(*peer) == source.node
        };
        sources.find(is_it).map(|(peer, _)| peer)
    }

    /// Why a peer is gone, if that is remembered.
    pub fn gone_reason(&self, peer: PeerId) -> Option<crate::gone::GoneReason> {
        self.core.peers.gone_reason(peer)
    }
}
