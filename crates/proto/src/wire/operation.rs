//! The head of an operation on another endpoint's memory, and of its answer. Spec §4.3, §5.9.

use super::Malformed;
use super::cursor::{put, u32_at, u64_at};

/// Bytes of the head, which precedes the data.
pub const OPERATION_BYTES: usize = 32;

const FLAG_ANSWER: u8 = 1;
const FLAG_NOTICE: u8 = 2;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Writes the data at the offset.
    Put,
    /// Reads `value` bytes at the offset.
    Get,
    /// Adds `value` to the word at the offset and returns its former value.
    FetchAdd,
    /// Sets the word at the offset to `value` if it equals the 8 bytes of data, and returns its
    /// former value.
    CompareSwap,
    /// Is answered when all earlier operations on its edge are done.
    Fence,
    /// The answer to an operation: data, or a word in `value`. `key` contains the edge's source (high
    /// half) and target.
    Answer(Outcome),
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The operation was executed.
    Done,
    /// The endpoint has no open region with this key.
    NoRegion,
    /// It exceeds the region.
    OutOfBounds,
    /// The rights of the region do not allow it.
    NotAllowed,
    /// The offset of a word is not a multiple of 8 bytes.
    Misaligned,
}

const OUTCOMES: [Outcome; 5] = [
    Outcome::Done,
    Outcome::NoRegion,
    Outcome::OutOfBounds,
    Outcome::NotAllowed,
    Outcome::Misaligned,
];

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Outcome::Done => "it was done",
            Outcome::NoRegion => "the endpoint has no open region with this key",
            Outcome::OutOfBounds => "it exceeds the region",
            Outcome::NotAllowed => "the rights of the region do not allow it",
            Outcome::Misaligned => "the offset of a word is not a multiple of 8 bytes",
        })
    }
}

/// Head of an operation or of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Kind of the operation.
    pub kind: OperationKind,
    /// An answer is sent even if it succeeds. Failures are always answered.
    pub wants_answer: bool,
    /// The owner gets a notice with `value` when it is done.
    pub gives_notice: bool,
    /// Number of the operation, repeated in the answer.
    pub id: u32,
    /// Key of the region.
    pub key: u64,
    /// Offset in the region.
    pub offset: u64,
    /// See [`OperationKind`].
    pub value: u64,
}

impl Operation {
    /// Encodes the head.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; OPERATION_BYTES] {
        let (kind, outcome) = match self.kind {
            OperationKind::Put => (0, Outcome::Done),
            OperationKind::Get => (1, Outcome::Done),
            OperationKind::FetchAdd => (2, Outcome::Done),
            OperationKind::CompareSwap => (3, Outcome::Done),
            OperationKind::Fence => (4, Outcome::Done),
            OperationKind::Answer(outcome) => (5, outcome),
        };
        let flags = (u8::from(self.wants_answer) * FLAG_ANSWER)
            | (u8::from(self.gives_notice) * FLAG_NOTICE);
        let mut bytes = [0; OPERATION_BYTES];
        bytes[..3].copy_from_slice(&[kind, flags, outcome as u8]);
        put(&mut bytes, 4, &self.id.to_le_bytes());
        put(&mut bytes, 8, &self.key.to_le_bytes());
        put(&mut bytes, 16, &self.offset.to_le_bytes());
        put(&mut bytes, 24, &self.value.to_le_bytes());
        bytes
    }

    /// Parses the head of an operation with this many bytes of data.
    ///
    /// # Errors
    /// [`Malformed::BadField`] for an unknown kind, flag or outcome, or if that kind cannot have data
    /// of this length.
    pub fn parse(bytes: &[u8; OPERATION_BYTES], data: u64) -> Result<Operation, Malformed> {
        let bad = Malformed::BadField("operation");
        let outcome = OUTCOMES.get(usize::from(bytes[2])).copied();
        let kind = match (bytes[0], outcome) {
            (0, Some(Outcome::Done)) => OperationKind::Put,
            (1, Some(Outcome::Done)) => OperationKind::Get,
            (2, Some(Outcome::Done)) => OperationKind::FetchAdd,
            (3, Some(Outcome::Done)) => OperationKind::CompareSwap,
            (4, Some(Outcome::Done)) => OperationKind::Fence,
            (5, Some(outcome)) => OperationKind::Answer(outcome),
            _ => return Err(bad),
        };
        let fits = match kind {
            OperationKind::Put | OperationKind::Answer(Outcome::Done) => true,
            OperationKind::CompareSwap => data == 8,
            _ => data == 0,
        };
        if !fits || bytes[1] & !(FLAG_ANSWER | FLAG_NOTICE) != 0 || bytes[3] != 0 {
            return Err(bad);
        }
        Ok(Operation {
            kind,
            wants_answer: bytes[1] & FLAG_ANSWER != 0,
            gives_notice: bytes[1] & FLAG_NOTICE != 0,
            id: u32_at(bytes, 4),
            key: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            value: u64_at(bytes, 24),
        })
    }

    /// The answer of the endpoint `target` to an operation of `source`.
    #[must_use]
    pub fn answer(&self, (source, target): (u32, u32), outcome: Outcome, value: u64) -> Operation {
        Operation {
            kind: OperationKind::Answer(outcome),
            wants_answer: false,
            gives_notice: false,
            id: self.id,
            key: u64::from(source) << 32 | u64::from(target),
            offset: 0,
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(kind: OperationKind) -> Operation {
        Operation {
            kind,
            wants_answer: true,
            gives_notice: false,
            id: 7,
            key: u64::MAX - 1,
            offset: 1 << 40,
            value: 9,
        }
    }

    #[test]
    fn a_head_is_decoded_with_data_of_a_valid_length() {
        let kinds = [
            (OperationKind::Put, 5),
            (OperationKind::Get, 0),
            (OperationKind::FetchAdd, 0),
            (OperationKind::CompareSwap, 8),
            (OperationKind::Fence, 0),
            (OperationKind::Answer(Outcome::Done), 5),
            (OperationKind::Answer(Outcome::Misaligned), 0),
        ];
        for (kind, data) in kinds {
            let bytes = operation(kind).to_bytes();
            assert_eq!(Operation::parse(&bytes, data), Ok(operation(kind)));
            let any =
                matches!(kind, OperationKind::Put) || kind == OperationKind::Answer(Outcome::Done);
            assert_eq!(Operation::parse(&bytes, data + 1).is_ok(), any, "{kind:?}");
        }
    }

    #[test]
    fn invalid_heads_are_refused() {
        let bytes = operation(OperationKind::Put).to_bytes();
        for (at, value) in [(0, 6), (1, 4), (2, 1), (2, 5), (3, 1)] {
            let mut other = bytes;
            other[at] = value;
            assert!(Operation::parse(&other, 0).is_err(), "{at}: {value}");
        }
    }
}
