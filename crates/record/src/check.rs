//! Hashes of results: recorded once, compared in every replay.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// 32 bits of a hash that is the same in every build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check([u8; 4]);

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", u32::from_le_bytes(self.0))
    }
}

impl Check {
    /// The hash of a value.
    #[inline]
    pub(crate) fn of(value: &(impl Hash + ?Sized)) -> Check {
        let mut hasher = Mixer::default();
        value.hash(&mut hasher);
        hasher.check()
    }
}

/// Multiplies and rotates 64-bit words. Not for protection against forgery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mixer(u64);

impl Mixer {
    #[inline]
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// The hash so far.
    pub(crate) fn check(self) -> Check {
        let [_, _, _, _, a, b, c, d] = (self.0 ^ self.0 >> 29).to_le_bytes();
        Check([a, b, c, d])
    }
}

impl Hasher for Mixer {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_changes_the_hash() {
        let bytes: Vec<u8> = (0..61).collect();
        let first = Check::of(&bytes[..]);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(Check::of(&other[..]), first, "byte {at}");
        }
        assert_ne!(Check::of(&bytes[..60]), first);
    }

    #[test]
    fn files_of_other_builds_can_be_compared() {
        assert_eq!(Check::of(&(1_u32, 2_u64)).to_string(), EXPECTED);
    }

    const EXPECTED: &str = "68a85441";
}
