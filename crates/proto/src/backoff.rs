//! A timer that is repeated with growing pauses.

use crate::time::Instant;
use serde::{Deserialize, Serialize};

/// Deadline that moves away with each repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Backoff {
    /// When the timer fires; [`Instant::NEVER`] while it is off.
    pub(crate) at: Instant,
    pub(crate) pause_ns: u64,
}

impl Backoff {
    pub(crate) const OFF: Backoff = Backoff {
        at: Instant::NEVER,
        pause_ns: 0,
    };

    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.at == Instant::NEVER
    }

    /// Starts with the shortest pause.
    pub(crate) fn start(&mut self, now: Instant, pause_ns: u64) {
        *self = Backoff {
            at: now.after(pause_ns),
            pause_ns,
        };
    }

    /// Restarts with twice the pause.
    pub(crate) fn again(&mut self, now: Instant, max_ns: u64) {
        self.start(now, (self.pause_ns * 2).min(max_ns));
    }

    /// Moves the timer by the time in which this process did not run, but by no more than one
    /// pause from now.
    pub(crate) fn postpone(&mut self, now: Instant, absence_ns: u64) {
        if !self.is_off() {
            let later = self.at.after(absence_ns);
            self.at = later.min(now.after(self.pause_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut timer = Backoff::OFF;
        assert!(timer.is_off());
        timer.start(Instant(100), 10);
        assert_eq!(timer.at, Instant(110));
        timer.again(Instant(110), 25);
        assert_eq!(timer.at, Instant(130));
        timer.again(Instant(130), 25);
        assert_eq!(timer.at, Instant(155));
    }

    #[test]
    fn a_timer_moves_by_an_absence_but_by_at_most_one_pause() {
        let mut timer = Backoff::OFF;
        timer.postpone(Instant(5), 100);
        assert!(timer.is_off());
        timer.start(Instant(100), 10);
        timer.postpone(Instant(103), 2);
        assert_eq!(timer.at, Instant(112));
        timer.postpone(Instant(103), 1000);
        assert_eq!(timer.at, Instant(113));
    }
}
