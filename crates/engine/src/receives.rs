//! Memory that readers offer: a long message to their endpoint is put together there, and need
//! not be copied when it is read.
//!
//! A reader who waits offers memory while nothing waits for it, and receives that are posted
//! several at once. A long message that begins to arrive gets the first that no message ahead of it
//! will need, if it fits. Should a message be read elsewhere than it lies, or the reader leave, the
//! memory is withdrawn: what lies there is copied into a buffer.

use std::sync::Arc;

use dipole_link::Region as Memory;
use dipole_proto::{EdgeId, PeerId};

use crate::inbox::{Buffer, Buffers};

/// Names memory that was offered.
pub(crate) type OfferId = u32;

/// Where a message is put together.
#[derive(Debug)]
pub(super) enum Place {
    Buffer(Buffer),
    /// In memory of a reader of its endpoint.
    Reader(Memory, OfferId),
}

impl Place {
    /// Lets `write` fill a part, which lies inside.
    pub(super) fn fill(&mut self, at: usize, length: usize, write: impl FnOnce(&mut [u8])) {
        match self {
            Place::Buffer(buffer) => write(&mut buffer.bytes_mut()[at..at + length]),
            Place::Reader(memory, _) => {
                let filled = memory.fill(at, length, write);
                debug_assert!(filled.is_ok(), "withdrawn before it is revoked");
            }
        }
    }
}

/// What lies in memory of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Nothing,
    /// Pieces of this message.
    Pieces(EdgeId, u64),
    /// A message of so many bytes, which is in the endpoint's inbox.
    Message(usize),
}

/// Memory that a reader has offered.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: OfferId,
    endpoint: u32,
    pub(super) memory: Memory,
    pub(super) holds: Holds,
}

/// See the module. Those of an endpoint are in the order of their offers.
#[derive(Debug, Default)]
pub(super) struct Receives {
    all: Vec<Receive>,
    last_id: OfferId,
}

impl Receives {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Those of an endpoint.
    pub(super) fn of(&self, endpoint: u32) -> impl Iterator<Item = &Receive> {
        self.all.iter().filter(move |it| it.endpoint == endpoint)
    }

    /// The one with this memory.
    pub(super) fn with(&self, endpoint: u32, memory: &Memory) -> Option<&Receive> {
        self.of(endpoint).find(|it| it.memory.is_same(memory))
    }

    /// A reader offers memory, behind what is offered.
    pub(super) fn offer(&mut self, endpoint: u32, memory: &Memory) {
        if self.with(endpoint, memory).is_none() {
            self.last_id = self.last_id.wrapping_add(1);
            self.all.push(Receive {
                id: self.last_id,
                endpoint,
                memory: memory.clone(),
                holds: Holds::Nothing,
            });
        }
    }

    /// Memory for a message whose first piece has come, while `ahead` messages that lie elsewhere
    /// will be read before it.
    pub(super) fn claim(
        &mut self,
        endpoint: u32,
        (edge, sequence): (EdgeId, u64),
        total: usize,
        ahead: usize,
    ) -> Option<Place> {
        let of_endpoint = self.all.iter_mut().filter(|it| it.endpoint == endpoint);
        let mut free = of_endpoint.filter(|it| it.holds == Holds::Nothing);
        let found = free.nth(ahead).filter(|it| total <= it.memory.bytes())?;
        found.holds = Holds::Pieces(edge, sequence);
        Some(Place::Reader(found.memory.clone(), found.id))
    }

    /// The message that has this memory is complete.
    pub(super) fn completed(&mut self, id: OfferId, total: usize) {
        if let Some(found) = self.all.iter_mut().find(|it| it.id == id) {
            found.holds = Holds::Message(total);
        }
    }

    /// Takes memory out that was offered, and what lies there.
    pub(super) fn withdraw(&mut self, id: OfferId) -> Option<Receive> {
        let at = self.all.iter().position(|it| it.id == id)?;
        Some(self.all.remove(at))
    }

    /// An endpoint is closed.
    pub(super) fn forget_endpoint(&mut self, endpoint: u32) {
        self.all.retain(|it| it.endpoint != endpoint);
    }

    /// A peer is gone: pieces of its messages are worth nothing.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        for it in &mut self.all {
            if matches!(it.holds, Holds::Pieces(edge, _) if edge.peer == peer) {
                it.holds = Holds::Nothing;
            }
        }
    }
}

/// A copy of what lies in memory of a reader.
pub(super) fn copy(memory: &Memory, total: usize, buffers: &Arc<Buffers>) -> Buffer {
    let mut buffer = buffers.take(total);
    let copied = memory.read(0, buffer.bytes_mut());
    debug_assert!(copied.is_ok(), "withdrawn before it is revoked");
    buffer
}

#[cfg(test)]
mod tests {
    use dipole_proto::{Config, Machine};

    use super::*;

    /// The same each time: nothing is drawn otherwise.
    fn peer() -> PeerId {
        let mut machine = Machine::new(Config::default(), 1, [1, 2], &[]);
        machine.open_pipe(machine.greeting()).expect("room")
    }

    fn offered(lengths: &[usize]) -> (Receives, Vec<Memory>) {
        let mut receives = Receives::default();
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

    /// Which of the memories a message gets.
    fn claimed(
        receives: &mut Receives,
        memories: &[Memory],
        of: (u32, u64),
        rest: (usize, usize),
    ) -> Option<usize> {
        let (total, ahead) = rest;
        match receives.claim(7, (edge(of.0), of.1), total, ahead)? {
            Place::Reader(memory, _) => memories.iter().position(|it| it.is_same(&memory)),
            Place::Buffer(_) => None,
        }
    }

    #[test]
    fn messages_get_the_first_memory_that_those_ahead_leave() {
        let (mut receives, memories) = offered(&[100, 100, 50, 100]);
        let mut claim = |of, rest| claimed(&mut receives, &memories, of, rest);
        assert_eq!(claim((0, 0), (100, 0)), Some(0));
        // One that is short comes between.
        assert_eq!(claim((0, 2), (50, 1)), Some(2));
        assert_eq!(claim((0, 3), (100, 1)), Some(3));
        assert_eq!(claim((1, 0), (101, 0)), None);
        assert_eq!(claim((1, 0), (100, 0)), Some(1));
        assert_eq!(claim((1, 1), (1, 0)), None);
    }

    #[test]
    fn what_is_withdrawn_tells_what_lies_there_and_a_peer_that_is_gone_leaves_nothing() {
        let (mut receives, memories) = offered(&[100, 100]);
        receives.offer(7, &memories[0]);
        assert_eq!(receives.of(7).count(), 2);
        assert_eq!(claimed(&mut receives, &memories, (0, 0), (10, 0)), Some(0));
        assert_eq!(claimed(&mut receives, &memories, (0, 1), (10, 0)), Some(1));
        let [first, second] = [0, 1].map(|at| receives.with(7, &memories[at]).expect("offered").id);
        receives.completed(first, 10);
        receives.forget_peer(peer());
        let holds = [first, second].map(|id| receives.withdraw(id).expect("offered").holds);
        assert_eq!(holds, [Holds::Message(10), Holds::Nothing]);
        assert!(receives.is_empty());
    }
}
