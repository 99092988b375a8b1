//! Decides whether a thread spends its next wait spinning instead of sleeping, since a wake-up takes
//! longer than most answers of a process on the next core. `docs/design/sockets.md` §8.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum spin time; about the cost of going to sleep and being woken.
pub(crate) const MAX_SPIN_NS: u64 = 50_000;
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

#[cfg(test)]
mod tests {
    use super::*;

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
