//! The messages of channels, little-endian. A head begins with its kind (u32) and a count (u32),
//! then the receiver's and the sender's number of the channel (u64 each).
//!
//! The head of data continues with the length of each buffer (u64), whose highest bit marks a buffer
//! that follows as a message of its own; then come the bytes of all others.

const OPEN: u32 = 1;
const ACCEPT: u32 = 2;
const CLOSE: u32 = 3;
const DATA: u32 = 4;

const HEAD_BYTES: usize = 24;
const SEPARATE: u64 = 1 << 63;

/// A parsed head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head<'a> {
    /// A request for a channel, with the sender's number.
    Open { from: u64 },
    /// The answer, with both numbers.
    Accept { to: u64, from: u64 },
    /// The channel has ended.
    Close { to: u64 },
    /// Buffers.
    Data { to: u64, buffers: Vec<Piece<'a>> },
}

/// A buffer of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Its bytes.
    Inline(&'a [u8]),
    /// Its length; it follows as a message of its own.
    Separate(usize),
}

fn head(kind: u32, count: usize, to: u64, from: u64) -> Vec<u8> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(to.to_le_bytes());
    bytes.extend(from.to_le_bytes());
    bytes
}

pub(super) fn open(from: u64) -> Vec<u8> {
    head(OPEN, 0, 0, from)
}

pub(super) fn accept(to: u64, from: u64) -> Vec<u8> {
    head(ACCEPT, 0, to, from)
}

pub(super) fn close(to: u64) -> Vec<u8> {
    head(CLOSE, 0, to, 0)
}

/// The head of buffers, with the bytes of those that `is_separate` does not name.
pub(super) fn data(to: u64, buffers: &[&[u8]], is_separate: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut bytes = head(DATA, buffers.len(), to, 0);
    let inline = buffers.iter().filter(|buffer| !is_separate(buffer));
    let inline_bytes: usize = inline.map(|buffer| buffer.len()).sum();
    bytes.reserve_exact(8 * buffers.len() + inline_bytes);
    for buffer in buffers {
        let mark = if is_separate(buffer) { SEPARATE } else { 0 };
        bytes.extend((buffer.len() as u64 | mark).to_le_bytes());
    }
    for buffer in buffers.iter().filter(|buffer| !is_separate(buffer)) {
        bytes.extend_from_slice(buffer);
    }
    bytes
}

/// Parses a head; `None` if it is invalid.
pub(super) fn parse(bytes: &[u8]) -> Option<Head<'_>> {
    let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let (words, _) = head.as_chunks::<4>();
    let word = |at: usize| u32::from_le_bytes(words[at]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
    let (to, from) = (long(2), long(4));
    let count = usize::try_from(word(1)).ok()?;
    match word(0) {
        OPEN => Some(Head::Open { from }),
        ACCEPT => Some(Head::Accept { to, from }),
        CLOSE => Some(Head::Close { to }),
        DATA => {
            let lengths;
            (lengths, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
            let (lengths, _) = lengths.as_chunks::<8>();
            let mut buffers = Vec::with_capacity(count);
            for length in lengths {
                let length = u64::from_le_bytes(*length);
                let bytes = usize::try_from(length & !SEPARATE).ok()?;
                if length & SEPARATE != 0 {
                    buffers.push(Piece::Separate(bytes));
                    continue;
                }
                let piece;
                (piece, rest) = rest.split_at_checked(bytes)?;
                buffers.push(Piece::Inline(piece));
            }
            Some(Head::Data { to, buffers })
        }
        _ => None,
    }
}
