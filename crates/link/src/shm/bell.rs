//! Sleeping and being woken without a lost wake-up.
//!
//! A hub has one word, its epoch: odd while it sleeps, another odd number each
//! time. It publishes the number, then looks at its rings once more; whoever pushes looks
//! at the number afterwards. A full fence on both sides between the two: one of
//! them sees the other.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::segment::Segment;
use crate::word::Word;

/// A hub's own sleeps.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    epoch: u64,
}

impl Sleep {
    /// Goes to sleep. The caller must look at everything it can be woken for before
    /// it really does.
    pub(super) fn begin<W: Word>(&mut self, word: &W) {
        self.epoch += if self.is_asleep() { 2 } else { 1 };
        word.store(self.epoch, Ordering::Relaxed);
        // Whoever does not see that we sleep has pushed before; we look after.
        W::full_fence();
    }

    /// Awake.
    pub(super) fn end(&mut self, word: &impl Word) {
        if self.is_asleep() {
            self.epoch += 1;
            // A peer that sees it late wakes once in vain.
            word.store(self.epoch, Ordering::Relaxed);
        }
    }

    fn is_asleep(&self) -> bool {
        !self.epoch.is_multiple_of(2)
    }
}

/// Which of a peer's sleeps have been ended from here.
#[derive(Debug, Default)]
pub(super) struct Waking {
    ended: u64,
}

impl Waking {
    /// After something was done that the peer may sleep for: true if it must be
    /// woken, once for each of its sleeps.
    #[inline]
    pub(super) fn is_due<W: Word>(&mut self, word: &W) -> bool {
        // What was done must be visible to a peer whose sleep we do not see.
        W::full_fence();
        let epoch = word.load(Ordering::Relaxed);
        if epoch.is_multiple_of(2) || epoch == self.ended {
            return false;
        }
        self.ended = epoch;
        true
    }
}

/// The word in memory: a hub's own, or a peer's.
#[derive(Debug)]
pub(super) struct Bell {
    word: NonNull<AtomicU64>,
    _segment: Segment,
}

// SAFETY: one atomic in a mapping that the value keeps.
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
        // SAFETY: aligned, in the mapping, an atomic; a peer's bell is mapped for
        // reading and only loaded.
        unsafe { self.word.as_ref() }
    }
}
