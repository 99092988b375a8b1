//! Delivers arriving messages to inboxes, for the network and shared memory.
//!
//! A whole message is copied once, into its endpoint's token buffer pool. A message that arrives
//! in pieces is assembled in its own buffer, which then becomes the token.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use dipole_link::Region as Memory;
use dipole_link::shm::Payload;
use dipole_proto::wire::{EdgeKey, Payloads};
use dipole_proto::{EdgeId, PeerId};

use super::endpoints::{EndpointState, EndpointTable, Notifies};
use super::receives::{self, AssemblyBuffer, OfferId, OfferState, OfferTable};
use crate::inbox::{Buffer, Buffers, Charge, NOTICE_BYTES, Origin};
use dipole_driver::{Ready, WaitKey};

/// Limit of unreliable messages in an inbox.
const UNRELIABLE_LIMIT: usize = 4096;
/// Limit of incomplete unreliable messages; the oldest is dropped.
const UNFINISHED_LIMIT: usize = 64;

/// The bytes that an event refers to.
pub(super) trait Source {
    /// Copies a range to `place`, which has the same length.
    fn copy(&self, range: Range<usize>, place: &mut [u8]);

    /// The bytes of a range that contains the records of several messages.
    fn records(&self, range: Range<usize>) -> &[u8];
}

impl Source for [u8] {
    #[inline]
    fn copy(&self, range: Range<usize>, place: &mut [u8]) {
        place.copy_from_slice(&self[range]);
    }

    #[inline]
    fn records(&self, range: Range<usize>) -> &[u8] {
        &self[range]
    }
}

impl Source for Payload<'_> {
    #[inline]
    fn copy(&self, range: Range<usize>, place: &mut [u8]) {
        if !place.is_empty() {
            self.part(range).copy_to(place);
        }
    }

    /// Only packets contain several messages.
    fn records(&self, _range: Range<usize>) -> &[u8] {
        &[]
    }
}

/// Metadata of a message being delivered.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) origin: Origin,
    pub(super) target: u32,
    pub(super) charge: Charge,
}

/// A piece of a message, identified by edge and sequence number.
#[derive(Clone, Debug)]
pub(super) struct MessagePart {
    pub(super) edge: EdgeId,
    pub(super) target: u32,
    /// The sequence number of the message on its edge.
    pub(super) sequence: u64,
    /// Offset of the piece in the message.
    pub(super) offset: u64,
    /// The length of the message.
    pub(super) total: u64,
    /// Range of the piece in its source.
    pub(super) bytes: Range<usize>,
}

/// A piece of an unreliable message.
#[derive(Clone, Debug)]
pub(super) struct UnreliablePart {
    pub(super) peer: PeerId,
    pub(super) key: EdgeKey,
    pub(super) sequence: u32,
    pub(super) offset: u64,
    pub(super) total: u64,
    /// Range of the piece in its source.
    pub(super) bytes: Range<usize>,
}

/// A message that has partly arrived.
#[derive(Debug)]
struct Assembly {
    edge: EdgeId,
    target: u32,
    sequence: u64,
    total: usize,
    place: AssemblyBuffer,
}

/// An unreliable message that has partly arrived.
#[derive(Debug)]
struct UnreliableAssembly {
    peer: PeerId,
    key: EdgeKey,
    sequence: u32,
    got: u64,
    buffer: Buffer,
}

/// All inboxes and incomplete messages.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    pub(super) endpoints: EndpointTable,
    assemblies: Vec<Assembly>,
    /// The assembly that got the last piece; the next piece is usually for it, too.
    last: usize,
    /// Incomplete unreliable messages, oldest first.
    unreliable: VecDeque<UnreliableAssembly>,
    buffers: Arc<Buffers>,
    /// Memory offered by receivers.
    pub(super) receives: OfferTable,
    /// Exported endpoints with new messages since their descriptors were last updated.
    pub(super) newly_ready: Vec<u32>,
    /// Endpoints whose handler has messages to handle and is not running.
    pub(super) ports: VecDeque<u32>,
    unreliable_dropped: u64,
}

impl Dispatch {
    /// The buffers for long messages.
    pub(super) fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// Unreliable messages dropped because their endpoint held too many.
    pub(super) fn unreliable_dropped(&self) -> u64 {
        self.unreliable_dropped
    }

    /// Number of incomplete reliable messages.
    pub(super) fn unfinished(&self) -> usize {
        self.assemblies.len()
    }

    /// Delivers a message that `fill` writes; false if the endpoint does not exist.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        arrival: &Arrival,
        length: usize,
        ready: &mut Ready,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(state) = self.endpoints.get_mut(arrival.target) else {
            return false;
        };
        push_whole(state, &mut self.receives, arrival, length, fill);
        mark_ready(state, &mut self.newly_ready, &mut self.ports);
        ready.notify(WaitKey::Endpoint(arrival.target));
        true
    }

    /// Delivers the notice of a put; false if the endpoint does not exist.
    pub(super) fn deliver_notice(
        &mut self,
        arrival: &Arrival,
        notice: &[u8; NOTICE_BYTES],
        ready: &mut Ready,
    ) -> bool {
        let Some(state) = self.endpoints.get_mut(arrival.target) else {
            return false;
        };
        (state.inbox).push_notice(arrival.charge, arrival.origin, notice);
        mark_ready(state, &mut self.newly_ready, &mut self.ports);
        ready.notify(WaitKey::Endpoint(arrival.target));
        true
    }

    /// Delivers several messages of one packet.
    pub(super) fn deliver_run(&mut self, arrival: &Arrival, run: Payloads<'_>, ready: &mut Ready) {
        let Some(state) = self.endpoints.get_mut(arrival.target) else {
            return;
        };
        for message in run {
            let fill = |place: &mut [u8]| place.copy_from_slice(message);
            push_whole(state, &mut self.receives, arrival, message.len(), fill);
        }
        mark_ready(state, &mut self.newly_ready, &mut self.ports);
        ready.notify(WaitKey::Endpoint(arrival.target));
    }

    /// Delivers a message that is already in its own buffer.
    fn deliver_buffer(&mut self, arrival: &Arrival, buffer: Buffer, ready: &mut Ready) {
        if let Some(state) = self.endpoints.get_mut(arrival.target) {
            state
                .inbox
                .push_buffer(arrival.charge, arrival.origin, buffer);
            mark_ready(state, &mut self.newly_ready, &mut self.ports);
            ready.notify(WaitKey::Endpoint(arrival.target));
        }
    }

    fn find(&mut self, edge: EdgeId, sequence: u64) -> Option<usize> {
        let is_it = |assembly: &Assembly| assembly.edge == edge && assembly.sequence == sequence;
        if self.assemblies.get(self.last).is_some_and(is_it) {
            return Some(self.last);
        }
        self.last = self.assemblies.iter().rposition(is_it)?;
        Some(self.last)
    }

    /// Stores a piece of a message. The first piece, even an empty one, allocates room for the
    /// whole message. `next` is the number of the edge's next message to be delivered.
    pub(super) fn hold(
        &mut self,
        part: MessagePart,
        source: &(impl Source + ?Sized),
        next: impl FnOnce() -> u64,
    ) {
        let MessagePart {
            edge,
            target,
            sequence,
            offset,
            total,
            bytes,
        } = part;
        let index = self.find(edge, sequence).unwrap_or_else(|| {
            let total = length(total);
            let offered = match self.receives.is_empty() {
                true => None,
                false => {
                    let ahead = self.ahead(target, (edge, sequence), next());
                    self.receives.claim(target, (edge, sequence), total, ahead)
                }
            };
            self.assemblies.push(Assembly {
                edge,
                target,
                sequence,
                total,
                place: offered.unwrap_or_else(|| AssemblyBuffer::Owned(self.buffers.take(total))),
            });
            self.last = self.assemblies.len() - 1;
            self.last
        });
        let (at, piece) = (length(offset), bytes.len());
        let place = &mut self.assemblies[index].place;
        place.fill(at, piece, |place| source.copy(bytes, place));
    }

    /// Estimates how many messages outside offered memory will be received before a new one:
    /// unread messages, incomplete ones, and earlier ones of its edge that have not begun to
    /// arrive.
    #[cold]
    fn ahead(&self, target: u32, (edge, sequence): (EdgeId, u64), next: u64) -> usize {
        let waiting = (self.endpoints.get(target)).map_or(0, |state| state.inbox.len());
        let of = self.receives.of(target);
        let placed = of
            .filter(|it| matches!(it.state, OfferState::Message(_)))
            .count();
        let begun = self.assemblies.iter().filter(|it| it.target == target);
        let in_buffers = begun.filter(|it| matches!(it.place, AssemblyBuffer::Owned(_)));
        let before = |it: &&Assembly| it.edge == edge && (next..sequence).contains(&it.sequence);
        let known = self.assemblies.iter().filter(before).count();
        let unknown = length(sequence.saturating_sub(next)).saturating_sub(known);
        waiting.saturating_sub(placed) + in_buffers.count() + unknown
    }

    /// Lets `write` fill a part of an incomplete message; `None` if the message does not exist.
    pub(super) fn fill(
        &mut self,
        (edge, sequence): (EdgeId, u64),
        (at, length): (usize, usize),
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let index = self.find(edge, sequence)?;
        self.assemblies[index].place.fill(at, length, write);
        Some(())
    }

    /// Delivers a message whose pieces have all arrived and which is next in order.
    pub(super) fn complete(&mut self, arrival: &Arrival, sequence: u64, ready: &mut Ready) {
        if let Charge::Edge(edge) = arrival.charge
            && let Some(index) = self.find(edge, sequence)
        {
            let Assembly { total, place, .. } = self.assemblies.swap_remove(index);
            match place {
                AssemblyBuffer::Owned(buffer) => self.deliver_buffer(arrival, buffer, ready),
                AssemblyBuffer::Offered(_, offer) => {
                    self.deliver_placed(arrival, (total, offer), ready)
                }
            }
        }
    }

    /// Delivers a message that is complete in offered memory.
    fn deliver_placed(
        &mut self,
        arrival: &Arrival,
        (total, offer): (usize, OfferId),
        ready: &mut Ready,
    ) {
        if let Some(state) = self.endpoints.get_mut(arrival.target) {
            self.receives.completed(arrival.target, offer, total);
            (state.inbox).push_placed(arrival.charge, arrival.origin, (total, offer));
            mark_ready(state, &mut self.newly_ready, &mut self.ports);
            ready.notify(WaitKey::Endpoint(arrival.target));
        }
    }

    /// Offers memory for the next long message, unless the endpoint already has an offer.
    pub(super) fn offer(&mut self, endpoint: u32, memory: &Memory) {
        if self.receives.of(endpoint).next().is_none() {
            self.offer_more(endpoint, memory);
        }
    }

    /// Adds an offer of a posted receive after the existing ones.
    pub(super) fn offer_more(&mut self, endpoint: u32, memory: &Memory) {
        if self.endpoints.get(endpoint).is_some() {
            self.receives.offer(endpoint, memory);
        }
    }

    /// Adds the offer of a port's slot.
    pub(super) fn offer_slot(&mut self, endpoint: u32, memory: &Memory) {
        self.receives.offer_slot(endpoint, memory);
    }

    /// The offer that holds the oldest message of an endpoint, if any.
    pub(super) fn next_placed(&self, endpoint: u32) -> Option<OfferId> {
        self.endpoints.get(endpoint)?.inbox.next_placed()
    }

    /// If this memory holds the oldest message of an endpoint, withdraws the offer and returns
    /// true.
    pub(super) fn take_placed(&mut self, endpoint: u32, memory: &Memory) -> bool {
        let placed = self.next_placed(endpoint);
        let found = self.receives.with(endpoint, memory).map(|it| it.id);
        placed.is_some()
            && placed == found
            && found
                .and_then(|id| self.receives.withdraw(endpoint, id))
                .is_some()
    }

    /// Withdraws all offers of an endpoint whose messages are being received elsewhere.
    #[inline]
    pub(super) fn withdraw(&mut self, endpoint: u32) {
        if !self.receives.is_empty() {
            self.withdraw_all(endpoint);
        }
    }

    #[cold]
    fn withdraw_all(&mut self, endpoint: u32) {
        let first = |receives: &OfferTable| receives.of(endpoint).next().map(|it| it.id);
        while let Some(id) = first(&self.receives) {
            self.withdraw_offered(endpoint, id);
        }
    }

    /// Withdraws an offer; its contents are copied into a buffer.
    pub(super) fn withdraw_offered(&mut self, endpoint: u32, id: OfferId) {
        let Some(receive) = self.receives.withdraw(endpoint, id) else {
            return;
        };
        match receive.state {
            OfferState::Free => {}
            OfferState::Pieces(edge, sequence) => {
                if let Some(index) = self.find(edge, sequence) {
                    let assembly = &mut self.assemblies[index];
                    let buffer = receives::copy(&receive.memory, assembly.total, &self.buffers);
                    assembly.place = AssemblyBuffer::Owned(buffer);
                }
            }
            OfferState::Message(total) => {
                if let Some(state) = self.endpoints.get_mut(endpoint) {
                    let buffer = receives::copy(&receive.memory, total, &self.buffers);
                    state.inbox.replace_placed(id, buffer);
                }
            }
        }
    }

    /// Handles a piece of an unreliable message. A new sequence number discards an incomplete one.
    pub(super) fn unreliable(
        &mut self,
        arrival: &Arrival,
        part: UnreliablePart,
        source: &(impl Source + ?Sized),
        ready: &mut Ready,
    ) {
        let UnreliablePart {
            peer,
            key,
            sequence,
            offset,
            total,
            bytes,
        } = part;
        let Some(state) = self.endpoints.get(arrival.target) else {
            return;
        };
        if state.inbox.len() >= UNRELIABLE_LIMIT {
            self.unreliable_dropped += 1;
            return;
        }
        if bytes.len() as u64 == total {
            self.deliver(arrival, bytes.len(), ready, |place| {
                source.copy(bytes, place);
            });
            return;
        }
        let mut known = self.unreliable.iter();
        let known = known.position(|known| known.peer == peer && known.key == key);
        let current = known.and_then(|index| self.unreliable.remove(index));
        let current = current.filter(|current| current.sequence == sequence);
        let mut current = current.unwrap_or_else(|| UnreliableAssembly {
            peer,
            key,
            sequence,
            got: 0,
            buffer: self.buffers.take(length(total)),
        });
        let at = length(offset);
        if let Some(place) = current.buffer.bytes_mut().get_mut(at..at + bytes.len()) {
            current.got += bytes.len() as u64;
            source.copy(bytes, place);
        }
        if current.got == total {
            self.deliver_buffer(arrival, current.buffer, ready);
            return;
        }
        if self.unreliable.len() >= UNFINISHED_LIMIT {
            self.unreliable.pop_front();
        }
        self.unreliable.push_back(current);
    }

    /// Drops incomplete messages for an endpoint that was closed.
    pub(super) fn forget_target(&mut self, target: u32) {
        self.assemblies.retain(|assembly| assembly.target != target);
        self.unreliable
            .retain(|unreliable| unreliable.key.target != target);
        self.receives.forget_endpoint(target);
    }

    /// Drops incomplete messages from a peer that is gone.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.assemblies
            .retain(|assembly| assembly.edge.peer != peer);
        self.unreliable.retain(|unreliable| unreliable.peer != peer);
        self.receives.forget_peer(peer);
    }
}

/// Adds a whole message to an inbox: it lands in a slot of the port if one is free for it.
#[inline]
fn push_whole(
    state: &mut EndpointState,
    offers: &mut OfferTable,
    arrival: &Arrival,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    let (charge, origin) = (arrival.charge, arrival.origin);
    if matches!(state.notifies, Notifies::Port(_))
        && !offers.is_empty()
        && let Some(slot) = offers.claim_slot(arrival.target, length, state.inbox.len())
    {
        let filled = slot.memory.fill(0, length, fill);
        debug_assert!(filled.is_ok(), "slots are revoked after their port");
        state.inbox.push_placed(charge, origin, (length, slot.id));
    } else {
        state.inbox.push_with(charge, origin, length, fill);
    }
}

#[inline]
fn mark_ready(state: &mut EndpointState, descriptors: &mut Vec<u32>, ports: &mut VecDeque<u32>) {
    if state.notifies == Notifies::Waiters || state.listed {
        return;
    }
    state.listed = true;
    match state.notifies {
        Notifies::Port(_) => ports.push_back(state.endpoint),
        _ => descriptors.push(state.endpoint),
    }
}

/// Converts a length that the protocol has already checked.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("messages are shorter than memory")
}
