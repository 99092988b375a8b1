//! Refusals of messages that were not reported to a caller yet. They outlive their edges and peers.

use std::collections::VecDeque;

use dipole_proto::EdgeId;
use dipole_proto::wire::RefusedReason;

/// Most edges whose refusals are remembered, for callers that never look.
const MAX_REMEMBERED: usize = 4096;

/// The latest refusal on each edge, the oldest edge first.
#[derive(Debug, Default)]
pub(super) struct Refusals(VecDeque<(EdgeId, RefusedReason)>);

impl Refusals {
    pub(super) fn record(&mut self, edge: EdgeId, reason: RefusedReason) {
        self.take(edge);
        if self.0.len() == MAX_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((edge, reason));
    }

    pub(super) fn contains(&self, edge: EdgeId) -> bool {
        self.0.iter().any(|(refused, _)| *refused == edge)
    }

    /// The refusal, which is about to be reported.
    pub(super) fn take(&mut self, edge: EdgeId) -> Option<RefusedReason> {
        let at = self.0.iter().position(|(refused, _)| *refused == edge)?;
        let (_, reason) = self.0.remove(at)?;
        Some(reason)
    }
}
