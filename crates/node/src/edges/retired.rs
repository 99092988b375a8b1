//! Edges that an endpoint opened by sending to an address, and what was sent along them: for
//! callers that wait until all of it has been acknowledged.
//!
//! Such edges are closed when there are too many or when their process has gone. [`Retired`]
//! remembers those whose process has not acknowledged everything or has refused something.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{EdgeTable, MAX_CACHED, Stage};
use crate::address::Address;
use dipole_engine::{Engine, Target};
use dipole_proto::EdgeId;

/// Closed edges of which something may be unacknowledged or refused.
#[derive(Debug, Default)]
pub(super) struct Retired {
    /// By endpoint and id.
    edges: FxHashMap<(u32, EdgeId), Target>,
    /// Endpoints of closed edges, whatever became of what was sent.
    sources: FxHashSet<u32>,
}

impl Retired {
    fn add(&mut self, engine: &mut Engine, source: u32, target: Target) {
        self.sources.insert(source);
        if is_settled(engine, source, &target) {
            return;
        }
        if self.edges.len() >= MAX_CACHED {
            self.edges
                .retain(|(source, _), target| !is_settled(engine, *source, target));
        }
        // The limit bounds the memory of callers that never wait: they lose refusals first.
        if self.edges.len() >= MAX_CACHED {
            self.edges
                .retain(|_, target| !is_acknowledged(engine, target));
        }
        if self.edges.len() < MAX_CACHED {
            self.edges.insert((source, target.edge), target);
        }
    }

    pub(super) fn close_endpoint(&mut self, source: u32) {
        self.edges.retain(|(endpoint, _), _| *endpoint != source);
        self.sources.remove(&source);
    }
}

/// True if the target's process has acknowledged everything, perhaps before it left, and refused
/// nothing that was not reported.
fn is_settled(engine: &mut Engine, source: u32, target: &Target) -> bool {
    !engine.has_unreported_refusal(source, target) && is_acknowledged(engine, target)
}

fn is_acknowledged(engine: &mut Engine, target: &Target) -> bool {
    let peer = target.edge.peer;
    match engine.is_open(peer) {
        Ok(_) => engine.is_peer_acknowledged(peer),
        Err(_) => engine.acknowledged_before_leaving(peer),
    }
}

impl EdgeTable {
    /// The targets of all messages that an endpoint has sent to addresses, also as replies.
    pub(crate) fn sent_to(&self, source: u32) -> Vec<Target> {
        let cached = self.cached.iter().filter(|((from, _), _)| *from == source);
        let open = cached.filter_map(|(_, id)| match &self.get(*id)?.stage {
            Stage::Open(target) => Some(target),
            _ => None,
        });
        let retired = self.retired.edges.iter();
        let retired = retired.filter(|((from, _), _)| *from == source);
        let retired = retired.map(|(_, target)| target);
        open.chain(retired).cloned().collect()
    }

    /// True if an endpoint has sent to an address to which its edge is closed, whatever became of that.
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
            let target = target.clone();
            self.retired.add(engine, source, target);
        }
        // Cached edges have no completion queue, so pending posts are simply dropped.
        let _posts = self.remove(engine, id);
    }
}
