//! When to log a wait that takes long.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Nothing is logged if this variable is `off`.
const VARIABLE: &str = "DIPOLE_WAIT_LOG";
static IS_OFF: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os(VARIABLE).is_some_and(|value| value == "off"));

const FIRST_LOG_AFTER: Duration = Duration::from_secs(2);

/// Log times of one wait: after 2, 4, 8 s and so on. The clock starts with the first call of
/// [`due`](Self::due), because most waits end before that and need no clock.
#[derive(Debug)]
pub(crate) struct SlowWaitLog {
    since: Option<Instant>,
    next: Duration,
}

impl SlowWaitLog {
    pub(crate) fn new() -> SlowWaitLog {
        SlowWaitLog {
            since: None,
            next: FIRST_LOG_AFTER,
        }
    }

    /// How long the wait has taken, if it should be logged now.
    pub(crate) fn due(&mut self) -> Option<Duration> {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        (self.due_after(waited) && !*IS_OFF).then_some(waited)
    }

    fn due_after(&mut self, waited: Duration) -> bool {
        let is_due = waited >= self.next;
        while waited >= self.next {
            self.next *= 2;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_logged_after_2_4_and_8_seconds() {
        let mut log = SlowWaitLog::new();
        let is_due = |second| log.due_after(Duration::from_secs(second));
        let logged: Vec<_> = (0..12).map(is_due).collect();
        let due: Vec<_> = (0..12).map(|second| [2, 4, 8].contains(&second)).collect();
        assert_eq!(logged, due);
    }
}
