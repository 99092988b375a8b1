//! Messages between ranks that share no memory: a header of 24 bytes, then a summary, records, or
//! both.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEAD_BYTES: usize = size_of::<WireHead>();

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From rank 0 to all: the number of ranks that take part (`total`). A surplus rank replies
    /// with the same kind.
    Start,
    /// How the ranks of the same node can open the sender's memory.
    Hello,
    /// The summary of a node, in a round at the end of the superstep. May carry all records of the
    /// sender for the receiver.
    Round,
    /// Records of a superstep.
    Records,
    /// Replies to gets of a superstep.
    Replies,
    /// The program ends with an error.
    Abort,
    /// Sent to a rank that is waited for. The link detects whether its process is alive.
    Probe,
    /// All gets from the sender's memory have been read, so replies held for it may be written there.
    Ready,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind of message.
    pub kind: Kind,
    /// The number of a round.
    pub round: u8,
    /// The superstep it belongs to, modulo 2^32.
    pub superstep: u32,
    /// The index of this message among the sender's records or replies for the receiver.
    pub index: u32,
    /// The number of these messages; in a round, 1 if it carries records.
    pub total: u32,
    /// Bytes of the summary in a round.
    pub summary_bytes: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHead {
    mark: U16,
    kind: u8,
    round: u8,
    superstep: U32,
    index: U32,
    total: U32,
    summary_bytes: U32,
    reserved: U32,
}

const KINDS: [Kind; 8] = [
    Kind::Start,
    Kind::Hello,
    Kind::Round,
    Kind::Records,
    Kind::Replies,
    Kind::Abort,
    Kind::Probe,
    Kind::Ready,
];
/// Begins every message of this library.
const MARK: u16 = 0xB5B1;

impl Head {
    /// A header with all numbers 0.
    #[must_use]
    pub const fn new(kind: Kind, superstep: u32) -> Head {
        Head {
            kind,
            round: 0,
            superstep,
            index: 0,
            total: 0,
            summary_bytes: 0,
        }
    }

    /// The header as bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let kind = kind.and_then(|kind| u8::try_from(kind).ok());
        let head = WireHead {
            mark: MARK.into(),
            kind: kind.unwrap_or(u8::MAX),
            round: self.round,
            superstep: self.superstep.into(),
            index: self.index.into(),
            total: self.total.into(),
            summary_bytes: self.summary_bytes.into(),
            reserved: U32::ZERO,
        };
        zerocopy::transmute!(head)
    }

    /// The header and the body of a message; `None` if it does not begin with a valid header.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<(Head, &[u8])> {
        let (head, body) = WireHead::ref_from_prefix(message).ok()?;
        if head.mark.get() != MARK {
            return None;
        }
        let head = Head {
            kind: *KINDS.get(usize::from(head.kind))?,
            round: head.round,
            superstep: head.superstep.get(),
            index: head.index.get(),
            total: head.total.get(),
            summary_bytes: head.summary_bytes.get(),
        };
        Some((head, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_decoded_as_they_were_encoded() {
        for (index, kind) in (1..).zip(KINDS) {
            let head = Head {
                round: 3,
                index,
                total: 7,
                summary_bytes: 9,
                ..Head::new(kind, 11)
            };
            let mut bytes = head.encode().to_vec();
            bytes.push(42);
            assert_eq!(Head::decode(&bytes), Some((head, &[42][..])));
            assert_eq!(Head::decode(&bytes[..HEAD_BYTES - 1]), None);
            bytes[0] ^= 1;
            assert_eq!(Head::decode(&bytes), None);
        }
        let mut bytes = Head::new(Kind::Abort, 0).encode();
        bytes[2] = 8;
        assert_eq!(Head::decode(&bytes), None);
    }
}
