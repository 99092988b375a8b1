//! Mappings of page-aligned memory: private, or shared through a sealed memfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise, mmap, mmap_anonymous, munmap};
pub use rustix::mm::{MapFlags, ProtFlags};

/// Seals that keep other processes from truncating memory that is mapped here.
const SHAPE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Creates an empty memfd.
fn memory(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems require non-executable memory; kernels before 6.3 do not know the flag.
    let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        made => made?,
    };
    // The file was created with mode 0777: other users could open it through /proc.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    Ok(file)
}

/// A mapping. If it is shared, the kernel or other processes may write to it at any time, so it is
/// accessed only by atomics and raw copies, unless its owner can rule that out.
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    length: usize,
    /// The process that created it: children inherit a mapping only on request.
    pid: u32,
    is_inherited: bool,
    #[cfg(test)]
    on_heap: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed only through
// addresses from `at`, for which the callers are responsible.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Zeroed memory of `length` bytes for this process; with `SHARED` flags also for the kernel.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn anonymous(length: usize, flags: MapFlags) -> io::Result<Segment> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }?;
        Segment::own(start.cast(), length)
    }

    /// Maps part of a file, shared with all processes that map it.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        access: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Segment> {
        let flags = flags | MapFlags::SHARED;
        // SAFETY: as above.
        let start = unsafe { mmap(ptr::null_mut(), length, access, flags, file, offset) }?;
        Segment::own(start.cast(), length)
    }

    /// Zeroed memory of `length` bytes, and the descriptor through which others map it.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn create(length: usize) -> io::Result<(Segment, OwnedFd)> {
        let file = memory("dipole")?;
        rustix::fs::ftruncate(&file, length as u64)?;
        rustix::fs::fcntl_add_seals(&file, SHAPE | SealFlags::SEAL)?;
        let segment = Segment::map(file.as_fd(), length, true)?;
        Ok((segment, file))
    }

    /// Memory that only its creator can write; others map it read-only.
    pub(crate) fn create_own(length: usize) -> io::Result<(Segment, OwnedFd)> {
        let file = memory("dipole-bell")?;
        rustix::fs::ftruncate(&file, length as u64)?;
        let segment = Segment::map(file.as_fd(), length, true)?;
        rustix::fs::fcntl_add_seals(&file, SHAPE | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok((segment, file))
    }

    /// Maps memory of another process; refused if it could shrink or has another length.
    ///
    /// # Errors
    /// The memory is not acceptable, or the kernel refuses.
    pub fn open(file: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Segment> {
        let refused = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let seals =
            rustix::fs::fcntl_get_seals(file).map_err(|_| refused("it is not sealed memory"))?;
        if !seals.contains(SHAPE) {
            return Err(refused("it is memory that may shrink"));
        }
        let found = rustix::fs::fstat(file)?.st_size;
        if u64::try_from(found) != Ok(length as u64) {
            return Err(refused("it is memory of another size"));
        }
        Segment::map(file, length, writable)
    }

    /// Private memory, for tests that cannot map anything.
    #[cfg(test)]
    pub(crate) fn on_heap(length: usize) -> Segment {
        let layout = Segment::heap_layout(length);
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Segment {
            start,
            length,
            pid: std::process::id(),
            is_inherited: false,
            on_heap: true,
        }
    }

    #[cfg(test)]
    fn heap_layout(length: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(length.max(1), 4096).expect("a small size")
    }

    fn map(file: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Segment> {
        let mut access = ProtFlags::READ;
        access.set(ProtFlags::WRITE, writable);
        Segment::of_file(file, 0, length, access, MapFlags::empty())
    }

    fn own(start: *mut u8, length: usize) -> io::Result<Segment> {
        let segment = Segment {
            start: NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?,
            length,
            pid: std::process::id(),
            is_inherited: false,
            #[cfg(test)]
            on_heap: false,
        };
        // SAFETY: exactly the mapping just made; children do not inherit it.
        unsafe { madvise(start.cast(), length, Advice::LinuxDontFork) }?;
        Ok(segment)
    }

    /// Lets children of this process inherit the mapping.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn share_with_children(&mut self) -> io::Result<()> {
        // SAFETY: exactly our own mapping; only what a later fork copies changes.
        unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxDoFork) }?;
        self.is_inherited = true;
        Ok(())
    }

    /// Takes the memory of a part from the system now, instead of when it is first written.
    ///
    /// # Errors
    /// There is not enough. Kernels before 5.14 cannot do this and report nothing.
    ///
    /// # Panics
    /// If the part is out of bounds.
    pub fn allocate(&self, offset: usize, length: usize) -> io::Result<()> {
        let start = self.at(offset, length).as_ptr();
        // SAFETY: inside our own mapping; contents stay as they are.
        match unsafe { madvise(start.cast(), length, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The address of `length` bytes at `offset`.
    ///
    /// # Panics
    /// If they are out of bounds.
    #[must_use]
    #[inline]
    pub fn at(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(
            offset <= self.length && length <= self.length - offset,
            "inside the segment"
        );
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        #[cfg(test)]
        if self.on_heap {
            // SAFETY: allocated by `on_heap` with this layout and freed once; every holder of an
            // address into it also holds the segment.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), Segment::heap_layout(self.length)) };
            return;
        }
        // In a forked child the address range is unmapped, or reused by now, unless it is inherited.
        if !self.is_inherited && self.pid != std::process::id() {
            return;
        }
        // SAFETY: the mapping was made with this length and is unmapped once; every holder of an
        // address into it also holds the segment.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_open_only_to_its_user_and_keeps_its_size() {
        for made in [Segment::create(4096), Segment::create_own(4096)] {
            let (_segment, file) = made.expect("memory");
            let facts = rustix::fs::fstat(&file).expect("our own");
            assert_eq!(facts.st_mode & 0o777, 0o600);
            let seals = rustix::fs::fcntl_get_seals(&file).expect("sealed");
            assert!(seals.contains(SHAPE | SealFlags::SEAL), "{seals:?}");
        }
    }

    #[test]
    fn no_process_can_truncate_shared_memory() {
        let (segment, file) = Segment::create(8192).expect("memory");
        let peer = Segment::open(file.as_fd(), 8192, true).expect("sealed");
        for length in [0, 4096, 8191, 16_384] {
            let refused = rustix::fs::ftruncate(&file, length);
            assert_eq!(refused, Err(Errno::PERM), "{length}");
        }
        // SAFETY: the last byte of each mapping, which no other thread accesses.
        unsafe {
            peer.at(8191, 1).write_volatile(7);
            assert_eq!(segment.at(8191, 1).read_volatile(), 7);
        }
    }

    #[test]
    fn a_forked_child_inherits_memory_only_on_request() {
        let (mut segment, _file) = Segment::create(4096).expect("memory");
        segment.share_with_children().expect("our own mapping");
        // SAFETY: the child makes only system calls, also in `drop`, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child inherits the page, which no other thread of it accesses.
            unsafe { segment.at(0, 1).write_volatile(7) };
            drop(segment);
            // SAFETY: ends the child at once without running any destructor.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above and writes its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        // SAFETY: the mapping is ours, and the child has ended.
        assert_eq!(unsafe { segment.at(0, 1).read_volatile() }, 7);
    }

    #[test]
    fn a_forked_child_does_not_inherit_the_memory_nor_unmap_what_replaced_it() {
        let (segment, _file) = Segment::create(4096).expect("memory");
        let at = segment.start.as_ptr();
        // SAFETY: the child makes only system calls, also in `drop`, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: fails if the range is mapped, otherwise makes a mapping of the child's own.
            let other = unsafe { libc::mmap(at.cast(), 4096, access, flags, -1, 0) };
            let was_free = other == at.cast();
            drop(segment);
            // SAFETY: queries whether the page is mapped, and writes one byte about it.
            let is_left = unsafe { libc::mincore(other, 4096, [0].as_mut_ptr()) } == 0;
            // SAFETY: ends the child at once without running any destructor.
            unsafe { libc::_exit(i32::from(!(was_free && is_left))) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above and writes its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }
}
