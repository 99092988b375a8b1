//! The replaced functions of the C library. Each behaves like the original and only finds out which
//! connection a descriptor is; `docs/design/sockets.md` §4 lists them.
//!
//! Calls on other descriptors go straight to the C library, with only the replacement function
//! itself on the stack.

mod children;
mod data;
mod descriptors;
mod detached;
mod files;
mod options;
mod relay;
mod scattered;
mod splice;
mod waiting;

use std::ffi::CStr;
use std::io::Write as _;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::account::Reason;
use crate::table::{self, ConnectionRef};

/// The next definition of a function after this library's, looked up once.
pub(crate) fn address(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: `name` is NUL-terminated; the C library stays loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    if found == 0 {
        // Only a program that has the function calls it.
        std::process::abort();
    }
    cache.store(found, Relaxed);
    found
}

/// The C library's function of this name, with its type.
macro_rules! real {
    ($name:ident: fn($($argument:ty),*) -> $result:ty) => {{
        static FOUND: ::std::sync::atomic::AtomicUsize = ::std::sync::atomic::AtomicUsize::new(0);
        const NAME: &str = concat!(stringify!($name), "\0");
        let name = ::std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default();
        let found = $crate::calls::address(&FOUND, name);
        #[allow(unused_unsafe, reason = "where the function is called at once")]
        // SAFETY: the C library's function of this name has this type.
        let function = unsafe {
            ::std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($argument),*) -> $result>(found)
        };
        function
    }};
}
use real;

/// Replaces a function that requires a connection to use only TCP: the original is called once
/// that is the case.
macro_rules! leaving {
    ($($name:ident($fd:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty, $failed:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            if !$crate::calls::leaves($fd, stringify!($name)) {
                return $failed;
            }
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe { real!($name: fn(c_int $(, $type)*) -> $result)($fd $(, $argument)*) }
        }
    )*};
}
use leaving;

/// Runs code of this library without letting a panic into the program. Bytes could be lost after
/// a panic, so it aborts the program after printing the message.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| std::process::abort())
}

/// Borrows the descriptor of the program's call.
pub(crate) fn borrowed<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: the program owns the descriptor during its call; if it closes it meanwhile, system
    // calls fail as they would without this library.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

pub(crate) fn find(fd: RawFd) -> Option<(ConnectionRef, BorrowedFd<'static>)> {
    Some((table::enter_read(fd)?, borrowed(fd)?))
}

/// True if a call with these flags blocks.
pub(crate) fn waits(fd: BorrowedFd<'_>, flags: c_int) -> bool {
    let own = rustix::fs::fcntl_getfl(fd);
    flags & libc::MSG_DONTWAIT == 0 && own.is_ok_and(|own| !own.contains(OFlags::NONBLOCK))
}

/// Sets `errno` and returns -1.
pub(crate) fn failed(error: Errno) -> isize {
    set_errno(error.raw_os_error());
    -1
}

pub(crate) fn errno() -> c_int {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() = value };
}

/// Makes a connection use only TCP, because of a call after which other code may read it. Unread
/// records become bytes of a kernel socket (`relay/`). False, with EBUSY, if that is not possible.
pub(crate) fn leaves(fd: RawFd, call: &str) -> bool {
    let Some((connection, own)) = find(fd) else {
        return true;
    };
    let before = errno();
    let left = connection.fall_back_to_tcp(Reason::of_call(call)).is_ok()
        || !connection.is_of(own)
        || guarded(|| relay::replace(&connection, own)).is_ok();
    drop(connection);
    if left {
        set_errno(before);
    } else {
        refuse(fd, call);
    }
    left
}

/// Reports why a call is refused. Allocates nothing: it may run in a forked child.
pub(crate) fn refuse(fd: RawFd, call: &str) {
    let mut text = [0; 256];
    let mut rest = &mut text[..];
    let _too_long = writeln!(
        rest,
        "dipole-sockets: {call} on descriptor {fd} refused (EBUSY): its connection has unread bytes in \
         shared memory, and there are no descriptors, memory or processes (ulimit -n -v -u) to put them back"
    );
    let left = rest.len();
    if let Some(stderr) = borrowed(libc::STDERR_FILENO) {
        let _ = rustix::io::write(stderr, &text[..text.len() - left]);
    }
    set_errno(libc::EBUSY);
}
