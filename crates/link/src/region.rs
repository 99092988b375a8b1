//! Memory that other processes access through this one: the basis of remote memory operations.
//!
//! A [`Region`] owns zeroed memory, or refers to memory for which its creator is responsible. Its clones
//! access the same bytes one at a time, so no data race is possible through them; which bytes
//! each may access is agreed at a higher level. After [`revoke`](Region::revoke) all access
//! fails.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::segment::{MapFlags, Segment};

const WORD_BYTES: usize = size_of::<AtomicU64>();

/// A handle to a memory region or to a [part](Self::part) of one; clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct Region {
    bytes: Arc<RwLock<Bytes>>,
    /// Offset of the part in the region, and its length at most.
    start: usize,
    limit: usize,
}

/// Memory of a region, accessed under the region's lock.
struct Bytes {
    start: NonNull<u8>,
    length: usize,
    /// Holds memory that the region owns.
    _segment: Option<Segment>,
}

// SAFETY: the memory belongs to the process, not to a thread; it is accessed only under the
// lock, or by a caller that has given the same guarantee to `Region::from_raw`.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length)
    }
}

/// Why memory cannot be allocated or accessed.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// It cannot be allocated.
    #[error(
        "cannot allocate a region of {bytes} bytes: {cause}; see the memory limit of the \
         control group and `ulimit -v`"
    )]
    Create {
        /// Requested size in bytes.
        bytes: usize,
        /// Error returned by the kernel.
        #[source]
        cause: io::Error,
    },
    /// The bytes are out of bounds.
    #[error("{length} bytes at offset {offset} exceed the region of {bytes} bytes")]
    OutOfBounds {
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes requested.
        length: usize,
        /// Size of the region; 0 once it is revoked.
        bytes: usize,
    },
    /// A port needs at least one slot of at least one byte.
    #[error("a buffer for messages needs at least one slot of at least one byte")]
    NoSlot,
    /// A word does not start at a multiple of 8 bytes.
    #[error("no word starts at offset {offset}: it is not a multiple of 8")]
    Misaligned {
        /// Offset of the word in bytes.
        offset: usize,
    },
}

impl Region {
    /// Zeroed, page-aligned memory.
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

    /// Memory provided by the caller.
    ///
    /// # Safety
    /// Until [`revoke`](Self::revoke) has returned, the memory must stay valid for reads and
    /// writes, and nothing else may access bytes that a method of this region or of its clones
    /// may access at the same time; words are accessed atomically.
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, length: usize) -> Region {
        Region::of(Bytes {
            start,
            length,
            _segment: None,
        })
    }

    /// Passes borrowed memory to `use_it` as a region that is revoked when this returns.
    pub fn lend<R>(memory: &mut [u8], use_it: impl FnOnce(&Region) -> R) -> R {
        struct Lent(Region);
        impl Drop for Lent {
            fn drop(&mut self) {
                self.0.revoke();
            }
        }
        thread_local! {
            /// The region lent last, reused so that lending does not allocate.
            static LAST: Region = Region::of(Bytes::NONE);
        }
        let last = LAST.with(Region::clone);
        // Two references (this one and the thread's): no clone is left that could access the memory.
        let lent = Lent(match Arc::strong_count(&last.bytes) {
            2 => last,
            _ => Region::of(Bytes::NONE),
        });
        // The borrow lasts until this returns; the region is revoked before, also on panic.
        *lent.0.exclusive() = Bytes {
            start: NonNull::from(&mut *memory).cast(),
            length: memory.len(),
            _segment: None,
        };
        use_it(&lent.0)
    }

    /// A part of the memory, whose offset 0 is `offset` here. It shares the memory: while one is
    /// accessed, the other waits, and revoking one revokes both.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`].
    pub fn part(&self, offset: usize, length: usize) -> Result<Region, RegionError> {
        self.at(&self.shared(), offset, length)?;
        Ok(Region {
            bytes: Arc::clone(&self.bytes),
            start: self.start + offset,
            limit: length,
        })
    }

    fn of(bytes: Bytes) -> Region {
        Region {
            bytes: Arc::new(RwLock::new(bytes)),
            start: 0,
            limit: usize::MAX,
        }
    }

    /// Size of what this handle refers to.
    fn length(&self, bytes: &Bytes) -> usize {
        bytes.length.saturating_sub(self.start).min(self.limit)
    }

    /// Finds a range of what this handle refers to.
    fn at(&self, bytes: &Bytes, offset: usize, length: usize) -> Result<NonNull<u8>, RegionError> {
        let all = self.length(bytes);
        match offset.checked_add(length) {
            Some(end) if end <= all => {
                let start = self.start.min(bytes.length) + offset;
                // SAFETY: in bounds, as just checked: `self.start + all` is at most the memory's
                // length; without memory, `all` and `offset` are 0.
                Ok(unsafe { bytes.start.add(start) })
            }
            _ => Err(RegionError::OutOfBounds {
                offset,
                length,
                bytes: all,
            }),
        }
    }

    fn with_word<R>(
        &self,
        bytes: &Bytes,
        offset: usize,
        act: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, RegionError> {
        let at = self.at(bytes, offset, WORD_BYTES)?.cast::<AtomicU64>();
        if !at.is_aligned() {
            return Err(RegionError::Misaligned { offset });
        }
        // SAFETY: in bounds of the memory, which the borrow keeps alive, and aligned; every bit
        // pattern is a valid value. Plain writes happen only under the exclusive lock.
        Ok(act(unsafe { at.as_ref() }))
    }

    fn shared(&self) -> RwLockReadGuard<'_, Bytes> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Bytes> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size in bytes; 0 once it is revoked.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.length(&self.shared())
    }

    /// True if both are clones of the same region, or of the same part of it.
    #[must_use]
    pub fn is_same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes)
            && (self.start, self.limit) == (other.start, other.limit)
    }

    /// Ends all access through this region and its clones. Waits for accesses in progress.
    pub fn revoke(&self) {
        *self.exclusive() = Bytes::NONE;
    }

    /// Passes the bytes at `offset` to `look`, which must not call this library.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; `look` was not called.
    pub fn show<R>(
        &self,
        offset: usize,
        length: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, RegionError> {
        let bytes = self.shared();
        let at = self.at(&bytes, offset, length)?;
        // SAFETY: in bounds of memory that lives as long as the lock is held; the lock excludes
        // writers. Any bit pattern is a valid `u8`.
        Ok(look(unsafe {
            NonNull::slice_from_raw_parts(at, length).as_ref()
        }))
    }

    /// Passes the bytes at `offset` to `fill` for writing; it must not call this library.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; `fill` was not called.
    pub fn fill<R>(
        &self,
        offset: usize,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, RegionError> {
        let bytes = self.exclusive();
        let at = self.at(&bytes, offset, length)?;
        // SAFETY: as in `show`; the lock is held exclusively.
        Ok(fill(unsafe {
            NonNull::slice_from_raw_parts(at, length).as_mut()
        }))
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; nothing was copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        self.show(offset, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; nothing was copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.fill(offset, bytes.len(), |place| place.copy_from_slice(bytes))
    }

    /// Loads the word at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn load(&self, offset: usize) -> Result<u64, RegionError> {
        self.with_word(&self.shared(), offset, |word| word.load(Ordering::Acquire))
    }

    /// Stores the word at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn store(&self, offset: usize, value: u64) -> Result<(), RegionError> {
        self.with_word(&self.exclusive(), offset, |word| {
            word.store(value, Ordering::Release);
        })
    }

    /// Adds to the word at `offset`, wrapping around; returns the old value.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn fetch_add(&self, offset: usize, value: u64) -> Result<u64, RegionError> {
        self.with_word(&self.exclusive(), offset, |word| {
            word.fetch_add(value, Ordering::AcqRel)
        })
    }

    /// Sets the word at `offset` to `new` if it is `expected`; returns the old value.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn compare_swap(&self, offset: usize, expected: u64, new: u64) -> Result<u64, RegionError> {
        self.with_word(&self.exclusive(), offset, |word| {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent<R>(act: impl FnOnce(&Region) -> R) -> R {
        let mut words = [0_u64; 8];
        // SAFETY: the 64 bytes of eight words, borrowed mutably.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 64) };
        Region::lend(bytes, act)
    }

    #[test]
    fn clones_access_the_same_bytes_and_nothing_after_revocation() {
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
    fn a_leftover_clone_cannot_access_memory_that_is_lent_later() {
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
    fn bytes_out_of_bounds_are_refused_at_any_offset() {
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
    fn a_part_reaches_its_own_bytes_only_until_the_region_is_revoked() {
        lent(|region| {
            let part = region.part(16, 24).expect("inside");
            assert_eq!(part.bytes(), 24);
            part.write(0, b"here").expect("inside");
            let mut found = [0; 4];
            region.read(16, &mut found).expect("inside");
            assert_eq!(&found, b"here");
            assert_eq!(part.fetch_add(16, 7).expect("a word"), 0);
            assert_eq!(region.load(32).expect("a word"), 7);
            for (offset, length) in [(24, 1), (20, 5), (usize::MAX, 1)] {
                assert!(part.write(offset, &vec![0; length]).is_err());
            }
            assert!(part.load(24).is_err());
            assert!(region.part(60, 5).is_err());
            let inner = part.part(8, 8).expect("inside");
            inner.write(0, b"x").expect("inside");
            region.read(24, &mut found[..1]).expect("inside");
            assert_eq!(found[0], b'x');
            assert!(!part.is_same(region) && !part.is_same(&inner));
            assert!(inner.is_same(&region.part(24, 8).expect("inside")));
            region.revoke();
            assert_eq!(part.bytes(), 0);
            assert!(inner.write(0, b"x").is_err());
            inner.read(0, &mut []).expect("nothing");
        });
    }

    #[test]
    fn word_operations_are_atomic_and_need_alignment() {
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
    fn owned_memory_is_zeroed_and_page_aligned() {
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
