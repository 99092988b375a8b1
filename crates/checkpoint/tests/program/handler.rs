//! A handler that runs in a child after a fork, such as libraries have. What it writes for one image
//! belongs to this image, and not to the next one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;

static PAGES: OnceLock<[&AtomicU64; 2]> = OnceLock::new();

/// The number of the image that is taken; it is written by the program.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The value that the child writes to both pages; 0 if it writes nothing.
fn value(number: u64) -> u64 {
    number * (number % 2)
}

extern "C" fn in_child() {
    let value = value(NUMBER.load(Ordering::Relaxed));
    if value == 0 {
        return;
    }
    for page in PAGES.get().into_iter().flatten() {
        page.store(value, Ordering::Relaxed);
    }
}

pub(super) fn install() {
    let page = |_| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, which is never unmapped. Zeroed bytes are a valid number.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let page = &*page.cast::<AtomicU64>();
            page.store(0, Ordering::Relaxed);
            page
        }
    };
    PAGES.get_or_init(|| [0, 1].map(page));
    // SAFETY: the handler is a function without arguments that only writes to the pages.
    let installed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    assert_eq!(installed, 0);
}

/// The program itself writes to the second page only.
pub(super) fn begin(number: u64) {
    NUMBER.store(number, Ordering::Relaxed);
    if let Some([_, second]) = PAGES.get() {
        second.store(0, Ordering::Relaxed);
    }
}

/// Checks, in a restored process, that the pages are those of the same child.
pub(super) fn check(number: u64) {
    let [first, second] = PAGES.get().expect("installed");
    let found = [first, second].map(|page| page.load(Ordering::Relaxed));
    assert_eq!(found, [value(number); 2], "image {number}");
}
