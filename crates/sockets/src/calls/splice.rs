//! `splice` from connections with unread records, which only this library can read, and from others.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use libc::{c_int, off_t, size_t, ssize_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags};

use super::data::{PIECE, receive, write_plain};
use super::{borrowed, failed, find, guarded, leaves, real};
use crate::connection::Connection;

/// Copies available bytes of a connection with unread records into a pipe.
fn splice_records(
    connection: &Connection,
    from: c_int,
    to: c_int,
    length: size_t,
    flags: libc::c_uint,
) -> ssize_t {
    let (Some(own), Some(pipe)) = (borrowed(from), borrowed(to)) else {
        return failed(Errno::BADF);
    };
    let kind = fstat(pipe).map(|found| FileType::from_raw_mode(found.st_mode));
    if kind != Ok(FileType::Fifo) {
        return failed(Errno::INVAL);
    }
    let mut bytes = vec![0_u8; length.min(PIECE)];
    // SAFETY: a buffer of that length.
    let found = unsafe {
        receive(
            connection,
            from,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_PEEK,
        )
    };
    let Ok(found @ 1..) = usize::try_from(found) else {
        return found;
    };
    // The flag is for the pipe only.
    let written = match flags & libc::SPLICE_F_NONBLOCK != 0 {
        true => write_at_once(pipe, &bytes[..found]),
        false => rustix::io::write(pipe, &bytes[..found]),
    };
    let written = match written {
        Ok(count) => count,
        Err(error) => return failed(error),
    };
    let mut left = &mut bytes[..written];
    while !left.is_empty() {
        // They have been seen, so they are there, unless another thread reads them as well.
        match guarded(|| connection.receive(own, left, false)) {
            Ok(count @ 1..) => left = &mut left[count..],
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            Ok(0) | Err(_) => break,
        }
    }
    isize::try_from(written).unwrap_or(isize::MAX)
}

/// Writes to a pipe what fits without waiting.
fn write_at_once(pipe: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let parts = [IoSlice::new(bytes)];
    match rustix::io::pwritev2(pipe, &parts, u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) => {}
        written => return written,
    }
    // A pipe that is ready takes at least this many bytes at once.
    let mut ready = [PollFd::new(&pipe, PollFlags::OUT)];
    match poll(&mut ready, Some(&Timespec::default()))? {
        0 => Err(Errno::AGAIN),
        _ => rustix::io::write(pipe, &bytes[..bytes.len().min(rustix::pipe::PIPE_BUF)]),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    length: size_t,
    flags: libc::c_uint,
) -> ssize_t {
    type At = *mut off_t;
    let real = real!(splice: fn(c_int, At, c_int, At, size_t, libc::c_uint) -> ssize_t);
    if let Some((connection, _)) = find(from)
        && connection.has_unread()
    {
        if !from_at.is_null() {
            return failed(Errno::SPIPE);
        }
        return splice_records(&connection, from, to, length, flags);
    }
    if !leaves(from, "splice") {
        return -1;
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    write_plain(to, || unsafe {
        real(from, from_at, to, to_at, length, flags)
    })
}
