//! Whether a thread spends its next wait awake: asking again and again instead of sleeping, since
//! to be woken takes longer than most answers of a process on the next core. `docs/design/sockets.md` §7.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// How long at most. About what going to sleep and being woken costs.
pub(crate) const MAX_SPIN_NS: u64 = 50_000;
/// Waits that are slept through, at most, after one that was too long.
const MOST_ASLEEP: u32 = 1 << 12;

/// What the last waits of a thread, or of reads of a connection, taught. Not exact where several threads
/// wait at once, and need not be.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    /// Waits to come that are slept through.
    asleep: AtomicU32,
    /// How many it will be after the next wait that is too long, if more than one. All zero at first, so
    /// that tables of it take no room in the library's file.
    next: AtomicU32,
}

impl AdaptiveSpin {
    pub(crate) const fn new() -> AdaptiveSpin {
        AdaptiveSpin {
            asleep: AtomicU32::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// A wait comes: true if it is to be spent awake.
    pub(crate) fn begin(&self) -> bool {
        let asleep = self.asleep.load(Relaxed);
        if asleep > 0 {
            self.asleep.store(asleep - 1, Relaxed);
        }
        asleep == 0
    }

    /// One that was spent awake has ended, in time or not.
    pub(crate) fn end(&self, in_time: bool) {
        let next = self.next.load(Relaxed).max(1);
        if in_time {
            self.next.store(next / 2, Relaxed);
        } else {
            self.asleep.store(next, Relaxed);
            self.next.store((2 * next).min(MOST_ASLEEP), Relaxed);
        }
    }

    /// Knows nothing again.
    pub(crate) fn reset(&self) {
        self.asleep.store(0, Relaxed);
        self.next.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_are_always_long_are_slept_through_but_for_one_in_four_thousand() {
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
    fn short_ones_are_found_again_soon_and_then_all_spent_awake() {
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
        assert!(until <= MOST_ASLEEP);
        for _ in 0..1000 {
            spin.end(true);
            assert!(spin.begin());
        }
    }
}
