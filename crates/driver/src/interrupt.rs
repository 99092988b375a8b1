//! Waits that end when a signal handler has run.

use std::cell::Cell;
use std::io;

use dipole_link::handlers;
use dipole_link::wait::WakeReason;

thread_local! {
    static INTERRUPTIBLE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`, whose waits on this thread end with
/// [`WaitError::Interrupted`](crate::WaitError::Interrupted) when a signal handler has run that was
/// installed without `SA_RESTART`. If the program has handlers of both kinds, one with the flag
/// may end a wait, too, because the kernel does not say which signal arrived.
pub fn interruptible<R>(body: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            INTERRUPTIBLE.set(self.0);
        }
    }
    let _reset = Reset(INTERRUPTIBLE.replace(true));
    body()
}

/// Turns the end of a sleep by a signal into an error if it ends the wait of this thread.
pub(crate) fn check(reason: WakeReason) -> io::Result<()> {
    let was_signal = reason == WakeReason::Interrupted;
    match was_signal && INTERRUPTIBLE.get() && handlers::may_interrupt() {
        true => Err(io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}
