//! Memory that changes at random.

use std::hash::Hasher;
use std::io::Write;
use std::os::fd::AsRawFd;

use libc::{
    MADV_DONTNEED, MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, MREMAP_MAYMOVE,
    PROT_NONE, PROT_READ, PROT_WRITE, c_int, c_void,
};
use siphasher::sip::SipHasher13;
use tempfile::NamedTempFile;

const PAGE: usize = 4096;
/// Areas, and pages of each, at most.
const MOST: usize = 24;
const PAGES: usize = 40;
const FILE_PAGES: usize = 16;
/// Enough for a whole huge page, wherever the memory begins.
const HUGE_PAGES: usize = 1050;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Anonymous,
    HugePages,
    File,
}

/// A range of mapped memory.
struct Area {
    start: *mut u8,
    pages: usize,
    is_file: bool,
}

impl Area {
    fn place(&self, page: usize) -> *mut c_void {
        self.start.wrapping_add(page * PAGE).cast()
    }
}

/// The memory of the program, and the state of its random numbers.
pub(super) struct Areas {
    areas: Vec<Area>,
    heap: Vec<Vec<u8>>,
    file: NamedTempFile,
    state: u64,
    /// Drops pages of mapped files, too. A restored process has these files in anonymous memory, where
    /// such pages become zero.
    drops_files: bool,
}

/// True if a restored process can end with other memory.
pub(super) fn drops_files(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

fn check(done: c_int) {
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

impl Areas {
    pub(super) fn new(seed: u64) -> Areas {
        let mut file = NamedTempFile::new().expect("a file");
        let content: Vec<u8> = (0..FILE_PAGES * PAGE)
            .map(|at: usize| at.to_le_bytes()[0] % 251)
            .collect();
        file.write_all(&content).expect("written");
        Areas {
            areas: Vec::new(),
            heap: Vec::new(),
            file,
            state: seed,
            drops_files: drops_files(seed),
        }
    }

    /// A random number below a bound.
    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let number = (mixed ^ (mixed >> 31)) % bound as u64;
        usize::try_from(number).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }

    /// Changes something.
    pub(super) fn step(&mut self) {
        if self.areas.is_empty() {
            return self.map(Origin::Anonymous);
        }
        match self.below(20) {
            0..2 => self.map(Origin::Anonymous),
            2 => self.map(Origin::HugePages),
            3 => self.map(Origin::File),
            4 | 5 => self.unmap(),
            6..12 => self.write(),
            12 => self.read_from_file(),
            13 | 14 => self.drop_pages(),
            15 => self.resize(),
            16 => self.protect(),
            17 => self.allocate(),
            18 => self.fork(),
            _ => self.recurse(),
        }
    }

    /// The content of all memory.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = SipHasher13::new();
        for area in &self.areas {
            // SAFETY: the area is mapped and readable.
            let bytes = unsafe { std::slice::from_raw_parts(area.start, area.pages * PAGE) };
            hasher.write(bytes);
        }
        self.heap.iter().for_each(|bytes| hasher.write(bytes));
        hasher.write_u64(self.state);
        hasher.finish()
    }

    fn map(&mut self, origin: Origin) {
        if self.areas.len() == MOST {
            return self.unmap();
        }
        let is_file = origin == Origin::File;
        let pages = match origin {
            Origin::Anonymous => 1 + self.below(PAGES),
            Origin::HugePages => HUGE_PAGES,
            Origin::File => 1 + self.below(FILE_PAGES),
        };
        let (kind, descriptor) = match is_file {
            true => (0, self.file.as_raw_fd()),
            false => (MAP_ANONYMOUS | MAP_NORESERVE, -1),
        };
        let (access, length) = (PROT_READ | PROT_WRITE, pages * PAGE);
        // SAFETY: new memory at an address that the kernel chooses: often one that was just left.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                access,
                MAP_PRIVATE | kind,
                descriptor,
                0,
            )
        };
        assert_ne!(start, MAP_FAILED);
        if origin == Origin::HugePages {
            // SAFETY: advice for the memory that was just mapped. A kernel without huge pages refuses.
            unsafe { libc::madvise(start, length, libc::MADV_HUGEPAGE) };
        }
        self.areas.push(Area {
            start: start.cast(),
            pages,
            is_file,
        });
        self.write();
    }

    /// An area, and some of its pages.
    fn select(&mut self) -> (usize, usize, usize) {
        let area = self.below(self.areas.len());
        let first = self.below(self.areas[area].pages);
        let count = 1 + self.below(self.areas[area].pages - first);
        (area, first, count)
    }

    fn unmap(&mut self) {
        let (number, first, count) = self.select();
        let area = self.areas.swap_remove(number);
        // SAFETY: the pages belong to the area, which is replaced by what is left of it.
        check(unsafe { libc::munmap(area.place(first), count * PAGE) });
        let last = first + count;
        for (start, end) in [(0, first), (last, area.pages)] {
            if start < end {
                self.areas.push(Area {
                    start: area.place(start).cast(),
                    pages: end - start,
                    is_file: area.is_file,
                });
            }
        }
    }

    fn write(&mut self) {
        for _ in 0..1 + self.below(4) {
            let (area, first, _) = self.select();
            let (at, value) = (self.below(PAGE), self.byte());
            let to = self.areas[area].start.wrapping_add(first * PAGE + at);
            // SAFETY: inside of the area, which is writable between two steps.
            unsafe { to.write_volatile(value) };
        }
    }

    /// Lets the kernel write.
    fn read_from_file(&mut self) {
        let (area, first, count) = self.select();
        let length = count.min(FILE_PAGES) * PAGE;
        let to = self.areas[area].place(first);
        // SAFETY: inside of the area.
        let read = unsafe { libc::pread(self.file.as_raw_fd(), to, length, 0) };
        assert_eq!(read, length.cast_signed());
    }

    fn drop_pages(&mut self) {
        let (number, first, count) = self.select();
        let area = &self.areas[number];
        if area.is_file && !self.drops_files {
            return;
        }
        // SAFETY: inside of the area; the pages are zero afterwards, or those of the file.
        check(unsafe { libc::madvise(area.place(first), count * PAGE, MADV_DONTNEED) });
        if self.below(2) == 0 {
            let place = self.areas[number].start.wrapping_add(first * PAGE);
            // SAFETY: inside of the area. Reading maps a page of zeros.
            std::hint::black_box(unsafe { place.read_volatile() });
        }
    }

    fn resize(&mut self) {
        let number = self.below(self.areas.len());
        // Behind the end of its file an area could not be read.
        let most = match &self.areas[number] {
            Area {
                is_file: true,
                pages,
                ..
            } => *pages,
            _ => PAGES,
        };
        let pages = 1 + self.below(most);
        let area = &mut self.areas[number];
        let (old, new) = (area.pages * PAGE, pages * PAGE);
        // SAFETY: the memory may move, and is only used at its new place.
        let start = unsafe { libc::mremap(area.start.cast(), old, new, MREMAP_MAYMOVE) };
        assert_ne!(start, MAP_FAILED, "{}", std::io::Error::last_os_error());
        area.start = start.cast();
        area.pages = pages;
    }

    /// Makes memory inaccessible and accessible again, so that mappings split and join.
    fn protect(&mut self) {
        let (number, first, count) = self.select();
        let area = &self.areas[number];
        let (place, length) = (area.place(first), count * PAGE);
        // SAFETY: inside of the area; nothing else accesses it meanwhile.
        check(unsafe { libc::mprotect(place, length, PROT_NONE) });
        // SAFETY: as above.
        check(unsafe { libc::mprotect(place, length, PROT_READ | PROT_WRITE) });
    }

    fn allocate(&mut self) {
        if self.heap.len() > 30 {
            let number = self.below(self.heap.len());
            self.heap.swap_remove(number);
        }
        let bytes = match self.below(5) {
            0 => 200_000 + self.below(400_000),
            _ => 1 + self.below(20_000),
        };
        let value = self.byte();
        self.heap.push(vec![value; bytes]);
    }

    /// Starts a child that ends at once.
    fn fork(&mut self) {
        // SAFETY: the child does nothing but end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        self.write();
    }

    /// Makes the stack grow.
    fn recurse(&mut self) {
        let depth = self.below(40);
        std::hint::black_box(descend(depth));
    }
}

#[inline(never)]
fn descend(depth: usize) -> u8 {
    let frame = std::hint::black_box([depth.to_le_bytes()[0]; 16_384]);
    match depth {
        0 => frame[0],
        _ => descend(depth - 1).wrapping_add(frame[depth]),
    }
}
