//! Messages of a port with slots, as its handler gets them.

use std::fmt;
use std::sync::Arc;

use dipole_proto::PeerId;

use crate::Message;
use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::error::SendError;
use crate::region::{RegionError, RegionMemory};
use crate::slots::FilledSlot;

/// A message of a port with [`Slots`](crate::Slots).
#[derive(Debug)]
pub enum Landed {
    /// It lies in a slot.
    InSlot(SlotMessage),
    /// It is longer than a slot, or the notice of a put into a region of the port.
    Outside(Message),
}

/// A message in a slot of its port. The slot is free again when this is dropped, which may be after
/// the handler has returned and on any thread. Until then no other message is stored there.
pub struct SlotMessage {
    endpoint: Arc<Endpoint>,
    filled: FilledSlot,
}

impl SlotMessage {
    pub(crate) fn new(endpoint: &Arc<Endpoint>, filled: FilledSlot) -> SlotMessage {
        let endpoint = Arc::clone(endpoint);
        SlotMessage { endpoint, filled }
    }

    /// Index of the slot.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.filled.slot.index
    }

    /// Length of the message in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filled.length
    }

    /// True if the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The endpoint that sent it.
    #[must_use]
    pub fn source(&self) -> Address {
        self.filled.source
    }

    /// The process that sent it.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.filled.peer
    }

    /// The memory of the slot; the message begins at offset 0.
    #[must_use]
    pub fn memory(&self) -> &RegionMemory {
        &self.filled.memory
    }

    /// Passes the message to `look`, in place. It must not call this library.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] if the memory was revoked.
    pub fn show<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Result<R, RegionError> {
        self.memory().show(0, self.len(), look)
    }

    /// Replies to the message: see [`Endpoint::reply`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::reply`].
    pub fn reply(&self, payload: &[u8]) -> Result<(), SendError> {
        self.endpoint
            .reply_to((self.source(), self.peer()), payload)
    }

    /// Frees the slot, as dropping this does.
    pub fn release(self) {}
}

impl Drop for SlotMessage {
    fn drop(&mut self) {
        self.endpoint.release_slot(self.filled.slot);
    }
}

impl fmt::Debug for SlotMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, length, source) = (self.slot(), self.len(), self.source());
        write!(
            f,
            "SlotMessage({length} bytes from {source} in slot {slot})"
        )
    }
}
