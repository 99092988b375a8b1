//! Receive buffers of peers.

use std::ops::{Deref, DerefMut};

/// Alignment of buffers. On some processors (AMD Zen 3) the kernel's copy takes four times as long if
/// the target is less than 32 bytes further into a page than the source, which is likely for long
/// arrays from the allocator. Dipole's link does the same.
const ALIGNMENT: usize = 64;

/// A buffer that begins at a cache line.
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

    /// Changes the length and keeps the contents that fit.
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
