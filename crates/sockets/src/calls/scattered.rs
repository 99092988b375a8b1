//! Reads into several buffers, and of several messages.

use std::time::{Duration, Instant};

use libc::{c_int, iovec, mmsghdr, msghdr, off_t, ssize_t, timespec};
use rustix::io::Errno;

use super::data::{OUTSIDE_THE_STREAM, ended, is_ghost, read_plain, receive};
use super::{failed, leaving, real, set_errno};
use crate::connection::Connection;
use crate::pointer::{Access, is_accessible};
use crate::table;

/// The kernel's limit for the buffers of a call.
const LONGEST_LIST: usize = 1024;
/// The kernel's limit for the messages of `recvmmsg`.
const MOST_MESSAGES: c_int = 1024;

/// Reads into several buffers.
///
/// # Safety
/// `parts` are `count` buffers that the caller may write.
unsafe fn read_parts(
    connection: &Connection,
    fd: c_int,
    parts: *const iovec,
    count: usize,
    flags: c_int,
) -> ssize_t {
    let list = count * size_of::<iovec>();
    if count > 0 && !is_accessible(parts.cast(), list, Access::Read) {
        return failed(Errno::FAULT);
    }
    let parts = match count {
        0 => &[],
        // SAFETY: the caller guarantees this.
        _ => unsafe { std::slice::from_raw_parts(parts, count) },
    };
    let is_bad = |part: &iovec| {
        part.iov_len > 0 && !is_accessible(part.iov_base, part.iov_len, Access::Write)
    };
    if parts.len() > 1 && parts.iter().any(is_bad) {
        return failed(Errno::FAULT);
    }
    let length = parts.iter().map(|part| part.iov_len).sum();
    let mut whole = vec![0_u8; if parts.len() == 1 { 0 } else { length }];
    let (to, length) = match parts {
        [one] => (one.iov_base, one.iov_len),
        _ => (whole.as_mut_ptr().cast(), length),
    };
    // SAFETY: either the caller's only buffer or `whole`.
    let got = unsafe { receive(connection, fd, to, length, flags) };
    let mut left = &whole[..usize::try_from(got).unwrap_or(0).min(whole.len())];
    for part in parts {
        let some = left.len().min(part.iov_len);
        if some > 0 {
            // SAFETY: the caller's buffer has at least `some` bytes.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), part.iov_base.cast(), some) };
        }
        left = &left[some..];
    }
    got
}

/// Reads into a list of buffers like `readv`; `plain` is the same read through the C library.
///
/// # Safety
/// `parts` are `count` buffers that the caller may write.
unsafe fn read_list(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    flags: c_int,
    plain: impl Fn() -> ssize_t,
) -> ssize_t {
    let Some(found) = table::enter_read(fd) else {
        return plain();
    };
    if !found.before().is_claimed() || found.has_left_shared_memory() {
        let got = plain();
        ended(found, fd, got, 0);
        return got;
    }
    let got = match usize::try_from(count) {
        // SAFETY: the caller guarantees this.
        Ok(count) if count <= LONGEST_LIST => unsafe {
            read_parts(&found, fd, parts, count, flags)
        },
        _ => failed(Errno::INVAL),
    };
    if is_ghost(fd, got) { plain() } else { got }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let real = real!(readv: fn(c_int, *const iovec, c_int) -> ssize_t);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { read_list(fd, parts, count, 0, || real(fd, parts, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let real = real!(recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t);
    // SAFETY: the caller's arguments, passed on; a message that is not null may be read and
    // written.
    unsafe {
        let Some(found) = table::enter_read(fd) else {
            let look = || real(fd, message, flags | libc::MSG_DONTWAIT);
            return read_plain(fd, flags, || real(fd, message, flags), look);
        };
        if !found.before().is_claimed() || found.has_left_shared_memory() {
            let got = real(fd, message, flags);
            ended(found, fd, got, flags);
            return got;
        }
        let is_outside = flags & OUTSIDE_THE_STREAM != 0;
        if message.is_null() || (*message).msg_iovlen > LONGEST_LIST || is_outside {
            return real(fd, message, flags);
        }
        let (parts, count) = ((*message).msg_iov, (*message).msg_iovlen);
        let got = read_parts(&found, fd, parts, count, flags);
        if got >= 0 {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = 0;
        }
        got
    }
}

/// True if reads of the descriptor may find records.
fn may_have_records(fd: c_int) -> bool {
    table::enter_read(fd)
        .is_some_and(|found| found.before().is_claimed() && !found.has_left_shared_memory())
}

/// Both names are the same function on 64-bit machines.
macro_rules! reading_at {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int,
            parts: *const iovec,
            count: c_int,
            at: off_t,
            flags: c_int,
        ) -> ssize_t {
            const KNOWN: c_int = libc::RWF_NOWAIT | libc::RWF_HIPRI;
            let real = real!($name: fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t);
            // SAFETY: the caller's arguments, passed on.
            unsafe {
                // The kernel refuses other flags, and any offset in a socket.
                if at != -1 || flags & !KNOWN != 0 || !table::is_known(fd) {
                    return real(fd, parts, count, at, flags);
                }
                let flags_of_read = match flags & libc::RWF_NOWAIT {
                    0 => 0,
                    _ => libc::MSG_DONTWAIT,
                };
                read_list(fd, parts, count, flags_of_read, || real(fd, parts, count, at, flags))
            }
        }
    )*};
}
reading_at! { preadv2 preadv64v2 }

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: libc::c_uint,
    flags: c_int,
    most: *mut timespec,
) -> c_int {
    type Messages = *mut mmsghdr;
    let real = real!(recvmmsg: fn(c_int, Messages, libc::c_uint, c_int, *mut timespec) -> c_int);
    // SAFETY: the caller's arguments, passed on; a list that is not null has `count` messages, and a
    // time that is not null may be read and written.
    unsafe {
        if messages.is_null() || !may_have_records(fd) {
            let got = real(fd, messages, count, flags, most);
            if let Some(found) = table::enter_read(fd) {
                let done = usize::try_from(got).unwrap_or(0);
                let bytes: libc::c_uint = (0..done).map(|at| (*messages.add(at)).msg_len).sum();
                ended(found, fd, bytes as ssize_t, flags);
            }
            return got;
        }
        let Ok(end) = most.as_ref().map(end_of).transpose() else {
            set_errno(libc::EINVAL);
            return -1;
        };
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        let got = receive_messages(fd, messages, count.min(MOST_MESSAGES), flags, end);
        if let (Some(most), Some(end)) = (most.as_mut(), end) {
            let left = end.saturating_duration_since(Instant::now());
            most.tv_sec = left.as_secs().cast_signed();
            most.tv_nsec = left.subsec_nanos().into();
        }
        got
    }
}

/// When a time that begins now is over.
fn end_of(time: &timespec) -> Result<Instant, Errno> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanoseconds = u32::try_from(time.tv_nsec).map_err(|_| Errno::INVAL)?;
    if nanoseconds >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    let time = Duration::new(seconds.min(1 << 32), nanoseconds);
    Ok(Instant::now() + time)
}

/// Receives messages like the kernel's `recvmmsg`, with this library's `recvmsg`.
///
/// # Safety
/// `messages` has `count` messages that the caller may write.
unsafe fn receive_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_int,
    flags: c_int,
    end: Option<Instant>,
) -> c_int {
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    for at in 0..count {
        // SAFETY: the caller guarantees this.
        let message = unsafe { &mut *messages.offset(at as isize) };
        // SAFETY: the same.
        let got = unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags_now) };
        let Ok(length) = libc::c_uint::try_from(got) else {
            // The next call returns the error.
            return if at > 0 { at } else { -1 };
        };
        message.msg_len = length;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            return at + 1;
        }
    }
    count
}

leaving! {
    fdopen(fd: c_int, mode: *const libc::c_char) -> *mut libc::FILE, std::ptr::null_mut();
}
