//! Messages between ranks over Dipole endpoints.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dipole_node::job::Job;
use dipole_node::{Completion, CompletionQueue, Config, Edge, Endpoint, Message, Node, SendError};
use dipole_node::{
    DropReason, Links, Operation, ReceiveError, Region, RegionKey, RegionMemory, Rights,
};
use rustc_hash::FxHashMap;

use super::{Carrier, LinkCounters};
use crate::failure::Failure;
use crate::superstep::message::{Head, Kind};

/// Bytes that may be in flight; the rest waits for its turn in the schedule.
const WINDOW_BYTES: usize = 1 << 20;
/// Longest message that is copied into a packet and sent at once.
const SHORT_BYTES: usize = 8 << 10;

/// Minimum time between two probes of a rank.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Carrier that sends messages over Dipole endpoints.
#[derive(Debug)]
pub struct Endpoints {
    job: Job,
    // Declared before the node, which must be dropped last.
    edges: Vec<Option<PeerEdge>>,
    queue: CompletionQueue,
    /// Memory that other ranks may write.
    open: FxHashMap<u64, Region>,
    endpoint: Endpoint,
    node: Node,
    /// The kind of link.
    link: &'static str,
    /// Bytes posted that have not left.
    posted: usize,
    /// Remote writes posted that have not left.
    pending_writes: usize,
    /// Messages received while this rank looked for completions.
    received: VecDeque<Message>,
}

/// The edge to a rank.
#[derive(Debug)]
struct PeerEdge {
    edge: Edge,
    /// Messages posted that have not left. Later messages must not overtake them.
    posted: usize,
    /// When the last probe was sent.
    probed_at: Option<Instant>,
}

/// Set in the context of a remote write.
const WRITE: u64 = 1 << 63;
const LENGTH: u64 = (1 << 40) - 1;

/// The context of a posted message: its destination and length, returned with its completion.
fn context(to: u32, length: usize) -> u64 {
    (u64::from(to) << 40) | length as u64
}

/// The link in the name of a profile. Shared memory and UDP have one, because long messages between
/// nodes use sockets in both cases.
pub(crate) fn link_name(links: Links) -> &'static str {
    match links {
        Links::Bpf => "bpf",
        Links::Auto | Links::Shm | Links::Udp => "udp",
    }
}

impl Endpoints {
    /// Opens this rank's endpoint.
    ///
    /// # Errors
    /// The endpoint cannot be opened.
    pub fn open(job: Job, config: Config) -> Result<Endpoints, Failure> {
        let link = link_name(config.links);
        let node = Node::open(config)?;
        let endpoint = node.endpoint(job.own_address().endpoint)?;
        let queue = node.completion_queue();
        endpoint.attach(&queue);
        Ok(Endpoints {
            edges: (0..job.size).map(|_| None).collect(),
            job,
            queue,
            open: FxHashMap::default(),
            endpoint,
            node,
            link,
            posted: 0,
            pending_writes: 0,
            received: VecDeque::new(),
        })
    }

    /// Counters of this rank's links.
    pub(crate) fn stats(&self) -> dipole_node::Stats {
        self.node.stats()
    }

    fn peer(&mut self, to: u32) -> Result<&mut PeerEdge, Failure> {
        let slot = &mut self.edges[to as usize];
        if slot.is_none() {
            let edge = self.endpoint.edge(self.job.addresses[to as usize])?;
            edge.attach(&self.queue);
            *slot = Some(PeerEdge {
                edge,
                posted: 0,
                probed_at: None,
            });
        }
        slot.as_mut().ok_or_else(|| unreachable(to, &"no edge"))
    }

    /// Handles a completion. Returns the message that it carries, if any.
    fn complete(&mut self, completion: Completion) -> Result<Option<Message>, Failure> {
        let (context, error) = match completion {
            Completion::Received { message, .. } => return Ok(Some(message)),
            Completion::Sent { context } | Completion::Done { context, .. } => (context, None),
            Completion::Failed { context, error } => (context, Some(error)),
            // This carrier posts no receives and does not watch departures.
            Completion::Filled { .. }
            | Completion::NotFilled { .. }
            | Completion::Departed { .. } => return Ok(None),
        };
        let to = u32::try_from((context & !WRITE) >> 40).unwrap_or(u32::MAX);
        if let Some(error @ SendError::OperationFailed { .. }) = error {
            // It had left, so it has been counted already.
            return Err(failed(to, error));
        }
        self.posted -= usize::try_from(context & LENGTH).unwrap_or(0);
        self.pending_writes -= usize::from(context & WRITE != 0);
        if let Some(Some(peer)) = self.edges.get_mut(to as usize) {
            peer.posted -= 1;
        }
        error.map_or(Ok(None), |error| Err(failed(to, error)))
    }

    fn with_rank(&self, message: Message) -> Option<(u32, Message)> {
        let rank = self.job.rank_of(message.source());
        if rank.is_none() {
            let source = message.source();
            tracing::warn!(%source, "dropped a message from outside the program");
        }
        rank.map(|rank| (rank, message))
    }
}

fn unreachable(rank: u32, cause: &dyn std::fmt::Display) -> Failure {
    Failure::Unreachable {
        rank,
        cause: cause.to_string(),
    }
}

fn failed(rank: u32, error: SendError) -> Failure {
    let cause = error.to_string();
    match error {
        SendError::PeerGone { .. } | SendError::Refused { .. } => Failure::Gone { rank, cause },
        SendError::Unreachable(_) => Failure::Unreachable { rank, cause },
        error => Failure::Send(error),
    }
}

impl Carrier for Endpoints {
    type Message = Message;

    fn has_room(&mut self) -> Result<bool, Failure> {
        while self.posted >= WINDOW_BYTES && self.received.is_empty() {
            match self.queue.poll()? {
                Some(completion) => {
                    let message = self.complete(completion)?;
                    self.received.extend(message);
                }
                None => return Ok(false),
            }
        }
        Ok(self.posted < WINDOW_BYTES)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let length = message.len();
        let peer = self.peer(to)?;
        if length <= SHORT_BYTES && peer.posted == 0 {
            match peer.edge.try_send(&message) {
                Err(SendError::Full { .. }) => {}
                sent => return sent.map_err(|error| failed(to, error)),
            }
        }
        let bytes = Bytes::from(message);
        let posted = (peer.edge).post_bytes(Operation::Message, bytes, context(to, length));
        posted.map_err(|error| failed(to, error))?;
        peer.posted += 1;
        self.posted += length;
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(u32, Message)>, Failure> {
        if let Some(message) = self.received.pop_front() {
            return Ok(self.with_rank(message));
        }
        let until = Instant::now() + timeout;
        let (is_full, was_writing) = (self.posted >= WINDOW_BYTES, self.has_pending_writes());
        while self.posted > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let Some(completion) = self.queue.wait(left)? else {
                return Ok(None);
            };
            if let Some(message) = self.complete(completion)? {
                return Ok(self.with_rank(message));
            }
            let has_written = was_writing && !self.has_pending_writes();
            if has_written || is_full && self.posted < WINDOW_BYTES {
                return Ok(None);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        match self.endpoint.receive_timeout(left) {
            Ok(message) => Ok(self.with_rank(message)),
            Err(ReceiveError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        for &rank in ranks {
            let peer = self.peer(rank)?;
            // A rank that owes no acknowledgement could end unnoticed.
            let is_due = peer
                .probed_at
                .is_none_or(|at| at.elapsed() >= PROBE_INTERVAL);
            if is_due && peer.posted == 0 {
                let probe = Head::new(Kind::Probe, 0).encode();
                match peer.edge.try_send(&probe) {
                    Ok(()) => peer.probed_at = Some(Instant::now()),
                    Err(SendError::Full { .. }) => {}
                    Err(error) => return Err(failed(rank, error)),
                }
            }
            match peer.edge.wait_open(Duration::ZERO) {
                Ok(()) | Err(SendError::TimedOut { .. }) => {}
                Err(error) => return Err(failed(rank, error)),
            }
        }
        Ok(())
    }

    fn open_memory(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        let rights = Rights {
            put: true,
            ..Rights::NONE
        };
        let region = self.endpoint.open_region(memory.clone(), rights)?;
        let key = region.key().0;
        self.open.insert(key, region);
        Ok(Some(key))
    }

    fn close_memory(&mut self, key: u64) {
        self.open.remove(&key);
    }

    fn write_remote(
        &mut self,
        to: u32,
        key: u64,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), Failure> {
        let length = bytes.len();
        let key = RegionKey(key);
        let put = Operation::PutUnanswered { key, offset };
        let peer = self.peer(to)?;
        let posted = (peer.edge).post_bytes(put, bytes, context(to, length) | WRITE);
        posted.map_err(|error| failed(to, error))?;
        peer.posted += 1;
        self.posted += length;
        self.pending_writes += 1;
        Ok(())
    }

    fn has_pending_writes(&self) -> bool {
        self.pending_writes > 0
    }

    fn name(&self) -> &'static str {
        self.link
    }

    fn counters(&self) -> LinkCounters {
        let protocol = self.node.stats().protocol;
        LinkCounters {
            repeats: protocol.repeats,
            duplicates: protocol.dropped(DropReason::Duplicate),
            ack_requests: protocol.ack_requests,
        }
    }

    fn reclaim_memory(&mut self) {
        if self.has_pending_writes() {
            // Withdraws what has not begun. The rest is copied as there is room, or its peer is gone.
            self.edges.fill_with(|| None);
        }
        while self.has_pending_writes() {
            let Ok(completion) = self.queue.wait(Duration::from_secs(1)) else {
                return;
            };
            let completed = completion.map_or(Ok(None), |completion| self.complete(completion));
            self.received.extend(completed.ok().flatten());
        }
    }

    fn close(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let left = || until.saturating_duration_since(Instant::now());
        self.open.clear();
        // Closing an edge would cancel what waits for its connection or for room.
        while self.posted > 0
            && let Ok(Some(completion)) = self.queue.wait(left())
        {
            let _failed = self.complete(completion);
        }
        self.edges.clear();
        // A rank that has not received everything by now will not.
        let _closed = self.node.clone().close(left());
    }
}
