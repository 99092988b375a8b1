//! The thread that reads and checksums an input: [`Reader`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender};

use super::super::extents::{extent, read_at};
use super::super::frame::{HEADROOM_BYTES, Sum};

/// Payload of one message of a stream of bytes.
const PIECE_BYTES: usize = 256 << 10;
const LONGEST_LINE_BYTES: u64 = 16 << 20;

/// A part of the input, in a buffer that is returned to the reading thread.
pub(super) struct Piece {
    /// Room for the header of a message, the payload, and possibly spare room.
    pub(super) buffer: Vec<u8>,
    pub(super) payload_bytes: usize,
    /// Length of a hole, instead of a payload.
    pub(super) hole_bytes: u64,
    /// CRC32C of the input up to the end of this piece.
    pub(super) crc: u32,
}

/// Result of the reading thread; `None` is the end of the input.
pub(super) type Reading = io::Result<Option<Piece>>;

/// Reads and checksums the input on a thread next to the sending one.
pub(super) struct Reader {
    pub(super) from: File,
    /// Length of a file with holes.
    pub(super) sparse_bytes: Option<u64>,
    pub(super) sum: Sum,
    /// Buffers whose pieces have been sent.
    pub(super) returned: Receiver<Vec<u8>>,
    pub(super) read: SyncSender<Reading>,
}

impl Reader {
    pub(super) fn read(mut self, lines: bool) {
        let from = self.from.try_clone();
        let mut line_by_line = match from {
            Ok(from) if lines => Some(BufReader::with_capacity(PIECE_BYTES, from)),
            _ => None,
        };
        loop {
            let buffer = self.returned.try_recv().unwrap_or_default();
            let piece = match (&mut line_by_line, self.sparse_bytes) {
                (Some(input), _) => next_line(input, buffer),
                (None, Some(length_bytes)) => self.next_extent(buffer, length_bytes),
                (None, None) => next_piece(&mut &self.from, buffer),
            };
            let piece = piece.map(|piece| {
                piece.map(|(buffer, payload_bytes, hole_bytes)| {
                    self.sum.add(&buffer[HEADROOM_BYTES..][..payload_bytes]);
                    self.sum.add_zeros(hole_bytes);
                    Piece {
                        buffer,
                        payload_bytes,
                        hole_bytes,
                        crc: self.sum.crc(),
                    }
                })
            });
            let more = matches!(piece, Ok(Some(_)));
            if self.read.send(piece).is_err() || !more {
                return;
            }
        }
    }

    /// The next piece or hole of a file with holes.
    fn next_extent(&self, mut buffer: Vec<u8>, length_bytes: u64) -> io::Result<Option<Filled>> {
        let position = self.sum.length_bytes();
        buffer.resize(HEADROOM_BYTES + PIECE_BYTES, 0);
        if position >= length_bytes {
            return Ok(None);
        }
        match extent(&self.from, position, length_bytes)? {
            Some((begin, end)) if begin == position => {
                let most = usize::try_from(end - begin)
                    .unwrap_or(usize::MAX)
                    .min(PIECE_BYTES);
                let payload = &mut buffer[HEADROOM_BYTES..][..most];
                let payload_bytes = read_at(&self.from, payload, begin)?;
                // A file that is shorter now is noticed at its end.
                Ok((payload_bytes > 0).then_some((buffer, payload_bytes, 0)))
            }
            next => {
                let begin = next.map_or(length_bytes, |(begin, _)| begin);
                Ok(Some((buffer, 0, begin - position)))
            }
        }
    }
}

/// A buffer, the length of its payload, and the length of a hole.
type Filled = (Vec<u8>, usize, u64);

/// A buffer with whatever has arrived, and its length, so that small amounts are not held back.
fn next_piece(input: &mut impl Read, mut buffer: Vec<u8>) -> io::Result<Option<Filled>> {
    buffer.resize(HEADROOM_BYTES + PIECE_BYTES, 0);
    loop {
        match input.read(&mut buffer[HEADROOM_BYTES..]) {
            Ok(0) => return Ok(None),
            Ok(payload_bytes) => return Ok(Some((buffer, payload_bytes, 0))),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

fn next_line(input: &mut impl BufRead, mut buffer: Vec<u8>) -> io::Result<Option<Filled>> {
    buffer.clear();
    buffer.resize(HEADROOM_BYTES, 0);
    let read = input
        .by_ref()
        .take(LONGEST_LINE_BYTES + 1)
        .read_until(b'\n', &mut buffer)?;
    if read == 0 {
        return Ok(None);
    }
    if buffer.last() == Some(&b'\n') {
        buffer.pop();
    } else if read as u64 > LONGEST_LINE_BYTES {
        return Err(io::Error::other(format!(
            "a line of more than {LONGEST_LINE_BYTES} bytes; leave out --lines"
        )));
    }
    let payload_bytes = buffer.len() - HEADROOM_BYTES;
    Ok(Some((buffer, payload_bytes, 0)))
}
