//! State that all sessions of a process share: pool, endpoints, events, counters.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::event::{EdgeId, Event, PeerId};
use crate::grants::Grants;
use crate::pool::Pool;
use crate::send::Slot;
use crate::stats::{DropReason, Stats};
use crate::time::Instant;
use crate::wire::{Address, LaneAddress};

/// The turn of an edge to send a message longer than its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Oversize {
    pub(crate) edge: EdgeId,
    /// Cumulative bytes of the edge at which the turn ends.
    pub(crate) end: u64,
    /// The message has begun to arrive.
    pub(crate) begun: bool,
    pub(crate) granted_at: Instant,
}

impl Oversize {
    /// True if the sender does not use its turn, because it has withdrawn the message. The time
    /// counts up to the last step, since a packet that arrived after it may be the message.
    pub(crate) fn is_forfeit(&self, stepped_at: Instant, config: &Config) -> bool {
        let patience_ns = FORFEIT_TIMEOUTS * config.max_timeout_ns;
        !self.begun && stepped_at.since(self.granted_at) > patience_ns
    }
}

/// The time of the grant is not hashed: states that differ only in times count as equal.
impl core::hash::Hash for Oversize {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.edge, self.end, self.begun).hash(state);
    }
}

/// A turn that is not used for this many longest time-outs passes to another edge.
const FORFEIT_TIMEOUTS: u64 = 4;

/// State of an open endpoint that affects admission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    /// The edge whose long message is admitted now.
    pub(crate) oversize: Option<Oversize>,
    /// Edges that wait for their turn.
    pub(crate) waiting: VecDeque<EdgeId>,
    /// Unread bytes of edges that are already forgotten.
    pub(crate) ended_unread: u64,
}

/// State shared by all sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// The lanes on which this process listens.
    pub(crate) lanes: Vec<LaneAddress>,
    pub(crate) pool: Pool,
    pub(crate) endpoints: BTreeMap<u32, Endpoint>,
    /// Some edge may be waiting for its turn to send a long message.
    pub(crate) edges_waiting: bool,
    /// Changes whenever an endpoint opens or closes; never zero.
    pub(crate) endpoints_generation: u64,
    pub(crate) events: VecDeque<Event>,
    /// Peers that have moved, with their former homes. Empty between two calls.
    pub(crate) moved_homes: Vec<(PeerId, Address)>,
    /// Frames whose units have arrived or are abandoned.
    pub(crate) released: Vec<Slot>,
    pub(crate) stats: Stats,
    /// Number of processes: open sessions and this process (p in the thesis).
    pub(crate) processes: u32,
    /// Bytes of memory reserved for all incoming edges.
    pub(crate) committed: u64,
    /// Number of incoming edges that have not ended.
    pub(crate) edges_in: u32,
    pub(crate) grants: Grants,
    /// Number of units of all sessions of which some parts have arrived.
    pub(crate) assemblies: usize,
    /// The unit that the last packet has completed, if it arrived in parts. Events refer to it.
    pub(crate) assembled: Option<Vec<u8>>,
    /// When timers were last handled.
    pub(crate) stepped_at: Instant,
}

impl Shared {
    pub(crate) fn new(config: Config, lanes: &[LaneAddress]) -> Shared {
        Shared {
            pool: Pool::new(config.pool_bytes, config.pool_reserve_bytes),
            endpoints: BTreeMap::new(),
            lanes: lanes.to_vec(),
            edges_waiting: false,
            endpoints_generation: 1,
            events: VecDeque::new(),
            moved_homes: Vec::new(),
            released: Vec::new(),
            stats: Stats::default(),
            processes: 1,
            committed: 0,
            edges_in: 0,
            grants: Grants::new(&config),
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

    /// Bytes by which windows may still grow.
    pub(crate) fn credit_budget(&self) -> u64 {
        self.pool.budget().saturating_sub(self.committed)
    }

    /// Packets accepted from a peer before an acknowledgement is sent unasked: n/2p of the thesis,
    /// but at most a quarter of the `window` that the peer knows.
    pub(crate) fn packets_per_ack(&self, window: u32) -> u32 {
        let window_packets = self.config.window_packets;
        let n = self.config.frames.min(window_packets) + window_packets;
        (n / (2 * self.processes.max(1))).min(window / 4).max(1)
    }

    /// Subtracts a time in which this process did not run. Turns that packets have granted since then
    /// stay as they are.
    pub(crate) fn discount(&mut self, now: Instant, absence_ns: u64) {
        for endpoint in self.endpoints.values_mut() {
            if let Some(turn) = &mut endpoint.oversize {
                turn.granted_at = turn.granted_at.after(absence_ns).min(now);
            }
        }
    }

    /// The next edge whose turn for a long message may have come. Each waiting edge is returned once.
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

    /// When an unused turn may pass to a waiting edge.
    pub(crate) fn retry_at(&self) -> Instant {
        match self.edges_waiting {
            true => self.stepped_at.after(self.config.max_timeout_ns),
            false => Instant::NEVER,
        }
    }

    /// Removes an edge from the queue for long messages to its target.
    pub(crate) fn forget_edge(&mut self, edge: EdgeId, target: u32) {
        if let Some(endpoint) = self.endpoints.get_mut(&target) {
            endpoint.waiting.retain(|waiting| *waiting != edge);
            if endpoint.oversize.is_some_and(|turn| turn.edge == edge) {
                endpoint.oversize = None;
            }
        }
    }

    /// Removes a peer from all queues for long messages.
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
