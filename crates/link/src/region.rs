//! Memory that other processes reach through this one: the foundation of operations on memory.
//!
//! A [`Region`] is zeroed memory of its own, or memory that its creator answers for. Its clones
//! reach the same bytes, one at a time, so no data race is possible through them; who may
//! access which of the bytes is agreed upon above. After [`revoke`](Region::revoke) none of
//! them reaches anything.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::segment::{MapFlags, Segment};

/// Bytes of a word.
const WORD_BYTES: usize = size_of::<AtomicU64>();

/// See the module.
#[derive(Clone, Debug)]
pub struct Region {
    bytes: Arc<RwLock<Bytes>>,
}

/// Where the memory lies.
struct Bytes {
    start: NonNull<u8>,
    length: usize,
    /// What holds memory of the region's own.
    _segment: Option<Segment>,
}

// SAFETY: the memory belongs to the process, not to a thread; it is reached under the lock
// alone, or by whoever has promised as much to `Region::from_raw`.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length)
    }
}

/// Why memory cannot be had or reached.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// It cannot be allocated.
    #[error(
        "cannot allocate a region of {bytes} bytes: {cause}; see the memory limit of the \
         control group and `ulimit -v`"
    )]
    Create {
        /// How many bytes were wanted.
        bytes: usize,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// The bytes do not lie inside the region.
    #[error("{length} bytes at {offset} are not inside the region of {bytes} bytes")]
    OutOfBounds {
        /// Where they begin.
        offset: usize,
        /// How many they are.
        length: usize,
        /// Bytes of the region, none once it is revoked.
        bytes: usize,
    },
    /// A word does not begin at a multiple of 8 bytes.
    #[error("no word begins at {offset}: not a multiple of 8")]
    Misaligned {
        /// Where it begins.
        offset: usize,
    },
}

impl Region {
    /// Zeroed memory, which begins at a page.
    ///
    /// # Errors
    /// [`RegionError::Create`]; also for 0 bytes.
    pub fn new(bytes: usize) -> Result<Region, RegionError> {
        let segment = Segment::anonymous(bytes, MapFlags::PRIVATE);
        let segment = segment.map_err(|cause| RegionError::Create { bytes, cause })?;
        Ok(Region::of(Bytes {
            start: segment.at(0, bytes),
            length: bytes,
            _segment: Some(segment),
        }))
    }

    /// Memory of the caller's.
    ///
    /// # Safety
    /// Until [`revoke`](Self::revoke) has returned, the memory stays valid for reads and writes,
    /// and nobody else accesses bytes of it while a method of this region, or of its clones,
    /// may; words are accessed by atomic operations.
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, length: usize) -> Region {
        Region::of(Bytes {
            start,
            length,
            _segment: None,
        })
    }

    /// Lets `use_it` have memory as a region, whose clones reach nothing when this returns.
    pub fn lend<R>(memory: &mut [u8], use_it: impl FnOnce(&Region) -> R) -> R {
        struct Lent(Region);
        impl Drop for Lent {
            fn drop(&mut self) {
                self.0.revoke();
            }
        }
        thread_local! {
            /// The region lent last, so that lending allocates nothing.
            static LAST: Region = Region::of(Bytes::NONE);
        }
        let last = LAST.with(Region::clone);
        // This one and the thread's own: no clone is left that would reach the memory, too.
        let lent = Lent(match Arc::strong_count(&last.bytes) {
            2 => last,
            _ => Region::of(Bytes::NONE),
        });
        // Borrowed mutably until this returns, and revoked before, also in a panic.
        *lent.0.exclusive() = Bytes {
            start: NonNull::from(&mut *memory).cast(),
            length: memory.len(),
            _segment: None,
        };
        use_it(&lent.0)
    }

    fn of(bytes: Bytes) -> Region {
        Region {
            bytes: Arc::new(RwLock::new(bytes)),
        }
    }

    fn shared(&self) -> RwLockReadGuard<'_, Bytes> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Bytes> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its size in bytes; 0 once it is revoked.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared().length
    }

    /// True for clones of the same.
    #[must_use]
    pub fn is_same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes)
    }

    /// No clone reaches the memory any more. Waits for those that do just now.
    pub fn revoke(&self) {
        *self.exclusive() = Bytes::NONE;
    }

    /// Shows bytes at `offset` to `look`, which must not call this library again.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; it was not called.
    pub fn show<R>(
        &self,
        offset: usize,
        length: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, RegionError> {
        let bytes = self.shared();
        let at = bytes.at(offset, length)?;
        // SAFETY: inside memory that lives as long as the lock is held, which keeps out
        // whoever would write to it. Any bytes are valid as `u8`.
        Ok(look(unsafe {
            NonNull::slice_from_raw_parts(at, length).as_ref()
        }))
    }

    /// Lets `fill` write bytes at `offset`; it must not call this library again.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; it was not called.
    pub fn fill<R>(
        &self,
        offset: usize,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, RegionError> {
        let bytes = self.exclusive();
        let at = bytes.at(offset, length)?;
        // SAFETY: as in `show`; the lock is held exclusively.
        Ok(fill(unsafe {
            NonNull::slice_from_raw_parts(at, length).as_mut()
        }))
    }

    /// Copies bytes at `offset` out.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; nothing was copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        self.show(offset, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    /// Copies bytes in at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; nothing was copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.fill(offset, bytes.len(), |place| place.copy_from_slice(bytes))
    }

    /// The word at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn load(&self, offset: usize) -> Result<u64, RegionError> {
        self.shared()
            .with_word(offset, |word| word.load(Ordering::Acquire))
    }

    /// Sets the word at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn store(&self, offset: usize, value: u64) -> Result<(), RegionError> {
        self.exclusive()
            .with_word(offset, |word| word.store(value, Ordering::Release))
    }

    /// Adds to the word at `offset`, wrapping around; what it was.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn fetch_add(&self, offset: usize, value: u64) -> Result<u64, RegionError> {
        self.exclusive()
            .with_word(offset, |word| word.fetch_add(value, Ordering::AcqRel))
    }

    /// Sets the word at `offset` to `new` if it is `expected`; what it was.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn compare_swap(&self, offset: usize, expected: u64, new: u64) -> Result<u64, RegionError> {
        self.exclusive().with_word(offset, |word| {
            let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
            swapped.unwrap_or_else(|found| found)
        })
    }
}

impl Bytes {
    const NONE: Bytes = Bytes {
        start: NonNull::dangling(),
        length: 0,
        _segment: None,
    };

    fn at(&self, offset: usize, length: usize) -> Result<NonNull<u8>, RegionError> {
        match offset.checked_add(length) {
            // SAFETY: inside the memory, as just checked.
            Some(end) if end <= self.length => Ok(unsafe { self.start.add(offset) }),
            _ => Err(RegionError::OutOfBounds {
                offset,
                length,
                bytes: self.length,
            }),
        }
    }

    fn with_word<R>(
        &self,
        offset: usize,
        act: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, RegionError> {
        let at = self.at(offset, WORD_BYTES)?.cast::<AtomicU64>();
        if !at.is_aligned() {
            return Err(RegionError::Misaligned { offset });
        }
        // SAFETY: inside the memory, which the borrow keeps, and aligned; every bit pattern is
        // a valid value. Bytes are written under the exclusive lock alone.
        Ok(act(unsafe { at.as_ref() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent<R>(act: impl FnOnce(&Region) -> R) -> R {
        let mut words = [0_u64; 8];
        // SAFETY: as many bytes as eight words have, borrowed mutably.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 64) };
        Region::lend(bytes, act)
    }

    #[test]
    fn clones_reach_the_same_bytes_and_after_it_is_revoked_none() {
        let mut memory = [0; 64];
        let clone = Region::lend(&mut memory, |region| {
            let clone = region.clone();
            clone.write(60, b"end.").expect("inside");
            let mut end = [0; 4];
            region.read(60, &mut end).expect("inside");
            assert_eq!(&end, b"end.");
            clone
        });
        assert_eq!(&memory[60..], b"end.");
        assert_eq!(clone.bytes(), 0);
        assert!(clone.write(0, b"x").is_err());
        assert!(clone.load(0).is_err());
        clone.read(0, &mut []).expect("nothing");
    }

    #[test]
    fn a_clone_that_is_left_does_not_reach_what_is_lent_next() {
        let clone = Region::lend(&mut [0; 8], Region::clone);
        let mut next = [0; 8];
        Region::lend(&mut next, |region| {
            assert!(clone.write(0, b"x").is_err());
            region.write(0, b"y").expect("inside");
            let mut inner = [0; 4];
            Region::lend(&mut inner, |inner| assert_eq!(inner.bytes(), 4));
            assert_eq!(region.bytes(), 8);
        });
        assert_eq!(next[0], b'y');
    }

    #[test]
    fn bytes_outside_are_refused_wherever_they_would_begin() {
        lent(|region| {
            for (offset, length) in [(64, 1), (63, 2), (0, 65), (usize::MAX, 2)] {
                let mut some = vec![0; length];
                let read = region.read(offset, &mut some).expect_err("outside");
                assert!(matches!(read, RegionError::OutOfBounds { .. }), "{read}");
                let written = region.write(offset, &some).expect_err("outside");
                assert!(matches!(written, RegionError::OutOfBounds { .. }));
            }
            region.read(64, &mut []).expect("nothing at the end");
        });
    }

    #[test]
    fn words_are_changed_in_one_piece_where_they_begin() {
        lent(|region| {
            assert_eq!(region.fetch_add(8, 5).expect("a word"), 0);
            assert_eq!(region.fetch_add(8, u64::MAX).expect("a word"), 5);
            assert_eq!(region.compare_swap(8, 5, 9).expect("a word"), 4);
            assert_eq!(region.compare_swap(8, 4, 9).expect("a word"), 4);
            assert_eq!(region.load(8).expect("a word"), 9);
            region.store(56, 1).expect("the last word");
            for outside in [57, 64, usize::MAX - 7] {
                assert!(region.load(outside).is_err(), "{outside}");
            }
            let torn = region.store(12, 1).expect_err("between words");
            assert!(matches!(torn, RegionError::Misaligned { offset: 12 }));
        });
    }

    #[test]
    #[cfg(not(miri))]
    fn memory_of_its_own_is_zeroed_and_begins_at_a_page() {
        let region = Region::new(10_000).expect("memory");
        region
            .show(0, 10_000, |bytes| {
                assert!(bytes.as_ptr().addr().is_multiple_of(4096));
                assert!(bytes.iter().all(|byte| *byte == 0));
            })
            .expect("all of it");
        assert!(matches!(Region::new(0), Err(RegionError::Create { .. })));
    }
}
