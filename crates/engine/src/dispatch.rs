//! Where arriving messages go: the one way into inboxes, whatever carried them.
//!
//! A whole message is copied once, into its endpoint's token buffer pool; one that comes in
//! pieces is put together in a buffer of its own, which then becomes the token.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use dipole_link::Region as Memory;
use dipole_link::shm::Payload;
use dipole_proto::wire::{EdgeKey, Payloads};
use dipole_proto::{EdgeId, PeerId};

use super::endpoints::{EndpointState, EndpointTable, Tells};
use super::receives::{self, Holds, OfferId, Place, Receives};
use crate::inbox::{Buffer, Buffers, Charge, NOTICE_BYTES, Origin};
use dipole_driver::{Ready, WaitKey};

/// Unreliable messages that one endpoint holds at most.
const UNRELIABLE_LIMIT: usize = 4096;
/// Unreliable messages of which pieces are kept; the oldest makes room.
const UNFINISHED_LIMIT: usize = 64;

/// The bytes that an event refers to.
pub(super) trait Source {
    /// Copies a range of them; `place` is as long.
    fn copy(&self, range: Range<usize>, place: &mut [u8]);

    /// The bytes of a range that holds the records of a run of messages.
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

    /// Runs come in packets alone.
    fn records(&self, _range: Range<usize>) -> &[u8] {
        &[]
    }
}

/// A message on its way into an inbox.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) origin: Origin,
    pub(super) target: u32,
    pub(super) charge: Charge,
}

/// A piece of a message: of which, and where in it.
#[derive(Clone, Debug)]
pub(super) struct MessagePart {
    pub(super) edge: EdgeId,
    pub(super) target: u32,
    /// The number of the message on its edge.
    pub(super) sequence: u64,
    /// Where it begins in the message.
    pub(super) offset: u64,
    /// The length of the message.
    pub(super) total: u64,
    /// Where it lies in its source.
    pub(super) bytes: Range<usize>,
}

/// A piece of an unreliable message: of which, and where in it.
#[derive(Clone, Debug)]
pub(super) struct UnreliablePart {
    pub(super) peer: PeerId,
    pub(super) key: EdgeKey,
    pub(super) sequence: u32,
    pub(super) offset: u64,
    pub(super) total: u64,
    /// Where it lies in its source.
    pub(super) bytes: Range<usize>,
}

/// A message of which pieces have arrived.
#[derive(Debug)]
struct Assembly {
    edge: EdgeId,
    target: u32,
    sequence: u64,
    total: usize,
    place: Place,
}

/// An unreliable message of which pieces have arrived.
#[derive(Debug)]
struct UnreliableAssembly {
    peer: PeerId,
    key: EdgeKey,
    sequence: u32,
    got: u64,
    buffer: Buffer,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Dispatch {
    pub(super) endpoints: EndpointTable,
    assemblies: Vec<Assembly>,
    /// The assembly that got the last piece: the next is nearly always for it too.
    last: usize,
    /// The one begun last at the end.
    unreliable: VecDeque<UnreliableAssembly>,
    buffers: Arc<Buffers>,
    /// Memory that readers have offered.
    pub(super) receives: Receives,
    /// Exported endpoints that got a message since descriptors were last made ready.
    pub(super) newly_ready: Vec<u32>,
    /// Endpoints with a handler that have messages and whose handler does not run.
    pub(super) ports: VecDeque<u32>,
    unreliable_dropped: u64,
}

impl Dispatch {
    /// Buffers for long messages.
    pub(super) fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// Unreliable messages dropped because their endpoint held too many.
    pub(super) fn unreliable_dropped(&self) -> u64 {
        self.unreliable_dropped
    }

    /// Reliable messages of which pieces have arrived.
    pub(super) fn unfinished(&self) -> usize {
        self.assemblies.len()
    }

    /// Puts a message that `fill` writes into its inbox; false if there is none.
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
        state
            .inbox
            .push_with(arrival.charge, arrival.origin, length, fill);
        note_ready(state, &mut self.newly_ready, &mut self.ports);
        ready.notify(WaitKey::Endpoint(arrival.target));
        true
    }

    /// Puts the notice of a put into its inbox; false if there is none.
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
        note_ready(state, &mut self.newly_ready, &mut self.ports);
        ready.notify(WaitKey::Endpoint(arrival.target));
        true
    }

    /// Puts a run of messages into their inbox.
    pub(super) fn deliver_run(&mut self, arrival: &Arrival, run: Payloads<'_>, ready: &mut Ready) {
        let Some(state) = self.endpoints.get_mut(arrival.target) else {
            return;
        };
        for message in run {
            let (charge, origin, length) = (arrival.charge, arrival.origin, message.len());
            state.inbox.push_with(charge, origin, length, |place| {
                place.copy_from_slice(message);
            });
        }
        note_ready(state, &mut self.newly_ready, &mut self.ports);
        ready.notify(WaitKey::Endpoint(arrival.target));
    }

    /// The same with a message in a buffer of its own.
    fn deliver_buffer(&mut self, arrival: &Arrival, buffer: Buffer, ready: &mut Ready) {
        if let Some(state) = self.endpoints.get_mut(arrival.target) {
            state
                .inbox
                .push_buffer(arrival.charge, arrival.origin, buffer);
            note_ready(state, &mut self.newly_ready, &mut self.ports);
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

    /// Keeps a piece of a message; its first, even an empty one, makes room for all of it. The edge
    /// hands over the message with the number `next` as its next one.
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
                place: offered.unwrap_or_else(|| Place::Buffer(self.buffers.take(total))),
            });
            self.last = self.assemblies.len() - 1;
            self.last
        });
        let (at, piece) = (length(offset), bytes.len());
        let place = &mut self.assemblies[index].place;
        place.fill(at, piece, |place| source.copy(bytes, place));
    }

    /// How many messages that lie in no reader's memory are likely to be read before one that
    /// begins now: those that wait, those that have begun, and those before it on its edge of
    /// which nothing has come.
    #[cold]
    fn ahead(&self, target: u32, (edge, sequence): (EdgeId, u64), next: u64) -> usize {
        let waiting = (self.endpoints.get(target)).map_or(0, |state| state.inbox.len());
        let of = self.receives.of(target);
        let placed = of
            .filter(|it| matches!(it.holds, Holds::Message(_)))
            .count();
        let begun = self.assemblies.iter().filter(|it| it.target == target);
        let in_buffers = begun.filter(|it| matches!(it.place, Place::Buffer(_)));
        let before = |it: &&Assembly| it.edge == edge && (next..sequence).contains(&it.sequence);
        let known = self.assemblies.iter().filter(before).count();
        let unknown = length(sequence.saturating_sub(next)).saturating_sub(known);
        waiting.saturating_sub(placed) + in_buffers.count() + unknown
    }

    /// Lets `write` fill a part of a message of which pieces have arrived; `None` if there is no
    /// such message.
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

    /// All pieces of a message have come, and it is next in order.
    pub(super) fn complete(&mut self, arrival: &Arrival, sequence: u64, ready: &mut Ready) {
        if let Charge::Edge(edge) = arrival.charge
            && let Some(index) = self.find(edge, sequence)
        {
            let Assembly { total, place, .. } = self.assemblies.swap_remove(index);
            match place {
                Place::Buffer(buffer) => self.deliver_buffer(arrival, buffer, ready),
                Place::Reader(_, offer) => self.deliver_placed(arrival, (total, offer), ready),
            }
        }
    }

    /// A message is complete in memory of its endpoint's reader.
    fn deliver_placed(
        &mut self,
        arrival: &Arrival,
        (total, offer): (usize, OfferId),
        ready: &mut Ready,
    ) {
        if let Some(state) = self.endpoints.get_mut(arrival.target) {
            self.receives.completed(offer, total);
            (state.inbox).push_placed(arrival.charge, arrival.origin, (total, offer));
            note_ready(state, &mut self.newly_ready, &mut self.ports);
            ready.notify(WaitKey::Endpoint(arrival.target));
        }
    }

    /// A reader who waits offers memory for the next long message, unless one has.
    pub(super) fn offer(&mut self, endpoint: u32, memory: &Memory) {
        if self.receives.of(endpoint).next().is_none() {
            self.offer_more(endpoint, memory);
        }
    }

    /// A receive is posted: its memory is offered behind that of the others.
    pub(super) fn offer_more(&mut self, endpoint: u32, memory: &Memory) {
        if self.endpoints.get(endpoint).is_some() {
            self.receives.offer(endpoint, memory);
        }
    }

    /// In which memory of a reader's the oldest message of an endpoint lies.
    pub(super) fn next_placed(&self, endpoint: u32) -> Option<OfferId> {
        self.endpoints.get(endpoint)?.inbox.next_placed()
    }

    /// True if the oldest message of an endpoint lies in this memory, which is the reader's again.
    pub(super) fn take_placed(&mut self, endpoint: u32, memory: &Memory) -> bool {
        let placed = self.next_placed(endpoint);
        let found = self.receives.with(endpoint, memory).map(|it| it.id);
        placed.is_some()
            && placed == found
            && found.and_then(|id| self.receives.withdraw(id)).is_some()
    }

    /// Messages of an endpoint are read elsewhere than in the memory that was offered.
    #[inline]
    pub(super) fn withdraw(&mut self, endpoint: u32) {
        if !self.receives.is_empty() {
            self.withdraw_all(endpoint);
        }
    }

    #[cold]
    fn withdraw_all(&mut self, endpoint: u32) {
        let first = |receives: &Receives| receives.of(endpoint).next().map(|it| it.id);
        while let Some(id) = first(&self.receives) {
            self.withdraw_offered(endpoint, id);
        }
    }

    /// A reader takes memory back: what lies there is copied into a buffer.
    pub(super) fn withdraw_offered(&mut self, endpoint: u32, id: OfferId) {
        let Some(receive) = self.receives.withdraw(id) else {
            return;
        };
        match receive.holds {
            Holds::Nothing => {}
            Holds::Pieces(edge, sequence) => {
                if let Some(index) = self.find(edge, sequence) {
                    let assembly = &mut self.assemblies[index];
                    let buffer = receives::copy(&receive.memory, assembly.total, &self.buffers);
                    assembly.place = Place::Buffer(buffer);
                }
            }
            Holds::Message(total) => {
                if let Some(state) = self.endpoints.get_mut(endpoint) {
                    let buffer = receives::copy(&receive.memory, total, &self.buffers);
                    state.inbox.replace_placed(id, buffer);
                }
            }
        }
    }

    /// A piece of an unreliable message. A new number discards an unfinished one.
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

    /// An endpoint was closed: what has come for it in part is dropped.
    pub(super) fn forget_target(&mut self, target: u32) {
        self.assemblies.retain(|assembly| assembly.target != target);
        self.unreliable
            .retain(|unreliable| unreliable.key.target != target);
        self.receives.forget_endpoint(target);
    }

    /// A peer is gone: what has come from it in part is dropped.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.assemblies
            .retain(|assembly| assembly.edge.peer != peer);
        self.unreliable.retain(|unreliable| unreliable.peer != peer);
        self.receives.forget_peer(peer);
    }
}

#[inline]
fn note_ready(state: &mut EndpointState, descriptors: &mut Vec<u32>, ports: &mut VecDeque<u32>) {
    if state.tells == Tells::Waiters || state.listed {
        return;
    }
    state.listed = true;
    match state.tells {
        Tells::Port(_) => ports.push_back(state.endpoint),
        _ => descriptors.push(state.endpoint),
    }
}

/// A length that the protocol has checked against the longest message.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no message is longer than memory")
}
