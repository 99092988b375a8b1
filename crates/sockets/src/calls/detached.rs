//! Processes next to the program that its own `wait` calls do not find.

use libc::c_int;
use rustix::io::Errno;

use super::errno;
use crate::signals::SignalsBlocked;

/// Runs `work` in a copy of this process without its other threads, in a session of its own.
///
/// The copy is a grandchild whose parent ends at once. No process gets a signal when it ends, and only
/// a wait for clone children would find it. `fork` would run the handlers of `pthread_atfork`.
///
/// # Errors
/// There can be no further process.
///
/// # Safety
/// `work` makes only system calls on memory that was prepared before, because other threads may have
/// held any lock of this process.
pub(super) unsafe fn spawn(work: impl FnOnce()) -> Result<(), Errno> {
    const FAILED: c_int = 1;
    // A signal between both system calls would run a handler of the program.
    let _signals = SignalsBlocked::new();
    let mut status: c_int = 0;
    // SAFETY: the caller guarantees it for `work`; both copies end with `exit_group`.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
        if child == 0 {
            libc::syscall(libc::SYS_setsid);
            let grandchild = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
            if grandchild == 0 {
                work();
            }
            let status = if grandchild < 0 { FAILED } else { 0 };
            libc::syscall(libc::SYS_exit_group, status);
        }
        if child < 0 {
            return Err(Errno::from_raw_os_error(errno()));
        }
        let place = &raw mut status;
        while libc::syscall(libc::SYS_wait4, child, place, libc::__WCLONE, 0) < 0
            && errno() == libc::EINTR
        {}
    }
    if status == 0 {
        Ok(())
    } else {
        Err(Errno::AGAIN)
    }
}
