//! Time limits of calls.

use std::io;
use std::time::Duration;

/// Time limit of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Do not wait: the call does what it can at once.
    Zero,
    /// Wait for at most this long.
    After(Duration),
    /// Wait without limit.
    Infinite,
}

impl Timeout {
    /// Converts nanoseconds as in `poll(2)`: zero does not wait, and a negative number waits without
    /// limit.
    #[inline]
    #[must_use]
    pub fn from_nanos(ns: i64) -> Timeout {
        match u64::try_from(ns) {
            Ok(0) => Timeout::Zero,
            Ok(ns) => Timeout::After(Duration::from_nanos(ns)),
            Err(_) => Timeout::Infinite,
        }
    }

    /// As a duration; without limit it is the longest one.
    #[inline]
    #[must_use]
    pub fn duration(self) -> Duration {
        match self {
            Timeout::Zero => Duration::ZERO,
            Timeout::After(duration) => duration,
            Timeout::Infinite => Duration::MAX,
        }
    }

    /// The time left after `elapsed`.
    #[inline]
    #[must_use]
    pub fn after(self, elapsed: Duration) -> Timeout {
        match self {
            Timeout::After(whole) => Timeout::After(whole.saturating_sub(elapsed)),
            other => other,
        }
    }
}

impl From<Duration> for Timeout {
    /// A zero duration does not wait.
    fn from(duration: Duration) -> Timeout {
        match duration.is_zero() {
            true => Timeout::Zero,
            false => Timeout::After(duration),
        }
    }
}

/// Why a wait ended without a result.
#[derive(Debug)]
pub enum WaitError {
    /// The time limit expired.
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
    /// A signal handler has run; see [`interruptible`](crate::interruptible).
    Interrupted {
        /// How long it waited.
        waited: Duration,
    },
    /// The link is broken.
    Broken(io::Error),
}

impl WaitError {
    /// Converts the error of a sleep.
    pub(crate) fn of_sleep(cause: io::Error, waited_ns: u64) -> WaitError {
        let waited = Duration::from_nanos(waited_ns);
        match cause.kind() {
            io::ErrorKind::Interrupted => WaitError::Interrupted { waited },
            _ => WaitError::Broken(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_nanoseconds_become_timeouts() {
        let second = Duration::from_secs(1);
        assert_eq!(Timeout::from(Duration::ZERO), Timeout::Zero);
        assert_eq!(Timeout::from(second), Timeout::After(second));
        assert_eq!(Timeout::from_nanos(0), Timeout::Zero);
        assert_eq!(Timeout::from_nanos(1_000_000_000), Timeout::After(second));
        assert_eq!(Timeout::from_nanos(-1), Timeout::Infinite);
    }

    #[test]
    fn elapsed_time_shortens_only_a_limited_timeout() {
        let second = Duration::from_secs(1);
        let left = Timeout::After(second).after(2 * second);
        assert_eq!(left, Timeout::After(Duration::ZERO));
        assert_eq!(Timeout::Infinite.after(second), Timeout::Infinite);
        assert_eq!(Timeout::Zero.after(second), Timeout::Zero);
    }
}
