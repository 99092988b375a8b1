//! Control messages and gets that their edges had no room for.
//!
//! Each edge has its own queue, so a peer that accepts nothing holds up only what is meant for it. The
//! queues are short, because a program gets `FI_EAGAIN` before it fills them.

use dipole_node::{Bytes, Operation, RegionKey, RegionMemory, SendError};

use super::{Exchange, UNTRACKED, failure_of};
use crate::ffi::{AGAIN, Failure};
use crate::name::Destination;
use crate::wire::Head;

/// A part of a message or region that is to be fetched.
pub(super) struct Get {
    /// Number of the operation that it belongs to.
    pub(super) number: u64,
    pub(super) key: RegionKey,
    pub(super) offset: u64,
    pub(super) into: RegionMemory,
}

/// Something that is to be sent to a peer.
pub(super) enum Waiting {
    /// A message that the peer's progress depends on.
    Control(Bytes),
    Get(Get),
}

impl Exchange {
    /// Sends a control message, at once or as soon as its edge has room.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) fn send_control(&mut self, to: Destination, head: &Head) -> Result<(), Failure> {
        let index = self.edge_index(to)?;
        let message = Bytes::copy_from_slice(&head.encode());
        self.edges.queue(index, Waiting::Control(message));
        self.advance_queue(index);
        Ok(())
    }

    /// Begins gets from a peer, at once or as soon as its edge has room.
    pub(super) fn fetch_parts(&mut self, index: usize, gets: impl Iterator<Item = Get>) {
        for get in gets {
            self.edges.queue(index, Waiting::Get(get));
        }
        self.advance_queue(index);
    }

    /// Sends what waits for room, as far as there is room now.
    #[cold]
    pub(super) fn advance_queues(&mut self) {
        for index in self.edges.take_held_up() {
            self.advance_queue(index);
        }
    }

    fn advance_queue(&mut self, index: usize) {
        while let Some(item) = self.edges.at(index).waiting.pop_front() {
            match self.start(index, &item) {
                Ok(()) => {}
                Err(AGAIN) => {
                    self.edges.put_back(index, item);
                    return;
                }
                Err(failure) => {
                    // A peer that is gone needs no control messages.
                    if let Waiting::Get(get) = item {
                        self.on_part(get.number, Err(failure));
                    }
                }
            }
        }
    }

    fn start(&mut self, index: usize, item: &Waiting) -> Result<(), Failure> {
        let edge = &self.edges.at(index).edge;
        let posted = match item {
            Waiting::Control(message) => match edge.try_send(message) {
                Ok(()) => return Ok(()),
                // Shared bytes do not count as copies, of which a process may post only so many.
                Err(SendError::Full { .. }) => {
                    edge.post_bytes(Operation::Message, message.clone(), UNTRACKED)
                }
                Err(error) => Err(error),
            },
            Waiting::Get(get) => edge.post_get(get.key, get.offset, get.into.clone(), get.number),
        };
        posted.map_err(|error| failure_of(&error))?;
        self.outstanding.add_posted(1);
        Ok(())
    }
}
