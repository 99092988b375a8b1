//! Messages of ranks over endpoints of Dipole.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dipole_node::job::Job;
use dipole_node::{Completion, CompletionQueue, Config, Edge, Endpoint, Message, Node, SendError};
use dipole_node::{Links, Operation, ReceiveError, Region, RegionKey, RegionMemory, Rights};
use rustc_hash::FxHashMap;

use super::Carrier;
use crate::failure::Failure;
use crate::superstep::message::{Head, Kind};

/// Bytes that may be on their way at once; the rest waits for its turn in the schedule.
const WINDOW_BYTES: usize = 1 << 20;
/// Longest message that is sent at once, by copying it into a packet.
const SHORT_BYTES: usize = 8 << 10;

/// How long after a question whether a rank lives the next one follows.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Endpoints {
    job: Job,
    // Before the node: what they are attached to goes last.
    edges: Vec<Option<Route>>,
    queue: CompletionQueue,
    /// Memory in which others place bytes.
    open: FxHashMap<u64, Region>,
    endpoint: Endpoint,
    node: Node,
    /// The kind of link.
    link: &'static str,
    /// Bytes posted that have not left.
    posted: usize,
    /// Of how many that are to be placed.
    placing: usize,
    /// Came while somebody looked for something else.
    came: VecDeque<Message>,
}

/// The way to a rank.
#[derive(Debug)]
struct Route {
    edge: Edge,
    /// Messages posted that have not left: those that follow must not overtake them.
    posted: usize,
    /// When it was last sent something only to find out whether it lives.
    asked_at: Option<Instant>,
}

/// Set in the number of what is placed.
const PLACED: u64 = 1 << 63;
const LENGTH: u64 = (1 << 40) - 1;

/// A number that comes back when something has left: to whom it went, and its length.
fn context(to: u32, length: usize) -> u64 {
    (u64::from(to) << 40) | length as u64
}

/// What the profile of a link is called: bulk of either goes through sockets.
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
    /// It cannot be opened.
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
            placing: 0,
            came: VecDeque::new(),
        })
    }

    /// Counters of this rank's links.
    pub(crate) fn stats(&self) -> dipole_node::Stats {
        self.node.stats()
    }

    fn route(&mut self, to: u32) -> Result<&mut Route, Failure> {
        let place = &mut self.edges[to as usize];
        if place.is_none() {
            let edge = self.endpoint.edge(self.job.addresses[to as usize])?;
            edge.attach(&self.queue);
            *place = Some(Route {
                edge,
                posted: 0,
                asked_at: None,
            });
        }
        place.as_mut().ok_or_else(|| unreachable(to, &"no edge"))
    }

    /// Takes note of what has happened; a message is for the caller.
    fn note(&mut self, completion: Completion) -> Result<Option<Message>, Failure> {
        let (context, lost) = match completion {
            Completion::Received { message, .. } => return Ok(Some(message)),
            Completion::Sent { context } | Completion::Done { context, .. } => (context, None),
            Completion::Failed { context, error } => (context, Some(error)),
            // No receives are posted.
            Completion::Filled { .. } | Completion::NotFilled { .. } => return Ok(None),
        };
        let to = u32::try_from((context & !PLACED) >> 40).unwrap_or(u32::MAX);
        if let Some(error @ SendError::OperationFailed { .. }) = lost {
            // It had left.
            return Err(failed(to, error));
        }
        self.posted -= usize::try_from(context & LENGTH).unwrap_or(0);
        self.placing -= usize::from(context & PLACED != 0);
        if let Some(Some(route)) = self.edges.get_mut(to as usize) {
            route.posted -= 1;
        }
        lost.map_or(Ok(None), |error| Err(failed(to, error)))
    }

    fn with_rank(&self, message: Message) -> Option<(u32, Message)> {
        let rank = self.job.rank_of(message.source());
        if rank.is_none() {
            let source = message.source();
            tracing::warn!(%source, "a message from outside of the program was dropped");
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
        while self.posted >= WINDOW_BYTES && self.came.is_empty() {
            match self.queue.poll()? {
                Some(completion) => {
                    let message = self.note(completion)?;
                    self.came.extend(message);
                }
                None => return Ok(false),
            }
        }
        Ok(self.posted < WINDOW_BYTES)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let length = message.len();
        let route = self.route(to)?;
        if length <= SHORT_BYTES && route.posted == 0 {
            match route.edge.try_send(&message) {
                Err(SendError::Full { .. }) => {}
                sent => return sent.map_err(|error| failed(to, error)),
            }
        }
        let bytes = Bytes::from(message);
        let posted = (route.edge).post_bytes(Operation::Message, bytes, context(to, length));
        posted.map_err(|error| failed(to, error))?;
        route.posted += 1;
        self.posted += length;
        Ok(())
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Message)>, Failure> {
        if let Some(message) = self.came.pop_front() {
            return Ok(self.with_rank(message));
        }
        let until = Instant::now() + patience;
        let (is_full, is_placing) = (self.posted >= WINDOW_BYTES, self.is_placing());
        while self.posted > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let Some(completion) = self.queue.wait(left)? else {
                return Ok(None);
            };
            if let Some(message) = self.note(completion)? {
                return Ok(self.with_rank(message));
            }
            let has_placed = is_placing && !self.is_placing();
            if has_placed || is_full && self.posted < WINDOW_BYTES {
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
            let route = self.route(rank)?;
            // A peer that owes no acknowledgement may die unnoticed.
            let is_due = route.asked_at.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
            if is_due && route.posted == 0 {
                let alive = Head::new(Kind::Alive, 0).encode();
                match route.edge.try_send(&alive) {
                    Ok(()) => route.asked_at = Some(Instant::now()),
                    Err(SendError::Full { .. }) => {}
                    Err(error) => return Err(failed(rank, error)),
                }
            }
            match route.edge.wait_open(Duration::ZERO) {
                Ok(()) | Err(SendError::TimedOut { .. }) => {}
                Err(error) => return Err(failed(rank, error)),
            }
        }
        Ok(())
    }

    fn open(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
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

    fn place(&mut self, to: u32, key: u64, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let length = bytes.len();
        let key = RegionKey(key);
        let put = Operation::PutUnanswered { key, offset };
        let route = self.route(to)?;
        let posted = (route.edge).post_bytes(put, bytes, context(to, length) | PLACED);
        posted.map_err(|error| failed(to, error))?;
        route.posted += 1;
        self.posted += length;
        self.placing += 1;
        Ok(())
    }

    fn is_placing(&self) -> bool {
        self.placing > 0
    }

    fn name(&self) -> &'static str {
        self.link
    }

    fn counters(&self) -> (u64, u64) {
        let protocol = self.node.stats().protocol;
        (protocol.repeats, protocol.prods)
    }

    fn take_back(&mut self) {
        if self.is_placing() {
            // What has not begun is withdrawn; the rest is copied as there is room, or its rank is gone.
            self.edges.fill_with(|| None);
        }
        while self.is_placing() {
            let Ok(completion) = self.queue.wait(Duration::from_secs(1)) else {
                return;
            };
            let noted = completion.map_or(Ok(None), |completion| self.note(completion));
            self.came.extend(noted.ok().flatten());
        }
    }

    fn close(&mut self, patience: Duration) {
        self.open.clear();
        self.edges.clear();
        // Whoever has not taken everything by then will not.
        let _closed = self.node.clone().close(patience);
    }
}
