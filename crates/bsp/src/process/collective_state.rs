//! Registrations and tag sizes of one rank, with the collective calls that change them.
//!
//! All ranks must make the same collective calls in a superstep. They take effect together when
//! the superstep ends ([`CollectiveState::commit`]).

use crate::misuse::Misuse;
use crate::superstep::collective::{CollectiveCalls, Ending, Part};
use crate::superstep::queue::TagSizes;
use crate::superstep::registrations::Registrations;
use crate::superstep::summary::Summary;

/// Registrations and tag sizes of one rank. `calls` is empty except between [`collect`](Self::collect) and
/// [`commit`](Self::commit).
#[derive(Debug)]
pub(super) struct CollectiveState {
    registrations: Registrations,
    tags: TagSizes,
    tag_calls: u32,
    calls: CollectiveCalls,
}

impl CollectiveState {
    /// State of rank `rank` of `size` before its first superstep.
    pub(super) fn new(rank: u32, size: u32) -> CollectiveState {
        CollectiveState {
            registrations: Registrations::new(rank, size),
            tags: TagSizes::default(),
            tag_calls: 0,
            calls: CollectiveCalls::default(),
        }
    }

    #[inline]
    pub(super) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    /// Replaces the keys of a rank's registered memory.
    pub(super) fn set_keys(&mut self, rank: u32, keys: &[u64]) {
        self.registrations.set_keys(rank, keys);
    }

    pub(super) fn push_registration(&mut self, part: Part) -> Result<(), Misuse> {
        self.registrations.push(part)
    }

    pub(super) fn pop_registration(&mut self, address: u64) -> Result<(), Misuse> {
        self.registrations.pop(address)
    }

    /// Sets the tag size from the next superstep on. Returns the size set before.
    pub(super) fn set_tag_bytes(&mut self, bytes: u64) -> u64 {
        self.tag_calls += 1;
        std::mem::replace(&mut self.tags.set, bytes)
    }

    /// The tag size of messages sent in this superstep.
    #[inline]
    pub(super) fn tag_bytes(&self) -> u64 {
        self.tags.sent
    }

    /// Collects this rank's collective calls of the superstep that ends.
    pub(super) fn collect(&mut self, ending: Ending) {
        self.calls.ending = ending;
        self.calls.tag_calls = self.tag_calls;
        if self.tag_calls > 0 {
            self.calls.tag_bytes = self.tags.set;
        }
        self.calls.pushes.extend(self.registrations.pushes());
        let pops = self.registrations.pops();
        self.calls.pops.extend_from_slice(pops);
    }

    /// The calls that were collected.
    #[inline]
    pub(super) fn calls(&self) -> &CollectiveCalls {
        &self.calls
    }

    /// Makes the calls of all ranks take effect. Returns the keys of registrations that ended.
    pub(super) fn commit(&mut self, summary: &Summary) -> Vec<u64> {
        self.tags.advance();
        self.tag_calls = 0;
        self.calls.clear();
        match summary.has_collectives() {
            true => self.registrations.commit(summary),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_size_is_announced_once_and_counts_from_the_next_superstep() {
        let mut state = CollectiveState::new(0, 1);
        assert_eq!(state.set_tag_bytes(8), 0);
        assert_eq!(state.set_tag_bytes(4), 8);
        assert_eq!(state.tag_bytes(), 0);
        state.collect(Ending::Sync);
        assert_eq!((state.calls().tag_calls, state.calls().tag_bytes), (2, 4));
        assert!(state.commit(&Summary::new(1)).is_empty());
        assert_eq!(state.tag_bytes(), 4);
        state.collect(Ending::Sync);
        assert!(state.calls().is_default());
    }
}
