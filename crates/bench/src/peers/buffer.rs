//! Where peers receive.

use std::ops::{Deref, DerefMut};

/// Where a buffer begins. The kernel's copy takes four times as long on some processors (AMD's
/// Zen 3) if it writes less than 32 bytes further into a page than it reads, as it would where
/// the allocator puts long arrays. Dipole's link takes the same care.
const ALIGNMENT: usize = 64;

/// A buffer that begins a cache line.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(super) fn new(length: usize) -> Self {
        let mut bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        bytes.truncate(start + length);
        Self { bytes, start }
    }

    /// Another length; what fits stays.
    pub(super) fn resize(&mut self, length: usize) {
        let mut other = Self::new(length);
        let kept = length.min(self.len());
        other[..kept].copy_from_slice(&self[..kept]);
        *self = other;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_a_cache_line_and_keeps_what_fits() {
        let mut buffer = Buffer::new(200_000);
        buffer[99] = 7;
        for length in [150_000, 300_000, 100] {
            buffer.resize(length);
            assert_eq!((buffer.len(), buffer[99]), (length, 7));
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
        }
    }
}
