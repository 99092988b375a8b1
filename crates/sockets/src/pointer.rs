//! Checks memory of the program before it is copied, because the kernel answers a bad address with
//! `EFAULT`, and a copy would end the program.

use std::ffi::c_void;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

/// How memory is going to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// True if all these bytes may be accessed. Linux before 5.14 cannot say; then it is true.
pub(crate) fn is_accessible(start: *const c_void, length: usize, access: Access) -> bool {
    let offset = start as usize % page();
    let Some(length) = length.checked_add(offset) else {
        return false;
    };
    let advice = match access {
        Access::Read => Advice::LinuxPopulateRead,
        Access::Write => Advice::LinuxPopulateWrite,
    };
    let start = start.wrapping_byte_sub(offset).cast_mut();
    // SAFETY: populating changes no contents, whatever the address.
    match unsafe { madvise(start, length, advice) } {
        Err(Errno::NOMEM | Errno::FAULT) => false,
        // Memory without the permission, or a kernel that does not know the advice.
        Err(Errno::INVAL) => !is_supported(),
        _ => true,
    }
}

fn page() -> usize {
    rustix::param::page_size()
}

fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let here = 0_u8;
        let start = (&raw const here as usize / page() * page()) as *mut c_void;
        // SAFETY: as above, for a page of this stack.
        unsafe { madvise(start, page(), Advice::LinuxPopulateRead) }.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_mapping_or_permission_is_not_accessible() {
        let mut own = vec![0_u8; 100_000];
        let text = "text in read-only memory";
        if !is_supported() {
            eprintln!("SKIPPED: this kernel has no MADV_POPULATE_READ");
            return;
        }
        for access in [Access::Read, Access::Write] {
            assert!(is_accessible(own.as_mut_ptr().cast(), own.len(), access));
            for bad in [8 as *const c_void, (1_usize << 63) as *const c_void] {
                assert!(!is_accessible(bad, 10, access), "{bad:?}");
            }
            assert!(!is_accessible(own.as_ptr().cast(), usize::MAX, access));
        }
        let text = (text.as_ptr().cast(), text.len());
        assert!(is_accessible(text.0, text.1, Access::Read));
        assert!(!is_accessible(text.0, text.1, Access::Write));
    }
}
