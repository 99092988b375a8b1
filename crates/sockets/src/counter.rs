//! Byte count and active calls of one direction in one word: a call over TCP costs two atomic
//! additions.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

/// One call; leaves room for 16383 concurrent calls and 512 TiB.
const CALL: u64 = 1 << 50;
/// One caller has claimed the direction.
const CLAIMED: u64 = 1 << 49;
const BYTES: u64 = CLAIMED - 1;

/// Counts bytes and active calls of one direction.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

/// A value of a counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(u64);

impl Count {
    pub(crate) fn bytes(self) -> u64 {
        self.0 & BYTES
    }

    pub(crate) fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }

    pub(crate) fn is_idle(self) -> bool {
        self.0 < CALL
    }
}

impl Counter {
    pub(crate) const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    pub(crate) fn now(&self) -> Count {
        Count(self.0.load(SeqCst))
    }

    /// Registers a call; returns the value before.
    pub(crate) fn enter(&self) -> Count {
        Count(self.0.fetch_add(CALL, SeqCst))
    }

    /// Unregisters a call that has moved `bytes`.
    pub(crate) fn exit(&self, bytes: u64) {
        self.0.fetch_add(bytes.wrapping_sub(CALL), SeqCst);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, AcqRel);
    }

    /// Claims the direction if the caller's is the only active call and it is not claimed yet.
    pub(crate) fn claim(&self) -> bool {
        let alone = CALL | self.now().bytes();
        let taken = alone | CLAIMED;
        self.0
            .compare_exchange(alone, taken, AcqRel, Relaxed)
            .is_ok()
    }

    /// Ends the claim of this thread.
    pub(crate) fn unclaim(&self) {
        self.0.fetch_and(!CLAIMED, AcqRel);
    }

    /// Resets everything except calls that registered too late and leave again.
    pub(crate) fn reset(&self) {
        self.0.fetch_and(!(BYTES | CLAIMED), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_call_can_claim_the_direction() {
        let counter = Counter::new();
        assert!(!counter.claim(), "no active call");
        assert!(counter.enter().is_idle());
        counter.add(7);
        assert!(counter.claim());
        assert!(!counter.claim(), "already claimed");
        assert!(counter.enter().is_claimed());
        counter.exit(0);
        counter.unclaim();
        counter.enter();
        assert!(!counter.claim(), "another call is active");
        counter.exit(5);
        counter.exit(1);
        assert!(counter.now().is_idle() && counter.now().bytes() == 13);
    }

    #[test]
    fn a_reset_keeps_active_calls() {
        let counter = Counter::new();
        counter.enter();
        counter.add(9);
        counter.reset();
        assert!(!counter.now().is_idle() && counter.now().bytes() == 0);
        counter.exit(0);
        assert!(counter.now().is_idle());
    }
}
