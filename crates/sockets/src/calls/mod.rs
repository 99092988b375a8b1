//! The calls of the C library that are replaced. Each does what the program's C library does, and
//! knows no more than which connection a descriptor is; `docs/design/sockets.md` §4 lists them.
//!
//! Descriptors without a connection go straight to the C library, with nothing of ours on the
//! stack but the function itself.

mod children;
mod data;
mod descriptors;
mod files;
mod options;
mod waiting;

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::table::{self, Use};

/// The next definition of a function after this library's, found once.
pub(crate) fn address(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: `name` ends with a zero; the C library's functions stay loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    if found == 0 {
        // Only a program that has the function calls it.
        std::process::abort();
    }
    cache.store(found, Relaxed);
    found
}

/// The C library's function of a name, with its type.
macro_rules! real {
    ($name:ident: fn($($argument:ty),*) -> $result:ty) => {{
        static FOUND: ::std::sync::atomic::AtomicUsize = ::std::sync::atomic::AtomicUsize::new(0);
        const NAME: &str = concat!(stringify!($name), "\0");
        let name = ::std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default();
        let found = $crate::calls::address(&FOUND, name);
        #[allow(unused_unsafe, reason = "where the function is called at once")]
        // SAFETY: the function of this name in the C library has this type.
        let function = unsafe {
            ::std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($argument),*) -> $result>(found)
        };
        function
    }};
}
use real;

/// Replaces a function that leaves a connection to TCP: it is called once that is so, else the
/// program is told that the descriptor is busy.
macro_rules! leaving {
    ($($name:ident($fd:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty, $failed:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            if !$crate::calls::leaves($fd, stringify!($name)) {
                return $failed;
            }
            // SAFETY: the caller's arguments, passed on.
            unsafe { real!($name: fn(c_int $(, $type)*) -> $result)($fd $(, $argument)*) }
        }
    )*};
}
use leaving;

/// Runs what is not a call of the C library: no panic crosses into the program. Bytes could be lost
/// after one, so the program ends instead, after the panic's message.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| std::process::abort())
}

/// The descriptor of a call of the program.
pub(crate) fn borrowed<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: the program owns it for the time of its call; should it close it meanwhile, calls of
    // the kernel fail as they would without this library.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

pub(crate) fn find(fd: RawFd) -> Option<(Use, BorrowedFd<'static>)> {
    Some((table::find(fd)?, borrowed(fd)?))
}

/// Whether a call with these flags waits.
pub(crate) fn waits(fd: BorrowedFd<'_>, flags: c_int) -> bool {
    let own = rustix::fs::fcntl_getfl(fd);
    flags & libc::MSG_DONTWAIT == 0 && own.is_ok_and(|own| !own.contains(OFlags::NONBLOCK))
}

/// Sets `errno`; what the C library returns then.
pub(crate) fn failed(error: Errno) -> isize {
    set_errno(error.raw_os_error());
    -1
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = value };
}

/// Puts a connection on TCP for good, because of a call that the library cannot follow. False,
/// with EBUSY, if bytes have come already that only this library can read.
pub(crate) fn leaves(fd: RawFd, call: &str) -> bool {
    let Some((connection, _)) = find(fd) else {
        return true;
    };
    let before = errno();
    let left = connection.leave().is_ok();
    drop(connection);
    if left {
        set_errno(before);
    } else {
        refuse(fd, call);
    }
    left
}

/// Says why a call is refused.
pub(crate) fn refuse(fd: RawFd, call: &str) {
    let text = format!(
        "dipole-sockets: {call} on descriptor {fd} refused (EBUSY): its connection has unread bytes in shared memory; read them first, or run this program without `dipole sockets`\n"
    );
    if let Some(stderr) = borrowed(libc::STDERR_FILENO) {
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
    set_errno(libc::EBUSY);
}
