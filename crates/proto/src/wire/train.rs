//! Consecutive packets with pieces of one message. Spec §2.1.
//!
//! Their first 64 bytes, the header and the record's head, differ only where they count: packet
//! number, unit number, `settled` and the offset in the message. So a receiver can compare them with
//! what it expects instead of parsing them.

use super::header::{Flags, HEADER_BYTES};
use super::record::FRAGMENT_BYTES;

/// Bytes before the payload of a piece.
pub const TRAIN_HEAD_BYTES: usize = HEADER_BYTES + FRAGMENT_BYTES;
const WORDS: usize = TRAIN_HEAD_BYTES / 8;
/// Flags that a later packet may have in addition: they concern everything up to it.
const LATER_FLAGS: u64 = ((Flags::ACK_WANTED.0 | Flags::LAST.0) as u64) << 8;

/// The head of a packet with a piece, as little-endian words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrainHead([u64; WORDS]);

impl TrainHead {
    /// The head of a packet; `None` if it is too short.
    #[inline]
    pub(crate) fn of(packet: &[u8]) -> Option<TrainHead> {
        let head = packet.first_chunk::<TRAIN_HEAD_BYTES>()?;
        let (words, _) = head.as_chunks::<8>();
        let mut parsed = [0; WORDS];
        for (parsed, word) in parsed.iter_mut().zip(words) {
            *parsed = u64::from_le_bytes(*word);
        }
        Some(TrainHead(parsed))
    }

    /// The head of the next packet, whose piece begins `bytes` later.
    #[allow(clippy::cast_possible_truncation, reason = "each half is a number")]
    #[inline]
    pub(crate) fn next(mut self, bytes: u64) -> Option<TrainHead> {
        let [_, numbers, _, settled, _, _, offset, _] = &mut self.0;
        let (number, unit) = (*numbers as u32, (*numbers >> 32) as u32);
        *numbers = u64::from(number.wrapping_add(1)) | u64::from(unit.wrapping_add(1)) << 32;
        // `settled` is in the highest 16 bits. At its maximum, the lowest number is not known.
        *settled = settled.checked_add(1 << 48)?;
        *offset = offset.checked_add(bytes)?;
        Some(self)
    }

    /// True if `other` is this head, except for flags that may be set in a later packet.
    #[inline]
    pub(crate) fn leads_to(&self, other: &TrainHead) -> bool {
        let (added, rest) = (other.0[0] & !self.0[0], self.0[0] & !other.0[0]);
        added & !LATER_FLAGS == 0 && rest == 0 && self.0[1..] == other.0[1..]
    }

    /// Length of the packet according to its header.
    #[inline]
    pub(crate) fn packet_bytes(&self) -> usize {
        (self.0[0] >> 16) as usize & 0xFFFF
    }

    /// Flags of the packet.
    #[allow(clippy::cast_possible_truncation, reason = "the flags are one byte")]
    #[inline]
    pub(crate) fn flags(&self) -> Flags {
        Flags((self.0[0] >> 8) as u8)
    }
}
