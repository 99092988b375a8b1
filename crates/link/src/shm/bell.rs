//! Sleeping and waking without lost wake-ups.
//!
//! A hub has one word, its epoch: odd while it sleeps, and a new odd number for each sleep.
//! The sleeper publishes the number and then checks its rings once more; a sender pushes and
//! then reads the number. A full fence between the two steps on both sides guarantees that at
//! least one side sees the other.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::segment::Segment;
use crate::word::Word;

/// The sleep state of a hub.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    epoch: u64,
}

impl Sleep {
    /// Announces a sleep. The caller must check all wake-up sources again before it blocks.
    pub(super) fn begin<W: Word>(&mut self, word: &W) {
        self.epoch += if self.is_asleep() { 2 } else { 1 };
        word.store(self.epoch, Ordering::Relaxed);
        // A sender that does not see the sleep has pushed before; the caller's check finds it.
        W::full_fence();
    }

    pub(super) fn end(&mut self, word: &impl Word) {
        if self.is_asleep() {
            self.epoch += 1;
            // A peer that sees this late sends one unneeded wake-up.
            word.store(self.epoch, Ordering::Relaxed);
        }
    }

    fn is_asleep(&self) -> bool {
        !self.epoch.is_multiple_of(2)
    }
}

/// The last sleep of a peer that this side has ended.
#[derive(Debug, Default)]
pub(super) struct Waking {
    ended: u64,
}

impl Waking {
    /// Call after a push: true if the peer sleeps and must be woken, once per sleep.
    #[inline]
    pub(super) fn is_due<W: Word>(&mut self, word: &W) -> bool {
        // Makes the push visible to a peer whose sleep we do not see.
        W::full_fence();
        let epoch = word.load(Ordering::Relaxed);
        if epoch.is_multiple_of(2) || epoch == self.ended {
            return false;
        }
        self.ended = epoch;
        true
    }
}

/// The mapped epoch word of a hub: our own, or a peer's.
#[derive(Debug)]
pub(super) struct Bell {
    word: NonNull<AtomicU64>,
    _segment: Segment,
}

// SAFETY: a single atomic in a mapping that the value keeps alive.
unsafe impl Send for Bell {}

impl Bell {
    pub(super) fn new(segment: Segment) -> Bell {
        Bell {
            word: segment.at(0, 8).cast(),
            _segment: segment,
        }
    }

    #[inline]
    pub(super) fn word(&self) -> &AtomicU64 {
        // SAFETY: aligned, in the mapping, an atomic; a peer's word is mapped read-only and
        // only loaded.
        unsafe { self.word.as_ref() }
    }
}
