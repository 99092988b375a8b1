//! Intercepted calls that read and write data.

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr, off_t, size_t, ssize_t};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{failed, find, guarded, leaves, real, waiting, waits};
use crate::account::{self, Reason};
use crate::connection::Connection;
use crate::mux::min_shm_bytes;
use crate::table::{self, ConnectionRef};

/// Receive flags of reads from other queues, which are the kernel's.
pub(super) const OUTSIDE_THE_STREAM: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// Longest piece that is dropped, or copied into a pipe, at once.
pub(super) const PIECE: usize = 64 << 10;

/// Reads from the kernel and the ring, like `recv`.
///
/// # Safety
/// `to` has `length` bytes that the caller may write.
pub(super) unsafe fn receive(
    connection: &Connection,
    fd: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let Some(own) = super::borrowed(fd) else {
        return failed(Errno::BADF);
    };
    let is_dropped = flags & libc::MSG_TRUNC != 0;
    if flags & OUTSIDE_THE_STREAM != 0 || length == 0 || (to.is_null() && !is_dropped) {
        // SAFETY: the caller's arguments are passed on unchanged.
        return unsafe { recv_of_libc()(fd, to, length, flags) };
    }
    if is_dropped {
        // For TCP that means to drop the bytes; there need not be a buffer.
        let mut dropped = vec![0_u8; length.min(PIECE)];
        let (to, length) = (dropped.as_mut_ptr().cast(), dropped.len());
        // SAFETY: a buffer of that length.
        return unsafe { receive(connection, fd, to, length, flags & !libc::MSG_TRUNC) };
    }
    let length = length.min(isize::MAX.unsigned_abs());
    // SAFETY: the caller guarantees `length` writable bytes, as `recv` requires. They are `u8`s
    // that `receive` only writes, and only as many as it returns.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let mut got = 0;
    loop {
        match guarded(|| connection.receive(own, &mut to[got..], peek)) {
            Ok(count) => {
                let ended = count == 0;
                got = if peek { count } else { got + count };
                let is_whole = got == length || ended || !all;
                if is_whole || (got > 0 && connection.is_at_mark(own)) {
                    return isize::try_from(got).unwrap_or(isize::MAX);
                }
            }
            Err(Errno::AGAIN) => {}
            Err(_) if got > 0 => return isize::try_from(got).unwrap_or(isize::MAX),
            Err(error) => return failed(error),
        }
        if !waits(own, flags) {
            return match got {
                0 => failed(Errno::AGAIN),
                _ => isize::try_from(got).unwrap_or(isize::MAX),
            };
        }
        // Block in the kernel, for its time-outs, signals and cancellation. Nothing is removed.
        let mut byte = 0_u8;
        let place = (&raw mut byte).cast();
        // SAFETY: `place` has room for one byte.
        let look = |flags| unsafe { recv_of_libc()(fd, place, 1, libc::MSG_PEEK | flags) };
        let awake = waiting::read(connection.spin(), || false, || look(libc::MSG_DONTWAIT));
        let found = awake.unwrap_or_else(|| look(0));
        match found {
            1 if peek && all && got > 0 => return isize::try_from(got).unwrap_or(isize::MAX),
            1 => {}
            _ if got > 0 => return isize::try_from(got).unwrap_or(isize::MAX),
            _ => return found,
        }
    }
}

fn recv_of_libc() -> unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t {
    real!(recv: fn(c_int, *mut c_void, size_t, c_int) -> ssize_t)
}

/// Reads a plain socket through the C library, after spinning for a while if the read would
/// block. `look` is the same read without blocking.
pub(super) fn read_plain(
    fd: c_int,
    flags: c_int,
    plain: impl Fn() -> ssize_t,
    look: impl Fn() -> ssize_t,
) -> ssize_t {
    const SAME: c_int = libc::MSG_NOSIGNAL | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;
    let Some(spin) = table::plain(fd).filter(|_| flags & !SAME == 0) else {
        return plain();
    };
    let does_not_wait = || {
        let waiting = super::borrowed(fd).is_some_and(|own| waits(own, flags));
        if !waiting {
            table::disable_spinning(fd);
        }
        !waiting
    };
    match waiting::read(spin, does_not_wait, look) {
        Some(got) if is_ghost(fd, got) => plain(),
        Some(got) => got,
        None => plain(),
    }
}

/// Reads into one buffer: through the C library while the connection uses only TCP.
///
/// # Safety
/// The requirements of `receive`; `plain` is the same read through the C library.
unsafe fn read_by(
    fd: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
    plain: impl Fn() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's arguments; `read` on a socket is `recv` without flags.
    let look = || unsafe { recv_of_libc()(fd, to, length, flags | libc::MSG_DONTWAIT) };
    if length == 0 {
        return plain();
    }
    let Some(found) = table::enter_read(fd) else {
        let got = read_plain(fd, flags, plain, look);
        if table::is_listed(fd) {
            waiting::record_read(length, got);
        }
        return got;
    };
    if found.before().is_claimed() && !found.has_left_shared_memory() {
        // SAFETY: the caller guarantees this.
        let got = unsafe { receive(&found, fd, to, length, flags) };
        return if is_ghost(fd, got) { plain() } else { got };
    }
    let polled = found.is_polled();
    let got = if flags & !libc::MSG_NOSIGNAL == 0 && !polled.load(Relaxed) {
        let does_not_wait = || {
            let waiting = super::borrowed(fd).is_some_and(|own| waits(own, flags));
            polled.store(!waiting, Relaxed);
            !waiting
        };
        match waiting::read(found.spin(), does_not_wait, look) {
            Some(got) if is_ghost(fd, got) => plain(),
            Some(got) => got,
            None => plain(),
        }
    } else {
        plain()
    };
    ended(found, fd, got, flags);
    got
}

/// True if a read failed because the descriptor was closed without this library noticing, and its
/// number is not a socket now; it is forgotten then.
pub(super) fn is_ghost(fd: c_int, got: ssize_t) -> bool {
    let is_ghost = got == -1 && super::errno() == libc::ENOTSOCK;
    if is_ghost {
        table::forget(fd);
    }
    is_ghost
}

/// Reads shorter than this do not open shared memory, where each costs three system calls.
const MIN_READ_BYTES: u64 = 12 << 10;

/// Accounts for a read by the C library.
pub(super) fn ended(mut found: ConnectionRef, fd: c_int, got: ssize_t, flags: c_int) {
    if flags & (libc::MSG_PEEK | OUTSIDE_THE_STREAM) != 0 {
        if flags & libc::MSG_OOB != 0 {
            // Urgent data is outside the stream.
            let _none_can_have_come = found.fall_back_to_tcp(Reason::of_call("recv-flags"));
        }
        return;
    }
    let count = u64::try_from(got).unwrap_or(0);
    if count < MIN_READ_BYTES || !found.is_search_due(found.before().bytes() + count) {
        found.moved = count;
        return;
    }
    let before = super::errno();
    found.reads().add(count);
    if let Some(own) = super::borrowed(fd)
        && !guarded(|| found.search_peer(own))
    {
        table::demote_to_plain(fd, &found);
    }
    drop(found);
    super::set_errno(before);
}

/// Writes one buffer. `plain` writes the bytes from an offset through the C library.
///
/// # Safety
/// `from` has `length` readable bytes.
unsafe fn write_by(
    fd: c_int,
    from: *const c_void,
    length: usize,
    flags: c_int,
    plain: impl Fn(usize) -> ssize_t,
) -> ssize_t {
    let Some(mut found) = table::enter_write(fd) else {
        return plain(0);
    };
    let mut done = 0;
    let plainly = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
    if flags & !plainly != 0 {
        let _theirs_stay = found.fall_back_to_tcp(Reason::of_call("send-flags"));
    } else if length >= min_shm_bytes()
        && !from.is_null()
        && let Some(own) = super::borrowed(fd)
    {
        let before = super::errno();
        // SAFETY: the caller guarantees this.
        let bytes = unsafe {
            std::slice::from_raw_parts(from.cast::<u8>(), length.min(isize::MAX.unsigned_abs()))
        };
        let silent = match flags & libc::MSG_NOSIGNAL {
            0 => SendFlags::empty(),
            _ => SendFlags::NOSIGNAL,
        };
        match guarded(|| found.send(own, bytes, silent, || waits(own, flags))) {
            Ok((0, Some(error))) | Err(error) => return failed(error),
            Ok((count, Some(_))) => return isize::try_from(count).unwrap_or(isize::MAX),
            Ok((count, None)) => done = count,
        }
        super::set_errno(before);
        if done == length {
            return isize::try_from(done).unwrap_or(isize::MAX);
        }
    }
    let written = plain(done);
    found.moved = u64::try_from(written).unwrap_or(0);
    if length >= min_shm_bytes() && account::is_enabled() {
        found.add_without_room(found.moved);
    }
    let whole = isize::try_from(done).unwrap_or(isize::MAX);
    if written < 0 && done > 0 {
        whole
    } else {
        written + whole * isize::from(written >= 0)
    }
}

/// Writes several buffers over TCP.
pub(super) fn write_plain(fd: c_int, plain: impl Fn() -> ssize_t) -> ssize_t {
    let Some(mut found) = table::enter_write(fd) else {
        return plain();
    };
    let written = plain();
    found.moved = u64::try_from(written).unwrap_or(0);
    written
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    let real = real!(read: fn(c_int, *mut c_void, size_t) -> ssize_t);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { read_by(fd, to, length, 0, || real(fd, to, length)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    let real = real!(__read_chk: fn(c_int, *mut c_void, size_t, size_t) -> ssize_t);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { read_by(fd, to, length.min(room), 0, || real(fd, to, length, room)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        read_by(fd, to, length, flags, || {
            recv_of_libc()(fd, to, length, flags)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    let real = real!(__recv_chk: fn(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        read_by(fd, to, length.min(room), flags, || {
            real(fd, to, length, room, flags)
        })
    }
}

type Address = *mut c_void;

/// Sets the address length to 0: TCP returns no address with a message.
///
/// # Safety
/// `length` is null or writable.
unsafe fn no_address(got: ssize_t, address: Address, length: *mut libc::socklen_t) -> ssize_t {
    if got >= 0 && !address.is_null() && !length.is_null() {
        // SAFETY: the caller guarantees this.
        unsafe { *length = 0 };
    }
    got
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    address: Address,
    size: *mut libc::socklen_t,
) -> ssize_t {
    type Size = *mut libc::socklen_t;
    let real = real!(recvfrom: fn(c_int, *mut c_void, size_t, c_int, Address, Size) -> ssize_t);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        let plain = || real(fd, to, length, flags, address, size);
        let look = || real(fd, to, length, flags | libc::MSG_DONTWAIT, address, size);
        match table::is_known(fd) {
            false => read_plain(fd, flags, plain, look),
            true => no_address(read_by(fd, to, length, flags, plain), address, size),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    address: Address,
    size: *mut libc::socklen_t,
) -> ssize_t {
    if length > room {
        std::process::abort();
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { recvfrom(fd, to, length, flags, address, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    let real = real!(write: fn(c_int, *const c_void, size_t) -> ssize_t);
    // SAFETY: the caller's arguments, passed on; `at` is at most `length`.
    unsafe {
        write_by(fd, from, length, 0, |at| {
            real(fd, from.byte_add(at), length - at)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    let real = real!(send: fn(c_int, *const c_void, size_t, c_int) -> ssize_t);
    let plain = |at| {
        // SAFETY: as above.
        unsafe { real(fd, from.byte_add(at), length - at, flags) }
    };
    // SAFETY: as above.
    unsafe { write_by(fd, from, length, flags, plain) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const c_void,
    size: libc::socklen_t,
) -> ssize_t {
    type To = *const c_void;
    type Size = libc::socklen_t;
    let real = real!(sendto: fn(c_int, *const c_void, size_t, c_int, To, Size) -> ssize_t);
    let plain = |at| {
        // SAFETY: as above.
        unsafe { real(fd, from.byte_add(at), length - at, flags, address, size) }
    };
    if !address.is_null() {
        return write_plain(fd, || plain(0));
    }
    // SAFETY: as above.
    unsafe { write_by(fd, from, length, flags, plain) }
}

/// Writes several buffers of which some are large: large ones singly, the others together. The
/// result may be short, as for any write.
///
/// # Safety
/// The caller may read the buffers in `parts`.
unsafe fn write_parts(fd: c_int, parts: &[iovec]) -> ssize_t {
    let real = real!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t);
    let mut done: ssize_t = 0;
    let mut rest = parts;
    while let Some(first) = rest.first() {
        let small = |part: &&iovec| part.iov_len < min_shm_bytes();
        let count = rest.iter().take_while(small).count().max(1);
        let (now, later) = rest.split_at(count);
        // After the first bytes, an error and its signal are left to the next call.
        let flags = if done > 0 { libc::MSG_NOSIGNAL } else { 0 };
        let length: usize = now.iter().map(|part| part.iov_len).sum();
        // SAFETY: the caller's buffers, without address and control data.
        let written = unsafe {
            if small(&first) {
                let mut message: msghdr = std::mem::zeroed();
                message.msg_iov = now.as_ptr().cast_mut();
                message.msg_iovlen = count;
                write_plain(fd, || real(fd, &raw const message, flags))
            } else {
                send(fd, first.iov_base, length, flags)
            }
        };
        if written < 0 {
            return if done > 0 { done } else { written };
        }
        done += written;
        if written.unsigned_abs() < length {
            break;
        }
        rest = later;
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let real = real!(writev: fn(c_int, *const iovec, c_int) -> ssize_t);
    // SAFETY: the caller's arguments, passed on; a list that is not null has `count` buffers.
    unsafe {
        let few = usize::try_from(count).ok().filter(|count| *count <= 1024);
        if let Some(count) = few.filter(|_| !parts.is_null() && table::is_known(fd)) {
            let all = std::slice::from_raw_parts(parts, count);
            let lengths = all
                .iter()
                .try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len));
            let sound = lengths.is_some_and(|sum| isize::try_from(sum).is_ok());
            let filled = all
                .iter()
                .all(|part| part.iov_len == 0 || !part.iov_base.is_null());
            if sound && filled && all.iter().any(|part| part.iov_len >= min_shm_bytes()) {
                return write_parts(fd, all);
            }
        }
        write_plain(fd, || real(fd, parts, count))
    }
}

/// Makes connections that a message passes to another process use only TCP; true on success.
///
/// # Safety
/// `message` is null or valid.
unsafe fn passed(message: *const msghdr) -> bool {
    if message.is_null() {
        return true;
    }
    // SAFETY: the caller's guarantee; the C library's macros stay within the control data.
    unsafe {
        if (*message).msg_control.is_null() || (*message).msg_controllen == 0 {
            return true;
        }
        let mut part = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = part.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(part).cast::<c_int>();
                let before = data as usize - part as usize;
                let count = header.cmsg_len.saturating_sub(before) / size_of::<c_int>();
                if !(0..count).all(|at| leaves(data.add(at).read_unaligned(), "sendmsg")) {
                    return false;
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
    true
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let real = real!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t);
    // SAFETY: the caller's arguments, passed on; a message that is not null may be read.
    unsafe {
        if !passed(message) {
            return -1;
        }
        let single = message.as_ref().filter(|message| {
            message.msg_iovlen == 1 && message.msg_controllen == 0 && message.msg_namelen == 0
        });
        if let Some(message) = single
            && table::is_known(fd)
        {
            let part = *message.msg_iov;
            return send(fd, part.iov_base, part.iov_len, flags);
        }
        write_plain(fd, || real(fd, message, flags))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: libc::c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        for at in 0..count as usize {
            if messages.is_null() || !passed(&raw const (*messages.add(at)).msg_hdr) {
                return -1;
            }
        }
        if let Some((connection, _)) = find(fd) {
            let _theirs_stay = connection.fall_back_to_tcp(Reason::of_call("sendmmsg"));
        }
        real!(sendmmsg: fn(c_int, *mut mmsghdr, libc::c_uint, c_int) -> c_int)(
            fd, messages, count, flags,
        )
    }
}

/// Both names are the same function on 64-bit machines.
macro_rules! send_file {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            to: c_int,
            from: c_int,
            at: *mut off_t,
            length: size_t,
        ) -> ssize_t {
            let real = real!($name: fn(c_int, c_int, *mut off_t, size_t) -> ssize_t);
            // SAFETY: the caller's arguments are passed on unchanged.
            write_plain(to, || unsafe { real(to, from, at, length) })
        }
    )*};
}
send_file! { sendfile sendfile64 }
