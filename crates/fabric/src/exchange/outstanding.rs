//! Operations that have begun and are not complete, by their numbers.

use dipole_node::Region;
use rustc_hash::FxHashMap;

use super::atomic::PendingUpdate;
use super::receives::PendingFetch;
use super::rma::PendingRma;
use crate::completion::Entry;
use crate::memory::RegisteredMemory;

/// A long message that its receiver has not fetched.
pub(super) struct Offered {
    /// Closed when this is dropped, before the memory.
    pub(super) _region: Region,
    pub(super) _memory: RegisteredMemory,
    /// Bytes of the message that are a copy, because the program may reuse its buffer.
    pub(super) injected_bytes: Option<usize>,
    /// The receiver's address as a number.
    pub(super) to: u64,
    pub(super) notify: bool,
    pub(super) entry: Entry,
}

/// The operation that completions from the node's queue belong to.
pub(super) enum Pending {
    Fetch(PendingFetch),
    Rma(PendingRma),
}

/// All incomplete operations. Each has a number that no other one ever had.
#[derive(Default)]
pub(super) struct Outstanding {
    last_number: u64,
    /// Operations posted to edges that have not completed.
    posted: usize,
    offered: FxHashMap<u64, Offered>,
    /// Number and bytes of offered messages that were injected.
    injected: (usize, usize),
    pending: FxHashMap<u64, Pending>,
    /// Atomic operations that have not been answered.
    pub(super) updates: FxHashMap<u64, PendingUpdate>,
}

impl Outstanding {
    #[inline]
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    #[inline]
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    pub(super) fn add_posted(&mut self, count: usize) {
        self.posted += count;
    }

    pub(super) fn on_completed(&mut self) {
        self.posted -= 1;
    }

    pub(super) fn insert_offered(&mut self, number: u64, offered: Offered) {
        if let Some(bytes) = offered.injected_bytes {
            self.injected.0 += 1;
            self.injected.1 += bytes;
        }
        self.offered.insert(number, offered);
    }

    pub(super) fn take_offered(&mut self, number: u64) -> Option<Offered> {
        let offered = self.offered.remove(&number)?;
        if let Some(bytes) = offered.injected_bytes {
            self.injected.0 -= 1;
            self.injected.1 -= bytes;
        }
        Some(offered)
    }

    /// Numbers of the messages offered to a peer.
    pub(super) fn offered_to(&self, peer: u64) -> Vec<u64> {
        let offered = self.offered.iter();
        offered
            .filter(|(_, offered)| offered.to == peer)
            .map(|(number, _)| *number)
            .collect()
    }

    /// True if injected messages wait for their receivers.
    pub(super) fn has_injected(&self) -> bool {
        self.injected.0 > 0
    }

    /// Bytes of injected messages that wait for their receivers.
    pub(super) fn injected_bytes(&self) -> usize {
        self.injected.1
    }

    pub(super) fn insert_fetch(&mut self, number: u64, fetch: PendingFetch) {
        self.pending.insert(number, Pending::Fetch(fetch));
    }

    pub(super) fn insert_rma(&mut self, number: u64, rma: PendingRma) {
        self.pending.insert(number, Pending::Rma(rma));
    }

    /// Removes the operation that a completion belongs to.
    pub(super) fn take(&mut self, number: u64) -> Option<Pending> {
        self.pending.remove(&number)
    }

    /// Addresses, as numbers, of peers that have to act before an operation completes.
    pub(super) fn peers(&self) -> impl Iterator<Item = u64> {
        let receivers = self.offered.values().map(|offered| offered.to);
        receivers.chain(self.updates.values().map(|update| update.to))
    }

    /// Drops all operations without completing them. Posted ones still count until they complete.
    pub(super) fn clear(&mut self) {
        self.offered.clear();
        self.injected = (0, 0);
        self.pending.clear();
        self.updates.clear();
    }
}
