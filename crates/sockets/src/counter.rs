//! Bytes that went one way of a connection, and the calls that are at it, in one word: a call that
//! goes by TCP costs two atomic additions.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

/// One call: 16383 at once, and 512 TiB.
const CALL: u64 = 1 << 50;
/// One has taken the way for itself.
const TAKEN: u64 = 1 << 49;
const BYTES: u64 = TAKEN - 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

/// What a counter said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(u64);

impl Count {
    pub(crate) fn bytes(self) -> u64 {
        self.0 & BYTES
    }

    pub(crate) fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
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

    /// A call begins; what was before.
    pub(crate) fn enter(&self) -> Count {
        Count(self.0.fetch_add(CALL, SeqCst))
    }

    /// A call ends that has moved so many bytes.
    pub(crate) fn exit(&self, bytes: u64) {
        self.0.fetch_add(bytes.wrapping_sub(CALL), SeqCst);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, AcqRel);
    }

    /// Takes the way for one, if the caller's is the only call and nobody has.
    pub(crate) fn take(&self) -> bool {
        let alone = CALL | self.now().bytes();
        let taken = alone | TAKEN;
        self.0
            .compare_exchange(alone, taken, AcqRel, Relaxed)
            .is_ok()
    }

    /// Gives it back.
    pub(crate) fn give_back(&self) {
        self.0.fetch_and(!TAKEN, AcqRel);
    }

    /// As new, but for calls that look something up too late and leave again.
    pub(crate) fn reset(&self) {
        self.0.fetch_and(!(BYTES | TAKEN), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_is_alone_takes_the_way() {
        let counter = Counter::new();
        assert!(!counter.take(), "nobody called");
        assert!(counter.enter().is_idle());
        counter.add(7);
        assert!(counter.take());
        assert!(!counter.take(), "it is taken");
        assert!(counter.enter().is_taken());
        counter.exit(0);
        counter.give_back();
        counter.enter();
        assert!(!counter.take(), "another call is at it");
        counter.exit(5);
        counter.exit(1);
        assert!(counter.now().is_idle() && counter.now().bytes() == 13);
    }

    #[test]
    fn a_reset_keeps_who_is_inside() {
        let counter = Counter::new();
        counter.enter();
        counter.add(9);
        counter.reset();
        assert!(!counter.now().is_idle() && counter.now().bytes() == 0);
        counter.exit(0);
        assert!(counter.now().is_idle());
    }
}
