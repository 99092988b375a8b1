//! Operations on the memory of other processes, as callers name them.

use std::ops::Deref;

use dipole_proto::wire::{self, OperationKind};

use crate::inbox::Buffer;
use crate::region::RegionKey;

/// A number of the caller's that comes back with the completion of an operation.
pub type Context = u64;

/// What can be posted to an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A message to the target endpoint.
    #[default]
    Message,
    /// The bytes belong at an offset of a region of the target; done once they are there.
    Put {
        /// The region.
        key: RegionKey,
        /// Where.
        offset: u64,
        /// What its owner is told then, if anything.
        notice: Option<u64>,
    },
    /// The same without an answer: completes as [`Sent`](crate::Completion::Sent) once the bytes
    /// are no longer needed. They are in their place before anything that is posted to the edge
    /// later arrives. If they are refused, a failure follows, with the context of the edge's last.
    PutUnanswered {
        /// The region.
        key: RegionKey,
        /// Where.
        offset: u64,
    },
    /// Bytes of a region of the target, at most 16 MiB; they come with the completion.
    Get {
        /// The region.
        key: RegionKey,
        /// Where they begin.
        offset: u64,
        /// How many they are.
        length: usize,
    },
    /// Adds to a 64-bit word of a region; what it was comes with the completion.
    FetchAdd {
        /// The region.
        key: RegionKey,
        /// Where, a multiple of 8.
        offset: u64,
        /// What is added, wrapping around.
        value: u64,
    },
    /// Sets a 64-bit word of a region if it is as expected; what it was comes with the
    /// completion.
    CompareSwap {
        /// The region.
        key: RegionKey,
        /// Where, a multiple of 8.
        offset: u64,
        /// What it must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
}

impl Operation {
    /// The data of a compare-and-swap.
    pub fn word(&self) -> Option<[u8; 8]> {
        match self {
            Operation::CompareSwap { expected, .. } => Some(expected.to_le_bytes()),
            _ => None,
        }
    }

    /// Its head on the wire but for the id; `None` of a message.
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

/// What a get has brought.
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

/// A queue or counter of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueRef(pub u32);
