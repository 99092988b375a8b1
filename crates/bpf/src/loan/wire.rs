//! The bytes of a question to the lender and of its answer: one message each.
//!
//! | bytes of a question | what |
//! |---|---|
//! | 0..4 | `DPln` |
//! | 4..6 | version of this format |
//! | 6 | 1: lend me a ring; 2: would you? (nothing is lent) |
//! | 7 | zero |
//! | 8..12 | bytes of ring that are wanted |
//!
//! | bytes of an answer | what |
//! |---|---|
//! | 0..6 | as above |
//! | 6 | 1: granted; 2: refused |
//! | 7 | granted: 1 if a socket for raw frames comes along, else 0; refused: the [`Reason`] |
//! | 8..12 | granted: bytes of the ring; refused: zero |
//! | 12..16 | granted: number of the card; refused: zero |
//! | 16.. | granted: name of the card; refused: why, in words; at most 400 bytes of UTF-8 |
//!
//! Numbers are little-endian. Descriptors travel beside a message; how many belong to it
//! follows from what it says. Whatever is not exactly so is nonsense.

use crate::CardId;

/// The version spoken here.
pub const VERSION: u16 = 1;

/// Longest message.
pub const MAX_MESSAGE_BYTES: usize = HEAD_BYTES + MAX_TEXT_BYTES;

const MAGIC: [u8; 4] = *b"DPln";
const QUESTION_BYTES: usize = 12;
const HEAD_BYTES: usize = 16;
const MAX_TEXT_BYTES: usize = 400;

/// What a process asks the lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Only whether it would be granted.
    pub dry: bool,
    /// Bytes of ring that are wanted.
    pub ring_bytes: u32,
}

/// What the lender says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The ring comes along.
    Granted(Granted),
    /// Nothing does.
    Refused(Refusal),
}

/// What is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The card whose packets are put into the ring.
    pub card: CardId,
    /// How long the ring is.
    pub ring_bytes: u32,
    /// A socket for raw frames comes along.
    pub sender: bool,
}

/// Why nothing is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub text: String,
}

/// Why nothing is lent, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The question is of another version.
    Version = 1,
    /// The question makes no sense.
    Nonsense = 2,
    /// The socket does not prove that its holder owns an address and a port.
    Proof = 3,
    /// No card of the lender's has the address.
    Card = 4,
    /// The administrator does not let this user.
    User = 5,
    /// The ring is longer than the administrator allows, or not a power of two of pages.
    Size = 6,
    /// The descriptor offered is no ring.
    Ring = 7,
    /// This user has as many rings as they may.
    Limit = 8,
    /// Too much is asked at once; later perhaps.
    Busy = 9,
    /// Address and port are lent to another user.
    Taken = 10,
    /// The kernel refuses.
    Kernel = 11,
}

impl Reason {
    const ALL: [Reason; 11] = [
        Reason::Version,
        Reason::Nonsense,
        Reason::Proof,
        Reason::Card,
        Reason::User,
        Reason::Size,
        Reason::Ring,
        Reason::Limit,
        Reason::Busy,
        Reason::Taken,
        Reason::Kernel,
    ];
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Of a version that is not spoken here.
    Version {
        /// Which.
        found: u16,
    },
    /// Nothing of ours.
    Nonsense,
}

fn head(kind: u8, detail: u8) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend([kind, detail]);
    bytes
}

/// Kind, detail, and what follows.
fn opened(bytes: &[u8]) -> Result<(u8, u8, &[u8]), WireError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(WireError::Nonsense)?;
    let (version, rest) = rest.split_first_chunk().ok_or(WireError::Nonsense)?;
    match u16::from_le_bytes(*version) {
        VERSION => {}
        found => return Err(WireError::Version { found }),
    }
    match rest {
        [kind, detail, rest @ ..] => Ok((*kind, *detail, rest)),
        _ => Err(WireError::Nonsense),
    }
}

impl Question {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = head(if self.dry { 2 } else { 1 }, 0);
        bytes.extend(self.ring_bytes.to_le_bytes());
        bytes
    }

    /// What bytes ask, whoever sent them.
    ///
    /// # Errors
    /// They are no question.
    pub fn decode(bytes: &[u8]) -> Result<Question, WireError> {
        let (kind, detail, rest) = opened(bytes)?;
        let dry = match (kind, detail, bytes.len()) {
            (1, 0, QUESTION_BYTES) => false,
            (2, 0, QUESTION_BYTES) => true,
            _ => return Err(WireError::Nonsense),
        };
        let ring_bytes = rest.try_into().map_err(|_| WireError::Nonsense)?;
        Ok(Question {
            dry,
            ring_bytes: u32::from_le_bytes(ring_bytes),
        })
    }
}

impl Answer {
    /// As it is sent; words that are too long are cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (mut bytes, numbers, text) = match self {
            Answer::Granted(granted) => (
                head(1, u8::from(granted.sender)),
                [granted.ring_bytes, granted.card.index],
                &granted.card.name,
            ),
            Answer::Refused(refusal) => (head(2, refusal.reason as u8), [0, 0], &refusal.text),
        };
        for number in numbers {
            bytes.extend(number.to_le_bytes());
        }
        let mut end = text.len().min(MAX_TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend(&text.as_bytes()[..end]);
        bytes
    }

    /// What bytes say, whoever sent them.
    ///
    /// # Errors
    /// They are no answer.
    pub fn decode(bytes: &[u8]) -> Result<Answer, WireError> {
        let (kind, detail, rest) = opened(bytes)?;
        let (ring_bytes, rest) = rest.split_first_chunk().ok_or(WireError::Nonsense)?;
        let (index, text) = rest.split_first_chunk().ok_or(WireError::Nonsense)?;
        let (ring_bytes, index) = (u32::from_le_bytes(*ring_bytes), u32::from_le_bytes(*index));
        let text = std::str::from_utf8(text).map_err(|_| WireError::Nonsense)?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(WireError::Nonsense);
        }
        let text = text.to_owned();
        match (kind, detail) {
            (1, 0 | 1) => Ok(Answer::Granted(Granted {
                card: CardId { index, name: text },
                ring_bytes,
                sender: detail == 1,
            })),
            (2, reason) if (ring_bytes, index) == (0, 0) => {
                let mut all = Reason::ALL.into_iter();
                let reason = all.find(|known| *known as u8 == reason);
                let reason = reason.ok_or(WireError::Nonsense)?;
                Ok(Answer::Refused(Refusal { reason, text }))
            }
            _ => Err(WireError::Nonsense),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn granted() -> impl Strategy<Value = Answer> {
        ("[ -~]{0,15}", any::<[u32; 2]>(), any::<bool>()).prop_map(|(name, numbers, sender)| {
            Answer::Granted(Granted {
                card: CardId {
                    index: numbers[0],
                    name,
                },
                ring_bytes: numbers[1],
                sender,
            })
        })
    }

    fn refused() -> impl Strategy<Value = Answer> {
        (".{0,100}", 0..Reason::ALL.len()).prop_map(|(text, reason)| {
            Answer::Refused(Refusal {
                reason: Reason::ALL[reason],
                text,
            })
        })
    }

    proptest! {
        #[test]
        fn questions_come_back_as_they_were_asked(dry: bool, ring_bytes: u32) {
            let question = Question { dry, ring_bytes };
            prop_assert_eq!(Question::decode(&question.encode()), Ok(question));
        }

        #[test]
        fn answers_come_back_as_they_were_given(answer in prop_oneof![granted(), refused()]) {
            let bytes = answer.encode();
            prop_assert!(bytes.len() <= MAX_MESSAGE_BYTES);
            prop_assert_eq!(Answer::decode(&bytes), Ok(answer));
        }

        #[test]
        fn whatever_is_understood_is_said_in_one_way_only(
            head in prop_oneof![Just(head(1, 0)), Just(head(1, 1)), Just(head(2, 0)), Just(head(2, 5))],
            rest in proptest::collection::vec(any::<u8>(), 0..MAX_MESSAGE_BYTES + 10),
        ) {
            let bytes = [head, rest].concat();
            if let Ok(question) = Question::decode(&bytes) {
                prop_assert_eq!(question.encode(), bytes.clone());
            }
            if let Ok(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(answer.encode(), bytes);
            }
        }

        #[test]
        fn bytes_of_strangers_are_nonsense(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assume!(!bytes.starts_with(&MAGIC));
            prop_assert_eq!(Question::decode(&bytes), Err(WireError::Nonsense));
            prop_assert_eq!(Answer::decode(&bytes), Err(WireError::Nonsense));
        }
    }

    #[test]
    fn cut_lengthened_and_other_versions_are_refused() {
        let question = Question {
            dry: false,
            ring_bytes: 4096,
        };
        let bytes = question.encode();
        for length in 0..bytes.len() {
            assert_eq!(
                Question::decode(&bytes[..length]),
                Err(WireError::Nonsense),
                "{length}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Question::decode(&longer), Err(WireError::Nonsense));
        let mut other = bytes;
        other[4] = 9;
        let found = Question::decode(&other);
        assert_eq!(found, Err(WireError::Version { found: 9 }));
    }

    #[test]
    fn words_that_are_too_long_are_cut_between_letters() {
        let answer = Answer::Refused(Refusal {
            reason: Reason::User,
            text: "ä".repeat(MAX_TEXT_BYTES) + "b",
        });
        let bytes = answer.encode();
        assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        let Ok(Answer::Refused(refusal)) = Answer::decode(&bytes) else {
            panic!("a refusal");
        };
        assert!(refusal.text.chars().all(|letter| letter == 'ä'));
    }
}
