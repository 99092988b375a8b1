//! The messages that a rank has received from the previous superstep.

use std::collections::VecDeque;

use dipole_link::window::Source;
use zerocopy::IntoBytes;

/// Alignment of tags and payloads.
const ALIGNMENT: usize = size_of::<u128>();

/// Tag sizes now and from the next superstep on. Messages in the queue keep their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagSizes {
    /// Tag size of messages sent now.
    pub sent: u64,
    /// Tag size set last.
    pub set: u64,
}

impl TagSizes {
    /// Begins the next superstep.
    pub fn advance(&mut self) {
        self.sent = self.set;
    }
}

/// Received messages in one buffer, in order.
#[derive(Debug, Default)]
pub struct Queue {
    words: Vec<u128>,
    entries: VecDeque<Entry>,
    payload_bytes: u64,
}

/// A message: its position in `words`, where its tag comes first.
#[derive(Clone, Copy, Debug)]
struct Entry {
    word: usize,
    tag: usize,
    length: usize,
}

/// A message in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Queued<'a> {
    /// Tag of the message.
    pub tag: &'a [u8],
    /// Payload of the message.
    pub payload: &'a [u8],
}

impl Queue {
    /// Removes all messages but keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.words.clear();
        self.entries.clear();
        self.payload_bytes = 0;
    }

    /// Adds a message: a tag of `tag` bytes, then the payload.
    ///
    /// # Panics
    /// If the message is shorter than its tag.
    pub fn push(&mut self, tag: usize, message: Source<'_>) {
        let length = message.length() - tag;
        let word = self.words.len();
        let behind = word + tag.div_ceil(ALIGNMENT);
        self.words.resize(behind + length.div_ceil(ALIGNMENT), 0);
        let (own_tag, own_payload) = self.words[word..].split_at_mut(behind - word);
        let node_map = [
            (own_tag, message.part(0, tag)),
            (own_payload, message.part(tag, length)),
        ];
        for (place, bytes) in node_map {
            bytes.copy_into(&mut place.as_mut_bytes()[..bytes.length()]);
        }
        self.entries.push_back(Entry { word, tag, length });
        self.payload_bytes += length as u64;
    }

    /// The number of messages.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Bytes of all payloads.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Returns the next message without removing it.
    #[must_use]
    pub fn first(&self) -> Option<Queued<'_>> {
        let entry = self.entries.front()?;
        Some(entry.of(&self.words))
    }

    /// Removes the next message. Its bytes stay valid until [`clear`](Self::clear).
    pub fn take(&mut self) -> Option<Queued<'_>> {
        let entry = self.entries.pop_front()?;
        self.payload_bytes -= entry.length as u64;
        Some(entry.of(&self.words))
    }
}

impl Entry {
    fn of(self, words: &[u128]) -> Queued<'_> {
        let payload = self.word + self.tag.div_ceil(ALIGNMENT);
        Queued {
            tag: &words[self.word..payload].as_bytes()[..self.tag],
            payload: &words[payload..].as_bytes()[..self.length],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_aligned_and_come_out_as_they_were_sent() {
        let mut queue = Queue::default();
        let messages: [(&[u8], &[u8]); 4] = [
            (b"tag", b"payload"),
            (b"", b""),
            (b"t", &[7; 100]),
            (&[1; 33], b""),
        ];
        for (tag, payload) in messages {
            let both = [tag, payload].concat();
            queue.push(tag.len(), Source::from(&both[..]));
        }
        assert_eq!((queue.count(), queue.payload_bytes()), (4, 107));
        for (tag, payload) in messages {
            let first = queue.first().expect("one");
            assert_eq!((first.tag, first.payload), (tag, payload));
            let taken = queue.take().expect("one");
            assert_eq!((taken.tag, taken.payload), (tag, payload));
            assert!(payload.is_empty() || taken.payload.as_ptr().cast::<u128>().is_aligned());
            assert!(tag.is_empty() || taken.tag.as_ptr().cast::<u128>().is_aligned());
        }
        assert!(queue.take().is_none());
        assert_eq!((queue.count(), queue.payload_bytes()), (0, 0));
    }

    #[test]
    fn a_tag_size_takes_effect_in_the_next_superstep() {
        let mut sizes = TagSizes { sent: 1, set: 4 };
        sizes.advance();
        assert_eq!(sizes, TagSizes { sent: 4, set: 4 });
    }
}
