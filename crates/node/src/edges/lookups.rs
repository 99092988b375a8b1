//! Look-ups while threads are short: the connector's thread is started again until an edge's time is
//! over.

use dipole_engine::Engine;
use dipole_proto::{Instant, PeerId};

use super::connector::Lookup;
use super::{EdgeRef, EdgeTable, Stage};
use crate::address::Address;
use crate::error::TargetError;

/// Pause before the connector's thread is started again when threads are short.
const THREAD_RETRY_NS: u64 = 50_000_000;

impl EdgeTable {
    /// Peers on other nodes with this endpoint to which an edge is open.
    pub(crate) fn remote_peers_at(&self, engine: &Engine, endpoint: Address) -> Vec<PeerId> {
        let edges = self.slots.iter().flatten();
        edges
            .filter(|edge| edge.to == endpoint)
            .filter_map(|edge| match &edge.stage {
                Stage::Open(target) => Some(target.edge.peer),
                _ => None,
            })
            .filter(|peer| engine.machine().is_open(*peer) && !engine.shares_memory(*peer))
            .collect()
    }

    /// Looks up the target of an edge. If threads are short the look-up waits until one can be
    /// started.
    pub(super) fn look_up(&mut self, lookup: Lookup, now: Instant) {
        let started = self.connector.resolve(lookup);
        self.on_started(started, now);
    }

    fn on_started(&mut self, started: std::io::Result<()>, now: Instant) {
        self.no_thread = started
            .err()
            .map(|cause| (now.after(THREAD_RETRY_NS), cause));
    }

    /// Starts the connector's thread again if it could not be started before.
    pub(super) fn restart_connector(&mut self, now: Instant) {
        if self.no_thread.as_ref().is_some_and(|(at, _)| now >= *at) {
            let started = self.connector.start();
            self.on_started(started, now);
        }
    }

    /// Marks an edge as failed if its target cannot be looked up for want of a thread.
    pub(super) fn fail_without_thread(&mut self, engine: &mut Engine, id: EdgeRef) {
        if let Some((_, cause)) = &self.no_thread
            && let Some(edge) = self.get(id)
        {
            let cause = TargetError::Shortage {
                target: edge.to,
                waited: self.connector.policy().connect_timeout(),
                cause: std::io::Error::new(cause.kind(), format!("starting a thread: {cause}")),
            };
            self.fail(engine, id, cause);
        }
    }
}
