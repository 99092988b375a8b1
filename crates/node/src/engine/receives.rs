//! Memory of readers who wait: a long message to their endpoint is put together there, and
//! need not be copied when it is read.
//!
//! A reader offers memory while nothing waits for it. The first long message that begins to
//! arrive and fits gets it. Should another be read before that one, or the reader leave, the
//! memory is withdrawn: what lies there is copied into a buffer.

use std::sync::Arc;

use dipole_link::Region as Memory;
use dipole_proto::{EdgeId, PeerId};

use crate::inbox::{Buffer, Buffers};

/// Where a message is put together.
#[derive(Debug)]
pub(super) enum Place {
    Buffer(Buffer),
    /// In memory of a reader of its endpoint.
    Reader(Memory),
}

impl Place {
    /// Lets `write` fill a part, which lies inside.
    pub(super) fn fill(&mut self, at: usize, length: usize, write: impl FnOnce(&mut [u8])) {
        match self {
            Place::Buffer(buffer) => write(&mut buffer.bytes_mut()[at..at + length]),
            Place::Reader(memory) => {
                let filled = memory.fill(at, length, write);
                debug_assert!(filled.is_ok(), "withdrawn before it is revoked");
            }
        }
    }
}

/// What lies in memory of a reader.
#[derive(Debug)]
pub(super) enum Holds {
    Nothing,
    /// Pieces of this message.
    Pieces(EdgeId, u64),
    /// A message of so many bytes, which is in the endpoint's inbox.
    Message(usize),
}

#[derive(Debug)]
struct Receive {
    endpoint: u32,
    memory: Memory,
    bytes: usize,
    holds: Holds,
}

/// See the module. At most one of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Receives(Vec<Receive>);

impl Receives {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn position(&self, endpoint: u32) -> Option<usize> {
        self.0.iter().position(|it| it.endpoint == endpoint)
    }

    fn find(&mut self, endpoint: u32) -> Option<&mut Receive> {
        let at = self.position(endpoint)?;
        self.0.get_mut(at)
    }

    /// A reader offers memory, unless one has.
    pub(super) fn offer(&mut self, endpoint: u32, memory: &Memory) {
        if self.find(endpoint).is_none() {
            self.0.push(Receive {
                endpoint,
                memory: memory.clone(),
                bytes: memory.bytes(),
                holds: Holds::Nothing,
            });
        }
    }

    /// Memory for a message whose first piece has come.
    pub(super) fn claim(
        &mut self,
        endpoint: u32,
        (edge, sequence): (EdgeId, u64),
        total: usize,
    ) -> Option<Place> {
        let found = self.find(endpoint)?;
        if !matches!(found.holds, Holds::Nothing) || total > found.bytes {
            return None;
        }
        found.holds = Holds::Pieces(edge, sequence);
        Some(Place::Reader(found.memory.clone()))
    }

    /// The message that has memory of a reader is complete.
    pub(super) fn completed(&mut self, endpoint: u32, total: usize) {
        if let Some(found) = self.find(endpoint) {
            found.holds = Holds::Message(total);
        }
    }

    /// True if a message is in this memory, which then is the reader's again.
    pub(super) fn take(&mut self, endpoint: u32, memory: &Memory) -> bool {
        let found = self.position(endpoint).filter(|at| {
            let it = &self.0[*at];
            it.memory.is_same(memory) && matches!(it.holds, Holds::Message(_))
        });
        found.map(|at| self.0.swap_remove(at)).is_some()
    }

    /// Takes out what a reader has offered, and what lies there.
    pub(super) fn withdraw(&mut self, endpoint: u32) -> Option<(Memory, Holds)> {
        let at = self.position(endpoint)?;
        let Receive { memory, holds, .. } = self.0.swap_remove(at);
        Some((memory, holds))
    }

    /// True if an endpoint's readers have offered this memory.
    pub(super) fn has(&self, endpoint: u32, memory: &Memory) -> bool {
        let found = self.position(endpoint);
        found.is_some_and(|at| self.0[at].memory.is_same(memory))
    }

    /// A peer is gone: pieces of its messages are worth nothing.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        for it in &mut self.0 {
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
