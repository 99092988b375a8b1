//! Blocks signals of the calling thread while a handler that writes could not go on, and finds out what
//! a blocked signal would have done to a system call.

use std::mem::MaybeUninit;
use std::ptr;

/// Effect of a signal handler on a system call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// The call goes on (`SA_RESTART`), unless it has moved bytes.
    Restarts,
    /// The call ends with `EINTR`.
    Interrupts,
}

/// Signals are blocked until this is dropped.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// Blocks all signals. A memory fault still ends the program.
    pub(crate) fn new() -> SignalsBlocked {
        SignalsBlocked {
            before: block_all(),
        }
    }

    /// Runs the handlers of signals that have arrived. `None` if no handler ran.
    pub(crate) fn deliver(&self) -> Option<Handled> {
        let handled = self.pending()?;
        self.unblock();
        block_all();
        Some(handled)
    }

    /// Effect of the handlers of pending signals.
    fn pending(&self) -> Option<Handled> {
        let mut pending = MaybeUninit::uninit();
        // SAFETY: `sigpending` initialises the set.
        let pending = unsafe {
            libc::sigpending(pending.as_mut_ptr());
            pending.assume_init()
        };
        let arrived = (1..=libc::SIGRTMAX()).filter(|signal| {
            // SAFETY: initialised sets and a valid signal number.
            unsafe {
                libc::sigismember(&raw const pending, *signal) == 1
                    && libc::sigismember(&raw const self.before, *signal) == 0
            }
        });
        let mut handled = None;
        for signal in arrived {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: only queries the action, into a struct of that type, which is valid if zeroed.
            let action = unsafe {
                libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                action.assume_init()
            };
            match action.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => {}
                _ if action.sa_flags & libc::SA_RESTART == 0 => return Some(Handled::Interrupts),
                _ => handled = Some(Handled::Restarts),
            }
        }
        handled
    }

    fn unblock(&self) {
        // SAFETY: a set that `block_all` has stored; the old set is not wanted.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        self.unblock();
    }
}

/// Blocks all signals of this thread; returns those that were blocked before.
fn block_all() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` initialises the first set, and `pthread_sigmask`, which cannot fail with a
    // valid operation, the second one.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}
