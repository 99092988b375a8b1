//! What one rank tells another in a superstep: puts, gets, answers to gets, messages.
//!
//! A record is a head of three little-endian words and its data, filled up to a multiple of
//! eight bytes. It lies in shared memory or in a message, and is read where it lies.

use dipole_link::window::Source;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 24;

/// What a record says; its data follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The data belong at an offset of the receiver's part of an area.
    Put {
        /// The area.
        slot: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes of data.
        length: u64,
    },
    /// The receiver copies them itself, out of the sender's memory at the address that the data are.
    Fetch {
        /// The area.
        slot: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The sender wants bytes of the receiver's part of an area in memory that it has opened; the data are
    /// its key.
    Bring {
        /// The area.
        slot: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The same, but of how they are before anything is written: the receiver keeps a copy until
    /// the sender is ready for it.
    Keep {
        /// The area.
        slot: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The sender wants bytes of the receiver's part of an area; the data are the ticket of the answer.
    Get {
        /// The area.
        slot: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The data were asked for.
    Answer {
        /// By which get.
        ticket: u64,
        /// Where in what was asked for.
        offset: u64,
        /// How many bytes of data.
        length: u64,
    },
    /// A tag and a payload for the receiver's queue.
    Message {
        /// Bytes of the tag, which comes first.
        tag: u64,
        /// Bytes of the payload.
        length: u64,
    },
}

const PUT: u64 = 1;
const FETCH: u64 = 2;
const GET: u64 = 3;
const ANSWER: u64 = 4;
const MESSAGE: u64 = 5;
const BRING: u64 = 6;
const KEEP: u64 = 7;

/// A record that no rank of this program wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record that is none")]
pub struct Malformed;

/// Bytes with which data of `length` are filled up.
#[must_use]
pub const fn filled(length: usize) -> usize {
    length.next_multiple_of(8)
}

impl Record {
    /// Its head.
    #[must_use]
    #[inline]
    pub fn head(self) -> [u8; HEAD_BYTES] {
        let words = match self {
            Record::Put {
                slot,
                offset,
                length,
            } => [PUT | u64::from(slot) << 8, offset, length],
            Record::Fetch {
                slot,
                offset,
                length,
            } => [FETCH | u64::from(slot) << 8, offset, length],
            Record::Bring {
                slot,
                offset,
                length,
            } => [BRING | u64::from(slot) << 8, offset, length],
            Record::Keep {
                slot,
                offset,
                length,
            } => [KEEP | u64::from(slot) << 8, offset, length],
            Record::Get {
                slot,
                offset,
                length,
            } => [GET | u64::from(slot) << 8, offset, length],
            Record::Answer {
                ticket,
                offset,
                length,
            } => [ANSWER | ticket << 8, offset, length],
            Record::Message { tag, length } => [MESSAGE, tag, length],
        };
        let mut head = [0; HEAD_BYTES];
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        head
    }

    /// Bytes of data behind the head.
    #[must_use]
    #[inline]
    pub fn data_bytes(self) -> u64 {
        match self {
            Record::Put { length, .. } | Record::Answer { length, .. } => length,
            Record::Get { .. }
            | Record::Fetch { .. }
            | Record::Bring { .. }
            | Record::Keep { .. } => 8,
            Record::Message { tag, length } => tag.saturating_add(length),
        }
    }

    #[inline]
    fn parse(head: Source<'_>) -> Result<Record, Malformed> {
        let (first, offset, length) = (head.word(0), head.word(8), head.word(16));
        // Of 32 bits at most where it is a slot: what lies above was zero in the sender's.
        let slot = u32::try_from(first >> 8);
        let slot = || slot.map_err(|_| Malformed);
        Ok(match first & 0xFF {
            PUT => Record::Put {
                slot: slot()?,
                offset,
                length,
            },
            FETCH => Record::Fetch {
                slot: slot()?,
                offset,
                length,
            },
            GET => Record::Get {
                slot: slot()?,
                offset,
                length,
            },
            BRING => Record::Bring {
                slot: slot()?,
                offset,
                length,
            },
            KEEP => Record::Keep {
                slot: slot()?,
                offset,
                length,
            },
            ANSWER => Record::Answer {
                ticket: first >> 8,
                offset,
                length,
            },
            MESSAGE if first >> 8 == 0 => Record::Message {
                tag: offset,
                length,
            },
            _ => return Err(Malformed),
        })
    }
}

/// The records in a run of bytes, with their data.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    rest: Source<'a>,
}

impl<'a> Records<'a> {
    /// Those in `bytes`.
    #[must_use]
    #[inline]
    pub fn new(bytes: Source<'a>) -> Records<'a> {
        Records { rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(Record, Source<'a>), Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let length = self.rest.length();
        if length == 0 {
            return None;
        }
        let parsed = match length.checked_sub(HEAD_BYTES) {
            None => Err(Malformed),
            Some(behind) => Record::parse(self.rest).and_then(|record| {
                let data = usize::try_from(record.data_bytes()).map_err(|_| Malformed)?;
                let room = data.checked_next_multiple_of(8);
                match room {
                    Some(room) if room <= behind => Ok((record, data, room)),
                    _ => Err(Malformed),
                }
            }),
        };
        Some(match parsed {
            Ok((record, data, room)) => {
                let found = self.rest.part(HEAD_BYTES, data);
                let next = HEAD_BYTES + room;
                self.rest = self.rest.part(next, length - next);
                Ok((record, found))
            }
            Err(malformed) => {
                self.rest = self.rest.part(length, 0);
                Err(malformed)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let slot = any::<u32>();
        prop_oneof![
            (slot, any::<u64>(), 0_u64..40).prop_map(|(slot, offset, length)| Record::Put {
                slot,
                offset,
                length
            }),
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| Record::Get {
                slot,
                offset,
                length
            }),
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| Record::Fetch {
                slot,
                offset,
                length
            }),
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| Record::Bring {
                slot,
                offset,
                length
            }),
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| Record::Keep {
                slot,
                offset,
                length
            }),
            (0_u64..1 << 56, any::<u64>(), 0_u64..40).prop_map(|(ticket, offset, length)| {
                Record::Answer {
                    ticket,
                    offset,
                    length,
                }
            }),
            (0_u64..9, 0_u64..40).prop_map(|(tag, length)| Record::Message { tag, length }),
        ]
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were_written(records in proptest::collection::vec(any_record(), 0..9)) {
            let mut bytes = Vec::new();
            for (index, record) in records.iter().enumerate() {
                bytes.extend_from_slice(&record.head());
                let data = usize::try_from(record.data_bytes()).expect("few");
                bytes.resize(bytes.len() + data, u8::try_from(index).expect("few"));
                bytes.resize(bytes.len().next_multiple_of(8), 0);
            }
            let found: Vec<_> = Records::new(Source::from(&bytes[..]))
                .map(|found| found.expect("as written"))
                .collect();
            prop_assert_eq!(found.len(), records.len());
            for (index, ((record, data), written)) in found.iter().zip(&records).enumerate() {
                prop_assert_eq!(record, written);
                prop_assert_eq!(data.length() as u64, written.data_bytes());
                let index = u8::try_from(index).expect("few");
                prop_assert!(data.to_vec().iter().all(|byte| *byte == index));
            }
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut seen = 0;
            for found in Records::new(Source::from(&bytes[..])) {
                seen += HEAD_BYTES;
                if let Ok((_, data)) = found {
                    seen += data.length();
                }
            }
            prop_assert!(seen <= bytes.len() + HEAD_BYTES);
        }
    }
}
