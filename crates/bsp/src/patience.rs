//! Whoever waits long says for whom.

use std::time::{Duration, Instant};

/// When something is first said of waiting.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// A wait that is said to last, ever more seldom. It counts from the first time it is asked:
/// most waits are over before, and need no clock.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Option<Instant>,
    next: Duration,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience {
            since: None,
            next: FIRST_WORD,
        }
    }

    /// How long it has been, when it is to be said.
    pub(crate) fn word(&mut self) -> Option<Duration> {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < self.next {
            return None;
        }
        self.next = waited * 4;
        Some(waited)
    }
}
