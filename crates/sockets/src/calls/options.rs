//! Socket options and queries.

use libc::{c_int, c_void, socklen_t};

use super::{find, guarded, leaves, real, set_errno};
use crate::account::Reason;
use crate::table;

/// Missing in the `libc` crate.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let real = real!(setsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int);
    let changes_the_stream = matches!(
        (level, name),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF)
            | (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR)
    );
    let ends_records = matches!(
        (level, name),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY | libc::SO_OOBINLINE)
            | (libc::IPPROTO_TCP, libc::TCP_MD5SIG)
    );
    // Control messages that only reads over TCP return.
    let adds_control_messages = matches!(
        (level, name),
        (libc::IPPROTO_TCP, libc::TCP_INQ)
            | (
                libc::SOL_SOCKET,
                libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING
            )
    );
    if (adds_control_messages || ends_records)
        && let Some((connection, _)) = find(fd)
    {
        let _unread_come_as_before = connection.fall_back_to_tcp(Reason::of_call("setsockopt"));
    }
    if changes_the_stream && !leaves(fd, "setsockopt") {
        return -1;
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        // A read without blocking may return less than that.
        table::disable_spinning(fd);
        if let Some((connection, own)) = find(fd)
            && !value.is_null()
            && length as usize == size_of::<c_int>()
        {
            // SAFETY: the program's value of that length.
            let bytes = unsafe { value.cast::<c_int>().read_unaligned() };
            return match guarded(|| connection.set_low_water(own, bytes)) {
                Ok(()) => 0,
                Err(error) => {
                    set_errno(error.raw_os_error());
                    -1
                }
            };
        }
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { real(fd, level, name, value, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    type Length = *mut socklen_t;
    // This one reads, into memory that the kernel has mapped.
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) && !leaves(fd, "getsockopt") {
        return -1;
    }
    let real = real!(getsockopt: fn(c_int, c_int, c_int, *mut c_void, Length) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { real(fd, level, name, value, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    let real = real!(ioctl: fn(c_int, libc::c_ulong, usize) -> c_int);
    // SAFETY: the caller's arguments, passed on. In C the argument is variadic, which is passed
    // in the same way.
    let done = unsafe { real(fd, request, argument) };
    if done == 0
        && request == libc::FIONREAD
        && let Some((connection, _)) = find(fd)
    {
        let place = argument as *mut c_int;
        // SAFETY: the kernel has just written an int there.
        unsafe {
            let queued = u64::try_from(*place).unwrap_or(0);
            *place = c_int::try_from(connection.readable(queued)).unwrap_or(c_int::MAX);
        }
    }
    done
}
