//! A table from the numbers that C programs hold to objects.
//!
//! A look-up takes no lock: every number has a slot, in chunks that double in size and are never
//! moved or freed, so that look-ups take as long with ten thousand entries as with one. A slot is an
//! `ArcSwapOption`: a call keeps the object it found even if another thread closes it.

use std::ffi::c_int;
use std::sync::OnceLock;

use arc_swap::ArcSwapOption;

/// Slots of the first chunk; each further one has as many as all before it.
const FIRST_CHUNK: usize = 1024;
/// Enough for all numbers.
const CHUNKS: usize = 22;

/// Objects by the number that C programs hold.
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[ArcSwapOption<T>]>>; CHUNKS],
}

/// Chunk and index of a number; the chunks cover 0..1024, 1024..2048, 2048..4096, and so on.
#[inline]
fn place(number: usize) -> (usize, usize) {
    if number < FIRST_CHUNK {
        return (0, number);
    }
    let doublings = (number / FIRST_CHUNK).ilog2() as usize;
    (doublings + 1, number - (FIRST_CHUNK << doublings))
}

fn chunk_length(chunk: usize) -> usize {
    FIRST_CHUNK << chunk.saturating_sub(1)
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// The slot of a number; `None` if its chunk does not exist.
    #[inline]
    pub(crate) fn slot(&self, number: c_int) -> Option<&ArcSwapOption<T>> {
        let (chunk, index) = place(usize::try_from(number).ok()?);
        self.chunks.get(chunk)?.get()?.get(index)
    }

    /// The slot of a number, whose chunk is created; `None` if the number is negative.
    pub(crate) fn make_slot(&self, number: c_int) -> Option<&ArcSwapOption<T>> {
        let (chunk, index) = place(usize::try_from(number).ok()?);
        let slots = self.chunks.get(chunk)?.get_or_init(|| {
            let empty = || ArcSwapOption::const_empty();
            std::iter::repeat_with(empty)
                .take(chunk_length(chunk))
                .collect()
        });
        slots.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_slot() {
        let mut expected = (0, 0);
        for number in 0..100_000 {
            assert_eq!(place(number), expected, "{number}");
            expected.1 += 1;
            if expected.1 == chunk_length(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        let (chunk, index) = place(c_int::MAX as usize);
        assert_eq!((chunk, index), (CHUNKS - 1, chunk_length(chunk) - 1));
    }
}
