//! The memory that both ends of a connection share: words and two rings of bytes.
//!
//! Whoever maps it is of the same user and may write anything: every access is checked against
//! the mapping's bounds, and bytes are copied, never borrowed.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Bytes of a ring: what one end may have written that the other has not read.
pub const RING: usize = 1 << 20;
const RINGS: usize = 8192;
/// Bytes of the whole.
pub const AREA: usize = RINGS + 2 * RING;

/// A shared mapping of [`AREA`] bytes. Children inherit it, as they inherit the socket.
#[derive(Debug)]
pub struct Area {
    start: NonNull<u8>,
}

// SAFETY: the mapping belongs to the process, and is reached by atomics and checked copies alone.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Zeroed memory of this process and its children.
    ///
    /// # Errors
    /// The kernel's.
    pub fn anonymous() -> io::Result<Area> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), AREA, access, MapFlags::SHARED) }?;
        Area::own(start.cast())
    }

    /// Maps a file of [`AREA`] bytes at least.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_file(file: BorrowedFd<'_>) -> io::Result<Area> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let start = unsafe { mmap(ptr::null_mut(), AREA, access, MapFlags::SHARED, file, 0) }?;
        Area::own(start.cast())
    }

    fn own(start: *mut u8) -> io::Result<Area> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { start })
    }

    /// A word before the rings, by its offset in bytes.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= RINGS, "no word at {at}");
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned; all access to
        // this part of it is atomic.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// The same, of four bytes.
    pub fn half_word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= RINGS, "no word at {at}");
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Copies bytes into ring `ring`, from position `at` of its stream, around its end.
    pub fn write(&self, ring: usize, at: u64, from: &[u8]) {
        let (place, first) = self.place(ring, at, from.len());
        // SAFETY: `place` checked that both pieces lie inside the ring; the program's memory is
        // not part of the mapping. A peer that reads meanwhile gets bytes of either kind.
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), place, first);
            let rest = from.len() - first;
            ptr::copy_nonoverlapping(from.as_ptr().add(first), self.ring(ring), rest);
        }
    }

    /// Copies bytes out of a ring.
    pub fn read(&self, ring: usize, at: u64, to: &mut [u8]) {
        let (place, first) = self.place(ring, at, to.len());
        // SAFETY: as in `write`.
        unsafe {
            ptr::copy_nonoverlapping(place, to.as_mut_ptr(), first);
            let rest = to.len() - first;
            ptr::copy_nonoverlapping(self.ring(ring), to.as_mut_ptr().add(first), rest);
        }
    }

    fn ring(&self, ring: usize) -> *mut u8 {
        assert!(ring < 2, "an area has two rings");
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(RINGS + ring * RING) }
    }

    /// Where a position lies, and how many of `length` bytes fit before the ring's end.
    fn place(&self, ring: usize, at: u64, length: usize) -> (*mut u8, usize) {
        assert!(length <= RING, "{length} bytes are more than a ring");
        let offset = usize::try_from(at % RING as u64).unwrap_or(0);
        // SAFETY: `offset` is less than the ring's length.
        let place = unsafe { self.ring(ring).add(offset) };
        (place, length.min(RING - offset))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), AREA) };
    }
}
