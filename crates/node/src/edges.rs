//! Edges of the public API: created at once, connected in the background.
//!
//! An edge is resolved ([`Connector`] finds the process of the target endpoint on its own
//! threads), then opened (that process answers), then used. Operations posted before that wait
//! here. An edge that failed stays failed and keeps its error. An edge to the source of a message
//! is open from the start, because its process is known. Posted operations are limited
//! (`posts.rs`).
//!
//! Everything here is protected by the driver's lock.

mod connector;
mod fanout;
mod id;
mod lookups;
mod opening;
mod posts;
mod retired;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use dipole_link::fault::{Plan, Shortage};
use dipole_proto::{EdgeError, Instant, PeerId, wire};
use rustc_hash::FxHashMap;

use crate::address::Address;
use crate::config::Links;
use crate::error::{SendError, TargetError};
use crate::queues::QueueTable;
use crate::registry::{EdgeTraffic, Ports};
use connector::Lookup;
pub(crate) use connector::{Connector, Policy, Resolution};
use dipole_driver::Reading;
use dipole_engine::{
    AnswerBuffer, Blocked, Content, Context, Engine, OperationId, QueueRef, Target,
};
pub use fanout::OverflowPolicy;
pub(crate) use fanout::{Delivery, FanOut, RemovedTarget, TargetTable};
pub(crate) use id::EdgeRef;
use opening::{Attempt, Shortages, connect, last_failure, permanent_failure};
use posts::Posts;
pub(crate) use posts::{MAX_POSTED_BYTES, NewPost, PostedBytes};
use retired::Retired;

/// Limit of edges that an endpoint keeps for replies.
const MAX_CACHED: usize = 1024;
#[derive(Debug)]
enum Stage {
    /// Finding the process of the target endpoint.
    Resolving,
    /// Waiting for that process to answer.
    Opening(Attempt),
    Open(Target),
    Failed(Arc<TargetError>),
}

#[derive(Debug)]
struct EdgeState {
    generation: u32,
    source: u32,
    to: Address,
    stage: Stage,
    started_at: Instant,
    deadline: Instant,
    posts: Posts,
    shortages: Shortages,
    /// Value of the use counter at its last use, for the cache of an endpoint.
    last_used: u64,
}

impl EdgeState {
    /// True unless it has failed or its target's process is gone.
    fn is_usable(&self, engine: &Engine) -> bool {
        match &self.stage {
            Stage::Failed(_) => false,
            Stage::Resolving | Stage::Opening(_) => true,
            Stage::Open(_) => !self.has_lost_peer(engine),
        }
    }

    /// True if it was open, and its target's process is gone.
    fn has_lost_peer(&self, engine: &Engine) -> bool {
        matches!(&self.stage, Stage::Open(target) if !engine.machine().is_open(target.edge.peer))
    }
}

/// All edges of a process.
#[derive(Debug)]
pub(crate) struct EdgeTable {
    slots: Vec<Option<EdgeState>>,
    free: Vec<u32>,
    next_generation: u32,
    /// Edges that are connecting or have posted operations.
    waiting: Vec<EdgeRef>,
    copied_bytes: Arc<AtomicUsize>,
    cached: FxHashMap<(u32, Address), EdgeRef>,
    retired: Retired,
    use_count: u64,
    connector: Connector,
    /// Why the connector's thread could not be started, and when to try again.
    no_thread: Option<(Instant, std::io::Error)>,
    /// An injected shortage of room for posted operations.
    shortage: Option<Shortage>,
}

impl EdgeTable {
    pub(crate) fn new(connector: Connector) -> EdgeTable {
        EdgeTable {
            slots: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            waiting: Vec::new(),
            copied_bytes: Arc::default(),
            cached: FxHashMap::default(),
            retired: Retired::default(),
            use_count: 0,
            connector,
            no_thread: None,
            shortage: None,
        }
    }

    /// Makes room for posted operations short at times, as the plan says.
    pub(crate) fn inject(&mut self, plan: &Plan) {
        self.shortage = Shortage::new(plan.shortages.posts, plan.seed ^ 4);
    }

    /// The number of injected shortages so far.
    pub(crate) fn injected_shortages(&self) -> u64 {
        self.shortage.as_ref().map_or(0, Shortage::count)
    }

    /// Sets the callback for the connector's results, which passes them to
    /// [`on_resolved`](Self::on_resolved). Called once, before the first edge.
    pub(crate) fn set_callback(
        &self,
        callback: impl Fn(EdgeRef, Resolution) + Send + Sync + 'static,
    ) {
        self.connector.set_callback(callback);
    }

    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When the next connecting edge times out.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().filter_map(|id| self.get(*id));
        waiting
            .filter(|edge| matches!(edge.stage, Stage::Opening(_)))
            .map(|edge| edge.deadline)
            .chain(self.no_thread.as_ref().map(|(retry_at, _)| *retry_at))
            .min()
    }

    #[inline]
    fn get(&self, id: EdgeRef) -> Option<&EdgeState> {
        let state = self.slots.get(id.index as usize)?.as_ref()?;
        (state.generation == id.generation).then_some(state)
    }

    #[inline]
    fn get_mut(&mut self, id: EdgeRef) -> Option<&mut EdgeState> {
        let state = self.slots.get_mut(id.index as usize)?.as_mut()?;
        (state.generation == id.generation).then_some(state)
    }

    fn insert(&mut self, source: u32, to: Address, stage: Stage, now: Instant) -> EdgeRef {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer edges than 2^32")
        });
        self.next_generation = self.next_generation.wrapping_add(1);
        self.use_count += 1;
        let generation = self.next_generation;
        self.slots[index as usize] = Some(EdgeState {
            generation,
            source,
            to,
            stage,
            started_at: now,
            deadline: now.after(self.connector.timeout_ns()),
            posts: Posts::default(),
            shortages: Shortages::default(),
            last_used: self.use_count,
        });
        EdgeRef { index, generation }
    }

    /// Creates an edge. If `to` has sent to `source` it is open at once; otherwise it connects in
    /// the background.
    pub(crate) fn open(
        &mut self,
        engine: &mut Engine,
        source: u32,
        to: Address,
        now: Instant,
    ) -> EdgeRef {
        let known = engine.peer_of_source(source, to);
        if let Some(peer) = known
            && let Ok(edge) = engine.edge(peer, source, to.endpoint.0)
        {
            return self.insert(source, to, Stage::Open(Target::new(to, edge)), now);
        }
        let id = self.insert(source, to, Stage::Resolving, now);
        self.waiting.push(id);
        self.look_up(Lookup::new(id, to), now);
        id
    }

    /// Creates an edge to an endpoint of a process whose ports are known, without a lookup.
    pub(crate) fn open_at(
        &mut self,
        engine: &mut Engine,
        source: u32,
        (to, ports): (Address, Ports),
        now: Instant,
    ) -> EdgeRef {
        if engine.peer_of_source(source, to).is_some() {
            return self.open(engine, source, to, now);
        }
        let id = self.insert(source, to, Stage::Resolving, now);
        self.waiting.push(id);
        let socket = self.connector.policy().socket_of(to, ports.incarnation);
        self.connect_to(engine, id, (ports, socket), now);
        id
    }

    /// The edge for replies to an endpoint of a known process.
    ///
    /// # Errors
    /// The process is gone or has too many edges.
    pub(crate) fn reply_edge(
        &mut self,
        engine: &mut Engine,
        source: u32,
        (to, peer): (Address, PeerId),
        now: Instant,
    ) -> Result<EdgeRef, SendError> {
        let known = self.cached.get(&(source, to)).copied();
        let is_current = |edge: &EdgeState| match &edge.stage {
            Stage::Open(target) => target.edge.peer == peer,
            _ => false,
        };
        if let Some(id) = known
            && self.get(id).is_some_and(is_current)
        {
            self.touch(id);
            return Ok(id);
        }
        let edge = engine
            .edge(peer, source, to.endpoint.0)
            .map_err(|error| match error {
                EdgeError::Gone => SendError::PeerGone {
                    target: to,
                    reason: engine.gone_reason(peer),
                },
                EdgeError::TooMany { limit } => {
                    let cause = TargetError::TooManyEdges { target: to, limit };
                    SendError::Unreachable(Arc::new(cause))
                }
            })?;
        self.forget_cached(engine, source, to);
        let id = self.insert(source, to, Stage::Open(Target::new(to, edge)), now);
        self.cache(engine, source, to, id);
        Ok(id)
    }

    /// The cached edge of an endpoint to an address. Creates one if it does not exist or has
    /// failed.
    pub(crate) fn cached(
        &mut self,
        engine: &mut Engine,
        source: u32,
        to: Address,
        now: Instant,
    ) -> EdgeRef {
        if let Some(id) = self.cached.get(&(source, to)).copied()
            && let Some(edge) = self.get(id)
        {
            if edge.is_usable(engine) {
                self.touch(id);
                return id;
            }
            self.forget_cached(engine, source, to);
        }
        let id = self.open(engine, source, to, now);
        self.cache(engine, source, to, id);
        id
    }

    fn touch(&mut self, id: EdgeRef) {
        self.use_count += 1;
        let use_count = self.use_count;
        if let Some(edge) = self.get_mut(id) {
            edge.last_used = use_count;
        }
    }

    /// Caches an edge for an endpoint. When there are too many, the least recently used quarter is
    /// closed; messages already sent still arrive.
    fn cache(&mut self, engine: &mut Engine, source: u32, to: Address, id: EdgeRef) {
        self.cached.insert((source, to), id);
        if self.cached.len() <= MAX_CACHED {
            return;
        }
        let mut by_use: Vec<(u64, (u32, Address))> = (self.cached.iter())
            .filter(|(_, id)| self.get(**id).is_none_or(|edge| edge.posts.is_empty()))
            .map(|(key, id)| (self.get(*id).map_or(0, |edge| edge.last_used), *key))
            .collect();
        by_use.sort_unstable_by_key(|(last_used, _)| *last_used);
        for (_, (source, to)) in by_use.into_iter().take(MAX_CACHED / 4) {
            self.forget_cached(engine, source, to);
        }
    }

    /// Number of edges that have not been closed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Closes cached edges to processes that are gone. Edges that could not connect stay: a thread
    /// may be about to read why.
    pub(crate) fn forget_gone(&mut self, engine: &mut Engine) {
        let cached = self.cached.iter();
        let gone: Vec<(u32, Address)> = cached
            .filter(|(_, id)| {
                self.get(**id)
                    .is_none_or(|edge| edge.posts.is_empty() && edge.has_lost_peer(engine))
            })
            .map(|(key, _)| *key)
            .collect();
        for (source, to) in gone {
            self.forget_cached(engine, source, to);
        }
    }

    /// Closes an edge: sent messages still arrive, posted operations are cancelled.
    pub(crate) fn close(&mut self, engine: &mut Engine, queues: &mut QueueTable, id: EdgeRef) {
        if let Some((to, mut posts)) = self.remove(engine, id) {
            posts.cancel_all((engine, queues), to);
        }
    }

    /// Removes an edge; returns its posted operations.
    fn remove(&mut self, engine: &mut Engine, id: EdgeRef) -> Option<(Address, Posts)> {
        self.get(id)?;
        let edge = self.slots[id.index as usize].take()?;
        self.free.push(id.index);
        self.waiting.retain(|waiting| *waiting != id);
        if let Stage::Open(target) = edge.stage {
            engine.close_edge(target.edge);
        }
        Some((edge.to, edge.posts))
    }

    /// Closes all edges of an endpoint.
    pub(crate) fn close_endpoint(
        &mut self,
        engine: &mut Engine,
        queues: &mut QueueTable,
        source: u32,
    ) {
        self.cached.retain(|(endpoint, _), _| *endpoint != source);
        self.retired.close_endpoint(source);
        for index in 0..self.slots.len() {
            if let Some(edge) = &self.slots[index]
                && edge.source == source
            {
                let generation = edge.generation;
                let index = u32::try_from(index).expect("fewer edges than 2^32");
                self.close(engine, queues, EdgeRef { index, generation });
            }
        }
    }

    /// The target of an edge; `None` while it connects.
    pub(crate) fn target(&self, id: EdgeRef) -> Option<Result<Target, SendError>> {
        match self.get(id).map(|edge| &edge.stage) {
            None => Some(Err(SendError::Ended)),
            Some(Stage::Open(target)) => Some(Ok(target.clone())),
            Some(Stage::Failed(cause)) => Some(Err(SendError::Unreachable(Arc::clone(cause)))),
            Some(Stage::Resolving | Stage::Opening(_)) => None,
        }
    }

    /// Like [`target`](Self::target), but also `None` while operations are posted.
    pub(crate) fn idle_target(&self, id: EdgeRef) -> Option<Result<Target, SendError>> {
        match self.get(id) {
            Some(edge) if !edge.posts.is_empty() => None,
            _ => self.target(id),
        }
    }

    /// True if an edge has failed, its target's process is gone, or it has been connecting for
    /// longer than `timeout_ns`, regardless of posted operations.
    pub(crate) fn is_lost(
        &self,
        engine: &Engine,
        id: EdgeRef,
        (now, timeout_ns): (Instant, u64),
    ) -> bool {
        self.get(id).is_none_or(|edge| match edge.stage {
            Stage::Resolving | Stage::Opening(_) => now.since(edge.started_at) > timeout_ns,
            Stage::Open(_) | Stage::Failed(_) => !edge.is_usable(engine),
        })
    }

    /// Sends at once if the edge is open and has room; otherwise returns false.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub(crate) fn send_fast(
        &mut self,
        engine: &mut Engine,
        id: EdgeRef,
        content: Content<'_>,
        more: bool,
        clock: &mut Reading<'_>,
    ) -> std::io::Result<bool> {
        let Some(EdgeState {
            stage: Stage::Open(target),
            posts,
            ..
        }) = self.get(id)
        else {
            return Ok(false);
        };
        if !posts.is_empty() {
            return Ok(false);
        }
        // A peer on this node sees the message at once, so do not delay waking it.
        let more = more && !engine.shares_memory(target.edge.peer);
        let sent = engine
            .send_at_once(target.edge, content, more, clock)?
            .is_ok();
        if sent {
            target.sent.count(content.payload().len());
        }
        Ok(sent)
    }

    /// Starts a memory operation at once if the edge is open and has room; returns its id, which
    /// is also filled into the head.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub(crate) fn start_operation_fast(
        &mut self,
        engine: &mut Engine,
        id: EdgeRef,
        (mut head, data): (wire::Operation, &[u8]),
        place: &mut Option<AnswerBuffer>,
        clock: &mut Reading<'_>,
    ) -> std::io::Result<Option<OperationId>> {
        let Some(EdgeState {
            stage: Stage::Open(target),
            posts,
            ..
        }) = self.get(id)
        else {
            return Ok(None);
        };
        if !posts.is_empty() {
            return Ok(None);
        }
        let is_fence = head.kind == wire::OperationKind::Fence;
        let wanted = (is_fence, place.take().unwrap_or(AnswerBuffer::None));
        head.id = engine.expect_answer(clock.last(), target.edge, wanted, None);
        let bytes = head.to_bytes();
        let content = Content::operation(&bytes, data);
        let sent = engine.send_at_once(target.edge, content, false, clock);
        if !matches!(sent, Ok(Ok(()))) {
            *place = engine.forget_operation(head.id);
        }
        Ok(sent?.is_ok().then_some(head.id))
    }

    /// True if a completion queue or counter is attached to the edge.
    pub(crate) fn is_attached(&self, id: EdgeRef) -> bool {
        self.get(id).is_some_and(|edge| edge.posts.is_attached())
    }

    /// Attaches a completion queue or counter to the edge.
    pub(crate) fn attach(&mut self, id: EdgeRef, queue: QueueRef) {
        if let Some(edge) = self.get_mut(id) {
            edge.posts.attach(queue);
        }
    }

    /// Posts an operation. It starts in order, and its context appears in the edge's queue when it
    /// completes; a message completes when it has been sent.
    ///
    /// # Errors
    /// [`SendError::Full`] if too much is waiting.
    pub(crate) fn post(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        id: EdgeRef,
        post: NewPost,
        now: Instant,
    ) -> Result<(), SendError> {
        let all = Arc::clone(&self.copied_bytes);
        let is_short = self.shortage.as_mut().is_some_and(Shortage::strikes);
        let Some(edge) = self.get_mut(id) else {
            return Err(SendError::Ended);
        };
        if is_short || !edge.posts.push(post, &all) {
            return Err(SendError::Full {
                target: edge.to,
                by_receiver: false,
            });
        }
        if !self.waiting.contains(&id) {
            self.waiting.push(id);
        }
        self.advance(engine, queues, now);
        Ok(())
    }

    /// Cancels a posted operation with this context that has not started; true if there was one.
    pub(crate) fn cancel(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        id: EdgeRef,
        context: Context,
    ) -> bool {
        let Some(edge) = self.get_mut(id) else {
            return false;
        };
        edge.posts.cancel((engine, queues), edge.to, context)
    }

    /// Handles a result of the connector.
    pub(crate) fn on_resolved(
        &mut self,
        engine: &mut Engine,
        id: EdgeRef,
        resolution: Resolution,
        now: Instant,
    ) {
        match resolution {
            Resolution::Found(ports, socket) => self.connect_to(engine, id, (ports, socket), now),
            Resolution::Failed(cause) => self.fail(engine, id, cause),
        }
    }

    fn connect_to(
        &mut self,
        engine: &mut Engine,
        id: EdgeRef,
        (ports, socket): (Ports, Option<PathBuf>),
        now: Instant,
    ) {
        let policy = Arc::clone(self.connector.policy());
        let Some(edge) = self.get_mut(id) else {
            return;
        };
        let may_share = edge.shortages.count() == 0 || policy.links == Links::Shm;
        let socket = socket.filter(|_| may_share);
        match connect(engine, &policy, edge.to, ports, socket, now) {
            Ok(Some(attempt)) => edge.stage = Stage::Opening(attempt),
            // The process has gone since: look again.
            Ok(None) => {
                let lookup = Lookup::retry(id, edge.to, 0);
                self.look_up(lookup, now);
            }
            Err(cause) => self.fail(engine, id, cause),
        }
        engine.ready().notify(id.key());
    }

    /// Marks an edge as failed.
    fn fail(&mut self, engine: &mut Engine, id: EdgeRef, cause: TargetError) {
        if let Some(edge) = self.get_mut(id) {
            edge.stage = Stage::Failed(Arc::new(cause));
            engine.ready().notify(id.key());
        }
    }

    /// Continues all edges that connect or have posted operations.
    pub(crate) fn advance(&mut self, engine: &mut Engine, queues: &mut QueueTable, now: Instant) {
        self.restart_connector(now);
        let mut at = 0;
        while let Some(id) = self.waiting.get(at).copied() {
            self.advance_opening(engine, id, now);
            self.advance_posts(engine, queues, id, now);
            let waits = self.get(id).is_some_and(|edge| {
                !edge.posts.is_empty() || matches!(edge.stage, Stage::Resolving | Stage::Opening(_))
            });
            match waits {
                true => at += 1,
                false => {
                    self.waiting.swap_remove(at);
                }
            }
        }
    }

    fn advance_opening(&mut self, engine: &mut Engine, id: EdgeRef, now: Instant) {
        let Some(edge) = self.get_mut(id) else {
            return;
        };
        let (source, to) = (edge.source, edge.to);
        let opened = match &edge.stage {
            Stage::Opening(Attempt::Memory(connection)) => engine.memory_peer(*connection),
            Stage::Opening(Attempt::Packets(peer)) => {
                engine.is_open(*peer).map(|open| open.then_some(*peer))
            }
            Stage::Resolving if now >= edge.deadline => {
                return self.fail_without_thread(engine, id);
            }
            // The connector reports its own time-out.
            Stage::Resolving | Stage::Open(_) | Stage::Failed(_) => return,
        };
        let timed_out = now >= edge.deadline;
        let by_packets = matches!(edge.stage, Stage::Opening(Attempt::Packets(_)));
        let started_at = edge.started_at;
        let reason = match opened {
            Ok(Some(peer)) => match engine.edge(peer, source, to.endpoint.0) {
                Ok(made) => {
                    edge.stage = Stage::Open(Target::new(to, made));
                    engine.ready().notify(id.key());
                    return;
                }
                Err(EdgeError::TooMany { limit }) => {
                    let cause = TargetError::TooManyEdges { target: to, limit };
                    return self.fail(engine, id, cause);
                }
                Err(EdgeError::Gone) => None,
            },
            Ok(None) if timed_out => {
                let waited = std::time::Duration::from_nanos(now.since(started_at));
                let late = TargetError::TimedOut { target: to, waited };
                let cause = edge.shortages.failure(to).unwrap_or(late);
                return self.fail(engine, id, cause);
            }
            Ok(None) => return,
            Err(Blocked::Gone(reason)) => reason,
            Err(_) => None,
        };
        let policy = Arc::clone(self.connector.policy());
        match permanent_failure(&policy, to, reason, by_packets) {
            Some(cause) => self.fail(engine, id, cause),
            None if timed_out => self.fail(engine, id, last_failure(to, reason)),
            None => self.look_up_again((id, to), reason, now),
        }
    }

    fn advance_posts(
        &mut self,
        engine: &mut Engine,
        queues: &mut QueueTable,
        id: EdgeRef,
        now: Instant,
    ) {
        let Some(edge) = self.get_mut(id) else {
            return;
        };
        let target = match &edge.stage {
            Stage::Open(target) => Ok(target),
            Stage::Failed(cause) => Err(cause),
            Stage::Resolving | Stage::Opening(_) => return,
        };
        let moved = (edge.posts).advance((engine, queues), edge.to, target, now);
        if moved && edge.posts.is_empty() {
            engine.ready().notify(id.key());
        }
        if moved && let Err(cause) = engine.transmit(now) {
            // The next thread that steps the engine gets the error, too.
            tracing::warn!("cannot send posted messages: {cause}");
        }
    }

    /// Traffic of the edges in this table.
    pub(crate) fn traffic(&self, engine: &Engine) -> Vec<EdgeTraffic> {
        let open = self.slots.iter().flatten();
        open.filter_map(|edge| match &edge.stage {
            Stage::Open(target) => Some(engine.edge_traffic(edge.source, target)),
            _ => None,
        })
        .collect()
    }
}
