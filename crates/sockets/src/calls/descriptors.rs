//! How descriptors are created, duplicated and closed.

use libc::{c_int, c_uint, c_void, socklen_t};

use super::{borrowed, errno, guarded, leaves, real, set_errno};
use crate::account::Reason;
use crate::{kernel, table};

/// Tracks a descriptor as a connection if it is TCP to a process of this node, otherwise as a
/// plain socket. Standard input and output stay plain: the C library's own functions read and write them.
fn follow(fd: c_int, connected_here: bool) {
    let before = errno();
    let own = borrowed(fd).filter(|own| kernel::is_tcp(*own));
    guarded(|| match own.map(kernel::may_be_near) {
        Some(true) if fd > libc::STDERR_FILENO => table::track_connection(fd, connected_here),
        Some(true) => table::track_plain(fd, Reason::STANDARD),
        Some(false) => table::track_plain(fd, Reason::OTHER_NODE),
        // A datagram socket, tracked as plain since it was created.
        None if connected_here => {}
        None => table::forget(fd),
    });
    set_errno(before);
}

fn forget(fd: c_int) {
    if !table::is_listed(fd) {
        return;
    }
    let before = errno();
    guarded(|| table::forget(fd));
    set_errno(before);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments are passed on unchanged.
    let fd = unsafe { real!(socket: fn(c_int, c_int, c_int) -> c_int)(domain, kind, protocol) };
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    if fd >= 0 && matches!(domain, libc::AF_INET | libc::AF_INET6) && kind == libc::SOCK_DGRAM {
        guarded(|| table::track_plain(fd, Reason::UNKNOWN));
    } else {
        forget(fd);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, to: *const c_void, size: socklen_t) -> c_int {
    // SAFETY: the caller's arguments are passed on unchanged.
    let done =
        unsafe { real!(connect: fn(c_int, *const c_void, socklen_t) -> c_int)(fd, to, size) };
    let begun = done == 0 || errno() == libc::EINPROGRESS;
    if begun && !table::is_known(fd) {
        follow(fd, true);
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, from: *mut c_void, size: *mut socklen_t) -> c_int {
    let real = real!(accept: fn(c_int, *mut c_void, *mut socklen_t) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    let accepted = unsafe { real(fd, from, size) };
    follow(accepted, false);
    accepted
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut c_void,
    size: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let real = real!(accept4: fn(c_int, *mut c_void, *mut socklen_t, c_int) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    let accepted = unsafe { real(fd, from, size, flags) };
    follow(accepted, false);
    accepted
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Forget it before the call, since another thread may get the number at once.
    forget(fd);
    // SAFETY: the caller's argument is passed on unchanged.
    unsafe { real!(close: fn(c_int) -> c_int)(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(file: *mut libc::FILE) -> c_int {
    if !file.is_null() {
        // SAFETY: the program's open file, as `fclose` requires. The C library closes its descriptor
        // without a call that is intercepted.
        forget(unsafe { libc::fileno(file) });
    }
    // SAFETY: the caller's argument is passed on unchanged.
    unsafe { real!(fclose: fn(*mut libc::FILE) -> c_int)(file) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const ON_EXEC: c_int = 1 << 2;
    if flags & ON_EXEC == 0 {
        for fd in table::listed_descriptors() {
            if (first..=last).contains(&fd.unsigned_abs()) {
                forget(fd);
            }
        }
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { real!(close_range: fn(c_uint, c_uint, c_int) -> c_int)(first, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let from = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: the same as a range to the end.
    unsafe { close_range(from, c_uint::MAX, 0) };
}

/// Tracks a duplicate as the same connection.
fn copied(old: c_int, new: c_int) {
    let before = errno();
    if new >= 0 && old != new {
        guarded(|| table::duplicate(old, new));
    }
    set_errno(before);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's argument is passed on unchanged.
    let new = unsafe { real!(dup: fn(c_int) -> c_int)(fd) };
    copied(fd, new);
    leaves_as_standard(new, "dup")
}

/// Makes a connection that has become standard input, output or error use only TCP: the C library's
/// own functions read it. Returns the descriptor, or closes it and fails.
fn leaves_as_standard(new: c_int, call: &str) -> c_int {
    if (0..=2).contains(&new) && !leaves(new, call) {
        // SAFETY: just created.
        unsafe { close(new) };
        set_errno(libc::EBUSY);
        return -1;
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if old != new && (0..=2).contains(&new) && !leaves(old, "dup2") {
        return -1;
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    let made = unsafe { real!(dup2: fn(c_int, c_int) -> c_int)(old, new) };
    copied(old, made);
    made
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old != new && (0..=2).contains(&new) && !leaves(old, "dup3") {
        return -1;
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    let made = unsafe { real!(dup3: fn(c_int, c_int, c_int) -> c_int)(old, new, flags) };
    copied(old, made);
    made
}

macro_rules! controls {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            // SAFETY: the caller's arguments, passed on. In C the argument is variadic, which is
            // passed in the same way.
            let done = unsafe { real!($name: fn(c_int, c_int, usize) -> c_int)(fd, command, argument) };
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                copied(fd, done);
                return leaves_as_standard(done, stringify!($name));
            }
            done
        }
    )*};
}
controls! { fcntl fcntl64 }
