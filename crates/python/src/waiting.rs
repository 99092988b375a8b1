//! Calls that wait: without the interpreter's lock, until they succeed, the time is over, or a
//! signal handler of the program raises an exception.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use dipole_node::{LongWait, cancellable, interruptible};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{Ending, Fault, raise};

/// A signal that arrives while a thread spins does not interrupt its sleep: handlers run after this
/// time. It doubles with each repetition, because a long message that cannot begin in time would
/// otherwise begin anew for ever.
const SIGNAL_DELAY: Duration = Duration::from_millis(100);
const MAX_SIGNAL_DELAY: Duration = Duration::from_secs(5);

/// How long a call may wait; `None` means for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience(Option<Duration>);

impl Patience {
    /// From Python's `timeout=` in seconds.
    pub(crate) fn new(seconds: Option<f64>) -> PyResult<Patience> {
        let wrong = |_| PyValueError::new_err("timeout must be a number of seconds, not negative");
        let timeout = seconds.map(Duration::try_from_secs_f64).transpose();
        Ok(Patience(timeout.map_err(wrong)?))
    }

    /// True if the call must not wait.
    pub(crate) fn is_zero(self) -> bool {
        self.0 == Some(Duration::ZERO)
    }

    /// The whole time, for calls that are not repeated.
    pub(crate) fn or(self, default: Duration) -> Duration {
        self.0.unwrap_or(default)
    }
}

/// Repeats a call that waits for at most the given time.
pub(crate) fn wait<T: Send, F: Fault>(
    py: Python<'_>,
    patience: Patience,
    mut call: impl FnMut(Duration) -> Result<T, F> + Send,
) -> PyResult<T> {
    let (began, mut delay) = (Instant::now(), SIGNAL_DELAY);
    let mut whole = LongWait::new();
    loop {
        let waited = began.elapsed();
        let left = patience.0.map(|whole| whole.saturating_sub(waited));
        let slice = left.map_or(delay, |left| left.min(delay));
        delay = (2 * delay).min(MAX_SIGNAL_DELAY);
        let is_last = left == Some(slice);
        let done = py.detach(|| {
            let part = || interruptible(|| call(slice));
            match is_last {
                true => whole.last_part(part),
                false => whole.part(part),
            }
        });
        let fault = match done {
            Ok(value) => return Ok(value),
            Err(fault) => fault,
        };
        py.check_signals()?;
        match fault.ending() {
            Ending::Interrupted => {}
            Ending::TimedOut if patience.0.is_none_or(|whole| began.elapsed() < whole) => {}
            Ending::TimedOut => return Err(raise(py, &fault.after(began.elapsed()))),
            Ending::Final => return Err(raise(py, &fault)),
        }
    }
}

thread_local! {
    /// The exception of a signal handler that ended a call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs the handlers of signals that have arrived; true if one raised an exception.
fn has_raised() -> bool {
    Python::attach(|py| {
        let raised = py.check_signals().err();
        RAISED.with_borrow_mut(|first| {
            *first = first.take().or(raised);
            first.is_some()
        })
    })
}

/// Makes a call that must not be repeated, without the interpreter's lock: a collective call, or one that
/// a peer answers. If a signal handler raises an exception meanwhile, the call fails, and the exception
/// is returned.
pub(crate) fn wait_once<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> T + Send,
) -> Result<T, PyErr> {
    let done = py.detach(|| cancellable(has_raised, call));
    match RAISED.with_borrow_mut(Option::take) {
        Some(raised) => Err(raised),
        None => Ok(done),
    }
}
