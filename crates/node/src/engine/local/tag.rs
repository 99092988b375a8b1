//! What a record between two processes of a node is: kind, edge, and a few words.
//!
//! The link carries a 64-bit tag and a payload; this is the only place that knows
//! what they mean. Records of one connection arrive in order, once, or not at all
//! because a process has ended, so nothing is numbered and nothing acknowledged.

use dipole_link::shm::Payload;
use dipole_proto::wire::RefusedReason;

/// Says that both sides mean the same by what follows; raised with every change.
pub(super) const VERSION: u64 = 1;
/// First word of a greeting: "dipole" and the version.
const MAGIC: u64 = u64::from_be_bytes(*b"dipole\0\0") | VERSION;
/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = 32;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The edge begins (again); payload: source and target endpoint.
    Open,
    /// A message.
    Message,
    /// A message that may be dropped.
    Loose,
    /// The edge may send this many bytes more; payload: bytes.
    Credit,
    /// The target takes nothing; `extra` says why.
    Refused,
    /// A long message lies in the sender's memory; payload: length and address.
    Offer,
    /// It cannot be fetched: send it by the ring.
    Stream,
    /// It has been fetched, or is not wanted.
    Taken,
    /// The next bytes of a long message.
    Piece,
    /// The source endpoint has been closed.
    Close,
    /// The edge is forgotten; its number may be used again.
    Closed,
    /// The process leaves on purpose.
    Bye,
}

const KINDS: [Kind; 12] = [
    Kind::Open,
    Kind::Message,
    Kind::Loose,
    Kind::Credit,
    Kind::Refused,
    Kind::Offer,
    Kind::Stream,
    Kind::Taken,
    Kind::Piece,
    Kind::Close,
    Kind::Closed,
    Kind::Bye,
];

/// Kind, a small number, edge: the tag of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) kind: Kind,
    pub(super) extra: u8,
    pub(super) edge: u32,
}

impl Tag {
    pub(super) fn new(kind: Kind, edge: u32) -> Tag {
        Tag {
            kind,
            extra: 0,
            edge,
        }
    }

    #[inline]
    pub(super) fn to_word(self) -> u64 {
        (self.kind as u64) << 56 | u64::from(self.extra) << 48 | u64::from(self.edge)
    }

    /// `None` if the peer speaks nonsense.
    #[inline]
    pub(super) fn from_word(word: u64) -> Option<Tag> {
        let [kind, extra, zero, zero_too, edge @ ..] = word.to_be_bytes();
        if zero | zero_too != 0 {
            return None;
        }
        Some(Tag {
            kind: *KINDS.get(usize::from(kind))?,
            extra,
            edge: u32::from_be_bytes(edge),
        })
    }
}

/// What a process says of itself when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    /// Bytes that each edge to it may send before its first grant.
    pub(super) initial_credit: u32,
}

impl Greeting {
    pub(super) fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.node.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.initial_credit.to_le_bytes());
        bytes
    }

    /// `None` if it is another version's, or nonsense.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Greeting> {
        let bytes: &[u8; GREETING_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let half = |at: usize| {
            let mut half = [0; 4];
            half.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(half)
        };
        (word(0) == MAGIC).then(|| Greeting {
            incarnation: word(8),
            node: half(16),
            initial_credit: half(20),
        })
    }
}

/// The words of a control record's payload; `None` if it has another length.
pub(super) fn words<const N: usize>(payload: &Payload<'_>) -> Option<[u64; N]> {
    if payload.len() != N * 8 {
        return None;
    }
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        *word = payload.read_u64(index * 8)?;
    }
    Some(words)
}

/// Why an edge is refused, as `extra`.
pub(super) fn refusal_to_extra(reason: RefusedReason) -> u8 {
    match reason {
        RefusedReason::NoEndpoint => 0,
        RefusedReason::Closed => 1,
        RefusedReason::TooLong => 2,
        RefusedReason::NoRegion => 3,
    }
}

/// The reason in `extra`.
pub(super) fn refusal_from_extra(extra: u8) -> Option<RefusedReason> {
    Some(match extra {
        0 => RefusedReason::NoEndpoint,
        1 => RefusedReason::Closed,
        2 => RefusedReason::TooLong,
        3 => RefusedReason::NoRegion,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_reads_back_what_was_written() {
        for kind in KINDS {
            let tag = Tag {
                kind,
                extra: 3,
                edge: 0xfedc_ba98,
            };
            assert_eq!(Tag::from_word(tag.to_word()), Some(tag));
        }
        assert_eq!(Tag::from_word(12 << 56), None);
        assert_eq!(Tag::from_word(1 << 40), None);
    }

    #[test]
    fn a_greeting_reads_back_what_was_written_and_nothing_else_does() {
        let greeting = Greeting {
            node: 7,
            incarnation: u64::MAX - 3,
            initial_credit: 32 << 10,
        };
        let bytes = greeting.to_bytes();
        assert_eq!(Greeting::from_bytes(&bytes), Some(greeting));
        assert_eq!(Greeting::from_bytes(&bytes[1..]), None);
        let mut other = bytes;
        other[0] ^= 2;
        assert_eq!(Greeting::from_bytes(&other), None);
    }

    #[test]
    fn every_refusal_survives_the_tag() {
        for reason in [
            RefusedReason::NoEndpoint,
            RefusedReason::Closed,
            RefusedReason::TooLong,
            RefusedReason::NoRegion,
        ] {
            assert_eq!(refusal_from_extra(refusal_to_extra(reason)), Some(reason));
        }
        assert_eq!(refusal_from_extra(4), None);
    }
}
