//! A message of a plan: what it is, and how it is packed and unpacked.

use std::ops::Range;

use crate::piece::Piece;

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whom it goes to or comes from.
    pub peer: u32,
    /// In which round, from 0.
    pub round: u32,
    /// Which elements of the outgoing or incoming memory of this process it is.
    pub range: Range<usize>,
    /// Where it begins in the incoming memory of its receiver, in elements.
    pub at: usize,
}

/// A message between this process and another, for who carries messages in a way of their own.
#[derive(Debug)]
pub struct Message {
    pub(crate) transfer: Transfer,
    pub(crate) piece: Piece,
}

impl Message {
    /// Whom it goes to or comes from, and where.
    #[must_use]
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Elements in it.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.transfer.range.len()
    }

    /// How many runs of elements they are that lie without a gap in both processes' parts; the other
    /// process counts as many.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.piece.number()
    }

    /// Calls `each` with where a run begins in this process's part and in the other's, and its length.
    pub fn each_run(&self, mut each: impl FnMut(usize, usize, usize)) {
        self.piece.groups(|group| {
            for at in 0..group.count {
                let (own, other) = (at * group.own_step, at * group.other_step);
                each(group.own + own, group.other + other, group.length);
            }
        });
    }

    /// Packs it from this process's part before.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn pack<T: Copy>(&self, source: &[T], packed: &mut [T]) {
        self.piece.pack(source, packed);
    }

    /// Unpacks it into this process's part afterwards.
    ///
    /// # Panics
    /// A slice is too short.
    pub fn unpack<T: Copy>(&self, packed: &[T], target: &mut [T]) {
        self.piece.unpack(packed, target);
    }

    /// The same while `fetch` brings its elements from an offset on, some at a time: as many as the
    /// buffer takes, or straight to where a longer run belongs.
    ///
    /// # Errors
    /// Those of `fetch`.
    ///
    /// # Panics
    /// The target is too short, or the buffer empty.
    pub fn unpack_parts<T: Copy, E>(
        &self,
        target: &mut [T],
        buffer: &mut [T],
        fetch: impl FnMut(usize, &mut [T]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(!buffer.is_empty(), "a buffer to unpack from");
        self.piece.unpack_parts(target, buffer, fetch)
    }
}
