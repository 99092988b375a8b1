//! Finds out whether other threads want the core of a spinning thread.
//!
//! A thread that sleeps keeps its claim to the core: the scheduler runs it as soon as its packet
//! arrives. A thread that spins uses up its time slice, and one that yields gives it away; then each
//! waits for the others' slices, some milliseconds. So spinning pays only on a core of one's own.

use std::sync::atomic::{AtomicU64, Ordering};

use dipole_proto::Instant;

/// A round of spinning that found nothing and took longer than this was interrupted.
const INTERRUPTED_NS: u64 = 300_000;
/// How long the core then counts as contended. Doubles each time this is confirmed soon afterwards.
const FIRST_PERIOD_NS: u64 = 20_000_000;
const LAST_PERIOD_NS: u64 = 1_280_000_000;

/// Whether the cores of this process are contended.
#[derive(Debug, Default)]
pub(super) struct Contention {
    until_ns: AtomicU64,
    period_ns: AtomicU64,
}

impl Contention {
    /// Records a round of spinning that found nothing.
    #[inline]
    pub(super) fn on_idle_round(&self, began: Instant, ended: Instant) {
        if ended.since(began) > INTERRUPTED_NS {
            self.on_interruption(ended);
        }
    }

    /// Concurrent calls may overwrite each other, which changes only the length of a period.
    #[cold]
    fn on_interruption(&self, now: Instant) {
        let (until, period) = (
            self.until_ns.load(Ordering::Relaxed),
            self.period_ns.load(Ordering::Relaxed),
        );
        let is_confirmed = now.0 < until.saturating_add(period);
        let period = match is_confirmed {
            true => (2 * period).min(LAST_PERIOD_NS),
            false => FIRST_PERIOD_NS,
        };
        self.period_ns.store(period, Ordering::Relaxed);
        self.until_ns.store(now.after(period).0, Ordering::Relaxed);
    }

    /// True if other threads recently wanted a core on which this process was spinning.
    #[inline]
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        now.0 < self.until_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000);

    #[test]
    fn short_rounds_are_no_sign_of_contention() {
        let contention = Contention::default();
        contention.on_idle_round(START, START.after(INTERRUPTED_NS));
        assert!(!contention.is_recent(START));
    }

    #[test]
    fn the_periods_grow_while_they_are_confirmed() {
        let contention = Contention::default();
        let mut now = START;
        for period in [20, 40, 80, 160, 320, 640, 1280, 1280] {
            contention.on_idle_round(now, now.after(1_000_000));
            now = now.after(1_000_000 + period * 1_000_000 - 1);
            assert!(contention.is_recent(now), "{period} ms");
            now = now.after(1);
            assert!(!contention.is_recent(now), "{period} ms");
        }
        now = now.after(2 * LAST_PERIOD_NS);
        contention.on_idle_round(now, now.after(1_000_000));
        assert!(!contention.is_recent(now.after(1_000_000 + FIRST_PERIOD_NS)));
    }
}
