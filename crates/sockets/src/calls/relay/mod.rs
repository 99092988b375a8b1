//! Puts unread records back into a kernel socket, before the descriptor is read by something else than
//! this library: another program, the C library's streams, or the kernel.
//!
//! The program's descriptors become one end of a new local connection. A process next to the program
//! (`pump.rs`) owns the old connection and copies between both. What can be read at the old one is
//! copied before the call goes on.

mod closed;
mod pair;
mod pump;
mod registrations;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::io::{DupFlags, Errno, FdFlags};

use self::pump::Pump;
use self::registrations::Registrations;
use super::{borrowed, detached};
use crate::table::{self, ConnectionRef};

/// Replaces all descriptors of a connection, which has left shared memory, in this process.
///
/// # Errors
/// There are no descriptors, no memory, or no further process; nothing has changed then.
pub(super) fn replace(connection: &ConnectionRef, own: BorrowedFd<'_>) -> Result<(), Errno> {
    let pair = pair::create(own)?;
    pair.adopt_options(own, connection.take_low_water());
    let mut pump = Pump::new(connection, own, &pair)?;
    pump.prepare();
    // SAFETY: the pump allocates nothing after `new`.
    unsafe { detached::spawn(|| pump.run()) }?;
    let program_end = pair.program_end.as_fd();
    let is_copy = |fd: &RawFd| borrowed(*fd).is_some_and(|fd| connection.is_of(fd));
    let reason = connection.reason_to_leave();
    // The descriptors that follow have the same bytes.
    let mut is_counted = false;
    for (fd, other) in table::all_connections() {
        if !other.is_same(connection) || !is_copy(&fd) {
            continue;
        }
        if !std::mem::replace(&mut is_counted, true) {
            table::count(fd, true);
        }
        let registrations = Registrations::take(fd);
        become_copy(program_end, fd)?;
        registrations.restore(fd);
        table::track_plain(fd, reason);
    }
    Ok(())
}

/// Makes a descriptor refer to another file; it stays open in, or closed by, `exec` as before.
fn become_copy(of: BorrowedFd<'_>, fd: RawFd) -> Result<(), Errno> {
    let old = borrowed(fd).ok_or(Errno::BADF)?;
    let flags = rustix::io::fcntl_getfd(old)?;
    let flags = match flags.contains(FdFlags::CLOEXEC) {
        true => DupFlags::CLOEXEC,
        false => DupFlags::empty(),
    };
    // SAFETY: both descriptors are open, and the program's descriptor is replaced on its behalf. The
    // system call, because the C library's function is replaced.
    let done = unsafe { libc::syscall(libc::SYS_dup3, of.as_raw_fd(), fd, flags.bits()) };
    match done {
        0.. => Ok(()),
        _ => Err(Errno::from_raw_os_error(super::errno())),
    }
}
