//! Memory that one process of a job writes and the other processes of its node read.
//!
//! A window is large and sparse: only the pages that were written take memory. When data is
//! ready and when a range may be reused is decided by the callers' protocol.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::thread::futex;

use crate::segment::{MapFlags, ProtFlags, Segment};

/// Bytes that another process may change at any time: they are read once, by copying.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    start: *const u8,
    length: usize,
    lives: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Source<'a> {
        Source {
            start: bytes.as_ptr(),
            length: bytes.len(),
            lives: PhantomData,
        }
    }
}

impl<'a> Source<'a> {
    /// Bytes of this process, by address.
    ///
    /// # Safety
    /// They stay readable for `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn at(start: *const u8, length: usize) -> Source<'a> {
        Source {
            start,
            length,
            lives: PhantomData,
        }
    }

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn length(self) -> usize {
        self.length
    }

    /// Address of the first byte.
    #[inline]
    #[must_use]
    pub fn address(self) -> *const u8 {
        self.start
    }

    /// The `length` bytes from offset `at`.
    ///
    /// # Panics
    /// If they are out of bounds.
    #[inline]
    #[must_use]
    pub fn part(self, at: usize, length: usize) -> Source<'a> {
        assert!(
            at <= self.length && length <= self.length - at,
            "{length} bytes at {at} lie inside of {}",
            self.length
        );
        Source {
            // SAFETY: inside, as just checked.
            start: unsafe { self.start.add(at) },
            length,
            lives: PhantomData,
        }
    }

    /// The 64-bit word at `at`.
    ///
    /// # Panics
    /// If it is out of bounds.
    #[inline]
    #[must_use]
    pub fn word(self, at: usize) -> u64 {
        let place = self.part(at, size_of::<u64>());
        // SAFETY: eight readable bytes, as just checked, at any alignment.
        unsafe { place.start.cast::<u64>().read_unaligned() }
    }

    /// Copies all bytes to memory that may overlap.
    ///
    /// # Safety
    /// `to` is writable for this many bytes, and nothing else accesses it meanwhile.
    #[inline]
    pub unsafe fn copy_to(self, to: *mut u8) {
        // SAFETY: readable as this type guarantees, writable as the caller guarantees.
        unsafe { std::ptr::copy(self.start, to, self.length) };
    }

    /// Copies all bytes.
    ///
    /// # Panics
    /// If `to` has another length.
    #[inline]
    pub fn copy_into(self, to: &mut [u8]) {
        assert_eq!(to.len(), self.length, "as long as its source");
        // SAFETY: `to` has the same length and is borrowed mutably.
        unsafe { self.copy_to(to.as_mut_ptr()) };
    }

    /// Appends all bytes to `to`.
    #[inline]
    pub fn append_to(self, to: &mut Vec<u8>) {
        to.reserve(self.length);
        let end = to.len();
        // SAFETY: the space after the end was just reserved and does not overlap the source,
        // since `to` is borrowed mutably; it is initialised before `set_len` includes it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start, to.as_mut_ptr().add(end), self.length);
            to.set_len(end + self.length);
        }
    }

    /// Copies all bytes to a new vector.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }
}

/// A shared window: its mapping and descriptor.
#[derive(Debug)]
pub struct Window {
    segment: Segment,
    file: OwnedFd,
}

impl Window {
    /// Creates an empty window of at most `most` bytes; smaller if the process may not use that
    /// much address space.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn create(most: usize) -> io::Result<Window> {
        const LEAST: usize = 16 << 20;
        let mut length = most;
        loop {
            match Segment::create(length) {
                Ok((segment, file)) => return Ok(Window { segment, file }),
                Err(_) if length > LEAST => length /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// Maps the window of another process of this user, given its pid, its descriptor number
    /// there, and the length.
    ///
    /// # Errors
    /// The error that the kernel returns; the process is gone, not visible or another user's; it is not a window.
    pub fn open(process: u32, descriptor: i32, length: usize) -> io::Result<Window> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let segment = Segment::open(file.as_fd(), length, false)?;
        Ok(Window { segment, file })
    }

    /// Creates a window over a new file, extended to `length` with its disk blocks allocated:
    /// later writes into the window cannot fail.
    ///
    /// # Errors
    /// The error that the kernel returns; the disk is full.
    pub fn of_file(file: OwnedFd, length: usize) -> io::Result<Window> {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let segment = Segment::of_file(file.as_fd(), 0, length, access, MapFlags::empty())?;
        Ok(Window { segment, file })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.segment.length()
    }

    /// Descriptor number in this process.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The 64-bit word at `at`.
    ///
    /// # Panics
    /// If it is out of bounds or not aligned.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "an aligned word");
        let place = self.segment.at(at, 8);
        // SAFETY: inside the mapping, which lives as long as the borrow, and aligned; words are
        // accessed only atomically.
        unsafe { place.cast::<AtomicU64>().as_ref() }
    }

    /// The 32-bit word at `at`.
    ///
    /// # Panics
    /// If it is out of bounds or not aligned.
    #[inline]
    #[must_use]
    pub fn half_word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4), "an aligned word");
        let place = self.segment.at(at, 4);
        // SAFETY: as above.
        unsafe { place.cast::<AtomicU32>().as_ref() }
    }

    /// Copies bytes into a window that this process owns.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline]
    pub fn write(&self, at: usize, bytes: Source<'_>) {
        let place = self.segment.at(at, bytes.length());
        // SAFETY: inside the mapping; no process reads the bytes before the owner announces them.
        unsafe { bytes.copy_to(place.as_ptr()) };
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline]
    #[must_use]
    pub fn source(&self, at: usize, length: usize) -> Source<'_> {
        Source {
            start: self.segment.at(at, length).as_ptr(),
            length,
            lives: PhantomData,
        }
    }

    /// Returns the memory of the whole pages inside a range to the system; they read as zeros then.
    pub fn release(&self, at: usize, length: usize) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // If this fails, the memory is merely kept.
        let _kept = rustix::fs::fallocate(&self.file, flags, at as u64, length as u64);
    }

    /// Sleeps while the 32-bit word at `at` equals `value`, at most for `most`.
    pub fn sleep(&self, at: usize, value: u32, most: Duration) {
        let timeout = rustix::fs::Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        // The caller checks the word again, whatever ended the sleep.
        let _woken = futex::wait(
            self.half_word(at),
            futex::Flags::empty(),
            value,
            Some(&timeout),
        );
    }

    /// Wakes all threads that sleep on the 32-bit word at `at`.
    pub fn wake(&self, at: usize) {
        let all = i32::MAX.unsigned_abs();
        let _count = futex::wake(self.half_word(at), futex::Flags::empty(), all);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn another_process_reads_what_the_owner_of_a_window_wrote() {
        let own = Window::create(1 << 30).expect("memory");
        let other = Window::open(std::process::id(), own.descriptor(), own.length());
        let other = other.expect("our own");
        own.write(1 << 20, Source::from(&b"superstep"[..]));
        own.word(64).store(7, Ordering::Release);
        assert_eq!(other.word(64).load(Ordering::Acquire), 7);
        assert_eq!(other.source(1 << 20, 9).to_vec(), b"superstep");
        own.release(1 << 20, 4096);
        assert_eq!(other.source(1 << 20, 9).to_vec(), [0; 9]);
    }

    #[test]
    fn another_length_or_another_file_is_refused() {
        let own = Window::create(1 << 20).expect("memory");
        let process = std::process::id();
        assert!(Window::open(process, own.descriptor(), 1 << 21).is_err());
        assert!(Window::open(process, -1, 1 << 20).is_err());
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 20).expect("room");
        assert!(Window::open(process, file.as_raw_fd(), 1 << 20).is_err());
    }

    #[test]
    fn a_sleeper_wakes_when_the_word_changes() {
        let own = Window::create(1 << 16).expect("memory");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while own.half_word(0).load(Ordering::Acquire) == 0 {
                    own.sleep(0, 0, Duration::from_secs(10));
                }
            });
            own.half_word(0).store(1, Ordering::Release);
            own.wake(0);
        });
    }

    #[test]
    fn parts_of_a_source_are_checked() {
        let bytes: Vec<u8> = (0..32).collect();
        let source = Source::from(&bytes[..]);
        assert_eq!(source.part(8, 8).to_vec(), &bytes[8..16]);
        assert_eq!(source.word(8).to_le_bytes(), bytes[8..16]);
        assert!(std::panic::catch_unwind(|| source.part(30, 3).length()).is_err());
        assert!(std::panic::catch_unwind(|| source.part(usize::MAX, 3).length()).is_err());
    }
}
