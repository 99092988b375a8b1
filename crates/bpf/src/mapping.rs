//! The mapping of a BPF ring buffer: one writable page, the rest read-only.
//!
//! | page | who writes | what |
//! |---|---|---|
//! | 0 | the reader | how far it has read |
//! | 1 | the kernel | how far it has written |
//! | 2.. | the kernel | the data, mapped twice in a row: no record is cut at the end |
//!
//! Source: Linux, Documentation/bpf/ringbuf.rst.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dipole_link::segment::{MapFlags, ProtFlags, Segment};

use super::ring::Memory;

/// `BPF_MAP_TYPE_RINGBUF`.
const RING_BUFFER: u64 = 27;

/// Size of a cache line.
const LINE_BYTES: usize = 64;

/// A mapped BPF ring buffer.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The page with the reader's position.
    consumer: NonNull<u8>,
    /// The kernel's page, followed by the data.
    kernel: NonNull<u8>,
    page_bytes: usize,
    bytes: usize,
    _owned: Owned,
}

/// Keeps the memory alive.
#[derive(Debug)]
enum Owned {
    Mapped {
        _halves: [Segment; 2],
    },
    #[cfg(test)]
    Heap {
        _pages: Vec<Page>,
    },
}

#[cfg(test)]
#[repr(align(4096))]
#[derive(Clone, Debug)]
struct Page {
    _bytes: [u8; 4096],
}

// SAFETY: the mappings belong to the value and are accessed by atomics, and by slices of records
// that the kernel has finished and the reader has not returned.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a ring buffer.
    ///
    /// # Errors
    /// The descriptor is not a ring buffer, or the kernel refuses.
    pub(super) fn new(ring: BorrowedFd<'_>) -> io::Result<Mapping> {
        let bytes = ring_bytes(ring)?;
        let page_bytes = rustix::param::page_size();
        let kernel_bytes = page_bytes + 2 * bytes;
        let (read, both) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
        let none = MapFlags::empty();
        let consumer = Segment::of_file(ring, 0, page_bytes, both, none)?;
        let kernel = Segment::of_file(ring, page_bytes as u64, kernel_bytes, read, none)?;
        Ok(Mapping {
            consumer: consumer.at(0, page_bytes),
            kernel: kernel.at(0, kernel_bytes),
            page_bytes,
            bytes,
            _owned: Owned::Mapped {
                _halves: [consumer, kernel],
            },
        })
    }

    /// Creates a ring in private memory, where a test plays the kernel.
    #[cfg(test)]
    pub(super) fn on_heap(bytes: usize) -> Mapping {
        let page_bytes = size_of::<Page>();
        let page = Page { _bytes: [0; 4096] };
        let mut pages = vec![page; 2 + (2 * bytes).div_ceil(page_bytes)];
        let start = NonNull::from(&mut pages[..]).cast::<u8>();
        Mapping {
            consumer: start,
            // SAFETY: the second of several pages.
            kernel: unsafe { start.add(page_bytes) },
            page_bytes,
            bytes,
            _owned: Owned::Heap { _pages: pages },
        }
    }

    /// The pages to which a test that plays the kernel writes.
    #[cfg(test)]
    pub(super) fn kernel_side(&self) -> (NonNull<u8>, NonNull<u8>) {
        // SAFETY: the data follows the page within one allocation.
        (self.kernel, unsafe { self.kernel.add(self.page_bytes) })
    }
}

impl Memory for Mapping {
    type Word = AtomicU64;

    #[inline]
    fn ring_bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the start of a page that we mapped; the kernel loads the word atomically.
        unsafe { self.consumer.cast().as_ref() }
    }

    #[inline]
    fn producer(&self) -> &AtomicU64 {
        // SAFETY: the start of a mapped page, only loaded; the kernel stores atomically.
        unsafe { self.kernel.cast().as_ref() }
    }

    #[inline]
    fn length(&self, at: usize) -> u32 {
        let at = self.data(at, size_of::<u32>());
        // SAFETY: inside the data, and aligned since records start at multiples of 8; the kernel
        // exchanges the word atomically.
        unsafe { at.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire)
    }

    #[inline]
    fn fetch(&self, at: usize) {
        for line in 1..3 {
            dipole_link::cpu::prefetch(
                self.data(at, LINE_BYTES * line)
                    .as_ptr()
                    .wrapping_add(LINE_BYTES * line),
            );
        }
    }

    #[inline]
    fn data(&self, at: usize, length: usize) -> NonNull<u8> {
        assert!(
            at < self.bytes && length <= self.bytes,
            "inside the ring buffer"
        );
        // SAFETY: below twice the ring size, which is mapped after the kernel's page.
        unsafe { self.kernel.add(self.page_bytes + at) }
    }
}

/// Size of a ring buffer's data, as the kernel reports it to every holder of its descriptor.
pub(super) fn ring_bytes(ring: BorrowedFd<'_>) -> io::Result<usize> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", ring.as_raw_fd()))?;
    let fact = |name: &str| {
        let mut lines = facts.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let bytes = fact("max_entries:").and_then(|bytes| usize::try_from(bytes).ok());
    match (fact("map_type:"), bytes) {
        (Some(RING_BUFFER), Some(bytes)) if bytes.is_power_of_two() && bytes >= 4096 => Ok(bytes),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the descriptor is not a BPF ring buffer",
        )),
    }
}
