//! Whether a thread spends its next wait awake: asking again and again instead of sleeping, since
//! to be woken takes longer than most answers of a process on the next core. `docs/sockets.md` §7.

/// How long at most. About what going to sleep and being woken costs.
pub(crate) const LONGEST_NS: u64 = 50_000;
/// Waits that are slept through, at most, after one that was too long.
const MOST_ASLEEP: u32 = 1 << 12;

/// What a thread's last waits taught.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// Waits to come that are slept through.
    asleep: u32,
    /// How many it will be after the next wait that is too long.
    next: u32,
}

impl Waits {
    pub(crate) const fn new() -> Waits {
        Waits { asleep: 0, next: 1 }
    }

    /// A wait comes: true if it is to be spent awake.
    pub(crate) fn begin(&mut self) -> bool {
        let awake = self.asleep == 0;
        self.asleep = self.asleep.saturating_sub(1);
        awake
    }

    /// One that was spent awake has ended, in time or not.
    pub(crate) fn end(&mut self, in_time: bool) {
        if in_time {
            self.next = (self.next / 2).max(1);
        } else {
            self.asleep = self.next;
            self.next = (2 * self.next).min(MOST_ASLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_are_always_long_are_slept_through_but_for_one_in_four_thousand() {
        let mut waits = Waits::new();
        let mut awake = 0;
        for _ in 0..100_000 {
            if waits.begin() {
                waits.end(false);
                awake += 1;
            }
        }
        assert!((30..50).contains(&awake), "{awake}");
    }

    #[test]
    fn short_ones_are_found_again_soon_and_then_all_spent_awake() {
        let mut waits = Waits::new();
        for _ in 0..100_000 {
            if waits.begin() {
                waits.end(false);
            }
        }
        let mut until = 0;
        while !waits.begin() {
            until += 1;
        }
        assert!(until <= MOST_ASLEEP);
        for _ in 0..1000 {
            waits.end(true);
            assert!(waits.begin());
        }
    }
}
