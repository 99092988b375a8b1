//! Operations that have begun and are not complete, by their numbers.

use dipole_node::Region;
use rustc_hash::FxHashMap;

use super::atomic::PendingUpdate;
use super::receives::PendingFetch;
use super::rma::PendingRma;
use super::{Name, SendRequest, number};
use crate::completion::Entry;
use crate::memory::RegisteredMemory;

/// A message that completes when a receive has it.
pub(super) struct Untaken {
    /// Memory of an offered message. The region is closed before its memory is dropped.
    _memory: Option<(Region, RegisteredMemory)>,
    /// Bytes of the message that are a copy, because the program may reuse its buffer.
    pub(super) injected_bytes: Option<usize>,
    /// The receiver's address as a number.
    pub(super) to: u64,
    pub(super) notify: bool,
    pub(super) entry: Entry,
}

impl Untaken {
    /// A message to this receiver, offered if it has memory.
    pub(super) fn of(
        memory: Option<(Region, RegisteredMemory)>,
        to: &Name,
        message: &SendRequest,
    ) -> Untaken {
        Untaken {
            _memory: memory,
            injected_bytes: message.is_injected.then(|| message.from.length()),
            to: number(to.messages),
            notify: message.notify,
            entry: message.entry(),
        }
    }
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
    untaken: FxHashMap<u64, Untaken>,
    /// Number and bytes of untaken messages that were injected.
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

    pub(super) fn insert_untaken(&mut self, number: u64, untaken: Untaken) {
        if let Some(bytes) = untaken.injected_bytes {
            self.injected.0 += 1;
            self.injected.1 += bytes;
        }
        self.untaken.insert(number, untaken);
    }

    pub(super) fn take_untaken(&mut self, number: u64) -> Option<Untaken> {
        let untaken = self.untaken.remove(&number)?;
        if let Some(bytes) = untaken.injected_bytes {
            self.injected.0 -= 1;
            self.injected.1 -= bytes;
        }
        Some(untaken)
    }

    /// Numbers of the messages that a peer has not taken.
    pub(super) fn untaken_by(&self, peer: u64) -> Vec<u64> {
        let untaken = self.untaken.iter();
        untaken
            .filter(|(_, untaken)| untaken.to == peer)
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
        let receivers = self.untaken.values().map(|untaken| untaken.to);
        receivers.chain(self.updates.values().map(|update| update.to))
    }

    /// Drops all operations without completing them. Posted ones still count until they complete.
    pub(super) fn clear(&mut self) {
        self.untaken.clear();
        self.injected = (0, 0);
        self.pending.clear();
        self.updates.clear();
    }
}
