//! Memory operations, as programs specify them.

use std::ops::Deref;

use dipole_proto::wire::{self, OperationKind};

use crate::inbox::Buffer;
use crate::region::RegionKey;

/// A number chosen by the caller and returned with the completion of an operation.
pub type Context = u64;

/// An operation that can be posted to an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A message to the target endpoint.
    #[default]
    Message,
    /// Writes to a region of the target; done once the bytes are there.
    Put {
        /// Key of the region.
        key: RegionKey,
        /// Offset in the region.
        offset: u64,
        /// Value with which the region's owner is then notified, if any.
        notice: Option<u64>,
    },
    /// A put without an answer: completes as `Completion::Sent` once the bytes are
    /// no longer needed. They are in place before later operations of the edge arrive. If the put
    /// is refused, a failure follows with the context of the edge's latest put.
    PutUnanswered {
        /// Key of the region.
        key: RegionKey,
        /// Offset in the region.
        offset: u64,
    },
    /// Reads from a region of the target, at most 16 MiB; the completion contains the bytes.
    Get {
        /// Key of the region.
        key: RegionKey,
        /// Offset in the region.
        offset: u64,
        /// Number of bytes to read.
        length: usize,
    },
    /// Adds to a 64-bit word of a region; the completion contains its previous value.
    FetchAdd {
        /// Key of the region.
        key: RegionKey,
        /// Offset in the region, a multiple of 8.
        offset: u64,
        /// The value to add, wrapping around.
        value: u64,
    },
    /// Replaces a 64-bit word of a region if it has the expected value; the completion contains
    /// its previous value.
    CompareSwap {
        /// Key of the region.
        key: RegionKey,
        /// Offset in the region, a multiple of 8.
        offset: u64,
        /// Expected value of the word.
        expected: u64,
        /// Value that replaces it.
        new: u64,
    },
}

impl Operation {
    /// The data part of a compare-and-swap.
    pub fn word(&self) -> Option<[u8; 8]> {
        match self {
            Operation::CompareSwap { expected, .. } => Some(expected.to_le_bytes()),
            _ => None,
        }
    }

    /// The operation's head on the wire, still without an id; `None` for a message.
    pub fn head(&self) -> Option<wire::Operation> {
        let (kind, key, offset, value) = match *self {
            Operation::Message => return None,
            Operation::Put {
                key,
                offset,
                notice,
            } => (OperationKind::Put, key, offset, notice.unwrap_or(0)),
            Operation::PutUnanswered { key, offset } => (OperationKind::Put, key, offset, 0),
            Operation::Get {
                key,
                offset,
                length,
            } => (OperationKind::Get, key, offset, length as u64),
            Operation::FetchAdd { key, offset, value } => {
                (OperationKind::FetchAdd, key, offset, value)
            }
            Operation::CompareSwap {
                key, offset, new, ..
            } => (OperationKind::CompareSwap, key, offset, new),
        };
        Some(wire::Operation {
            kind,
            wants_answer: !matches!(self, Operation::PutUnanswered { .. }),
            gives_notice: matches!(
                self,
                Operation::Put {
                    notice: Some(_),
                    ..
                }
            ),
            id: 0,
            key: key.0,
            offset,
            value,
        })
    }
}

/// Bytes read by a get.
#[derive(Debug, Default)]
pub struct Data(Option<Buffer>);

impl Data {
    pub(crate) fn new(buffer: Buffer) -> Data {
        Data(Some(buffer))
    }
}

impl Deref for Data {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Buffer::bytes)
    }
}

/// Index of a queue or counter in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueRef(pub u32);
