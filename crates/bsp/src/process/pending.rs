//! Work that the program's calls of a superstep leave for its end.

use dipole_link::window::Source;

use crate::record_buffer::{CHUNK_BYTES, RecordBuffer};
use crate::superstep::exchange::Outgoing;
use crate::superstep::record::Record;
use crate::superstep::summary::Ranks;

/// The destination of a get.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingGet {
    pub(super) into: *mut u8,
    pub(super) bytes: u64,
}

// SAFETY: `into` is an address in the program's memory. The caller of the get promises that it
// stays valid until the superstep ends, whichever thread ends it; this type never dereferences it.
unsafe impl Send for PendingGet {}

/// A get that copies memory of another rank of this node at the end of the superstep.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingPull {
    pub(super) local_rank: usize,
    pub(super) address: u64,
    pub(super) get: PendingGet,
}

/// Everything for one rank of another node.
pub(super) struct RemoteCalls {
    pub(super) to: u32,
    pub(super) chunks: Vec<Vec<u8>>,
    pub(super) writes: Vec<Outgoing>,
}

/// Calls of this superstep. `send_to` contains every rank for which there is a record or a write, wherever
/// that is kept; `get_from` contains every rank from which a record requests data.
#[derive(Debug)]
pub(super) struct PendingCalls {
    send_to: Ranks,
    get_from: Ranks,
    /// Ranks that hold the replies to snapshot gets until this rank is ready for them.
    holders: Ranks,
    /// Records for ranks of other nodes and for this rank itself, by rank.
    buffers: Vec<RecordBuffer>,
    /// Writes into memory of ranks of other nodes, by rank.
    writes: Vec<Vec<Outgoing>>,
    gets: Vec<PendingGet>,
    pulls: Vec<PendingPull>,
    /// Another rank copies memory of this one at the end of the superstep.
    is_pulled: bool,
}

impl PendingCalls {
    /// Nothing to do, in a program of `size` ranks.
    pub(super) fn new(size: u32) -> PendingCalls {
        PendingCalls {
            send_to: Ranks::new(size),
            get_from: Ranks::new(size),
            holders: Ranks::new(size),
            buffers: (0..size).map(|_| RecordBuffer::new(CHUNK_BYTES)).collect(),
            writes: vec![Vec::new(); size as usize],
            gets: Vec::new(),
            pulls: Vec::new(),
            is_pulled: false,
        }
    }

    /// Limits the chunks of records from now on.
    pub(super) fn set_chunk_bytes(&mut self, bytes: usize) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.is_empty()) {
            *buffer = RecordBuffer::new(bytes);
        }
    }

    #[inline]
    pub(super) fn send_to(&self) -> &Ranks {
        &self.send_to
    }

    #[inline]
    pub(super) fn get_from(&self) -> &Ranks {
        &self.get_from
    }

    pub(super) fn holders(&self) -> &Ranks {
        &self.holders
    }

    #[inline]
    pub(super) fn gets(&self) -> &[PendingGet] {
        &self.gets
    }

    /// True if this rank copies memory of another one at the end of the superstep, or another
    /// one copies from this rank.
    #[inline]
    pub(super) fn has_pulls(&self) -> bool {
        self.is_pulled || !self.pulls.is_empty()
    }

    /// There is a record for the rank in shared memory.
    #[inline]
    pub(super) fn add_local_record(&mut self, to: u32) {
        self.send_to.insert(to);
    }

    /// Adds a record whose data stay together.
    pub(super) fn push(&mut self, to: u32, record: Record, data: &[Source<'_>]) {
        self.send_to.insert(to);
        self.buffers[to as usize].push(record, data);
    }

    /// Adds data in as many records as they need; `record` makes the record for an offset and a
    /// length.
    pub(super) fn push_split(
        &mut self,
        to: u32,
        data: Source<'_>,
        record: impl Fn(u64, u64) -> Record,
    ) {
        self.send_to.insert(to);
        self.buffers[to as usize].push_split(data, record);
    }

    /// Adds writes into memory that a rank of another node has opened.
    pub(super) fn push_writes(&mut self, to: u32, writes: Vec<Outgoing>) {
        self.send_to.insert(to);
        self.writes[to as usize].extend(writes);
    }

    /// Adds a get with a reply in a record. Returns the ticket that the reply must carry.
    pub(super) fn add_get(&mut self, from: u32, get: PendingGet) -> u64 {
        self.get_from.insert(from);
        self.gets.push(get);
        self.gets.len() as u64 - 1
    }

    /// Adds a get whose reply is written into its destination.
    pub(super) fn add_written_get(&mut self, from: u32) {
        self.get_from.insert(from);
    }

    /// Counts a get whose reply the rank holds until this one is ready.
    pub(super) fn add_snapshot_get(&mut self, from: u32) {
        self.get_from.insert(from);
        self.holders.insert(from);
    }

    pub(super) fn add_pull(&mut self, pull: PendingPull) {
        self.pulls.push(pull);
    }

    /// Another rank will copy memory of this one.
    pub(super) fn set_pulled(&mut self) {
        self.is_pulled = true;
    }

    pub(super) fn take_pulls(&mut self) -> impl Iterator<Item = PendingPull> {
        self.pulls.drain(..)
    }

    /// Takes the records for `rank`, which is this rank.
    pub(super) fn take_own(&mut self, rank: u32) -> Vec<Vec<u8>> {
        self.buffers[rank as usize].take()
    }

    /// Takes everything for other ranks than `own` that is not in shared memory.
    pub(super) fn take_remote(&mut self, own: u32) -> impl Iterator<Item = RemoteCalls> {
        let all = (0..).zip(self.buffers.iter_mut().zip(&mut self.writes));
        all.filter(move |(to, (buffer, writes))| {
            *to != own && !(buffer.is_empty() && writes.is_empty())
        })
        .map(|(to, (buffer, writes))| RemoteCalls {
            to,
            chunks: buffer.take(),
            writes: std::mem::take(writes),
        })
    }

    /// Forgets the superstep, whose records and writes have been taken.
    pub(super) fn clear(&mut self) {
        self.send_to.clear();
        self.get_from.clear();
        self.holders.clear();
        self.gets.clear();
        self.is_pulled = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_with_something_to_send_is_a_destination() {
        let mut pending = PendingCalls::new(4);
        let message = Record::Message { tag: 0, length: 1 };
        pending.push(1, message, &[Source::from(&[7][..])]);
        let write = Outgoing::Message(vec![1]);
        pending.push_writes(2, vec![write]);
        pending.push(3, message, &[Source::from(&[8][..])]);
        for to in 1..4 {
            assert!(pending.send_to().contains(to));
        }
        assert_eq!(pending.take_own(3).len(), 1);
        let taken: Vec<_> = pending.take_remote(3).collect();
        assert_eq!((taken[0].to, taken[0].chunks.len()), (1, 1));
        assert_eq!((taken[1].to, taken[1].writes.len()), (2, 1));
        pending.clear();
        assert!(pending.send_to().is_empty() && pending.take_remote(0).next().is_none());
    }

    #[test]
    fn tickets_number_the_gets_and_snapshots_have_holders() {
        let mut pending = PendingCalls::new(3);
        let mut byte = 0;
        let get = PendingGet {
            into: &raw mut byte,
            bytes: 1,
        };
        assert_eq!((pending.add_get(1, get), pending.add_get(1, get)), (0, 1));
        pending.add_snapshot_get(2);
        assert!(pending.get_from().contains(1) && pending.get_from().contains(2));
        assert!(pending.holders().contains(2) && !pending.holders().contains(1));
        assert!(!pending.has_pulls());
        pending.set_pulled();
        assert!(pending.has_pulls());
    }
}
