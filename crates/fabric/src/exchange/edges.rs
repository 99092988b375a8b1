//! Edges to the endpoints that this one sends to.

use std::collections::VecDeque;

use dipole_node::Edge;
use rustc_hash::FxHashMap;

use super::waiting::Waiting;

/// Messages per peer and round that leave at once, each in its own packet. Further ones share
/// packets.
const UNBATCHED: u32 = 2;

/// The edge to an endpoint.
pub(super) struct PeerEdge {
    pub(super) edge: Edge,
    /// The peer's address as a number.
    number: u64,
    /// Control messages and gets that the edge has no room for, in order.
    pub(super) waiting: VecDeque<Waiting>,
    /// The peer is reached through shared memory, where batching gains nothing.
    pub(super) shares_memory: bool,
    /// Longest message that is sent whole. The receiver gets longer ones from the sender's memory.
    pub(super) whole_bytes: usize,
    /// The peer wants messages to be offered.
    pub(super) is_throttled: bool,
    /// This endpoint wants the peer to offer its messages.
    is_throttling: bool,
    /// The round of the last message, and the number of messages sent in it.
    round: u64,
    sent_in_round: u32,
}

impl PeerEdge {
    /// Counts a message; true if enough others were sent in the same round to batch it.
    #[inline]
    pub(super) fn count_message(&mut self, round: u64) -> bool {
        if self.round != round {
            (self.round, self.sent_in_round) = (round, 0);
        }
        self.sent_in_round = self.sent_in_round.saturating_add(1);
        self.sent_in_round > UNBATCHED
    }
}

/// One edge per peer, by the peer's address as a number.
#[derive(Default)]
pub(super) struct PeerEdges {
    list: Vec<PeerEdge>,
    by_number: FxHashMap<u64, usize>,
    /// Number and index of the edge used last.
    last: (u64, usize),
    shares_memory: bool,
    /// Indexes of edges for which something waits.
    held_up: Vec<usize>,
    /// Number of peers that throttle this endpoint.
    throttling_peers: usize,
    /// Indexes of edges to peers that this endpoint throttles.
    throttled: Vec<usize>,
}

impl PeerEdges {
    #[inline]
    pub(super) fn find(&mut self, number: u64) -> Option<usize> {
        if self.last.0 != number || self.list.is_empty() {
            self.last = (number, *self.by_number.get(&number)?);
        }
        Some(self.last.1)
    }

    /// The edge at an index that [`find`](Self::find) returned.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> &mut PeerEdge {
        &mut self.list[index]
    }

    /// Adds an edge and returns its index.
    pub(super) fn insert(
        &mut self,
        number: u64,
        edge: Edge,
        shares_memory: bool,
        whole_bytes: usize,
    ) -> usize {
        let index = self.list.len();
        self.by_number.insert(number, index);
        self.shares_memory |= shares_memory;
        self.list.push(PeerEdge {
            edge,
            waiting: VecDeque::new(),
            shares_memory,
            whole_bytes,
            is_throttled: false,
            is_throttling: false,
            number,
            round: 0,
            sent_in_round: 0,
        });
        index
    }

    /// Adds something behind everything that waits for the same edge.
    pub(super) fn queue(&mut self, index: usize, item: Waiting) {
        self.at(index).waiting.push_back(item);
    }

    /// Returns something to the front of its queue, because there is no room.
    pub(super) fn put_back(&mut self, index: usize, item: Waiting) {
        self.at(index).waiting.push_front(item);
        if !self.held_up.contains(&index) {
            self.held_up.push(index);
        }
    }

    /// True if something waits for room.
    #[inline]
    pub(super) fn are_held_up(&self) -> bool {
        !self.held_up.is_empty()
    }

    /// Edges for which something waits; [`put_back`](Self::put_back) adds them again.
    pub(super) fn take_held_up(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.held_up)
    }

    /// Marks a peer as throttled; false if it is already.
    pub(super) fn throttle(&mut self, index: usize) -> bool {
        let is_new = !std::mem::replace(&mut self.at(index).is_throttling, true);
        if is_new {
            self.throttled.push(index);
        }
        is_new
    }

    /// True if this endpoint throttles any peer.
    #[inline]
    pub(super) fn has_throttled(&self) -> bool {
        !self.throttled.is_empty()
    }

    /// The peers that were throttled, as numbers; none is afterwards.
    pub(super) fn take_throttled(&mut self) -> Vec<u64> {
        let throttled = std::mem::take(&mut self.throttled).into_iter();
        throttled
            .map(|index| {
                let peer = self.at(index);
                peer.is_throttling = false;
                peer.number
            })
            .collect()
    }

    /// Records that a peer throttles this endpoint, or no longer does.
    pub(super) fn set_throttled(&mut self, index: usize, is_throttled: bool) {
        let before = std::mem::replace(&mut self.at(index).is_throttled, is_throttled);
        match (before, is_throttled) {
            (false, true) => self.throttling_peers += 1,
            (true, false) => self.throttling_peers -= 1,
            _ => {}
        }
    }

    /// True if some peer throttles this endpoint.
    #[inline]
    pub(super) fn is_throttled(&self) -> bool {
        self.throttling_peers > 0
    }

    /// Drops everything that waits.
    pub(super) fn clear_queues(&mut self) {
        for index in self.take_held_up() {
            self.at(index).waiting.clear();
        }
    }

    /// True if some peer is reached through shared memory.
    #[inline]
    pub(super) fn shares_memory(&self) -> bool {
        self.shares_memory
    }
}
