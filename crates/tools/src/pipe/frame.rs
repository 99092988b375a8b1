//! What one message of a stream looks like.
//!
//! ```text
//! 0 kind(1)  1 stream(8)  9 offset(8)  17 payload
//! ```
//!
//! Little endian. `stream` is random, so that two streams are never taken for
//! one; `offset` is how many bytes of the stream came before.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 17;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A piece of a stream of bytes.
    Bytes(&'a [u8]),
    /// A line without its line break.
    Line(&'a [u8]),
    /// The stream ends at this offset, with this CRC32C of all payloads.
    End { crc: u32 },
    /// Nothing to send for now, but here.
    Alive,
    /// Receiver to sender: everything is here and stored.
    Whole,
    /// Receiver to sender: it will not be.
    Broken(&'a str),
}

/// A message, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) stream: u64,
    pub(super) offset_bytes: u64,
}

/// Why a message is none of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    Short {
        length_bytes: usize,
    },
    Kind {
        found: u8,
    },
    Payload {
        kind: u8,
        length_bytes: usize,
    },
    /// A piece is missing or came twice.
    Offset {
        expected_bytes: u64,
        found_bytes: u64,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Short { length_bytes } => {
                write!(
                    f,
                    "a message of {length_bytes} bytes, too short for a stream; is it `dipole send`?"
                )
            }
            FrameError::Kind { found } => {
                write!(
                    f,
                    "a message of unknown kind {found}; is it `dipole send` of this version?"
                )
            }
            FrameError::Payload { kind, length_bytes } => {
                write!(
                    f,
                    "a message of kind {kind} with {length_bytes} bytes that do not belong there"
                )
            }
            FrameError::Offset {
                expected_bytes,
                found_bytes,
            } => write!(
                f,
                "a piece that begins at byte {found_bytes} where byte {expected_bytes} was next"
            ),
        }
    }
}

impl<'a> Frame<'a> {
    /// Writes the message behind nothing: `to` is emptied first.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let crc_bytes;
        let (kind, payload): (u8, &[u8]) = match self.kind {
            Kind::Bytes(bytes) => (1, bytes),
            Kind::Line(bytes) => (2, bytes),
            Kind::End { crc } => {
                crc_bytes = crc.to_le_bytes();
                (3, &crc_bytes)
            }
            Kind::Alive => (4, &[]),
            Kind::Whole => (5, &[]),
            Kind::Broken(reason) => (6, reason.as_bytes()),
        };
        to.clear();
        to.push(kind);
        to.extend_from_slice(&self.stream.to_le_bytes());
        to.extend_from_slice(&self.offset_bytes.to_le_bytes());
        to.extend_from_slice(payload);
    }

    pub(super) fn parse(message: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Short {
                length_bytes: message.len(),
            });
        };
        let bad_payload = FrameError::Payload {
            kind: head[0],
            length_bytes: payload.len(),
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let kind = match head[0] {
            1 => Kind::Bytes(payload),
            2 => Kind::Line(payload),
            3 => Kind::End {
                crc: u32::from_le_bytes(payload.try_into().map_err(|_| bad_payload)?),
            },
            4 if payload.is_empty() => Kind::Alive,
            5 if payload.is_empty() => Kind::Whole,
            6 => Kind::Broken(std::str::from_utf8(payload).map_err(|_| bad_payload)?),
            4 | 5 => return Err(bad_payload),
            found => return Err(FrameError::Kind { found }),
        };
        Ok(Frame {
            kind,
            stream: word(1),
            offset_bytes: word(9),
        })
    }
}

/// Length and CRC32C of a stream so far.
pub(super) struct Sum {
    digest: Digest,
    length_bytes: u64,
}

impl Sum {
    pub(super) fn new() -> Sum {
        Sum {
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
            length_bytes: 0,
        }
    }

    pub(super) fn add(&mut self, payload: &[u8]) {
        self.digest.update(payload);
        self.length_bytes += payload.len() as u64;
    }

    pub(super) fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    pub(super) fn crc(&self) -> u32 {
        let bytes = self.digest.finalize().to_le_bytes();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_as_written() {
        for kind in [
            Kind::Bytes(b"abc"),
            Kind::Line(b""),
            Kind::End { crc: 0xfedc_ba98 },
            Kind::Alive,
            Kind::Whole,
            Kind::Broken("the disk is full"),
        ] {
            let frame = Frame {
                kind,
                stream: u64::MAX - 1,
                offset_bytes: 1 << 40,
            };
            let mut bytes = Vec::new();
            frame.write(&mut bytes);
            assert_eq!(Frame::parse(&bytes), Ok(frame));
        }
    }

    #[test]
    fn foreign_messages_are_refused() {
        let of_kind = |kind: u8, payload: &[u8]| {
            let mut bytes = vec![0; HEADER_BYTES];
            bytes[0] = kind;
            bytes.extend_from_slice(payload);
            bytes
        };
        for bytes in [
            vec![],
            vec![1; HEADER_BYTES - 1],
            of_kind(0, b""),
            of_kind(7, b""),
            of_kind(3, b"123"),
            of_kind(4, b"x"),
            of_kind(5, b"x"),
            of_kind(6, &[0xff]),
        ] {
            assert!(Frame::parse(&bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn the_sum_is_the_known_check_value_however_the_stream_is_cut() {
        let mut sum = Sum::new();
        sum.add(b"1234");
        sum.add(b"56789");
        assert_eq!((sum.crc(), sum.length_bytes()), (0xe306_9283, 9));
    }
}
