//! Finds out whether other threads want the core of a spinning thread.
//!
//! A thread that sleeps keeps its claim to the core: the scheduler runs it as soon as its packet
//! arrives. A thread that spins uses up its time slice, and one that yields gives it away; then each
//! waits for the others' slices, some milliseconds. So on a contended core a thread spins only for as
//! long as a peer on another core takes to answer, and hardly at all while that is in vain: then the
//! peer may be one of those that want this core.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dipole_proto::Instant;

/// A round of spinning that found nothing and took longer than this was interrupted.
const INTERRUPTED_NS: u64 = 300_000;
/// How long the core then counts as contended. Doubles each time this is confirmed soon afterwards.
const FIRST_PERIOD_NS: u64 = 20_000_000;
const LAST_PERIOD_NS: u64 = 1_280_000_000;

/// Spin time on a contended core.
const CONTENDED_SPIN_NS: u64 = 20_000;
/// Spin time on a contended core after waits that ended later.
const FUTILE_SPIN_NS: u64 = 2_000;
/// Of this many waits in a row that ended in sleep, [`TRIES`] spin for longer.
const FUTILE_WAITS: u32 = 64;
const TRIES: u32 = 8;

/// Whether the cores of this process are contended, and whether spinning pays nevertheless.
#[derive(Debug, Default)]
pub(super) struct Contention {
    until_ns: AtomicU64,
    period_ns: AtomicU64,
    /// Consecutive waits on a contended core that ended in sleep.
    futile_waits: AtomicU32,
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
    fn is_recent(&self, now: Instant) -> bool {
        now.0 < self.until_ns.load(Ordering::Relaxed)
    }

    /// How long to spin instead of `spin_ns`.
    #[inline]
    pub(super) fn limit_spin(&self, spin_ns: u64, now: Instant) -> u64 {
        if !self.is_recent(now) {
            return spin_ns;
        }
        let futile = self.futile_waits.load(Ordering::Relaxed);
        spin_ns.min(match futile % FUTILE_WAITS < TRIES {
            true => CONTENDED_SPIN_NS,
            false => FUTILE_SPIN_NS,
        })
    }

    /// Records the end of a wait that was allowed to sleep. Lost updates only change how soon spinning is tried again.
    #[inline]
    pub(super) fn on_waited(&self, has_slept: bool) {
        let futile = self.futile_waits.load(Ordering::Relaxed);
        if has_slept {
            self.futile_waits
                .store(futile.wrapping_add(1), Ordering::Relaxed);
        } else if futile != 0 {
            self.futile_waits.store(0, Ordering::Relaxed);
        }
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
    fn spinning_is_short_on_a_contended_core_and_shorter_while_it_is_in_vain() {
        let contention = Contention::default();
        let now = START.after(1_000_000);
        assert_eq!(contention.limit_spin(50_000, now), 50_000);
        contention.on_idle_round(START, now);
        for _ in 0..TRIES {
            assert_eq!(contention.limit_spin(50_000, now), CONTENDED_SPIN_NS);
            assert_eq!(contention.limit_spin(5_000, now), 5_000);
            contention.on_waited(true);
        }
        for _ in TRIES..FUTILE_WAITS {
            assert_eq!(contention.limit_spin(50_000, now), FUTILE_SPIN_NS);
            contention.on_waited(true);
        }
        assert_eq!(contention.limit_spin(50_000, now), CONTENDED_SPIN_NS);
        for _ in 0..TRIES {
            contention.on_waited(true);
        }
        contention.on_waited(false);
        assert_eq!(contention.limit_spin(50_000, now), CONTENDED_SPIN_NS);
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
