//! A message of a plan, and how to pack and unpack it.

use std::ops::Range;

use crate::piece::Piece;

/// Destination, round and content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The rank that it goes to or comes from.
    pub peer: u32,
    /// The round, counted from 0.
    pub round: u32,
    /// Its elements in the outgoing or incoming memory of this process.
    pub range: Range<usize>,
    /// Where it begins in the incoming memory of its receiver, in elements.
    pub at: usize,
}

/// A message between this process and another. Callers that carry messages themselves need it.
#[derive(Debug)]
pub struct Message {
    pub(crate) transfer: Transfer,
    pub(crate) piece: Piece,
}

impl Message {
    /// Peer, round and position of the message.
    #[must_use]
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.transfer.range.len()
    }

    /// The number of runs of elements without gaps in both processes' parts. It is the same on both
    /// processes.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.piece.run_count()
    }

    /// Calls `each` with the start of each run in this process's part and in the other's, and its length.
    pub fn each_run(&self, mut each: impl FnMut(usize, usize, usize)) {
        self.piece.groups(|group| {
            for at in 0..group.count {
                let (own, other) = (at * group.own_step, at * group.other_step);
                each(group.own + own, group.other + other, group.length);
            }
        });
    }

    /// Packs the message from this process's part before the reshuffle.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn pack<T: Copy>(&self, source: &[T], packed: &mut [T]) {
        self.piece.pack(source, packed);
    }

    /// Unpacks the message into this process's part after the reshuffle.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn unpack<T: Copy>(&self, packed: &[T], target: &mut [T]) {
        self.piece.unpack(packed, target);
    }

    /// Unpacks elements that `fetch` reads, starting at an offset: as many at a time as fit into the
    /// buffer, or a long run straight into its destination.
    ///
    /// # Errors
    /// The errors of `fetch`.
    ///
    /// # Panics
    /// If the target is too short, or the buffer is empty.
    pub fn unpack_parts<T: Copy, E>(
        &self,
        target: &mut [T],
        buffer: &mut [T],
        fetch: impl FnMut(usize, &mut [T]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(!buffer.is_empty(), "the buffer must not be empty");
        self.piece.unpack_parts(target, buffer, fetch)
    }
}
