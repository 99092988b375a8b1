//! The memory shared by both ends of a connection: words and two byte rings.
//!
//! A process that maps it belongs to the same user and may write anything: every access is checked
//! against the bounds, and bytes are copied, never borrowed. The memory is sealed, so no process can
//! truncate it under another one.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

use dipole_link::segment::Segment;

/// Size of a ring: the bytes that one end may have written and the other has not read.
pub const RING: usize = 1 << 20;
const RINGS: usize = 8192;
/// Size of the whole area in bytes.
pub const AREA: usize = RINGS + 2 * RING;

/// A shared mapping of [`AREA`] bytes. Children inherit it, as they inherit the socket.
#[derive(Debug)]
pub struct Area(Segment);

impl Area {
    /// Creates zeroed memory; the peer maps it through the returned descriptor.
    ///
    /// # Errors
    /// The error that the kernel returns, or `EFBIG` if files must be shorter (`ulimit -f`).
    pub fn create() -> io::Result<(Area, OwnedFd)> {
        // Beyond this limit the kernel would end the program with a signal.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        if limit.current.is_some_and(|most| most < AREA as u64) {
            return Err(rustix::io::Errno::FBIG.into());
        }
        let (segment, file) = Segment::create(AREA)?;
        Ok((Area::inherited(segment)?, file))
    }

    /// Maps the memory of the peer.
    ///
    /// # Errors
    /// The memory is not sealed or has another size, or the kernel refuses.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Area> {
        Area::inherited(Segment::open(file, AREA, true)?)
    }

    fn inherited(mut segment: Segment) -> io::Result<Area> {
        segment.share_with_children()?;
        Ok(Area(segment))
    }

    /// The 64-bit word at an offset before the rings.
    ///
    /// # Panics
    /// If it is not there, or not aligned.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= RINGS, "no word at {at}");
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned; this part of it
        // is accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.0.at(at, 8).as_ptr().cast()) }
    }

    /// The 32-bit word at an offset before the rings.
    ///
    /// # Panics
    /// If it is not there, or not aligned.
    pub fn half_word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= RINGS, "no word at {at}");
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.0.at(at, 4).as_ptr().cast()) }
    }

    /// Takes the memory of a ring from the system.
    ///
    /// # Errors
    /// There is not enough.
    pub fn allocate(&self, ring: usize) -> io::Result<()> {
        assert!(ring < 2, "an area has two rings");
        self.0.allocate(RINGS + ring * RING, RING)
    }

    /// Copies bytes into ring `ring` at position `at` of its stream, wrapping around.
    pub fn write(&self, ring: usize, at: u64, from: &[u8]) {
        let (place, first) = self.place(ring, at, from.len());
        // SAFETY: `place` has checked that both pieces are inside the ring; `from` is the program's
        // memory, not part of the mapping. A peer that reads meanwhile gets old or new bytes.
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), place, first);
            let rest = from.len() - first;
            ptr::copy_nonoverlapping(from.as_ptr().add(first), self.ring(ring), rest);
        }
    }

    /// Copies bytes out of ring `ring` from position `at` of its stream, wrapping around.
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
        self.0.at(RINGS + ring * RING, RING).as_ptr()
    }

    /// Address of a position, and how many of `length` bytes fit before the end of the ring.
    fn place(&self, ring: usize, at: u64, length: usize) -> (*mut u8, usize) {
        assert!(length <= RING, "{length} bytes exceed a ring");
        let offset = usize::try_from(at % RING as u64).unwrap_or(0);
        // SAFETY: `offset` is less than the ring's size.
        let place = unsafe { self.ring(ring).add(offset) };
        (place, length.min(RING - offset))
    }
}
