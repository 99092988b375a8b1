//! The pages that this process has written since they were last protected, as the kernel counts
//! them.
//!
//! The memory is registered with userfaultfd, in the mode in which the kernel itself resolves the
//! fault of the first write to a protected page (Linux 6.7). `PAGEMAP_SCAN` reports these pages, also
//! those that the kernel wrote, and protects them again. A fork protects all pages anyway, so a
//! program whose images are taken has no more faults than without this. Memory that appears later is
//! not registered. Memory that is moved by `mremap` loses its registration, and so do the addresses
//! that it leaves.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::image::PAGE_BYTES;
use crate::maps::{self, Mapping};
use crate::ranges::Ranges;

// As in the kernel's linux/userfaultfd.h and linux/fs.h; older headers lack parts of them.
const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
const ASYNCHRONOUS_PROTECTION: u64 = 1 << 15;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const REGISTER_FOR_WRITES: u64 = 1 << 1;
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const IS_REGISTERED: u64 = 1 << 0;
const IS_WRITTEN: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;

/// Addresses of programs end here.
const END: u64 = (1 << 47) - PAGE_BYTES as u64;
/// Regions that a call of the kernel returns at most: the kernel copies them from smaller parts.
const REGIONS: usize = 4096;

/// Argument of `PAGEMAP_SCAN`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    max_pages: u64,
    inverted: u64,
    wanted: u64,
    any_of: u64,
    returned: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Registration of this process's memory; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Tracker {
    faults: OwnedFd,
}

impl Tracker {
    /// Registers nothing yet.
    ///
    /// # Errors
    /// The kernel is older than 6.7, or does not permit it.
    pub(crate) fn new() -> io::Result<Tracker> {
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        // SAFETY: the call returns a new descriptor or an error.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let number = i32::try_from(number).map_err(io::Error::other)?;
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let faults = unsafe { OwnedFd::from_raw_fd(number) };
        let mut api = [API, ASYNCHRONOUS_PROTECTION, 0];
        // SAFETY: the call reads and writes a structure of three words.
        if unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let tracker = Tracker { faults };
        // An older kernel has no such call.
        Pages::open()?.tracked()?;
        Ok(tracker)
    }

    /// Registers memory, of which a part may be registered already.
    ///
    /// # Errors
    /// The memory cannot be registered: it remains outside of [`Pages::tracked`].
    fn register(&self, mapping: &Mapping) -> io::Result<()> {
        let mut range = [mapping.start, mapping.bytes(), REGISTER_FOR_WRITES, 0];
        // SAFETY: the call reads and writes a structure of four words. Registered memory keeps its
        // content and access.
        match unsafe { libc::ioctl(self.faults.as_raw_fd(), UFFDIO_REGISTER, range.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Registers all anonymous memory, and protects the pages that have been written. Returns what is
    /// registered, and the part of it that was registered before and has not been written since it was
    /// last protected.
    ///
    /// # Errors
    /// The kernel refuses. Nothing is known about the pages then.
    pub(crate) fn advance(&self, pages: &Pages) -> io::Result<(Ranges, Ranges)> {
        let before = pages.tracked()?;
        let text = std::fs::read_to_string("/proc/self/maps")?;
        let mappings =
            maps::parse(&text).ok_or_else(|| io::Error::other("unknown form of maps"))?;
        let is_tracked = |it: &&Mapping| !it.is_file && !it.is_shared && !it.is_of_kernel();
        for mapping in mappings.iter().filter(is_tracked) {
            match self.register(mapping) {
                Err(cause) if cause.raw_os_error() == Some(libc::EBUSY) => return Err(cause),
                // The program has removed it, or it is of a kind that cannot be registered.
                _ => {}
            }
        }
        let written = pages.protect_written()?;
        Ok((pages.tracked()?, before.without(&written)))
    }
}

/// The state of the pages of this process.
#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
}

impl Pages {
    pub(crate) fn open() -> io::Result<Pages> {
        let file = File::open("/proc/self/pagemap")?;
        Ok(Pages { file })
    }

    /// All registered memory.
    fn tracked(&self) -> io::Result<Ranges> {
        self.scan(0, 0, IS_REGISTERED)
    }

    /// Protects all registered pages that have been written, and returns them.
    fn protect_written(&self) -> io::Result<Ranges> {
        self.scan(PROTECT, 0, IS_REGISTERED | IS_WRITTEN)
    }

    /// Registered memory that has not been written since it was protected. Pages that do not exist
    /// are among it.
    pub(crate) fn unwritten(&self) -> io::Result<Ranges> {
        self.scan(0, IS_WRITTEN, IS_REGISTERED | IS_WRITTEN)
    }

    fn scan(&self, flags: u64, inverted: u64, wanted: u64) -> io::Result<Ranges> {
        let mut regions = vec![Region::default(); REGIONS];
        let mut found = Vec::new();
        let mut start = 0;
        while start < END {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags,
                start,
                end: END,
                regions: regions.as_mut_ptr().expose_provenance() as u64,
                regions_length: REGIONS as u64,
                inverted,
                wanted,
                returned: wanted & !inverted,
                ..Scan::default()
            };
            // SAFETY: the call writes at most `REGIONS` regions and the structure.
            let count = unsafe {
                let scan = &raw mut scan;
                libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, scan)
            };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            let returned = regions.get(..count).unwrap_or_default();
            found.extend(returned.iter().map(|region| (region.start, region.end)));
            // With room left the walk is complete, and its end is not updated.
            if count < REGIONS {
                break;
            }
            start = scan.walk_end;
        }
        Ok(found.into_iter().collect())
    }
}

/// Why images of processes on this machine cannot leave out what has not changed; `None` if they
/// can.
#[must_use]
pub fn full_images_only() -> Option<String> {
    Tracker::new().err().map(|cause| cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 16 * PAGE_BYTES as u64;

    fn map() -> u64 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let length = usize::try_from(LENGTH).expect("64 bits");
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.expose_provenance() as u64
    }

    fn write(start: u64, page: u64) {
        let at = usize::try_from(start + page * PAGE_BYTES as u64).expect("64 bits");
        // SAFETY: the tests write in memory that they have mapped.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(1) };
    }

    /// The pages of the memory at `start` that may be left out.
    fn unwritten(ranges: &Ranges, start: u64) -> Vec<u64> {
        let page = |page: &u64| ranges.at(start + page * PAGE_BYTES as u64).0;
        (0..16).filter(page).collect()
    }

    #[test]
    fn written_pages_are_found_and_other_memory_counts_as_written() {
        let (Ok(tracker), Ok(pages)) = (Tracker::new(), Pages::open()) else {
            eprintln!("SKIPPED: {:?}", full_images_only());
            return;
        };
        let start = map();
        (0..16).for_each(|page| write(start, page));
        let (_, first) = tracker.advance(&pages).expect("registers");
        assert!(unwritten(&first, start).is_empty(), "it was not registered");
        write(start, 3);
        // The kernel writes, too.
        let mut file = File::open("/dev/zero").expect("a device");
        let at = usize::try_from(start).expect("64 bits") + 5 * PAGE_BYTES;
        // SAFETY: memory of this test.
        let buffer = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(at), 10)
        };
        io::Read::read_exact(&mut file, buffer).expect("zeros");
        let expected: Vec<u64> = (0..16).filter(|page| ![3, 5].contains(page)).collect();
        assert_eq!(
            unwritten(&pages.unwritten().expect("a scan"), start),
            expected
        );
        let (_, second) = tracker.advance(&pages).expect("scans");
        assert_eq!(unwritten(&second, start), expected);
        let (_, third) = tracker.advance(&pages).expect("scans");
        assert_eq!(unwritten(&third, start).len(), 16);
        let length = usize::try_from(LENGTH).expect("64 bits");
        // SAFETY: the memory of this test is moved, and is not used at its old place.
        let moved = unsafe {
            let from = std::ptr::with_exposed_provenance_mut(usize::try_from(start).expect("64"));
            let to = std::ptr::with_exposed_provenance_mut::<libc::c_void>(
                usize::try_from(map()).expect("64 bits"),
            );
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(from, length, length, flags, to)
        };
        let moved = moved.expose_provenance() as u64;
        let (_, fourth) = tracker.advance(&pages).expect("scans");
        assert!(unwritten(&fourth, start).is_empty());
        assert!(unwritten(&fourth, moved).is_empty());
    }
}
