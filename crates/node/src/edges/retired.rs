//! Closed edges of an endpoint, and what was sent along them: for callers that wait until all of it
//! has been acknowledged.
//!
//! Edges to addresses are closed when there are too many or when their process has gone, those to
//! targets when the target is removed. [`Retired`] remembers the ones whose process has not acknowledged
//! everything or has refused something, or for which messages waited.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{EdgeRef, EdgeTable, MAX_CACHED, Stage};
use crate::address::Address;
use crate::error::SendError;
use crate::queues::QueueTable;
use dipole_engine::{Blocked, Engine, Target};
use dipole_proto::EdgeId;

/// Messages of a closed edge that were never sent.
#[derive(Clone, Copy, Debug)]
enum Unsent {
    /// They could not be.
    Failed(Blocked),
    /// They waited for room.
    Cancelled,
}

/// A closed edge, and what is known to be lost on it.
#[derive(Clone, Debug)]
pub(crate) struct RetiredEdge {
    pub(crate) target: Target,
    unsent: Option<Unsent>,
}

impl RetiredEdge {
    /// An edge whose messages have all been sent.
    fn sent(target: &Target) -> RetiredEdge {
        RetiredEdge {
            target: target.clone(),
            unsent: None,
        }
    }

    /// The error to report for messages that were never sent.
    pub(crate) fn loss(&self) -> Result<(), SendError> {
        let target = self.target.address;
        match self.unsent {
            None => Ok(()),
            Some(Unsent::Failed(why)) => Err(SendError::from_blocked(why, target, 0)),
            Some(Unsent::Cancelled) => Err(SendError::Cancelled { target }),
        }
    }
}

/// Closed edges of which something may be unacknowledged, refused or unsent.
#[derive(Debug, Default)]
pub(super) struct Retired {
    /// By endpoint and id.
    edges: FxHashMap<(u32, EdgeId), RetiredEdge>,
    /// Endpoints of closed edges, whatever became of what was sent.
    sources: FxHashSet<u32>,
}

impl Retired {
    fn add(&mut self, engine: &mut Engine, source: u32, edge: RetiredEdge) {
        self.sources.insert(source);
        if is_settled(engine, source, &edge) {
            return;
        }
        if self.edges.len() >= MAX_CACHED {
            self.edges
                .retain(|(source, _), edge| !is_settled(engine, *source, edge));
        }
        // The limit bounds the memory of callers that never wait: they lose refusals first.
        if self.edges.len() >= MAX_CACHED {
            self.edges
                .retain(|_, edge| !is_acknowledged(engine, &edge.target));
        }
        if self.edges.len() < MAX_CACHED {
            self.edges.insert((source, edge.target.edge), edge);
        }
    }

    pub(super) fn close_endpoint(&mut self, source: u32) {
        self.edges.retain(|(endpoint, _), _| *endpoint != source);
        self.sources.remove(&source);
    }
}

/// True if everything was sent, and the target's process has acknowledged it, perhaps before it left, and
/// refused nothing that was not reported.
fn is_settled(engine: &mut Engine, source: u32, edge: &RetiredEdge) -> bool {
    let RetiredEdge { target, unsent } = edge;
    unsent.is_none()
        && !engine.has_unreported_refusal(source, target)
        && is_acknowledged(engine, target)
}

fn is_acknowledged(engine: &mut Engine, target: &Target) -> bool {
    let peer = target.edge.peer;
    match engine.is_open(peer) {
        Ok(_) => engine.is_peer_acknowledged(peer),
        Err(_) => engine.acknowledged_before_leaving(peer),
    }
}

impl EdgeTable {
    /// The edges of all messages that an endpoint has sent to addresses, also as replies, and to targets
    /// that were removed.
    pub(crate) fn sent_to(&self, source: u32) -> Vec<RetiredEdge> {
        let cached = self.cached.iter().filter(|((from, _), _)| *from == source);
        let open = cached.filter_map(|(_, id)| match &self.get(*id)?.stage {
            Stage::Open(target) => Some(RetiredEdge::sent(target)),
            _ => None,
        });
        let retired = self.retired.edges.iter();
        let retired = retired.filter(|((from, _), _)| *from == source);
        open.chain(retired.map(|(_, edge)| edge.clone())).collect()
    }

    /// Closes the edge of a target that was removed. Returns the number of messages that waited for room:
    /// they are not sent, which is a loss to report if `is_loss`.
    pub(crate) fn retire(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        id: EdgeRef,
        is_loss: bool,
    ) -> usize {
        let Some(edge) = self.get(id) else {
            return 0;
        };
        let (source, waiting) = (edge.source, edge.posts.waiting().0);
        if let Stage::Open(target) = &edge.stage {
            let failed = edge.posts.failure().map(Unsent::Failed);
            let cancelled = (waiting > 0).then_some(Unsent::Cancelled);
            let retired = RetiredEdge {
                unsent: failed.or(cancelled).filter(|_| is_loss),
                ..RetiredEdge::sent(target)
            };
            if retired.unsent.is_some() || !retired.target.sent.is_empty() {
                self.retired.add(engine, source, retired);
            }
        }
        self.close(engine, queues, id);
        waiting
    }

    /// True if an endpoint has sent along an edge that is closed, whatever became of that.
    pub(crate) fn has_retired(&self, source: u32) -> bool {
        self.retired.sources.contains(&source)
    }

    /// The loss of what was sent to a target has been reported to the caller.
    pub(crate) fn reported_loss(&mut self, engine: &mut Engine, source: u32, target: &Target) {
        let key = (source, target.address);
        let cached = self.cached.get(&key).and_then(|id| self.get(*id));
        let is_cached = cached.is_some_and(
            |edge| matches!(&edge.stage, Stage::Open(open) if open.edge == target.edge),
        );
        if is_cached {
            self.forget_cached(engine, source, target.address);
        }
        self.retired.edges.remove(&(source, target.edge));
    }

    pub(super) fn forget_cached(&mut self, engine: &mut Engine, source: u32, to: Address) {
        let Some(id) = self.cached.remove(&(source, to)) else {
            return;
        };
        if let Some(edge) = self.get(id)
            && let Stage::Open(target) = &edge.stage
        {
            let retired = RetiredEdge::sent(target);
            self.retired.add(engine, source, retired);
        }
        // Cached edges have no completion queue, so pending posts are simply dropped.
        let _posts = self.remove(engine, id);
    }
}
