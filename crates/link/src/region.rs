//! Memory that another process may read or write directly: the foundation of one-sided transfers.
//!
//! A [`Region`] is page-aligned and zeroed. A shared one is a sealed file in memory: its creator
//! passes the [descriptor](Region::descriptor) over a unix socket, and the receiver
//! [opens](Region::open) it, after a check that it has the promised size and cannot shrink under
//! the mapping. A region knows nothing of who may access which of its bytes; that is agreed upon
//! above.
//!
//! Another process may write at any moment, so what is read may be torn and must be checked like
//! any input. The 8-byte words of [`load`](Region::load), [`store`](Region::store) and
//! [`add`](Region::add) are never torn, and order the bytes around them: bytes written before a
//! `store` or `add` are seen by whoever has loaded its value.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::segment::{MapFlags, Segment};

const WORD_BYTES: usize = size_of::<AtomicU64>();

/// Memory of this process, or shared with others. See the module.
#[derive(Debug)]
pub struct Region {
    memory: Segment,
    writable: bool,
    /// What others map it by, where this process has created it to be shared.
    file: Option<OwnedFd>,
}

/// Why a region cannot be had or accessed.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The memory cannot be allocated.
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
    /// A descriptor cannot be mapped as a region of this size.
    #[error("cannot map a peer's region of {bytes} bytes: {cause}")]
    Open {
        /// The size that was promised.
        bytes: usize,
        /// The kernel's error, or what is wrong with the descriptor.
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
        /// Bytes of the region.
        bytes: usize,
    },
    /// A word does not begin at a multiple of 8 bytes.
    #[error("no word begins at {offset}: not a multiple of 8")]
    Misaligned {
        /// Where it begins.
        offset: usize,
    },
    /// The region was opened for reading.
    #[error("the region was opened for reading only")]
    ReadOnly,
}

impl Region {
    /// Memory of this process alone.
    ///
    /// # Errors
    /// [`RegionError::Create`]; also for 0 bytes.
    pub fn private(bytes: usize) -> Result<Region, RegionError> {
        let memory = Segment::anonymous(bytes, MapFlags::PRIVATE);
        let memory = memory.map_err(|cause| RegionError::Create { bytes, cause })?;
        Ok(Region {
            memory,
            writable: true,
            file: None,
        })
    }

    /// Memory that other processes can open by its [descriptor](Self::descriptor).
    ///
    /// # Errors
    /// [`RegionError::Create`]; also for 0 bytes.
    pub fn shared(bytes: usize) -> Result<Region, RegionError> {
        let created = Segment::create(bytes);
        let (memory, file) = created.map_err(|cause| RegionError::Create { bytes, cause })?;
        Ok(Region {
            memory,
            writable: true,
            file: Some(file),
        })
    }

    /// Maps a region that another process shares; the descriptor can be closed afterwards.
    ///
    /// # Errors
    /// [`RegionError::Open`]: it is no sealed memory, or of another size.
    pub fn open(
        descriptor: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
    ) -> Result<Region, RegionError> {
        let memory = Segment::open(descriptor, bytes, writable);
        let memory = memory.map_err(|cause| RegionError::Open { bytes, cause })?;
        Ok(Region {
            memory,
            writable,
            file: None,
        })
    }

    /// What to pass to another process that shall open it; `None` unless it was created as
    /// [shared](Self::shared).
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Its size in bytes, never 0.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.length()
    }

    /// Copies the bytes at `offset` out.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`]; nothing was copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RegionError> {
        let length = into.len();
        self.check(offset, length)?;
        let from = self.memory.at(offset, length);
        // SAFETY: `at` has checked that as many bytes as `into` has lie in the mapping, which
        // `self` keeps; `into` is memory of its own, so the two do not overlap. Any bytes are
        // valid as `u8`. In this process writing takes `&mut self`, so nobody writes here
        // through this mapping meanwhile; what other mappings of the memory change during the
        // copy arrives torn, as the module says: no reference to the memory ever exists.
        unsafe {
            into.as_mut_ptr()
                .copy_from_nonoverlapping(from.as_ptr(), length)
        };
        Ok(())
    }

    /// Copies bytes in at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::ReadOnly`]; nothing was copied.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.check_writable()?;
        self.check(offset, bytes.len())?;
        let to = self.memory.at(offset, bytes.len());
        // SAFETY: as in `read`: in bounds, not overlapping, mapped for writing as just checked,
        // and `&mut self` excludes every other access through this mapping.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Ok(())
    }

    /// The word at `offset`; what was written before it was stored can be read afterwards.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] or [`RegionError::Misaligned`].
    pub fn load(&self, offset: usize) -> Result<u64, RegionError> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Sets the word at `offset`, after all that was written before.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::Misaligned`] or [`RegionError::ReadOnly`].
    pub fn store(&mut self, offset: usize, value: u64) -> Result<(), RegionError> {
        self.check_writable()?;
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to the word at `offset`, wrapping around, after all that was written before; returns
    /// what it was.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::Misaligned`] or [`RegionError::ReadOnly`].
    pub fn add(&mut self, offset: usize, value: u64) -> Result<u64, RegionError> {
        self.check_writable()?;
        Ok(self.word(offset)?.fetch_add(value, Ordering::AcqRel))
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        self.check(offset, WORD_BYTES)?;
        if !offset.is_multiple_of(WORD_BYTES) {
            return Err(RegionError::Misaligned { offset });
        }
        let at = self.memory.at(offset, WORD_BYTES).cast::<AtomicU64>();
        // SAFETY: in bounds and, since mappings begin at a page, aligned; every bit pattern is a
        // valid value; the mapping lives as long as `self`, from which the reference borrows.
        // Raw copies of these bytes in this process either only read, too, or have `&mut self`;
        // `load`, the only access without it, does not write to what may be mapped for reading.
        Ok(unsafe { at.as_ref() })
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), RegionError> {
        let bytes = self.bytes();
        match offset.checked_add(length) {
            Some(end) if end <= bytes => Ok(()),
            _ => Err(RegionError::OutOfBounds {
                offset,
                length,
                bytes,
            }),
        }
    }

    fn check_writable(&self) -> Result<(), RegionError> {
        match self.writable {
            true => Ok(()),
            false => Err(RegionError::ReadOnly),
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    const BYTES: usize = 10_000;

    #[test]
    fn what_one_mapping_writes_the_other_reads_and_the_creator_may_go_first() {
        let mut ours = Region::shared(BYTES).expect("memory");
        let file = ours.descriptor().expect("to share");
        let mut theirs = Region::open(file, BYTES, true).expect("the same");
        let reader = Region::open(file, BYTES, false).expect("the same");
        ours.write(BYTES - 3, b"end").expect("inside");
        ours.store(8, 7).expect("a word");
        assert_eq!(theirs.add(8, u64::MAX).expect("a word"), 7);
        drop(ours);
        let mut end = [0; 3];
        reader.read(BYTES - 3, &mut end).expect("inside");
        assert_eq!((&end, reader.load(8).expect("a word")), (b"end", 6));
    }

    #[test]
    fn a_private_region_is_zeroed_page_aligned_and_not_to_be_shared() {
        let mut region = Region::private(BYTES).expect("memory");
        assert!(region.descriptor().is_none());
        assert_eq!(region.bytes(), BYTES);
        let start = region.memory.at(0, BYTES).as_ptr().addr();
        assert!(start.is_multiple_of(4096));
        let mut all = vec![1; BYTES];
        region.read(0, &mut all).expect("all of it");
        assert!(all.iter().all(|byte| *byte == 0));
        region.write(0, b"x").expect("ours");
        region.read(0, &mut all[..1]).expect("inside");
        assert_eq!(all[0], b'x');
        assert!(matches!(
            Region::private(0),
            Err(RegionError::Create { .. })
        ));
    }

    #[test]
    fn bytes_outside_are_refused_wherever_they_would_begin() {
        let mut region = Region::private(BYTES).expect("memory");
        for (offset, length) in [(BYTES, 1), (BYTES - 1, 2), (0, BYTES + 1), (usize::MAX, 2)] {
            let mut some = vec![0; length];
            let read = region.read(offset, &mut some).expect_err("outside");
            assert!(matches!(read, RegionError::OutOfBounds { .. }), "{read}");
            let written = region.write(offset, &some).expect_err("outside");
            assert!(matches!(written, RegionError::OutOfBounds { .. }));
        }
        region.read(BYTES, &mut []).expect("nothing at the end");
        assert!(matches!(
            region.load(BYTES - 7),
            Err(RegionError::OutOfBounds { .. })
        ));
        assert!(matches!(
            region.load(usize::MAX - 7),
            Err(RegionError::OutOfBounds { .. })
        ));
        assert!(matches!(
            region.store(12, 1),
            Err(RegionError::Misaligned { offset: 12 })
        ));
    }

    #[test]
    fn a_region_opened_for_reading_cannot_be_written() {
        let ours = Region::shared(BYTES).expect("memory");
        let file = ours.descriptor().expect("to share");
        let mut reader = Region::open(file, BYTES, false).expect("the same");
        assert!(matches!(reader.write(0, b"x"), Err(RegionError::ReadOnly)));
        assert!(matches!(reader.store(0, 1), Err(RegionError::ReadOnly)));
        assert!(matches!(reader.add(0, 1), Err(RegionError::ReadOnly)));
        assert_eq!(reader.load(0).expect("a word"), 0);
    }

    #[test]
    fn a_descriptor_of_another_size_or_that_could_shrink_is_refused() {
        let ours = Region::shared(BYTES).expect("memory");
        let file = ours.descriptor().expect("to share");
        let error = Region::open(file, BYTES + 1, true).expect_err("longer");
        assert!(error.to_string().contains("another size"), "{error}");
        let unsealed = tempfile::tempfile().expect("a file");
        unsealed.set_len(BYTES as u64).expect("ours");
        let error = Region::open(unsealed.as_fd(), BYTES, true).expect_err("unsealed");
        assert!(error.to_string().contains("sealed"), "{error}");
    }
}
