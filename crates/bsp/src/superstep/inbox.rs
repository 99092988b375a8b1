//! Data received from ranks of other nodes in a superstep.

use std::collections::VecDeque;
use std::ops::Deref;

/// Received messages may occupy this much of the link's own memory, which is the credit of their
/// senders. Further messages are copied.
const MAX_BORROWED_BYTES: usize = 128 << 10;

/// Counts the chunks from one rank. Each chunk carries their total number.
#[derive(Clone, Copy, Debug, Default)]
struct ChunkCount {
    received: u32,
    total: Option<u32>,
}

impl ChunkCount {
    fn add(&mut self, index: u32, total: u32) -> Option<()> {
        let is_next = index == self.received && index < total;
        if !is_next || self.total.is_some_and(|known| known != total) {
            return None;
        }
        self.received += 1;
        self.total = Some(total);
        Some(())
    }

    fn is_complete(self) -> bool {
        self.total == Some(self.received)
    }
}

/// A message in the link's memory, or a copy.
#[derive(Debug)]
pub(super) enum MessageBytes<M> {
    Borrowed(M),
    Copied(Vec<u8>),
}

impl<M: Deref<Target = [u8]>> Deref for MessageBytes<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            MessageBytes::Borrowed(message) => message,
            MessageBytes::Copied(bytes) => bytes,
        }
    }
}

/// The body of a message. Hand it to [`Exchange::release`](super::exchange::Exchange::release)
/// once it has been read.
#[derive(Debug)]
pub struct Body<M> {
    message: MessageBytes<M>,
    start: usize,
}

impl<M> Body<M> {
    /// The bytes of a message from `start` on.
    pub(super) fn new(message: MessageBytes<M>, start: usize) -> Body<M> {
        Body { message, start }
    }

    /// Returns the body without its first `bytes`.
    pub(super) fn after(self, bytes: usize) -> Body<M> {
        Body::new(self.message, self.start + bytes)
    }
}

impl<M: Deref<Target = [u8]>> Deref for Body<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.message[self.start..]
    }
}

/// Records, or replies, of a superstep.
#[derive(Debug)]
pub(super) struct Chunks<M> {
    /// Numbers of chunks, indexed by sender.
    counts: Vec<ChunkCount>,
    /// Arrived and not yet taken, indexed by sender.
    queues: Vec<VecDeque<Body<M>>>,
}

impl<M> Chunks<M> {
    fn new(size: usize) -> Chunks<M> {
        Chunks {
            counts: vec![ChunkCount::default(); size],
            queues: (0..size).map(|_| VecDeque::new()).collect(),
        }
    }

    /// Adds a chunk. `None` if it is out of order, or its total differs from that of the others.
    pub(super) fn push(&mut self, from: u32, index: u32, total: u32, body: Body<M>) -> Option<()> {
        self.counts[from as usize].add(index, total)?;
        self.queues[from as usize].push_back(body);
        Some(())
    }

    /// The next chunk from a rank.
    pub(super) fn take(&mut self, from: u32) -> Option<Body<M>> {
        self.queues[from as usize].pop_front()
    }

    /// True if all chunks from a rank have arrived.
    pub(super) fn is_complete(&self, from: u32) -> bool {
        self.counts[from as usize].is_complete()
    }
}

/// Chunks and counts received in the current superstep.
#[derive(Debug)]
pub(super) struct Inbox<M> {
    pub(super) records: Chunks<M>,
    pub(super) replies: Chunks<M>,
    /// Messages of the next superstep.
    early: Vec<(u32, MessageBytes<M>)>,
    /// Bytes of the link's memory in use.
    borrowed: usize,
}

impl<M: Deref<Target = [u8]>> Inbox<M> {
    pub(super) fn new(size: usize) -> Inbox<M> {
        Inbox {
            records: Chunks::new(size),
            replies: Chunks::new(size),
            early: Vec::new(),
            borrowed: 0,
        }
    }

    /// Keeps a message where it is, or copies it if too many bytes are kept.
    pub(super) fn hold(&mut self, message: M) -> MessageBytes<M> {
        let length = message.len();
        if self.borrowed + length <= MAX_BORROWED_BYTES {
            self.borrowed += length;
            MessageBytes::Borrowed(message)
        } else {
            MessageBytes::Copied(message.to_vec())
        }
    }

    /// Undoes [`hold`](Self::hold).
    pub(super) fn release(&mut self, body: &Body<M>) {
        if let MessageBytes::Borrowed(message) = &body.message {
            self.borrowed -= message.len();
        }
    }

    /// Keeps a message until the next superstep.
    pub(super) fn push_early(&mut self, from: u32, message: MessageBytes<M>) {
        self.early.push((from, message));
    }

    /// Begins the next superstep. Returns its messages that have arrived early.
    pub(super) fn advance(&mut self) -> Vec<(u32, MessageBytes<M>)> {
        self.records.counts.fill(ChunkCount::default());
        self.replies.counts.fill(ChunkCount::default());
        std::mem::take(&mut self.early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_the_credit_are_copied_until_others_are_released() {
        let mut inbox: Inbox<Vec<u8>> = Inbox::new(1);
        let long = || vec![0; MAX_BORROWED_BYTES];
        let first = inbox.hold(long());
        assert!(matches!(first, MessageBytes::Borrowed(_)));
        assert!(matches!(inbox.hold(vec![1]), MessageBytes::Copied(_)));
        inbox.release(&Body::new(first, 0));
        assert!(matches!(inbox.hold(long()), MessageBytes::Borrowed(_)));
    }

    #[test]
    fn chunks_must_arrive_in_order_with_the_same_total() {
        let mut inbox: Inbox<Vec<u8>> = Inbox::new(1);
        let body = || Body::new(MessageBytes::Copied(vec![1, 2]), 1);
        let records = &mut inbox.records;
        assert_eq!(records.push(0, 1, 2, body()), None);
        assert_eq!(records.push(0, 0, 2, body()), Some(()));
        assert!(!records.is_complete(0));
        assert_eq!(records.push(0, 1, 3, body()), None);
        assert_eq!(records.push(0, 1, 2, body()), Some(()));
        assert!(records.is_complete(0));
        let taken = records.take(0).expect("a chunk");
        assert_eq!(&*taken, &[2]);
    }
}
