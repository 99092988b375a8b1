//! Memory that receivers offer. A long message is assembled there, so that it need not be copied
//! when it is received.
//!
//! A waiting receiver offers memory if no message is waiting; posted receives offer several
//! pieces at once. An arriving long message gets the first piece that no earlier message will
//! need, if it fits. If the message is then received elsewhere, or the receiver leaves, the offer
//! is withdrawn and its contents are copied into a buffer.

use std::sync::Arc;

use dipole_link::Region as Memory;
use dipole_proto::{EdgeId, PeerId};

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
    endpoint: u32,
    pub(super) memory: Memory,
    pub(super) state: OfferState,
}

/// All offers, in order for each endpoint.
#[derive(Debug, Default)]
pub(super) struct OfferTable {
    all: Vec<Offer>,
    last_id: OfferId,
}

impl OfferTable {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn of(&self, endpoint: u32) -> impl Iterator<Item = &Offer> {
        self.all.iter().filter(move |it| it.endpoint == endpoint)
    }

    pub(super) fn with(&self, endpoint: u32, memory: &Memory) -> Option<&Offer> {
        self.of(endpoint).find(|it| it.memory.is_same(memory))
    }

    /// Adds an offer after the existing ones.
    pub(super) fn offer(&mut self, endpoint: u32, memory: &Memory) {
        if self.with(endpoint, memory).is_none() {
            self.last_id = self.last_id.wrapping_add(1);
            self.all.push(Offer {
                id: self.last_id,
                endpoint,
                memory: memory.clone(),
                state: OfferState::Free,
            });
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
        let of_endpoint = self.all.iter_mut().filter(|it| it.endpoint == endpoint);
        let mut free = of_endpoint.filter(|it| it.state == OfferState::Free);
        let found = free.nth(ahead).filter(|it| total <= it.memory.bytes())?;
        found.state = OfferState::Pieces(edge, sequence);
        Some(AssemblyBuffer::Offered(found.memory.clone(), found.id))
    }

    /// Marks a message in offered memory as complete.
    pub(super) fn completed(&mut self, id: OfferId, total: usize) {
        if let Some(found) = self.all.iter_mut().find(|it| it.id == id) {
            found.state = OfferState::Message(total);
        }
    }

    /// Removes an offer and returns it with its contents.
    pub(super) fn withdraw(&mut self, id: OfferId) -> Option<Offer> {
        let at = self.all.iter().position(|it| it.id == id)?;
        Some(self.all.remove(at))
    }

    /// Removes the offers of a closed endpoint.
    pub(super) fn forget_endpoint(&mut self, endpoint: u32) {
        self.all.retain(|it| it.endpoint != endpoint);
    }

    /// Frees offers that hold incomplete messages of a peer that is gone.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        for it in &mut self.all {
            if matches!(it.state, OfferState::Pieces(edge, _) if edge.peer == peer) {
                it.state = OfferState::Free;
            }
        }
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
        receives.completed(first, 10);
        receives.forget_peer(peer());
        let state = [first, second].map(|id| receives.withdraw(id).expect("offered").state);
        assert_eq!(state, [OfferState::Message(10), OfferState::Free]);
        assert!(receives.is_empty());
    }
}
