//! Memory for the writer of an image that is not part of the image.

#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits on the processor that this is for"
)]

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use crate::image::PAGE_BYTES;
use crate::maps::Mapping;
use crate::ranges::Ranges;

/// A stack, and above it a list of ranges.
const STACK_BYTES: usize = 8 << 20;
const LIST_BYTES: usize = 8 << 20;
/// Ranges that the list can hold.
const MOST: usize = LIST_BYTES / size_of::<(u64, u64)>();
/// Entries of the kernel's table of pages that are read at once.
const ENTRIES: usize = 4096;
/// The kernel's flags of a page that only this process has, and of one in swap space.
const EXCLUSIVE: u64 = 1 << 56;
const SWAPPED: u64 = 1 << 62;

/// Memory that is used by one writer.
#[derive(Debug)]
pub(crate) struct Scratch {
    start: NonNull<u8>,
    /// Ranges in the list.
    count: usize,
}

impl Scratch {
    pub(crate) fn map() -> io::Result<Scratch> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let length = STACK_BYTES + LIST_BYTES;
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => {
                let scratch = Scratch { start, count: 0 };
                // SAFETY: the lowest page of the stack becomes inaccessible, which ends a process that
                // uses too much of it.
                match unsafe { libc::mprotect(start.as_ptr().cast(), PAGE_BYTES, libc::PROT_NONE) }
                {
                    0 => Ok(scratch),
                    _ => Err(io::Error::last_os_error()),
                }
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The highest address of the stack.
    pub(crate) fn stack(&self) -> *mut c_void {
        self.start.as_ptr().wrapping_add(STACK_BYTES).cast()
    }

    /// Notes the pages of `among` that this process may have written since it was forked: no other
    /// process has them. They can be more, because other processes write and end. Nothing but the
    /// scratch memory is written.
    pub(crate) fn find_own_pages(&mut self, among: &Ranges) {
        let mut entries = [0_u64; ENTRIES];
        // SAFETY: the path ends with NUL; the call returns a descriptor or an error.
        let pages = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY) };
        for (start, end) in among.iter() {
            let mut at = start;
            while at < end {
                let count = (((end - at) / PAGE_BYTES as u64) as usize).min(ENTRIES);
                let position = at / PAGE_BYTES as u64 * size_of::<u64>() as u64;
                let length = count * size_of::<u64>();
                // SAFETY: at most `length` bytes are written to the entries.
                let read = unsafe {
                    let to = entries.as_mut_ptr().cast();
                    libc::pread(pages, to, length, position.cast_signed())
                };
                if read != length.cast_signed() {
                    // Nothing is known about the rest.
                    self.note(at, end);
                    break;
                }
                for entry in &entries[..count] {
                    if entry & (EXCLUSIVE | SWAPPED) != 0 {
                        self.note(at, at + PAGE_BYTES as u64);
                    }
                    at += PAGE_BYTES as u64;
                }
            }
        }
        // SAFETY: the descriptor was opened above, or the call fails.
        unsafe { libc::close(pages) };
    }

    /// Adds a range above all others. When the list is full, its last range grows.
    fn note(&mut self, start: u64, end: u64) {
        let list = self.list();
        let last = self
            .count
            .checked_sub(1)
            .map(|last| list.wrapping_add(last));
        // SAFETY: indexes below `MOST` are inside of the list, of which `count` ranges are written.
        unsafe {
            match last {
                Some(last) if (*last).1 == start || self.count == MOST => (*last).1 = end,
                _ => {
                    list.add(self.count).write((start, end));
                    self.count += 1;
                }
            }
        }
    }

    fn list(&self) -> *mut (u64, u64) {
        self.start.as_ptr().wrapping_add(STACK_BYTES).cast()
    }

    /// The pages that were found.
    pub(crate) fn own_pages(&self) -> Vec<(u64, u64)> {
        // SAFETY: so many ranges were written.
        unsafe { std::slice::from_raw_parts(self.list(), self.count) }.to_vec()
    }

    /// The mappings without this memory.
    pub(crate) fn exclude(&self, mappings: Vec<Mapping>) -> Vec<Mapping> {
        let start = self.start.addr().get() as u64;
        let end = start + (STACK_BYTES + LIST_BYTES) as u64;
        let parts = mappings.into_iter().flat_map(|mapping| {
            let below = Mapping {
                end: mapping.end.min(start),
                ..mapping.clone()
            };
            let above = Mapping {
                start: mapping.start.max(end),
                ..mapping
            };
            [below, above]
        });
        parts.filter(|part| part.start < part.end).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped by `map`, and nothing refers to it any more: the writer has a
        // copy.
        unsafe { libc::munmap(self.start.as_ptr().cast(), STACK_BYTES + LIST_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_a_child_writes_are_its_own() {
        const PAGES: usize = 64;
        let mut memory = vec![1_u8; (PAGES + 1) * PAGE_BYTES];
        let start = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES);
        let first = start - memory.as_ptr().addr();
        let page = |number: usize| (start + number * PAGE_BYTES) as u64;
        let mut scratch = Scratch::map().expect("memory");
        let among: Ranges = [(page(0), page(PAGES))].into_iter().collect();
        // SAFETY: the child only writes to memory, reads files and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for number in [3, 4, 40] {
                memory[first + number * PAGE_BYTES] = 2;
            }
            scratch.find_own_pages(&among);
            let found: Ranges = scratch.own_pages().into_iter().collect();
            let is_found = |number: &usize| found.at(page(*number)).0;
            let others = (0..PAGES).filter(is_found).count();
            let is_right = [3, 4, 40].iter().all(is_found) && others == 3;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above and writes its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }

    #[test]
    fn the_last_range_of_a_full_list_grows() {
        let mut scratch = Scratch::map().expect("memory");
        for number in 0..MOST as u64 + 5 {
            scratch.note(2 * number, 2 * number + 1);
        }
        let found = scratch.own_pages();
        assert_eq!(found.len(), MOST);
        assert_eq!(found[MOST - 1].1, 2 * MOST as u64 + 9);
    }

    #[test]
    fn the_scratch_memory_is_not_part_of_an_image() {
        let scratch = Scratch::map().expect("memory");
        let start = scratch.start.addr().get() as u64;
        let end = start + (STACK_BYTES + LIST_BYTES) as u64;
        let mapping = Mapping::anonymous;
        let joined = mapping(start - 4096, end + 8192);
        let left = scratch.exclude(vec![mapping(1, 2), joined, mapping(start, end)]);
        let expected = [
            mapping(1, 2),
            mapping(start - 4096, start),
            mapping(end, end + 8192),
        ];
        assert_eq!(left, expected);
    }
}
