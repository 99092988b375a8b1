//! A BPF ring buffer as its reader maps it: a page to write, and pages only to read.
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
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::ring::Memory;

/// `BPF_MAP_TYPE_RINGBUF`.
const RING_BUFFER: u64 = 27;

/// Of the processor's caches.
const LINE_BYTES: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The reader's page.
    consumer: NonNull<u8>,
    /// The kernel's page, and the data behind it.
    kernel: NonNull<u8>,
    page_bytes: usize,
    bytes: usize,
    /// The process that has it: children do not inherit mappings.
    pid: u32,
    #[cfg(test)]
    on_heap: bool,
}

// SAFETY: the mappings belong to the value and are reached by atomics, and by slices of
// records that the kernel has finished and the reader has not given back.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a ring buffer.
    ///
    /// # Errors
    /// It is none, or the kernel refuses.
    pub(super) fn new(ring: BorrowedFd<'_>) -> io::Result<Mapping> {
        let bytes = ring_bytes(ring)?;
        let page_bytes = rustix::param::page_size();
        let consumer = map(ring, page_bytes, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let kernel = map(
            ring,
            page_bytes + 2 * bytes,
            libc::PROT_READ,
            page_bytes as libc::off_t,
        );
        let kernel = kernel.inspect_err(|_| unmap(consumer, page_bytes))?;
        Ok(Mapping {
            consumer,
            kernel,
            page_bytes,
            bytes,
            pid: std::process::id(),
            #[cfg(test)]
            on_heap: false,
        })
    }

    /// The same in memory of this process alone, where a test plays the kernel.
    #[cfg(test)]
    pub(super) fn on_heap(bytes: usize) -> Mapping {
        let page_bytes = 4096;
        // SAFETY: both layouts have a size above zero.
        let [consumer, kernel] = [page_bytes, page_bytes + 2 * bytes].map(|length| unsafe {
            NonNull::new(std::alloc::alloc_zeroed(heap_layout(length))).expect("memory")
        });
        Mapping {
            consumer,
            kernel,
            page_bytes,
            bytes,
            pid: std::process::id(),
            on_heap: true,
        }
    }

    /// Where the test that plays the kernel writes.
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
        // SAFETY: the start of a page of ours; the kernel loads the word atomically.
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
        // SAFETY: inside the data, aligned since records begin at multiples of 8; the
        // kernel exchanges the word atomically.
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
        // SAFETY: below twice the size, which is mapped behind the kernel's page.
        unsafe { self.kernel.add(self.page_bytes + at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let kernel_bytes = self.page_bytes + 2 * self.bytes;
        #[cfg(test)]
        if self.on_heap {
            for (start, length) in [
                (self.consumer, self.page_bytes),
                (self.kernel, kernel_bytes),
            ] {
                // SAFETY: allocated by `on_heap` with this layout and freed once.
                unsafe { std::alloc::dealloc(start.as_ptr(), heap_layout(length)) };
            }
            return;
        }
        // In a forked child there is nothing, or something else by now.
        if self.pid == std::process::id() {
            unmap(self.consumer, self.page_bytes);
            unmap(self.kernel, kernel_bytes);
        }
    }
}

#[cfg(test)]
fn heap_layout(length: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(length, 4096).expect("a small size")
}

/// Bytes of data of a ring buffer, as the kernel reports it to every holder of its descriptor.
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
            "the descriptor is no BPF ring buffer",
        )),
    }
}

fn map(
    ring: BorrowedFd<'_>,
    length: usize,
    access: libc::c_int,
    offset: libc::off_t,
) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            ring.as_raw_fd(),
            offset,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: exactly the mapping made above. A child shall not find it: it would
    // disturb its parent's reading.
    if unsafe { libc::madvise(address, length, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        unmap(start, length);
        return Err(error);
    }
    Ok(start)
}

fn unmap(start: NonNull<u8>, length: usize) {
    // SAFETY: called once for each mapping made by `map`, by its owner.
    unsafe { libc::munmap(start.as_ptr().cast(), length) };
}
