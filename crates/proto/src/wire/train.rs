//! Consecutive packets with pieces of one message. Spec §2.1.
//!
//! Their first 64 bytes, the header and the record's head, differ only where they count: packet
//! number, unit number, `settled` and the offset in the message. So a receiver can compare them with
//! what it expects instead of parsing them.

use super::header::{Flags, HEADER_BYTES, Header};
use super::record::FRAGMENT_BYTES;

/// Bytes before the payload of a piece.
pub const TRAIN_HEAD_BYTES: usize = HEADER_BYTES + FRAGMENT_BYTES;
const WORDS: usize = TRAIN_HEAD_BYTES / 8;
/// Flags that a later packet may have in addition: they concern everything up to it.
const LATER_FLAGS: u64 = ((Flags::ACK_WANTED.0 | Flags::LAST.0) as u64) << 8;
/// The flags in the first word of a header.
const FLAGS: u64 = 0xFF << 8;

/// The header of the packets of a train that is being sent, as little-endian words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainHeader([u64; HEADER_BYTES / 8]);

impl TrainHeader {
    pub(crate) fn new(header: &Header) -> TrainHeader {
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        TrainHeader(words(&bytes))
    }

    #[inline]
    pub(crate) fn set_flags(&mut self, flags: Flags) {
        self.0[0] = with_flags(self.0[0], flags);
    }

    /// Continues with the header of the next packet.
    #[inline]
    pub(crate) fn advance(&mut self) {
        let [_, numbers, _, last] = &mut self.0;
        *numbers = count_up(*numbers);
        // `settled` is in the highest 16 bits and stays at its maximum.
        *last = last.checked_add(1 << 48).unwrap_or(*last);
    }

    /// Writes the header into the first 32 bytes.
    #[inline]
    pub(crate) fn emit(&self, bytes: &mut [u8]) {
        let (places, _) = bytes[..HEADER_BYTES].as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(&self.0) {
            *place = word.to_le_bytes();
        }
    }
}

/// The little-endian words of these bytes.
#[inline]
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}

/// The first word of a header, with these flags instead of its own.
#[inline]
fn with_flags(word: u64, flags: Flags) -> u64 {
    word & !FLAGS | u64::from(flags.0) << 8
}

/// The next packet number and unit number, which share a word.
#[allow(clippy::cast_possible_truncation, reason = "each half is a number")]
#[inline]
fn count_up(numbers: u64) -> u64 {
    let (number, unit) = (numbers as u32, (numbers >> 32) as u32);
    u64::from(number.wrapping_add(1)) | u64::from(unit.wrapping_add(1)) << 32
}

/// The head of a packet with a piece, as little-endian words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrainHead([u64; WORDS]);

impl TrainHead {
    /// The head of a packet; `None` if it is too short.
    #[inline]
    pub(crate) fn of(packet: &[u8]) -> Option<TrainHead> {
        let head = packet.first_chunk::<TRAIN_HEAD_BYTES>()?;
        Some(TrainHead(words(head)))
    }

    /// The head of the next packet, whose piece begins `bytes` later.
    #[inline]
    pub(crate) fn next(mut self, bytes: u64) -> Option<TrainHead> {
        let [_, numbers, _, settled, _, _, offset, _] = &mut self.0;
        *numbers = count_up(*numbers);
        // `settled` is in the highest 16 bits. At its maximum, the lowest number is not known.
        *settled = settled.checked_add(1 << 48)?;
        *offset = offset.checked_add(bytes)?;
        Some(self)
    }

    /// Flags of `other`, if it is this head, except for flags that may be set in a later packet.
    #[inline]
    pub(crate) fn leads_to(&self, other: &TrainHead) -> Option<Flags> {
        let (added, missing) = (other.0[0] & !self.0[0], self.0[0] & !other.0[0]);
        // Without branches, so that the processor compares all words at once.
        let others = self.0[1..].iter().zip(&other.0[1..]);
        let differences = others.fold(missing | added & !LATER_FLAGS, |found, (one, other)| {
            found | (one ^ other)
        });
        (differences == 0).then(|| other.flags())
    }

    /// The same head with these flags.
    #[inline]
    pub(crate) fn with_flags(mut self, flags: Flags) -> TrainHead {
        self.0[0] = with_flags(self.0[0], flags);
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A head whose numbers differ from each other.
    fn head() -> TrainHead {
        TrainHead([0x11, 7 | 9 << 32, 0x33, 5 << 48, 0x55, 0x66, 1000, 0x88])
    }

    #[test]
    fn the_next_packet_of_a_train_is_only_the_one_that_follows() {
        let next = head().next(100).expect("there is room");
        let same = head().flags();
        assert_eq!(next.leads_to(&next), Some(same));
        assert_eq!(next.0[1], 8 | 10 << 32);
        assert_eq!((next.0[3], next.0[6]), (6 << 48, 1100));
        // A gap in the packet numbers, in the unit numbers, and any other difference.
        let gaps = [(1, 1), (1, 1 << 32)];
        let others = (2..WORDS).map(|word| (word, 1));
        for (word, difference) in gaps.into_iter().chain(others) {
            let mut other = next;
            other.0[word] += difference;
            assert_eq!(next.leads_to(&other), None, "word {word}");
        }
    }
}
