//! Messages that identify themselves, so that any misplaced byte is detected.

use std::sync::OnceLock;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The longest message in any scenario.
pub const LONGEST_BYTES: usize = 200 << 10;
/// Messages of at least this length contain their whole tag.
pub const TAG_BYTES: usize = 9;
/// Offsets in the noise at which contents may begin.
const OFFSETS: usize = 256 << 10;

/// Content of a payload that identifies its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The message was sent unreliably.
    pub unreliable: bool,
    /// The stream it belongs to; see the ledger.
    pub stream: u32,
    /// Its position in the stream.
    pub index: u32,
}

impl Tag {
    /// The tag of a message that is long enough to contain one.
    pub fn of(message: &[u8]) -> Option<Tag> {
        let (head, _) = message.split_first_chunk::<TAG_BYTES>()?;
        let unreliable = match head[0] {
            0xA5 => false,
            0x5A => true,
            _ => return None,
        };
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        Some(Tag {
            unreliable,
            stream: word(1),
            index: word(5),
        })
    }

    /// The message with this tag and length.
    pub fn message(self, length: usize) -> Vec<u8> {
        let mut bytes = self.contents(length).to_vec();
        let head = length.min(TAG_BYTES);
        bytes[..head].copy_from_slice(&self.head()[..head]);
        bytes
    }

    /// True if `message` is the result of [`message`](Self::message).
    pub fn made(self, message: &[u8]) -> bool {
        let head = message.len().min(TAG_BYTES);
        message[..head] == self.head()[..head]
            && message[head..] == self.contents(message.len())[head..]
    }

    fn head(self) -> [u8; TAG_BYTES] {
        let mut head = [if self.unreliable { 0x5A } else { 0xA5 }; TAG_BYTES];
        head[1..5].copy_from_slice(&self.stream.to_le_bytes());
        head[5..9].copy_from_slice(&self.index.to_le_bytes());
        head
    }

    /// A piece of noise that differs from those of nearby tags.
    fn contents(self, length: usize) -> &'static [u8] {
        let mixed = (u64::from(self.stream) << 32 | u64::from(self.index))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            >> 20;
        let at = usize::try_from(mixed).unwrap_or(0) % OFFSETS;
        &noise()[at..at + length]
    }
}

fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut bytes = vec![0; OFFSETS + LONGEST_BYTES];
        ChaCha8Rng::seed_from_u64(1).fill_bytes(&mut bytes);
        bytes
    })
}
