//! What a record of a pipe says: a 64-bit tag, and a few words or a message. Spec §9.
//!
//! Records of a pipe arrive in order, once, or not at all because a process has ended.
//! An edge is introduced by [`PipeKind::Open`], which gives it a number; messages then
//! carry only that.

use super::Malformed;
use super::operation::OPERATION_BYTES;
use super::record::{EdgeKey, RefusedReason};

/// Raised with every change of what follows.
pub const PIPE_VERSION: u64 = 5;
/// First word of a greeting: "dipole" and the version.
const MAGIC: u64 = u64::from_be_bytes(*b"dipole\0\0") | PIPE_VERSION;
/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 32;
/// Words of the longest control record.
pub const PIPE_WORDS: usize = 6;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipeKind {
    /// An edge begins: its number, its key.
    Open,
    /// A message, whole.
    Message,
    /// A message that may be dropped.
    Unreliable,
    /// Cumulative bytes that an edge may send.
    Credit,
    /// Cumulative bytes that the next message of an edge needs.
    CreditRequest,
    /// Messages of an edge are not taken, from a sequence on.
    Refused,
    /// An edge sends nothing from a sequence on.
    End,
    /// An edge that ended is forgotten.
    Forgotten,
    /// A long message lies in the sender's memory: length, address; the head of an operation.
    Offer,
    /// An offered message has been fetched, or is not wanted.
    OfferDone,
    /// An offered message cannot be fetched: send it in pieces.
    RequestPieces,
    /// A long message of this length comes in pieces, unasked; the head of an operation.
    Announce,
    /// The next bytes of a message that comes in pieces.
    Piece,
    /// The process leaves in order.
    Bye,
    /// An operation on memory, whole: its head, its data.
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

/// Kind, a small value, and the number of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeTag {
    /// What the record is.
    pub kind: PipeKind,
    /// The life of the edge, or why it is refused.
    pub extra: u8,
    /// The sender's number of the edge, or the low 32 bits of a sequence.
    pub number: u32,
}

impl PipeTag {
    /// The tag as records carry it.
    #[inline]
    #[must_use]
    pub fn to_word(self) -> u64 {
        (self.kind as u64) << 56 | u64::from(self.extra) << 48 | u64::from(self.number)
    }

    /// Parses a tag.
    ///
    /// # Errors
    /// [`Malformed::BadField`]: an unknown kind, or bits that must be zero are not.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeRecord {
    /// Its tag, as records carry it.
    pub tag: u64,
    words: [[u8; 8]; PIPE_WORDS],
    count: usize,
}

impl PipeRecord {
    /// The record that begins an operation: its head behind the words.
    ///
    /// # Panics
    /// When there is no room for it.
    #[must_use]
    pub(crate) fn with_head(mut self, head: &[u8; OPERATION_BYTES]) -> PipeRecord {
        let (words, _) = head.as_chunks::<8>();
        self.words[self.count..self.count + words.len()].copy_from_slice(words);
        self.count += words.len();
        self
    }

    /// A record of these words.
    ///
    /// # Panics
    /// When there are more than [`PIPE_WORDS`].
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

    /// Its payload.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.words[..self.count].as_flattened()
    }
}

/// The words of a control record's payload.
///
/// # Errors
/// [`Malformed::BadField`]: it has another length.
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

/// The two endpoints of an edge in one word.
#[must_use]
pub(crate) fn ends_to_word(key: EdgeKey) -> u64 {
    u64::from(key.source) << 32 | u64::from(key.target)
}

/// The key of an edge from its word and its life.
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

/// The reason in the small value of a refusal.
pub(crate) fn reason_from_extra(extra: u8) -> Result<RefusedReason, Malformed> {
    RefusedReason::from_code(extra.into())
}

/// What a process says of itself when a pipe opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Its node.
    pub node: u32,
    /// Its incarnation.
    pub incarnation: u64,
    /// Bytes that each edge to it may send before its first grant.
    pub initial_credit_bytes: u32,
}

impl Greeting {
    /// As the link carries it.
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
    /// [`Malformed`]: it is another version's, or no greeting.
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
    fn a_tag_reads_back_what_was_written_and_nothing_else_does() {
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
    fn words_read_back_and_other_lengths_do_not() {
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
    fn a_key_reads_back_from_its_word() {
        let key = EdgeKey {
            source: 0xffff_0001,
            target: 0x8000_0002,
            life: 63,
        };
        assert_eq!(key_from_word(ends_to_word(key), 63), Ok(key));
        assert!(key_from_word(ends_to_word(key), 64).is_err());
    }

    #[test]
    fn a_greeting_reads_back_what_was_written_and_nothing_else_does() {
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
