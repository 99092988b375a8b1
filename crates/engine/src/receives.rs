//! Memory that receivers offer. A long message is assembled there, so that it need not be copied
//! when it is received.
//!
//! A waiting receiver offers memory if no message is waiting; posted receives offer several
//! pieces at once. An arriving long message gets the first piece that no earlier message will
//! need, if it fits. If the message is then received elsewhere, or the receiver leaves, the offer
//! is withdrawn and its contents are copied into a buffer. Slots of a port also get messages that
//! arrive as a whole.

use std::sync::Arc;

use dipole_link::Region as Memory;
use dipole_proto::{EdgeId, PeerId};
use rustc_hash::FxHashMap;

use crate::inbox::{Buffer, Buffers};

/// Identifies memory offered for a receive.
pub(crate) type OfferId = u32;

/// Where a message is assembled.
#[derive(Debug)]
pub(super) enum AssemblyBuffer {
    Owned(Buffer),
    /// The message is in offered memory.
    Offered(Memory, OfferId),
}

impl AssemblyBuffer {
    /// Lets `write` fill a part, which must be within bounds.
    pub(super) fn fill(&mut self, at: usize, length: usize, write: impl FnOnce(&mut [u8])) {
        match self {
            AssemblyBuffer::Owned(buffer) => write(&mut buffer.bytes_mut()[at..at + length]),
            AssemblyBuffer::Offered(memory, _) => {
                let filled = memory.fill(at, length, write);
                debug_assert!(
                    filled.is_ok(),
                    "offers are withdrawn before memory is revoked"
                );
            }
        }
    }
}

/// The contents of offered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferState {
    Free,
    /// Pieces of an incomplete message.
    Pieces(EdgeId, u64),
    /// A complete message of this length, which is in the endpoint's inbox.
    Message(usize),
}

/// Memory offered by a receiver.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) id: OfferId,
    pub(super) memory: Memory,
    pub(super) state: OfferState,
}

/// The offers of one endpoint, oldest first.
#[derive(Debug, Default)]
struct Offers {
    all: Vec<Offer>,
    /// They are slots of a port.
    are_slots: bool,
}

/// All offers, in order for each endpoint.
#[derive(Debug, Default)]
pub(super) struct OfferTable {
    by_endpoint: FxHashMap<u32, Offers>,
    count: usize,
    last_id: OfferId,
}

impl OfferTable {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn of(&self, endpoint: u32) -> impl Iterator<Item = &Offer> {
        let offers = self.by_endpoint.get(&endpoint);
        offers.into_iter().flat_map(|offers| &offers.all)
    }

    pub(super) fn with(&self, endpoint: u32, memory: &Memory) -> Option<&Offer> {
        self.of(endpoint).find(|it| it.memory.is_same(memory))
    }

    /// Adds an offer after the existing ones.
    pub(super) fn offer(&mut self, endpoint: u32, memory: &Memory) {
        if self.with(endpoint, memory).is_none() {
            self.last_id = self.last_id.wrapping_add(1);
            self.count += 1;
            self.by_endpoint
                .entry(endpoint)
                .or_default()
                .all
                .push(Offer {
                    id: self.last_id,
                    memory: memory.clone(),
                    state: OfferState::Free,
                });
        }
    }

    /// Adds the offer of a port's slot after the existing ones.
    pub(super) fn offer_slot(&mut self, endpoint: u32, memory: &Memory) {
        self.offer(endpoint, memory);
        if let Some(offers) = self.by_endpoint.get_mut(&endpoint) {
            offers.are_slots = true;
        }
    }

    /// Claims memory for a message whose first piece has arrived. `ahead` earlier messages that
    /// are not in offered memory will be received first.
    pub(super) fn claim(
        &mut self,
        endpoint: u32,
        (edge, sequence): (EdgeId, u64),
        total: usize,
        ahead: usize,
    ) -> Option<AssemblyBuffer> {
        let offers = self.by_endpoint.get_mut(&endpoint)?;
        let found = offers.free(total, ahead)?;
        found.state = OfferState::Pieces(edge, sequence);
        Some(AssemblyBuffer::Offered(found.memory.clone(), found.id))
    }

    /// Claims a port's slot for a message of `total` bytes that has arrived as a whole, while
    /// `unread` messages are waiting.
    pub(super) fn claim_slot(
        &mut self,
        endpoint: u32,
        total: usize,
        unread: usize,
    ) -> Option<&Offer> {
        let offers = self.by_endpoint.get_mut(&endpoint)?;
        if !offers.are_slots {
            return None;
        }
        let landed = |it: &&Offer| matches!(it.state, OfferState::Message(_));
        let ahead = unread.saturating_sub(offers.all.iter().filter(landed).count());
        let found = offers.free(total, ahead)?;
        found.state = OfferState::Message(total);
        Some(found)
    }

    /// Marks a message in offered memory as complete.
    pub(super) fn completed(&mut self, endpoint: u32, id: OfferId, total: usize) {
        let offers = self.by_endpoint.get_mut(&endpoint);
        let mut all = offers.into_iter().flat_map(|offers| &mut offers.all);
        if let Some(found) = all.find(|it| it.id == id) {
            found.state = OfferState::Message(total);
        }
    }

    /// Removes an offer and returns it with its contents.
    pub(super) fn withdraw(&mut self, endpoint: u32, id: OfferId) -> Option<Offer> {
        let offers = self.by_endpoint.get_mut(&endpoint)?;
        let at = offers.all.iter().position(|it| it.id == id)?;
        let withdrawn = offers.all.remove(at);
        self.count -= 1;
        if offers.all.is_empty() && !offers.are_slots {
            self.by_endpoint.remove(&endpoint);
        }
        Some(withdrawn)
    }

    /// Removes the offers of a closed endpoint.
    pub(super) fn forget_endpoint(&mut self, endpoint: u32) {
        let forgotten = self.by_endpoint.remove(&endpoint);
        self.count -= forgotten.map_or(0, |offers| offers.all.len());
    }

    /// Frees offers that hold incomplete messages of a peer that is gone.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        let all = self.by_endpoint.values_mut();
        for it in all.flat_map(|offers| &mut offers.all) {
            if matches!(it.state, OfferState::Pieces(edge, _) if edge.peer == peer) {
                it.state = OfferState::Free;
            }
        }
    }
}

impl Offers {
    /// The first free memory that `ahead` earlier messages leave, if a message of `total` bytes
    /// fits.
    fn free(&mut self, total: usize, ahead: usize) -> Option<&mut Offer> {
        let mut free = self
            .all
            .iter_mut()
            .filter(|it| it.state == OfferState::Free);
        free.nth(ahead).filter(|it| total <= it.memory.bytes())
    }
}

/// Copies the contents of offered memory.
pub(super) fn copy(memory: &Memory, total: usize, buffers: &Arc<Buffers>) -> Buffer {
    let mut buffer = buffers.take(total);
    let copied = memory.read(0, buffer.bytes_mut());
    debug_assert!(
        copied.is_ok(),
        "offers are withdrawn before memory is revoked"
    );
    buffer
}

#[cfg(test)]
mod tests {
    use dipole_proto::{Config, Machine};

    use super::*;

    /// The same peer each time, since nothing else is random.
    fn peer() -> PeerId {
        let mut machine = Machine::new(Config::default(), 1, [1, 2], &[]);
        machine.open_pipe(machine.greeting()).expect("room")
    }

    fn offered(lengths: &[usize]) -> (OfferTable, Vec<Memory>) {
        let mut receives = OfferTable::default();
        let memories: Vec<Memory> = (lengths.iter())
            .map(|length| Memory::new(*length).expect("memory"))
            .collect();
        for memory in &memories {
            receives.offer(7, memory);
        }
        (receives, memories)
    }

    fn edge(index: u32) -> EdgeId {
        EdgeId {
            peer: peer(),
            index,
            generation: 0,
        }
    }

    /// Index of the memory that a message claims.
    fn claimed(
        receives: &mut OfferTable,
        memories: &[Memory],
        of: (u32, u64),
        rest: (usize, usize),
    ) -> Option<usize> {
        let (total, ahead) = rest;
        match receives.claim(7, (edge(of.0), of.1), total, ahead)? {
            AssemblyBuffer::Offered(memory, _) => {
                memories.iter().position(|it| it.is_same(&memory))
            }
            AssemblyBuffer::Owned(_) => None,
        }
    }

    #[test]
    fn a_message_gets_the_first_memory_that_earlier_ones_leave() {
        let (mut receives, memories) = offered(&[100, 100, 50, 100]);
        let mut claim = |of, rest| claimed(&mut receives, &memories, of, rest);
        assert_eq!(claim((0, 0), (100, 0)), Some(0));
        // A short message comes in between.
        assert_eq!(claim((0, 2), (50, 1)), Some(2));
        assert_eq!(claim((0, 3), (100, 1)), Some(3));
        assert_eq!(claim((1, 0), (101, 0)), None);
        assert_eq!(claim((1, 0), (100, 0)), Some(1));
        assert_eq!(claim((1, 1), (1, 0)), None);
    }

    #[test]
    fn a_withdrawn_offer_has_its_contents_and_a_lost_peer_leaves_none() {
        let (mut receives, memories) = offered(&[100, 100]);
        receives.offer(7, &memories[0]);
        assert_eq!(receives.of(7).count(), 2);
        assert_eq!(claimed(&mut receives, &memories, (0, 0), (10, 0)), Some(0));
        assert_eq!(claimed(&mut receives, &memories, (0, 1), (10, 0)), Some(1));
        let [first, second] = [0, 1].map(|at| receives.with(7, &memories[at]).expect("offered").id);
        receives.completed(7, first, 10);
        receives.forget_peer(peer());
        let state = [first, second].map(|id| receives.withdraw(7, id).expect("offered").state);
        assert_eq!(state, [OfferState::Message(10), OfferState::Free]);
        assert!(receives.is_empty());
    }

    #[test]
    fn only_slots_of_a_port_take_whole_messages_and_leave_room_for_unread_ones() {
        let (mut receives, memories) = offered(&[100, 100]);
        assert!(receives.claim_slot(7, 10, 0).is_none());
        for memory in &memories {
            receives.offer_slot(8, memory);
        }
        let mut claim = |total, unread| {
            let found = receives.claim_slot(8, total, unread)?;
            memories.iter().position(|it| it.is_same(&found.memory))
        };
        assert_eq!(claim(101, 0), None);
        assert_eq!(claim(100, 1), Some(1));
        // One of the two unread messages is in the second slot; the first one is for the other.
        assert_eq!(claim(10, 2), None);
        assert_eq!(claim(10, 1), Some(0));
        receives.forget_endpoint(8);
        assert_eq!(receives.of(8).count(), 0);
        receives.forget_endpoint(7);
        assert!(receives.is_empty());
    }
}
