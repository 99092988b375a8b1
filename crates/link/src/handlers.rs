//! Finds out whether a signal handler may have ended a system call.

use std::mem::MaybeUninit;
use std::ptr;

/// Signals that report a fault of the thread itself; runtimes handle them without `SA_RESTART`.
const FAULTS: [libc::c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// True if the program has a signal handler that is meant to interrupt system calls, which means
/// that it was installed without `SA_RESTART`. Handlers of faults do not count.
#[must_use]
pub fn may_interrupt() -> bool {
    (1..=libc::SIGRTMAX())
        .filter(|signal| !FAULTS.contains(signal))
        .any(interrupts)
}

fn interrupts(signal: libc::c_int) -> bool {
    let mut found = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null pointer as the new action the call changes nothing; it writes the
    // current action to `found`, which has the right type and is only read after success.
    let action = unsafe {
        if libc::sigaction(signal, ptr::null(), found.as_mut_ptr()) != 0 {
            return false;
        }
        found.assume_init()
    };
    let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    is_handled && action.sa_flags & libc::SA_RESTART == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn handler(_: libc::c_int) {}

    #[test]
    fn only_a_handler_without_restart_interrupts() {
        let signal = libc::SIGURG;
        let install = |flags| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: a zeroed action is valid; the handler does nothing.
            unsafe {
                (*action.as_mut_ptr()).sa_sigaction = handler as *const () as usize;
                (*action.as_mut_ptr()).sa_flags = flags;
                assert_eq!(libc::sigaction(signal, action.as_ptr(), ptr::null_mut()), 0);
            }
        };
        assert!(!interrupts(signal));
        install(libc::SA_RESTART);
        assert!(!interrupts(signal));
        install(0);
        assert!(interrupts(signal));
        assert!(may_interrupt());
    }
}
