//! Whoever waits long says for whom.

use std::time::{Duration, Instant};

/// When something is first said of waiting.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// A wait that is said to last, ever more seldom.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Instant,
    next: Duration,
}

impl Patience {
    /// From now on.
    pub(crate) fn new() -> Patience {
        Patience {
            since: Instant::now(),
            next: FIRST_WORD,
        }
    }

    /// How long it has been, when it is to be said.
    pub(crate) fn word(&mut self) -> Option<Duration> {
        let waited = self.since.elapsed();
        if waited < self.next {
            return None;
        }
        self.next = waited * 4;
        Some(waited)
    }
}
