//! Who takes messages as they come, without a queue between.

use std::ops::Range;

use dipole_link::shm::Payload;

use crate::address::Address;
use crate::inbox::Message;

/// Takes the messages of an endpoint, in order: see `Endpoint::poll` of `dipole-node`.
///
/// It runs with the node's lock held, so it must call nothing of the node, and be brief.
pub trait Reader {
    /// Reads a message where its sender left it, for good. False: it was not read, and comes as a
    /// [`Message`] next.
    fn read(&mut self, source: Address, message: &Arriving<'_>) -> bool;

    /// Takes a message.
    fn take(&mut self, message: Message);
}

/// A message in memory that its sender can still write to: what is copied out of it is what
/// counts.
#[derive(Clone, Copy, Debug)]
pub struct Arriving<'a>(pub(crate) Payload<'a>);

impl Arriving<'_> {
    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if it has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies a part of it.
    ///
    /// # Panics
    /// When the range is not inside, or `into` has another length.
    #[inline]
    pub fn copy(&self, range: Range<usize>, into: &mut [u8]) {
        self.0.part(range).copy_to(into);
    }
}

/// What is taken from a queue goes to a reader.
#[derive(Debug)]
pub struct Taking<'a, R>(pub &'a mut R);

impl<R: Reader> Extend<Message> for Taking<'_, R> {
    #[inline]
    fn extend<I: IntoIterator<Item = Message>>(&mut self, messages: I) {
        for message in messages {
            self.0.take(message);
        }
    }
}
