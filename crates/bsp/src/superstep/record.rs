//! Records: the puts, gets, replies to gets and messages that ranks send each other in a superstep.
//!
//! A record is a header of three little-endian words and its data, padded to a multiple of eight
//! bytes. It is in shared memory or in a message, and is read in place.

use dipole_link::window::Source;

/// Bytes of a header.
pub const HEAD_BYTES: usize = 24;

/// The header of a record. Its data follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Writes the data into the receiver's part of an area.
    Put {
        /// Slot of the area.
        slot: u32,
        /// Where the data belong in it.
        offset: u64,
        /// Number of data bytes.
        length: u64,
    },
    /// A put whose bytes the receiver copies from the sender's memory. The data are their address.
    PutByPull {
        /// Slot of the area.
        slot: u32,
        /// Where the bytes belong in it.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Requests bytes of the receiver's part of an area, to be written into memory that the sender has
    /// opened. The data are its key.
    GetByWrite {
        /// Slot of the area.
        slot: u32,
        /// Where the bytes begin in it.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Like `GetByWrite`, for the bytes before any put takes effect. The receiver holds a copy until
    /// the sender is ready for it.
    GetSnapshot {
        /// Slot of the area.
        slot: u32,
        /// Where the bytes begin in it.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Requests bytes of the receiver's part of an area. The data are the ticket of the reply.
    Get {
        /// Slot of the area.
        slot: u32,
        /// Where the bytes begin in it.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Replies to a get with data.
    Reply {
        /// The ticket of the get.
        ticket: u64,
        /// Where the data belong in its destination.
        offset: u64,
        /// Number of data bytes.
        length: u64,
    },
    /// Sends a tag and a payload to the receiver's queue.
    Message {
        /// Bytes of the tag, which comes first.
        tag: u64,
        /// Bytes of the payload.
        length: u64,
    },
}

const PUT: u64 = 1;
const PUT_BY_PULL: u64 = 2;
const GET: u64 = 3;
const REPLY: u64 = 4;
const MESSAGE: u64 = 5;
const GET_BY_WRITE: u64 = 6;
const GET_SNAPSHOT: u64 = 7;

/// A record that no rank of this program can have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rank has sent an invalid record")]
pub struct Malformed;

/// Bytes of data after padding.
#[must_use]
pub const fn filled(length: usize) -> usize {
    length.next_multiple_of(8)
}

impl Record {
    /// Returns the encoded header.
    #[must_use]
    #[inline]
    pub fn head(self) -> [u8; HEAD_BYTES] {
        let words = match self {
            Record::Put {
                slot,
                offset,
                length,
            } => [PUT | u64::from(slot) << 8, offset, length],
            Record::PutByPull {
                slot,
                offset,
                length,
            } => [PUT_BY_PULL | u64::from(slot) << 8, offset, length],
            Record::GetByWrite {
                slot,
                offset,
                length,
            } => [GET_BY_WRITE | u64::from(slot) << 8, offset, length],
            Record::GetSnapshot {
                slot,
                offset,
                length,
            } => [GET_SNAPSHOT | u64::from(slot) << 8, offset, length],
            Record::Get {
                slot,
                offset,
                length,
            } => [GET | u64::from(slot) << 8, offset, length],
            Record::Reply {
                ticket,
                offset,
                length,
            } => [REPLY | ticket << 8, offset, length],
            Record::Message { tag, length } => [MESSAGE, tag, length],
        };
        let mut head = [0; HEAD_BYTES];
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        head
    }

    /// Bytes of data after the header, without padding.
    #[must_use]
    #[inline]
    pub fn data_bytes(self) -> u64 {
        match self {
            Record::Put { length, .. } | Record::Reply { length, .. } => length,
            Record::Get { .. }
            | Record::PutByPull { .. }
            | Record::GetByWrite { .. }
            | Record::GetSnapshot { .. } => 8,
            Record::Message { tag, length } => tag.saturating_add(length),
        }
    }

    #[inline]
    fn parse(head: Source<'_>) -> Result<Record, Malformed> {
        let (first, offset, length) = (head.word(0), head.word(8), head.word(16));
        // A slot has 32 bits; the bits above must be 0.
        let slot = u32::try_from(first >> 8);
        let slot = || slot.map_err(|_| Malformed);
        Ok(match first & 0xFF {
            PUT => Record::Put {
                slot: slot()?,
                offset,
                length,
            },
            PUT_BY_PULL => Record::PutByPull {
                slot: slot()?,
                offset,
                length,
            },
            GET => Record::Get {
                slot: slot()?,
                offset,
                length,
            },
            GET_BY_WRITE => Record::GetByWrite {
                slot: slot()?,
                offset,
                length,
            },
            GET_SNAPSHOT => Record::GetSnapshot {
                slot: slot()?,
                offset,
                length,
            },
            REPLY => Record::Reply {
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

/// Iterates over records and their data.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    rest: Source<'a>,
}

impl<'a> Records<'a> {
    /// The records in `bytes`.
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
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| {
                Record::PutByPull {
                    slot,
                    offset,
                    length,
                }
            }),
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| {
                Record::GetByWrite {
                    slot,
                    offset,
                    length,
                }
            }),
            (slot, any::<u64>(), any::<u64>()).prop_map(|(slot, offset, length)| {
                Record::GetSnapshot {
                    slot,
                    offset,
                    length,
                }
            }),
            (0_u64..1 << 56, any::<u64>(), 0_u64..40).prop_map(|(ticket, offset, length)| {
                Record::Reply {
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
        fn records_are_decoded_as_they_were_encoded(records in proptest::collection::vec(any_record(), 0..9)) {
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
        fn decoding_arbitrary_bytes_terminates(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
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
