//! What all sessions of a process share: pool, endpoints, events, counters.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::config::Config;
use crate::event::{EdgeId, Event, PeerId};
use crate::grants::Grants;
use crate::pool::Pool;
use crate::send::Slot;
use crate::stats::{DropReason, Stats};
use crate::time::Instant;

/// The turn of an edge whose message is longer than its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oversize {
    pub(crate) edge: EdgeId,
    /// Cumulative bytes of the edge at which the turn ends.
    pub(crate) end: u64,
    /// The message has begun to arrive.
    pub(crate) begun: bool,
    pub(crate) granted_at: Instant,
}

impl Oversize {
    /// The sender was given its turn and lets it pass: it must have given up.
    /// Counts to the last step, as what has come since we last looked may be its answer.
    pub(crate) fn is_forfeit(&self, stepped_at: Instant, config: &Config) -> bool {
        let patience_ns = FORFEIT_TIMEOUTS * config.max_timeout_ns;
        !self.begun && stepped_at.since(self.granted_at) > patience_ns
    }
}

/// The moment of the grant is left out: states that differ only in it are compared
/// as equal, as all times are.
impl core::hash::Hash for Oversize {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.edge, self.end, self.begun).hash(state);
    }
}

/// A turn that is not used for this many longest time-outs passes to who waits.
const FORFEIT_TIMEOUTS: u64 = 4;

/// One open endpoint, as far as admission needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// Whose over-long message is admitted now.
    pub(crate) oversize: Option<Oversize>,
    /// Edges waiting for that.
    pub(crate) waiting: VecDeque<EdgeId>,
    /// Bytes of messages that wait to be read though their edges are forgotten.
    pub(crate) ended_unread: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) endpoints: BTreeMap<u32, Endpoint>,
    /// Some edge may wait for another's over-long message.
    pub(crate) edges_waiting: bool,
    /// Changes whenever an endpoint opens or closes; never zero.
    pub(crate) endpoints_generation: u64,
    pub(crate) events: VecDeque<Event>,
    /// Frames whose units have arrived, or never will.
    pub(crate) released: Vec<Slot>,
    pub(crate) stats: Stats,
    /// Sessions that are open, ours included: the thesis's p.
    pub(crate) processes: u32,
    /// Bytes of memory that are spoken for, over all incoming edges.
    pub(crate) committed: u64,
    /// Incoming edges that have not ended.
    pub(crate) edges_in: u32,
    pub(crate) grants: Grants,
    /// Units of all sessions of which some parts have arrived.
    pub(crate) assemblies: usize,
    /// The unit that the last packet completed, if it came in parts: events point into it.
    pub(crate) assembled: Option<Vec<u8>>,
    /// When timers last acted.
    pub(crate) stepped_at: Instant,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Shared {
        Shared {
            pool: Pool::new(config.pool_bytes, config.pool_reserve_bytes),
            endpoints: BTreeMap::new(),
            edges_waiting: false,
            endpoints_generation: 1,
            events: VecDeque::new(),
            released: Vec::new(),
            stats: Stats::default(),
            processes: 1,
            committed: 0,
            edges_in: 0,
            grants: Grants::new(config.window_packets, config.session_packets),
            config,
            assemblies: 0,
            assembled: None,
            stepped_at: Instant(0),
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn count(&mut self, reason: DropReason) {
        self.stats.count(reason);
    }

    /// Bytes that windows may still grow by.
    pub(crate) fn credit_budget(&self) -> u64 {
        self.pool.budget().saturating_sub(self.committed)
    }

    /// Packets that may come from a peer before it is acknowledged without
    /// having asked: the thesis's n/2p, and never more than a quarter of the `window` that it
    /// was told.
    pub(crate) fn packets_per_ack(&self, window: u32) -> u32 {
        let n = self.config.frames + self.config.window_packets;
        (n / (2 * self.processes.max(1))).min(window / 4).max(1)
    }

    /// This process did not step for a while: that time is nobody's delay.
    pub(crate) fn discount(&mut self, absence_ns: u64) {
        for endpoint in self.endpoints.values_mut() {
            if let Some(turn) = &mut endpoint.oversize {
                turn.granted_at = turn.granted_at.after(absence_ns);
            }
        }
    }

    /// The next edge whose turn for an over-long message may have come. Each is given
    /// once, unless it waits again.
    pub(crate) fn next_waiting(&mut self) -> Option<EdgeId> {
        let (stepped_at, config) = (self.stepped_at, &self.config);
        let next = self.endpoints.values_mut().find_map(|endpoint| {
            let free = endpoint
                .oversize
                .is_none_or(|turn| turn.is_forfeit(stepped_at, config));
            match free {
                true => endpoint.waiting.pop_front(),
                false => None,
            }
        });
        let mut endpoints = self.endpoints.values();
        self.edges_waiting = endpoints.any(|endpoint| !endpoint.waiting.is_empty());
        next
    }

    /// When a turn that nobody uses may pass to an edge that waits.
    pub(crate) fn retry_at(&self) -> Instant {
        match self.edges_waiting {
            true => self.stepped_at.after(self.config.max_timeout_ns),
            false => Instant::NEVER,
        }
    }

    /// Forgets an edge's place in the queue for over-long messages of its target.
    pub(crate) fn forget_edge(&mut self, edge: EdgeId, target: u32) {
        if let Some(endpoint) = self.endpoints.get_mut(&target) {
            endpoint.waiting.retain(|waiting| *waiting != edge);
            if endpoint.oversize.is_some_and(|turn| turn.edge == edge) {
                endpoint.oversize = None;
            }
        }
    }

    /// Forgets a peer's place in the queues for over-long messages.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.grants.forget(peer);
        for endpoint in self.endpoints.values_mut() {
            endpoint.waiting.retain(|edge| edge.peer != peer);
            if endpoint.oversize.is_some_and(|turn| turn.edge.peer == peer) {
                endpoint.oversize = None;
            }
        }
    }
}
