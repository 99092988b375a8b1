//! Decides whether a thread spends its next wait spinning instead of sleeping, since a wake-up takes
//! longer than most answers of a process on the next core. `docs/design/sockets.md` §8.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Maximum spin time; about the cost of going to sleep and being woken.
const MAX_SPIN: Duration = Duration::from_micros(50);
/// Overrides [`MAX_SPIN`], here and for endpoints: microseconds, 0 for never.
const SPIN_VARIABLE: &str = "DIPOLE_SPIN_US";

/// How long a thread of this process spins.
pub(crate) fn max_spin() -> Duration {
    static OWN: OnceLock<Duration> = OnceLock::new();
    *OWN.get_or_init(|| max_spin_from(std::env::var(SPIN_VARIABLE).ok().as_deref()))
}

fn max_spin_from(given: Option<&str>) -> Duration {
    let given = given.and_then(|text| text.parse().ok());
    given.map_or(MAX_SPIN, Duration::from_micros)
}
/// Maximum waits without spinning after an unsuccessful spin.
const MAX_ASLEEP: u32 = 1 << 12;

/// Experience from the last waits of a thread, or of reads of a connection. Inexact if several
/// threads wait at once, which is harmless.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    /// Number of upcoming waits without spinning.
    asleep: AtomicU32,
    /// Its value after the next unsuccessful spin, if above one. Initially all zero, so that
    /// tables of this type take no space in the library file.
    next: AtomicU32,
}

impl AdaptiveSpin {
    pub(crate) const fn new() -> AdaptiveSpin {
        AdaptiveSpin {
            asleep: AtomicU32::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// Starts a wait: true if it should spin.
    pub(crate) fn begin(&self) -> bool {
        let asleep = self.asleep.load(Relaxed);
        if asleep > 0 {
            self.asleep.store(asleep - 1, Relaxed);
        }
        asleep == 0
    }

    /// Ends a wait that was spun, successfully or not.
    pub(crate) fn end(&self, in_time: bool) {
        let next = self.next.load(Relaxed).max(1);
        if in_time {
            self.next.store(next / 2, Relaxed);
        } else {
            self.asleep.store(next, Relaxed);
            self.next.store((2 * next).min(MAX_ASLEEP), Relaxed);
        }
    }

    /// Forgets all measured waits.
    pub(crate) fn reset(&self) {
        self.asleep.store(0, Relaxed);
        self.next.store(0, Relaxed);
    }
}

/// How often a thread looks how long it has waited for a core.
const SAMPLE_NS: u64 = 10_000_000;
/// A core is contended if the thread had to wait for this part of a sample.
const CONTENDED_PART: u64 = 20;
/// How long it then counts as contended. Doubles each time this is confirmed soon afterwards.
const FIRST_PERIOD_NS: u64 = 40_000_000;
const LAST_PERIOD_NS: u64 = 1_280_000_000;

/// Whether other threads want the core of a thread. A spin delays them, and the one that would
/// answer may be among them.
#[derive(Debug)]
pub(crate) struct Contention {
    /// Time of the last sample; 0 before the first.
    sampled_ns: Cell<u64>,
    /// How long the thread had waited for cores by then.
    waited_ns: Cell<u64>,
    until_ns: Cell<u64>,
    period_ns: Cell<u64>,
}

impl Contention {
    pub(crate) const fn new() -> Contention {
        Contention {
            sampled_ns: Cell::new(0),
            waited_ns: Cell::new(0),
            until_ns: Cell::new(0),
            period_ns: Cell::new(0),
        }
    }

    /// True if the thread recently had to wait for a core. `waited_ns` returns for how long in all,
    /// if the kernel counts that.
    pub(crate) fn is_recent(&self, now_ns: u64, waited_ns: impl FnOnce() -> Option<u64>) -> bool {
        let sampled = self.sampled_ns.get();
        let length = now_ns.saturating_sub(sampled);
        if length >= SAMPLE_NS {
            self.sampled_ns.set(now_ns);
            if let Some(waited) = waited_ns() {
                let new = waited.saturating_sub(self.waited_ns.replace(waited));
                if sampled != 0 && new > length / CONTENDED_PART {
                    self.extend(now_ns);
                }
            }
        }
        now_ns < self.until_ns.get()
    }

    fn extend(&self, now_ns: u64) {
        let period = self.period_ns.get();
        let period = match now_ns < self.until_ns.get() + period {
            true => (2 * period).min(LAST_PERIOD_NS),
            false => FIRST_PERIOD_NS,
        };
        self.period_ns.set(period);
        self.until_ns.set(now_ns + period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_variable_sets_the_time_if_it_is_a_number() {
        assert_eq!(max_spin_from(Some("7")), Duration::from_micros(7));
        assert_eq!(max_spin_from(Some("0")), Duration::ZERO);
        for text in [None, Some(""), Some("fast"), Some("-1")] {
            assert_eq!(max_spin_from(text), MAX_SPIN);
        }
    }

    #[test]
    fn a_thread_that_waits_for_cores_stops_spinning_for_longer_each_time() {
        let contention = Contention::new();
        assert!(
            !contention.is_recent(1000 * MS, || Some(900 * MS)),
            "it was long ago"
        );
        assert!(!contention.is_recent(1010 * MS, || Some(900 * MS + MS / 4)));
        assert!(contention.is_recent(1020 * MS, || Some(902 * MS)));
        assert!(contention.is_recent(1025 * MS, || panic!("it is too soon")));
        assert!(contention.is_recent(1059 * MS, || Some(902 * MS)));
        assert!(!contention.is_recent(1061 * MS, || panic!("it is too soon")));
        // Once it spins again it has to wait again.
        assert!(contention.is_recent(1070 * MS, || Some(912 * MS)));
        assert!(contention.is_recent(1140 * MS, || Some(912 * MS)));
        assert!(!contention.is_recent(1151 * MS, || Some(912 * MS)));
        assert!(!contention.is_recent(9000 * MS, || None));
    }

    #[test]
    fn after_long_waits_only_one_in_four_thousand_spins() {
        let spin = AdaptiveSpin::new();
        let mut awake = 0;
        for _ in 0..100_000 {
            if spin.begin() {
                spin.end(false);
                awake += 1;
            }
        }
        assert!((30..50).contains(&awake), "{awake}");
    }

    #[test]
    fn short_waits_are_noticed_soon_and_then_all_spin() {
        let spin = AdaptiveSpin::new();
        for _ in 0..100_000 {
            if spin.begin() {
                spin.end(false);
            }
        }
        let mut until = 0;
        while !spin.begin() {
            until += 1;
        }
        assert!(until <= MAX_ASLEEP);
        for _ in 0..1000 {
            spin.end(true);
            assert!(spin.begin());
        }
    }
}
