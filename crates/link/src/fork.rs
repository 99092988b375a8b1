//! Detects, with one memory read, that this process was forked.
//!
//! A page that the kernel wipes in a child (`MADV_WIPEONFORK`) holds a mark: it is set in the
//! process that created it and zero in every child.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE_BYTES: usize = 4096;

/// How often this process has been restored from an image.
static INCARNATION: AtomicU64 = AtomicU64::new(0);

/// Number of restorations of this process from an image. What is registered in the kernel does not
/// outlive one.
#[inline]
#[must_use]
pub fn incarnation() -> u64 {
    INCARNATION.load(Ordering::Relaxed)
}

/// Notes that this process has just been restored from an image.
pub fn begin_incarnation() {
    INCARNATION.fetch_add(1, Ordering::Relaxed);
}

/// A mark that a forked child does not inherit.
#[derive(Debug)]
pub struct ForkMark {
    page: NonNull<AtomicU8>,
}

// SAFETY: after it was set, the page is only read through an atomic. It belongs to this value
// and is unmapped when the value is dropped; nothing is bound to a thread.
unsafe impl Send for ForkMark {}
// SAFETY: as above; shared access is one atomic load.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    /// The kernel has no memory, or is older than 4.14.
    pub fn new() -> io::Result<ForkMark> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) }?;
        let page = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mark = ForkMark { page };
        // SAFETY: the range is exactly the mapping made above, which `mark` owns.
        unsafe { madvise(address, PAGE_BYTES, Advice::LinuxWipeOnFork) }?;
        mark.flag().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// True in a process that was forked from the one that created this.
    #[inline]
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.flag().load(Ordering::Relaxed) == 0
    }

    fn flag(&self) -> &AtomicU8 {
        // SAFETY: `page` points to a mapped, zero-initialised or set byte that
        // stays mapped until `self` is dropped; the borrow cannot outlive it.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length and is unmapped
        // once; no reference into it is left.
        let _unmapped = unsafe { munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_sees_that_it_is_one() {
        let mark = ForkMark::new().expect("a page");
        assert!(!mark.is_child());
        // SAFETY: the child calls only async-signal-safe functions: a memory read
        // and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(!mark.is_child());
            // SAFETY: ends the child at once without running any destructor.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above and writes its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(!mark.is_child());
    }
}
