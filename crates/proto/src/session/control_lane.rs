//! Numbers of packets that are not retransmitted, in both directions. Spec §5.7.

use crate::holes::widen;
use crate::replay::Replay;
use serde::{Deserialize, Serialize};

/// Packet numbers of the control lane in both directions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ControlLane {
    next: u64,
    seen: Replay,
    /// Credit requests for unknown edges count only from this packet on: older ones may be for
    /// edges that have ended since.
    credit_requests_from: u64,
}

impl ControlLane {
    /// Packets are numbered from `first` on.
    pub(crate) fn starting_at(first: u64) -> ControlLane {
        ControlLane {
            next: first,
            seen: Replay::starting_at(first),
            credit_requests_from: 0,
        }
    }

    /// The number of the next packet to the peer.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Uses the next number.
    pub(crate) fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Records a packet of the peer; false if it was seen before or is too old to know.
    pub(crate) fn record(&mut self, number: u32) -> bool {
        let number = widen(number, self.seen.top());
        self.seen.record(number)
    }

    /// The peer has ended an edge: its credit requests in packets below `number` may be for that.
    pub(crate) fn end_edge(&mut self, number: u32) {
        let number = widen(number, self.seen.top());
        self.credit_requests_from = self.credit_requests_from.max(number);
    }

    /// True if a credit request in this packet cannot be for an edge that has ended.
    pub(crate) fn may_open_edge(&self, number: u32) -> bool {
        widen(number, self.seen.top()) >= self.credit_requests_from
    }

    /// The numbers seen, for [`View`](crate::View).
    pub(super) fn seen(&self) -> &Replay {
        &self.seen
    }

    /// State relative to the numbers seen, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        let from = match self.credit_requests_from {
            0 => None,
            from => Some(i128::from(from) - i128::from(self.seen.top())),
        };
        from.hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_requests_older_than_the_end_of_an_edge_open_none() {
        let mut lane = ControlLane::starting_at(0);
        assert!(lane.record(5) && !lane.record(5));
        assert!(lane.may_open_edge(5));
        lane.end_edge(8);
        lane.end_edge(7);
        assert!(!lane.may_open_edge(7));
        assert!(lane.may_open_edge(8));
        assert_eq!((lane.take_number(), lane.next()), (0, 1));
    }
}
