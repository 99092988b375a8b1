//! Memory that one process of a job writes and the others of its node read.
//!
//! A window is large and sparse: it takes memory where it has been written. Its owner writes, the
//! others copy out of it what the owner has said is there; who says so, and when a place may be
//! written again, is the callers' protocol.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::thread::futex;

use crate::segment::{MapFlags, ProtFlags, Segment};

/// Bytes that somebody else may change meanwhile: they are read once, by copying.
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
    /// Bytes of this process by their address.
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

    /// How many they are.
    #[inline]
    #[must_use]
    pub fn length(self) -> usize {
        self.length
    }

    /// Where they lie.
    #[inline]
    #[must_use]
    pub fn address(self) -> *const u8 {
        self.start
    }

    /// `length` of them from `at` on.
    ///
    /// # Panics
    /// When they are not inside.
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
    /// When it is not inside.
    #[inline]
    #[must_use]
    pub fn word(self, at: usize) -> u64 {
        let place = self.part(at, size_of::<u64>());
        // SAFETY: eight readable bytes, as just checked, at any alignment.
        unsafe { place.start.cast::<u64>().read_unaligned() }
    }

    /// Copies all of them to memory that may overlap.
    ///
    /// # Safety
    /// As many bytes are writable there, and nobody else uses them meanwhile.
    #[inline]
    pub unsafe fn copy_to(self, to: *mut u8) {
        // SAFETY: readable by this type's promise, writable by the caller's.
        unsafe { std::ptr::copy(self.start, to, self.length) };
    }

    /// Copies all of them.
    ///
    /// # Panics
    /// When `to` has another length.
    #[inline]
    pub fn copy_into(self, to: &mut [u8]) {
        assert_eq!(to.len(), self.length, "as long as its source");
        // SAFETY: as many bytes, borrowed mutably.
        unsafe { self.copy_to(to.as_mut_ptr()) };
    }

    /// Copies all of them behind what is in `to`.
    #[inline]
    pub fn append_to(self, to: &mut Vec<u8>) {
        to.reserve(self.length);
        let end = to.len();
        // SAFETY: the room behind the end was just reserved and is disjoint from what this
        // refers to, since `to` is borrowed mutably; it is initialised before it counts.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start, to.as_mut_ptr().add(end), self.length);
            to.set_len(end + self.length);
        }
    }

    /// A copy of them.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }
}

/// See the module.
#[derive(Debug)]
pub struct Window {
    segment: Segment,
    file: OwnedFd,
}

impl Window {
    /// An empty one of at most `most` bytes, smaller where the process may not have so much
    /// address space.
    ///
    /// # Errors
    /// The kernel's.
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

    /// The window of another process of this user: its process, the number of its descriptor
    /// there and its length.
    ///
    /// # Errors
    /// The kernel's; the process is gone, out of sight or not this user's; it is no window.
    pub fn open(process: u32, descriptor: i32, length: usize) -> io::Result<Window> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let segment = Segment::open(file.as_fd(), length, false)?;
        Ok(Window { segment, file })
    }

    /// A window over a new file, which is made so long and takes its room on the disk at once:
    /// writing into the window cannot fail later.
    ///
    /// # Errors
    /// The kernel's; the disk is full.
    pub fn of_file(file: OwnedFd, length: usize) -> io::Result<Window> {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let segment = Segment::of_file(file.as_fd(), 0, length, access, MapFlags::empty())?;
        Ok(Window { segment, file })
    }

    /// Its length.
    #[must_use]
    pub fn length(&self) -> usize {
        self.segment.length()
    }

    /// The number of its descriptor in this process.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The word at `at`.
    ///
    /// # Panics
    /// When it is not inside, or not aligned.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "an aligned word");
        let place = self.segment.at(at, 8);
        // SAFETY: inside the mapping, which lives as long as the borrow, aligned, and used
        // by atomics wherever it is used as a word.
        unsafe { place.cast::<AtomicU64>().as_ref() }
    }

    /// The half word at `at`.
    ///
    /// # Panics
    /// When it is not inside, or not aligned.
    #[inline]
    #[must_use]
    pub fn half_word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4), "an aligned word");
        let place = self.segment.at(at, 4);
        // SAFETY: as above.
        unsafe { place.cast::<AtomicU32>().as_ref() }
    }

    /// Copies bytes into a window of this process's own.
    ///
    /// # Panics
    /// When the place is not inside.
    #[inline]
    pub fn write(&self, at: usize, bytes: Source<'_>) {
        let place = self.segment.at(at, bytes.length());
        // SAFETY: inside the mapping; nobody reads it before its owner has said that it is there.
        unsafe { bytes.copy_to(place.as_ptr()) };
    }

    /// The bytes at a place.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    #[must_use]
    pub fn source(&self, at: usize, length: usize) -> Source<'_> {
        Source {
            start: self.segment.at(at, length).as_ptr(),
            length,
            lives: PhantomData,
        }
    }

    /// Gives the memory of whole pages inside a range back to the system; they are zero then.
    pub fn release(&self, at: usize, length: usize) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where it fails the memory is merely kept.
        let _kept = rustix::fs::fallocate(&self.file, flags, at as u64, length as u64);
    }

    /// Sleeps while the half word at `at` is `value`, at most `most`.
    pub fn sleep(&self, at: usize, value: u32, most: Duration) {
        let timeout = rustix::fs::Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        // Whoever sleeps looks again, for whatever reason it was woken.
        let _woken = futex::wait(
            self.half_word(at),
            futex::Flags::empty(),
            value,
            Some(&timeout),
        );
    }

    /// Wakes all who sleep on the half word at `at`.
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
    fn what_the_owner_writes_is_read_by_who_opened_its_window() {
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
