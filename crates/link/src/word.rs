//! A shared word: a real atomic, or loom's model of one.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word that both sides may read and one side writes.
pub trait Word {
    /// Loads the value with this memory order.
    fn load(&self, order: Ordering) -> u64;
    /// Stores a value with this memory order.
    fn store(&self, value: u64, order: Ordering);
    /// A sequentially consistent fence for all words.
    fn full_fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline]
    fn full_fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Word for loom::sync::atomic::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        loom::sync::atomic::AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        loom::sync::atomic::AtomicU64::store(self, value, order);
    }

    fn full_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}
