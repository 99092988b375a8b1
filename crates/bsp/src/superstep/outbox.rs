//! Data to send to ranks of other nodes in a superstep, and their order.

use std::collections::VecDeque;

use bytes::Bytes;

use super::message::{HEAD_BYTES, Head};
use super::schedule::{Order, RoundRobin};

/// Data for another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A whole encoded message.
    Message(Vec<u8>),
    /// Bytes to write into memory that the rank has opened.
    Write {
        /// The key of the memory.
        key: u64,
        /// Where the bytes belong in it.
        offset: u64,
        /// Bytes to send.
        bytes: Bytes,
    },
}

impl Outgoing {
    /// The number of bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Outgoing::Message(message) => message.len(),
            Outgoing::Write { bytes, .. } => bytes.len(),
        }
    }
}

/// Writes to one rank that wait until all ranks have ended the superstep, and the message that
/// follows them to show that they are complete.
#[derive(Debug)]
pub(super) struct PendingWrites {
    to: u32,
    writes: Vec<Outgoing>,
    last: Vec<u8>,
}

/// Data that waits to be sent. Rounds leave before everything else, because other nodes wait for them.
#[derive(Debug)]
pub(super) struct Outbox {
    rounds: VecDeque<(u32, Vec<u8>)>,
    /// Records, replies and writes, by rank.
    queues: Vec<VecDeque<Outgoing>>,
    /// Total length of `queues`.
    queued: usize,
    round_robin: RoundRobin,
    pending_writes: Vec<PendingWrites>,
}

impl Outbox {
    pub(super) fn new(own: u32, size: usize) -> Outbox {
        Outbox {
            rounds: VecDeque::new(),
            queues: vec![VecDeque::new(); size],
            queued: 0,
            round_robin: RoundRobin::new(Order::LatinSquare, own as usize, size),
            pending_writes: Vec::new(),
        }
    }

    pub(super) fn set_order(&mut self, order: Order, own: u32) {
        self.round_robin = RoundRobin::new(order, own as usize, self.queues.len());
    }

    pub(super) fn push_round(&mut self, to: u32, message: Vec<u8>) {
        self.rounds.push_back((to, message));
    }

    pub(super) fn push(&mut self, to: u32, next: Outgoing) {
        self.queues[to as usize].push_back(next);
        self.queued += 1;
    }

    /// Queues chunks of records or replies. Writes that belong to them are returned for later, with
    /// the last message of the set.
    pub(super) fn push_chunks(
        &mut self,
        head: Head,
        to: u32,
        chunks: Vec<Vec<u8>>,
        writes: Vec<Outgoing>,
    ) -> Option<PendingWrites> {
        let has_writes = !writes.is_empty();
        let total = chunks.len() + usize::from(has_writes);
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        for (index, mut chunk) in (0..).zip(chunks) {
            let head = Head {
                index,
                total,
                ..head
            };
            chunk[..HEAD_BYTES].copy_from_slice(&head.encode());
            self.push(to, Outgoing::Message(chunk));
        }
        let last = Head {
            index: total.saturating_sub(1),
            total,
            ..head
        };
        has_writes.then(|| PendingWrites {
            to,
            writes,
            last: last.encode().to_vec(),
        })
    }

    /// Keeps writes until [`start_writes`](Self::start_writes).
    pub(super) fn delay(&mut self, writes: Option<PendingWrites>) {
        self.pending_writes.extend(writes);
    }

    pub(super) fn push_writes(&mut self, PendingWrites { to, writes, last }: PendingWrites) {
        for write in writes {
            self.push(to, write);
        }
        self.push(to, Outgoing::Message(last));
    }

    /// Queues all writes that were delayed.
    pub(super) fn start_writes(&mut self) {
        for writes in std::mem::take(&mut self.pending_writes) {
            self.push_writes(writes);
        }
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        !self.rounds.is_empty() || self.queued > 0
    }

    pub(super) fn has_round(&self) -> bool {
        !self.rounds.is_empty()
    }

    /// Rounds first, then the ranks in turn.
    pub(super) fn next(&mut self) -> Option<(u32, Outgoing)> {
        if let Some((to, round)) = self.rounds.pop_front() {
            return Some((to, Outgoing::Message(round)));
        }
        let queues = &mut self.queues;
        let to = self.round_robin.next(|to| !queues[to].is_empty())?;
        let next = queues[to].pop_front()?;
        self.queued -= 1;
        Some((u32::try_from(to).unwrap_or(u32::MAX), next))
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Kind;
    use super::*;

    #[test]
    fn rounds_overtake_records_and_writes_precede_their_last_message() {
        let mut outbox = Outbox::new(0, 2);
        let head = Head::new(Kind::Records, 7);
        let write = Outgoing::Write {
            key: 1,
            offset: 0,
            bytes: Bytes::from_static(b"written"),
        };
        let chunk = vec![0; HEAD_BYTES];
        let delayed = outbox.push_chunks(head, 1, vec![chunk], vec![write.clone()]);
        outbox.delay(delayed);
        outbox.push_round(1, vec![1]);
        assert!(outbox.has_round());
        assert_eq!(outbox.next(), Some((1, Outgoing::Message(vec![1]))));
        let (_, first) = outbox.next().expect("a chunk");
        assert_eq!((first.length(), outbox.has_next()), (HEAD_BYTES, false));
        outbox.start_writes();
        assert_eq!(outbox.next(), Some((1, write)));
        let Some((1, Outgoing::Message(last))) = outbox.next() else {
            panic!("the last message follows the writes");
        };
        let (last, _) = Head::decode(&last).expect("a header");
        assert_eq!((last.kind, last.index, last.total), (Kind::Records, 1, 2));
        assert_eq!(outbox.next(), None);
    }
}
