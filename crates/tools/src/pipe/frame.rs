//! Messages of a transfer, encoded with postcard: [`Frame`].

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileFacts<'a> {
    /// The last part of its path.
    #[serde(with = "serde_bytes")]
    pub(super) name: &'a [u8],
    /// Permission bits of the file.
    pub(super) mode: u32,
    /// Time of its last modification, in nanoseconds since 1970.
    pub(super) modified_ns: i64,
    pub(super) length_bytes: u64,
}

/// Options of the receiver of a tree, and its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TreeOptions {
    /// Files are offered before they are sent.
    pub(super) resume: bool,
    /// Names of users and groups are sent.
    pub(super) owner: bool,
    /// Extended attributes are sent.
    pub(super) attributes: bool,
    /// The receiver's directory, which is not sent to itself.
    pub(super) directory: FileId,
}

/// A file or directory among those of all machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileId {
    /// CRC32C of the random number that the running kernel has.
    pub(super) kernel: u32,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind<'a> {
    /// A file begins, or a stream without a file.
    Begin {
        #[serde(borrow)]
        file: Option<FileFacts<'a>>,
        lines: bool,
        /// Another file follows this one.
        more: bool,
    },
    /// From the receiver: continue. The bytes before this message's offset exist from an earlier
    /// transfer and have this CRC32C.
    Ready { crc: u32 },
    /// Data starts at this offset: that of `Ready` if the sender has the same bytes, otherwise 0.
    From,
    /// A piece of a byte stream.
    Bytes(#[serde(with = "serde_bytes")] &'a [u8]),
    /// A hole of a file, which reads as zeros.
    Hole { length_bytes: u64 },
    /// A line without its line break.
    Line(#[serde(with = "serde_bytes")] &'a [u8]),
    /// The stream ends at this offset; the CRC32C covers all bytes before.
    End { crc: u32 },
    /// The sender is alive but has nothing to send.
    Alive,
    /// From the receiver: everything has arrived and is stored.
    Complete,
    /// The transfer has failed, with the reason.
    Failed(&'a str),
    /// Files and directories begin.
    Tree,
    /// From the receiver of a tree: continue.
    TreeReady(TreeOptions),
    /// Records of a tree (`record.rs`), with their CRC32C.
    Batch {
        crc: u32,
        #[serde(with = "serde_bytes")]
        records: &'a [u8],
    },
    /// From the receiver: one encoded `Present` for each offer.
    Present(#[serde(with = "serde_bytes")] &'a [u8]),
    /// All records have been sent; this many files were not.
    TreeEnd { skipped: u64 },
    /// From the receiver: everything is stored but this many entries, the first for this reason.
    TreeComplete { failed: u64, first: &'a str },
}

impl Kind<'_> {
    /// A piece or a line without its payload, for [`Frame::around`].
    pub(super) fn empty_piece(lines: bool) -> Kind<'static> {
        match lines {
            true => Kind::Line(&[]),
            false => Kind::Bytes(&[]),
        }
    }
}

/// A message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Frame<'a> {
    /// Random number of the transfer.
    pub(super) stream: u64,
    /// Offset of this message in the file or stream.
    pub(super) offset_bytes: u64,
    #[serde(borrow)]
    pub(super) kind: Kind<'a>,
}

/// Maximum length of a message's header: three numbers of ten bytes, one of five, and its kind.
pub(super) const HEADROOM_BYTES: usize = 3 * 10 + 5 + 5;

/// Reasons why a message does not belong to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error(
        "a message of {length_bytes} bytes that is not part of a stream; is it `dipole \
         send` of this version?"
    )]
    Malformed { length_bytes: usize },
    /// A piece is missing or duplicate.
    #[error("a piece that begins at byte {found_bytes} where byte {expected_bytes} was next")]
    Offset {
        expected_bytes: u64,
        found_bytes: u64,
    },
}

impl<'a> Frame<'a> {
    /// Encodes the message into `to`.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        to.clear();
        *to = postcard::to_extend(self, std::mem::take(to)).expect("a vector takes all");
    }

    /// Encodes a message in place, given without its payload, which is the last field: `buffer` has
    /// [`HEADROOM_BYTES`] of room before the payload.
    pub(super) fn around<'b>(&self, buffer: &'b mut [u8]) -> &'b [u8] {
        let mut head = Vec::with_capacity(HEADROOM_BYTES);
        self.write(&mut head);
        // The encoding ends with the payload's length, here a single zero byte.
        head.pop();
        let payload_bytes = buffer.len() - HEADROOM_BYTES;
        head = postcard::to_extend(&payload_bytes, head).expect("a vector takes all");
        let begin = HEADROOM_BYTES - head.len();
        buffer[begin..HEADROOM_BYTES].copy_from_slice(&head);
        &buffer[begin..]
    }

    pub(super) fn parse(message: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        match postcard::take_from_bytes(message) {
            Ok((frame, [])) => Ok(frame),
            _ => Err(FrameError::Malformed {
                length_bytes: message.len(),
            }),
        }
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

    /// Adds zeros without reading them.
    pub(super) fn add_zeros(&mut self, length_bytes: u64) {
        let mut zeros = Digest::new(CrcAlgorithm::Crc32Iscsi);
        zeros.update(&[0]);
        let mut left = length_bytes;
        while left > 0 {
            if left & 1 == 1 {
                self.digest.combine(&zeros);
            }
            let half = zeros;
            zeros.combine(&half);
            left >>= 1;
        }
        self.length_bytes += length_bytes;
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
        let file = FileFacts {
            name: b"a \xff",
            mode: 0o640,
            modified_ns: -1,
            length_bytes: 1 << 40,
        };
        for kind in [
            Kind::Begin {
                file: Some(file),
                lines: false,
                more: true,
            },
            Kind::Ready { crc: 7 },
            Kind::From,
            Kind::Bytes(b"abc"),
            Kind::Line(b""),
            Kind::Hole {
                length_bytes: 1 << 50,
            },
            Kind::End { crc: 0xfedc_ba98 },
            Kind::Alive,
            Kind::Complete,
            Kind::Failed("the disk is full"),
            Kind::Tree,
            Kind::TreeReady(TreeOptions {
                resume: true,
                owner: false,
                attributes: true,
                directory: FileId {
                    kernel: 1,
                    device: 2,
                    inode: 3,
                },
            }),
            Kind::Batch {
                crc: 0xfedc_ba98,
                records: b"records",
            },
            Kind::Present(b"\0"),
            Kind::TreeEnd { skipped: 7 },
            Kind::TreeComplete {
                failed: 1,
                first: "a: no space",
            },
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
    fn a_payload_gets_its_head_where_it_lies() {
        for (lines, stream, offset_bytes, length_bytes) in [
            (false, 0, 0, 0),
            (true, 7, 127, 127),
            (false, u64::MAX, 128, 128),
            (true, 1 << 35, u64::MAX, 1 << 20),
        ] {
            let payload = vec![0x5a; length_bytes];
            let mut buffer = vec![0xff; HEADROOM_BYTES];
            buffer.extend_from_slice(&payload);
            let whole = match lines {
                true => Kind::Line(&payload),
                false => Kind::Batch {
                    crc: u32::MAX,
                    records: &payload,
                },
            };
            let empty = match lines {
                true => Kind::empty_piece(true),
                false => Kind::Batch {
                    crc: u32::MAX,
                    records: &[],
                },
            };
            let [frame, bare] = [whole, empty].map(|kind| Frame {
                stream,
                offset_bytes,
                kind,
            });
            let mut written = Vec::new();
            frame.write(&mut written);
            let around = bare.around(&mut buffer);
            assert_eq!(around, written);
            assert_eq!(Frame::parse(around), Ok(frame));
        }
    }

    #[test]
    fn foreign_messages_are_refused() {
        let mut bytes = Vec::new();
        let frame = Frame {
            stream: 1 << 40,
            offset_bytes: 7,
            kind: Kind::Failed("no"),
        };
        frame.write(&mut bytes);
        for length in 0..bytes.len() {
            assert!(Frame::parse(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Frame::parse(&[&bytes[..], b"x"].concat()).is_err());
        *bytes.last_mut().expect("a letter") = 0xff;
        assert!(Frame::parse(&bytes).is_err(), "no UTF-8");
        assert!(Frame::parse(&[0xff; 64]).is_err());
    }

    #[test]
    fn the_sum_is_the_known_check_value_however_the_stream_is_cut() {
        let mut sum = Sum::new();
        sum.add(b"1234");
        sum.add(b"56789");
        assert_eq!((sum.crc(), sum.length_bytes()), (0xe306_9283, 9));
    }

    #[test]
    fn zeros_count_as_if_they_were_read() {
        for length in [0, 1, 7, 4096, 1_000_003] {
            let [mut read, mut skipped] = [Sum::new(), Sum::new()];
            for sum in [&mut read, &mut skipped] {
                sum.add(b"before");
            }
            read.add(&vec![0; length]);
            skipped.add_zeros(length as u64);
            for sum in [&mut read, &mut skipped] {
                sum.add(b"behind");
            }
            assert_eq!(read.crc(), skipped.crc(), "{length}");
            assert_eq!(read.length_bytes(), skipped.length_bytes());
        }
    }
}
