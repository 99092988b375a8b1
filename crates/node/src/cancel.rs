//! Waits that the program may cancel, for languages whose signal handlers run between calls.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dipole_driver::{LongWait, Timeout};

use crate::error::SendError;

/// How long an operation waits until it looks whether to end.
const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Runs `body`, in which collective calls of this thread, and operations on a peer's memory that have a
/// result, call `check` at least once a second while they wait, and fail if it returns true. No lock of
/// the library is held then.
pub fn cancellable<R>(check: fn() -> bool, body: impl FnOnce() -> R) -> R {
    struct Reset(Option<fn() -> bool>);
    impl Drop for Reset {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    let _reset = Reset(CHECK.replace(Some(check)));
    body()
}

/// True if a call within [`cancellable`] should end now.
#[must_use]
pub fn is_cancelled() -> bool {
    CHECK.get().is_some_and(|check| check())
}

/// Waits. Within [`cancellable`], it waits in slices, and looks after each of them whether to end.
pub(crate) fn in_slices<T>(
    until: Timeout,
    mut wait: impl FnMut(Timeout) -> Result<T, SendError>,
) -> Result<T, SendError> {
    if CHECK.get().is_none() || until == Timeout::Zero {
        return wait(until);
    }
    let (begun, mut whole) = (Instant::now(), LongWait::new());
    loop {
        let left = until.after(begun.elapsed()).duration();
        match whole.part(|| wait(Timeout::After(left.min(SLICE)))) {
            Err(SendError::TimedOut { target, .. } | SendError::Interrupted { target }) => {
                let waited = begun.elapsed();
                if is_cancelled() {
                    return Err(SendError::Interrupted { target });
                }
                if waited >= until.duration() {
                    return Err(SendError::TimedOut { target, waited });
                }
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_in_slices_ends_in_time_or_when_it_is_cancelled() {
        let target = crate::address::Address::new(1, 7);
        let timed_out = |slice: Timeout| -> Result<(), SendError> {
            let waited = slice.duration();
            Err(SendError::TimedOut { target, waited })
        };
        let until = Timeout::After(Duration::from_millis(2));
        let ended = cancellable(|| false, || in_slices(until, timed_out));
        match ended {
            Err(SendError::TimedOut { waited, .. }) => assert!(waited >= until.duration()),
            other => panic!("{other:?}"),
        }
        let ended = cancellable(|| true, || in_slices(Timeout::Infinite, timed_out));
        assert!(matches!(ended, Err(SendError::Interrupted { .. })));
        let mut left = 3;
        let third = |_| {
            left -= 1;
            match left {
                0 => Ok(()),
                _ => timed_out(Timeout::Zero),
            }
        };
        let ended = cancellable(|| false, || in_slices(Timeout::Infinite, third));
        assert!(ended.is_ok());
    }

    #[test]
    fn only_the_body_is_cancelled() {
        assert!(!is_cancelled());
        let inside = cancellable(
            || true,
            || {
                let within = cancellable(|| false, is_cancelled);
                (is_cancelled(), within)
            },
        );
        assert_eq!(inside, (true, false));
        assert!(!is_cancelled());
    }
}
