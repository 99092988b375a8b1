//! Memory that this rank shares with the other ranks of its node.

use dipole_link::window::Source;

use crate::failure::Failure;
use crate::local::{Arena, LocalRanks, LocalRecordBuffer};
use crate::superstep::record::Record;

/// Shared memory of this rank. Records are in one of two arenas, used in alternate supersteps: the other ranks
/// read those of the last superstep while this rank writes those of the next.
#[derive(Debug)]
pub(super) struct SharedMemory {
    ranks: LocalRanks,
    arenas: [Arena; 2],
    /// The arena of the current superstep.
    current: usize,
    /// Records for each local rank, in the current arena.
    buffers: Vec<LocalRecordBuffer>,
}

impl SharedMemory {
    /// Divides the window of this rank into its two arenas.
    pub(super) fn new(ranks: LocalRanks) -> SharedMemory {
        let start = ranks.sync_block_bytes();
        let bytes = ((ranks.window.length() - start) / 2) & !4095;
        let middle = start + bytes;
        SharedMemory {
            arenas: [
                Arena::new(start, middle),
                Arena::new(middle, middle + bytes),
            ],
            current: 0,
            buffers: vec![LocalRecordBuffer::default(); ranks.count()],
            ranks,
        }
    }

    #[inline]
    pub(super) fn ranks(&self) -> &LocalRanks {
        &self.ranks
    }

    pub(super) fn ranks_mut(&mut self) -> &mut LocalRanks {
        &mut self.ranks
    }

    #[inline]
    pub(super) fn buffer(&self, local_rank: usize) -> &LocalRecordBuffer {
        &self.buffers[local_rank]
    }

    /// Adds a record for a local rank.
    #[inline]
    pub(super) fn push(
        &mut self,
        local_rank: usize,
        record: Record,
        data: &[Source<'_>],
    ) -> Result<(), Failure> {
        let arena = &mut self.arenas[self.current];
        self.buffers[local_rank].push((&self.ranks.window, arena), record, data)
    }

    /// The local ranks together with the current arena, to write replies there.
    pub(super) fn ranks_and_arena(&mut self) -> (&LocalRanks, &mut Arena) {
        (&self.ranks, &mut self.arenas[self.current])
    }

    /// Copies bytes into the current arena. Returns where they are.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        self.arenas[self.current].write(&self.ranks.window, bytes)
    }

    /// Begins a superstep after one in which nothing was recorded.
    #[inline]
    pub(super) fn advance_empty(&mut self) {
        self.current ^= 1;
        self.arenas[self.current].clear(&self.ranks.window);
    }

    /// Begins the next superstep.
    pub(super) fn advance(&mut self) {
        self.buffers.fill(LocalRecordBuffer::default());
        self.advance_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_superstep_outlive_the_next_one_only() {
        let ranks = LocalRanks::new(0, 2, &[0, 1]).expect("memory");
        let mut shared = SharedMemory::new(ranks);
        let mut place = |text: &[u8]| {
            let at = shared.write(text).expect("room");
            shared.advance();
            at
        };
        let (first, second, third) = (place(b"first"), place(b"second"), place(b"third"));
        assert_ne!(first, second);
        assert_eq!(first, third);
    }
}
