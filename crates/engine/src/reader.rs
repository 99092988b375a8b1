//! Readers, which get messages as they arrive, without a queue.

use std::ops::Range;

use dipole_link::shm::Payload;

use crate::address::Address;
use crate::inbox::Message;

/// Gets the messages of an endpoint in order: see `Endpoint::poll` of `dipole-node`.
///
/// It runs under the node's lock, so it must be brief and must not call the node.
pub trait Reader {
    /// Reads a message in its sender's memory. If it returns false, the message was not read and
    /// is passed to [`take`](Self::take).
    fn read(&mut self, source: Address, message: &Arriving<'_>) -> bool;

    /// Takes a message that was copied out of shared memory or arrived over the network.
    fn take(&mut self, message: Message);
}

/// A message in memory that its sender can still change. Only what has been copied out is stable.
#[derive(Clone, Copy, Debug)]
pub struct Arriving<'a>(pub(crate) Payload<'a>);

impl Arriving<'_> {
    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if the message is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies a range of the message.
    ///
    /// # Panics
    /// If the range is out of bounds, or `into` has another length.
    #[inline]
    pub fn copy(&self, range: Range<usize>, into: &mut [u8]) {
        self.0.part(range).copy_to(into);
    }
}

/// Passes messages from a queue to a reader.
#[derive(Debug)]
pub struct ReaderSink<'a, R>(pub &'a mut R);

impl<R: Reader> Extend<Message> for ReaderSink<'_, R> {
    #[inline]
    fn extend<I: IntoIterator<Item = Message>>(&mut self, messages: I) {
        for message in messages {
            self.0.take(message);
        }
    }
}
