//! Records of a pipe: a 64-bit tag, and a few words or a message. Spec §9.
//!
//! They arrive in order and once, or not at all if a process has ended. [`PipeKind::Open`] gives an
//! edge a number, and its messages then carry only that.

use super::Malformed;
use super::operation::OPERATION_BYTES;
use super::record::{EdgeKey, RefusedReason};
use serde::{Deserialize, Serialize};

/// Incremented with every change of the following definitions.
pub const PIPE_VERSION: u64 = 5;
/// First word of a greeting: "dipole" and the version.
const MAGIC: u64 = u64::from_be_bytes(*b"dipole\0\0") | PIPE_VERSION;
/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 32;
/// Words of the longest control record.
pub const PIPE_WORDS: usize = 6;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PipeKind {
    /// Opens an edge: its number and key.
    Open,
    /// A whole message.
    Message,
    /// A message that may be dropped.
    Unreliable,
    /// Cumulative bytes that may be sent on an edge.
    Credit,
    /// Cumulative bytes that the next message of an edge needs.
    CreditRequest,
    /// Messages of an edge are refused from a sequence number on.
    Refused,
    /// An edge ends before a sequence number.
    End,
    /// An edge that ended is forgotten.
    Forgotten,
    /// A long message is in the sender's memory: length, address, head of an operation.
    Offer,
    /// An offered message has been copied, or is refused.
    OfferDone,
    /// An offered message cannot be copied and must be sent in pieces.
    RequestPieces,
    /// A long message follows in pieces: length, head of an operation.
    Announce,
    /// The next bytes of a message in pieces.
    Piece,
    /// The process ends normally.
    Bye,
    /// A whole operation on memory: head and data.
    Operation,
}

const KINDS: [PipeKind; 15] = [
    PipeKind::Open,
    PipeKind::Message,
    PipeKind::Unreliable,
    PipeKind::Credit,
    PipeKind::CreditRequest,
    PipeKind::Refused,
    PipeKind::End,
    PipeKind::Forgotten,
    PipeKind::Offer,
    PipeKind::OfferDone,
    PipeKind::RequestPieces,
    PipeKind::Announce,
    PipeKind::Piece,
    PipeKind::Bye,
    PipeKind::Operation,
];

/// Tag of a record: kind, a small value, and the number of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PipeTag {
    /// Kind of the record.
    pub kind: PipeKind,
    /// Life of the edge, or reason of a refusal.
    pub extra: u8,
    /// The sender's number of the edge, or the low 32 bits of a sequence number.
    pub number: u32,
}

impl PipeTag {
    /// Encodes the tag.
    #[inline]
    #[must_use]
    pub fn to_word(self) -> u64 {
        (self.kind as u64) << 56 | u64::from(self.extra) << 48 | u64::from(self.number)
    }

    /// Parses a tag.
    ///
    /// # Errors
    /// [`Malformed::BadField`] if the kind is unknown, or reserved bits are set.
    #[inline]
    pub fn from_word(word: u64) -> Result<PipeTag, Malformed> {
        let [kind, extra, zero, zero_too, number @ ..] = word.to_be_bytes();
        let kind = KINDS.get(usize::from(kind));
        match kind {
            Some(kind) if zero | zero_too == 0 => Ok(PipeTag {
                kind: *kind,
                extra,
                number: u32::from_be_bytes(number),
            }),
            _ => Err(Malformed::BadField("tag of a pipe's record")),
        }
    }
}

/// A control record: a tag and its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PipeRecord {
    /// Encoded tag of the record.
    pub tag: u64,
    words: [[u8; 8]; PIPE_WORDS],
    count: usize,
}

impl PipeRecord {
    /// Appends the head of an operation.
    ///
    /// # Panics
    /// If the record is full.
    #[must_use]
    pub(crate) fn with_head(mut self, head: &[u8; OPERATION_BYTES]) -> PipeRecord {
        let (words, _) = head.as_chunks::<8>();
        self.words[self.count..self.count + words.len()].copy_from_slice(words);
        self.count += words.len();
        self
    }

    /// A record with these words.
    ///
    /// # Panics
    /// If there are more than [`PIPE_WORDS`].
    #[must_use]
    pub fn new(tag: PipeTag, words: &[u64]) -> PipeRecord {
        let mut record = PipeRecord {
            tag: tag.to_word(),
            words: [[0; 8]; PIPE_WORDS],
            count: words.len(),
        };
        for (place, word) in record.words[..words.len()].iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        record
    }

    /// Returns the payload.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.words[..self.count].as_flattened()
    }
}

/// The words of a control record's payload.
///
/// # Errors
/// [`Malformed::BadField`] if its length is wrong.
pub fn pipe_words<const N: usize>(payload: &[u8]) -> Result<[u64; N], Malformed> {
    let (words, rest) = payload.as_chunks::<8>();
    if words.len() != N || !rest.is_empty() {
        return Err(Malformed::BadField("length of a pipe's record"));
    }
    let mut read = [0; N];
    for (place, word) in read.iter_mut().zip(words) {
        *place = u64::from_le_bytes(*word);
    }
    Ok(read)
}

/// Encodes the two endpoints of an edge in one word.
#[must_use]
pub(crate) fn ends_to_word(key: EdgeKey) -> u64 {
    u64::from(key.source) << 32 | u64::from(key.target)
}

/// Decodes the key of an edge from its word and its life.
pub(crate) fn key_from_word(word: u64, life: u8) -> Result<EdgeKey, Malformed> {
    let [a, b, c, d, target @ ..] = word.to_be_bytes();
    if life >= EdgeKey::LIVES {
        return Err(Malformed::BadField("life of an edge"));
    }
    Ok(EdgeKey {
        source: u32::from_be_bytes([a, b, c, d]),
        target: u32::from_be_bytes(target),
        life,
    })
}

/// Decodes the reason of a refusal.
pub(crate) fn reason_from_extra(extra: u8) -> Result<RefusedReason, Malformed> {
    RefusedReason::from_code(extra.into())
}

/// Description of a process, sent when a pipe opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Node of the process.
    pub node: u32,
    /// Incarnation of the process.
    pub incarnation: u64,
    /// Bytes that may be sent on each edge to it before any grant.
    pub initial_credit_bytes: u32,
}

impl Greeting {
    /// Encodes the greeting.
    #[must_use]
    pub fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.node.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.initial_credit_bytes.to_le_bytes());
        bytes
    }

    /// Parses a greeting.
    ///
    /// # Errors
    /// [`Malformed`] if it is not a greeting of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Greeting, Malformed> {
        let bytes: &[u8; GREETING_BYTES] = bytes
            .try_into()
            .map_err(|_| Malformed::BadField("length of a greeting"))?;
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
        if word(0) != MAGIC {
            return Err(Malformed::BadField("version of a greeting"));
        }
        Ok(Greeting {
            incarnation: word(8),
            node: half(16),
            initial_credit_bytes: half(20),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_decoded_as_encoded_and_others_are_refused() {
        for kind in KINDS {
            let tag = PipeTag {
                kind,
                extra: 3,
                number: 0xfedc_ba98,
            };
            assert_eq!(PipeTag::from_word(tag.to_word()), Ok(tag));
        }
        assert!(PipeTag::from_word((KINDS.len() as u64) << 56).is_err());
        assert!(PipeTag::from_word(1 << 40).is_err());
    }

    #[test]
    fn words_are_decoded_as_encoded_and_other_lengths_are_refused() {
        let tag = PipeTag {
            kind: PipeKind::Offer,
            extra: 0,
            number: 7,
        };
        let record = PipeRecord::new(tag, &[1, u64::MAX]);
        assert_eq!(pipe_words::<2>(record.bytes()), Ok([1, u64::MAX]));
        assert!(pipe_words::<1>(record.bytes()).is_err());
        assert!(pipe_words::<2>(&record.bytes()[..15]).is_err());
    }

    #[test]
    fn a_key_is_decoded_as_encoded() {
        let key = EdgeKey {
            source: 0xffff_0001,
            target: 0x8000_0002,
            life: 63,
        };
        assert_eq!(key_from_word(ends_to_word(key), 63), Ok(key));
        assert!(key_from_word(ends_to_word(key), 64).is_err());
    }

    #[test]
    fn a_greeting_is_decoded_as_encoded_and_others_are_refused() {
        let greeting = Greeting {
            node: 7,
            incarnation: u64::MAX - 3,
            initial_credit_bytes: 32 << 10,
        };
        let bytes = greeting.to_bytes();
        assert_eq!(Greeting::from_bytes(&bytes), Ok(greeting));
        assert!(Greeting::from_bytes(&bytes[1..]).is_err());
        let mut other = bytes;
        other[0] ^= 1;
        assert!(Greeting::from_bytes(&other).is_err());
    }
}
