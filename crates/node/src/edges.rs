//! Edges as the public API has them: made at once, connected behind the caller.
//!
//! An edge is resolved (which process has the endpoint: [`Connector`], on threads of its
//! own), then opened (its process answers), then used. What is posted before waits here.
//! An edge that failed stays failed and says why. To the source of a message an edge is
//! open from the start, since its process is known. What is posted is bounded (`posts.rs`).
//!
//! All is under the driver's lock.

mod connector;
mod id;
mod opening;
mod posts;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use dipole_proto::{EdgeError, Instant, PeerId, wire};
use rustc_hash::FxHashMap;

use crate::address::Address;
use crate::error::{SendError, TargetError};
use crate::queues::QueueTable;
use crate::registry::{EdgeTraffic, Ports};
use connector::Job;
pub(crate) use connector::{Answer, Connector, Policy};
use dipole_driver::Reading;
use dipole_engine::{
    AnswerPlace, Blocked, Content, Context, Engine, OperationId, QueueRef, Target,
};
pub(crate) use id::EdgeRef;
use opening::{Attempt, begin, refusal};
use posts::Posts;
pub(crate) use posts::{NewPost, PostedBytes};

/// Edges that one endpoint keeps for answers.
const MAX_CACHED: usize = 1024;
#[derive(Debug)]
enum Stage {
    /// Which process has the endpoint is being asked.
    Resolving,
    /// Its process has been asked to answer.
    Opening(Attempt),
    Open(Target),
    Failed(Arc<TargetError>),
}

#[derive(Debug)]
struct EdgeState {
    life: u32,
    source: u32,
    to: Address,
    stage: Stage,
    begun: Instant,
    deadline: Instant,
    posts: Posts,
    /// When it was last used, as a count of uses, for an endpoint's cache.
    used: u64,
}

impl EdgeState {
    /// True unless it has failed or its target's process is gone.
    fn is_usable(&self, engine: &Engine) -> bool {
        match &self.stage {
            Stage::Open(target) => engine.machine().is_open(target.edge.peer),
            Stage::Failed(_) => false,
            Stage::Resolving | Stage::Opening(_) => true,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct EdgeTable {
    slots: Vec<Option<EdgeState>>,
    free: Vec<u32>,
    next_life: u32,
    /// Edges that connect, or have operations waiting.
    waiting: Vec<EdgeRef>,
    copied_bytes: Arc<AtomicUsize>,
    cached: FxHashMap<(u32, Address), EdgeRef>,
    uses: u64,
    connector: Connector,
}

impl EdgeTable {
    pub(crate) fn new(connector: Connector) -> EdgeTable {
        EdgeTable {
            slots: Vec::new(),
            free: Vec::new(),
            next_life: 0,
            waiting: Vec::new(),
            copied_bytes: Arc::default(),
            cached: FxHashMap::default(),
            uses: 0,
            connector,
        }
    }

    /// What takes the connector's answers and gives them to [`settle`](Self::settle); set
    /// once, before the first edge.
    pub(crate) fn on_answer(&self, tell: impl Fn(EdgeRef, Answer) + Send + Sync + 'static) {
        self.connector.set_tell(tell);
    }

    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When an edge that connects gives up.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().filter_map(|id| self.get(*id));
        waiting
            .filter(|edge| matches!(edge.stage, Stage::Opening(_)))
            .map(|edge| edge.deadline)
            .min()
    }

    #[inline]
    fn get(&self, id: EdgeRef) -> Option<&EdgeState> {
        let state = self.slots.get(id.index as usize)?.as_ref()?;
        (state.life == id.life).then_some(state)
    }

    #[inline]
    fn get_mut(&mut self, id: EdgeRef) -> Option<&mut EdgeState> {
        let state = self.slots.get_mut(id.index as usize)?.as_mut()?;
        (state.life == id.life).then_some(state)
    }

    fn insert(&mut self, source: u32, to: Address, stage: Stage, now: Instant) -> EdgeRef {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer edges than 2^32")
        });
        self.next_life = self.next_life.wrapping_add(1);
        self.uses += 1;
        let life = self.next_life;
        self.slots[index as usize] = Some(EdgeState {
            life,
            source,
            to,
            stage,
            begun: now,
            deadline: now.after(self.connector.patience_ns()),
            posts: Posts::default(),
            used: self.uses,
        });
        EdgeRef { index, life }
    }

    /// Makes an edge. If `to` has sent to `source` it is open at once; else it connects
    /// behind the caller.
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
        self.connector.resolve(Job::new(id, to));
        id
    }

    /// The same to an endpoint of a process that the caller knows how to reach: nobody is asked.
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
        self.resolved(engine, id, (ports, socket), now);
        id
    }

    /// The edge that answers go by to an endpoint of a known process.
    ///
    /// # Errors
    /// Its process is gone, or has too many edges.
    pub(crate) fn answering(
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

    /// The edge that an endpoint keeps to an address; made if there is none, or the one
    /// there was has failed.
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
        self.uses += 1;
        let uses = self.uses;
        if let Some(edge) = self.get_mut(id) {
            edge.used = uses;
        }
    }

    /// Keeps an edge for an endpoint. When there are too many, the quarter used longest ago
    /// is closed; what was sent by them still arrives.
    fn cache(&mut self, engine: &mut Engine, source: u32, to: Address, id: EdgeRef) {
        self.cached.insert((source, to), id);
        if self.cached.len() <= MAX_CACHED {
            return;
        }
        let mut by_use: Vec<(u64, (u32, Address))> = (self.cached.iter())
            .filter(|(_, id)| self.get(**id).is_none_or(|edge| edge.posts.is_empty()))
            .map(|(key, id)| (self.get(*id).map_or(0, |edge| edge.used), *key))
            .collect();
        by_use.sort_unstable_by_key(|(used, _)| *used);
        for (_, (source, to)) in by_use.into_iter().take(MAX_CACHED / 4) {
            self.forget_cached(engine, source, to);
        }
    }

    /// Edges that have not been closed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Closes edges that endpoints keep to processes that are gone.
    pub(crate) fn forget_gone(&mut self, engine: &mut Engine) {
        let cached = self.cached.iter();
        let gone: Vec<(u32, Address)> = cached
            .filter(|(_, id)| {
                self.get(**id)
                    .is_none_or(|edge| edge.posts.is_empty() && !edge.is_usable(engine))
            })
            .map(|(key, _)| *key)
            .collect();
        for (source, to) in gone {
            self.forget_cached(engine, source, to);
        }
    }

    fn forget_cached(&mut self, engine: &mut Engine, source: u32, to: Address) {
        if let Some(id) = self.cached.remove(&(source, to)) {
            // What is posted to it completes nowhere: only its endpoint uses it.
            let _posts = self.remove(engine, id);
        }
    }

    /// Closes an edge: what was sent still arrives, what still waits is withdrawn.
    pub(crate) fn close(&mut self, engine: &mut Engine, queues: &mut QueueTable, id: EdgeRef) {
        if let Some((to, mut posts)) = self.remove(engine, id) {
            posts.cancel_all((engine, queues), to);
        }
    }

    /// Closes an edge; what still waits on it.
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
        for index in 0..self.slots.len() {
            if let Some(edge) = &self.slots[index]
                && edge.source == source
            {
                let life = edge.life;
                let index = u32::try_from(index).expect("fewer edges than 2^32");
                self.close(engine, queues, EdgeRef { index, life });
            }
        }
    }

    /// Takes an open edge out of the table: its new owner closes it.
    pub(crate) fn take_open(&mut self, id: EdgeRef) -> Option<Target> {
        let target = self.target(id)?.ok()?;
        self.slots[id.index as usize] = None;
        self.free.push(id.index);
        Some(target)
    }

    /// Where an edge leads; `None` while it connects.
    pub(crate) fn target(&self, id: EdgeRef) -> Option<Result<Target, SendError>> {
        match self.get(id).map(|edge| &edge.stage) {
            None => Some(Err(SendError::Ended)),
            Some(Stage::Open(target)) => Some(Ok(target.clone())),
            Some(Stage::Failed(cause)) => Some(Err(SendError::Unreachable(Arc::clone(cause)))),
            Some(Stage::Resolving | Stage::Opening(_)) => None,
        }
    }

    /// Like [`target`](Self::target), once nothing posted waits.
    pub(crate) fn idle_target(&self, id: EdgeRef) -> Option<Result<Target, SendError>> {
        match self.get(id) {
            Some(edge) if !edge.posts.is_empty() => None,
            _ => self.target(id),
        }
    }

    /// True if an edge has failed, its target's process is gone, whatever waits on it, or it has
    /// been connecting for longer than `patience_ns`.
    pub(crate) fn is_lost(
        &self,
        engine: &Engine,
        id: EdgeRef,
        (now, patience_ns): (Instant, u64),
    ) -> bool {
        self.get(id).is_none_or(|edge| match edge.stage {
            Stage::Resolving | Stage::Opening(_) => now.since(edge.begun) > patience_ns,
            Stage::Open(_) | Stage::Failed(_) => !edge.is_usable(engine),
        })
    }

    /// Sends at once if the edge is open and takes the message now; else false.
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
        // A process of this node sees it at once; that it is woken must not wait.
        let more = more && !engine.shares_memory(target.edge.peer);
        let sent = engine
            .send_at_once(target.edge, content, more, clock)?
            .is_ok();
        if sent {
            target.sent.count(content.payload().len());
        }
        Ok(sent)
    }

    /// Asks something of another's memory at once, if the edge is open and takes it now: the
    /// id under which the answer comes. The head has none yet.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub(crate) fn ask_fast(
        &mut self,
        engine: &mut Engine,
        id: EdgeRef,
        (mut head, data): (wire::Operation, &[u8]),
        place: &mut Option<AnswerPlace>,
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
        let wanted = (is_fence, place.take().unwrap_or(AnswerPlace::None));
        head.id = engine.expect_answer(clock.last(), target.edge, wanted, None);
        let bytes = head.to_bytes();
        let content = Content::operation(&bytes, data);
        let sent = engine.send_at_once(target.edge, content, false, clock);
        if !matches!(sent, Ok(Ok(()))) {
            *place = engine.forget_operation(head.id);
        }
        Ok(sent?.is_ok().then_some(head.id))
    }

    /// True if completions of an edge go anywhere.
    pub(crate) fn is_attached(&self, id: EdgeRef) -> bool {
        self.get(id).is_some_and(|edge| edge.posts.is_attached())
    }

    /// Where completions of an edge go.
    pub(crate) fn attach(&mut self, id: EdgeRef, queue: QueueRef) {
        if let Some(edge) = self.get_mut(id) {
            edge.posts.attach(queue);
        }
    }

    /// Posts an operation: it begins when its turn comes, and its context appears in the
    /// edge's queue when it is done; a message when it has gone.
    ///
    /// # Errors
    /// [`SendError::Full`]: as much waits as may.
    pub(crate) fn post(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        id: EdgeRef,
        post: NewPost,
        now: Instant,
    ) -> Result<(), SendError> {
        let all = Arc::clone(&self.copied_bytes);
        let Some(edge) = self.get_mut(id) else {
            return Err(SendError::Ended);
        };
        if !edge.posts.push(post, &all) {
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

    /// Withdraws what was posted with this context and has not begun; true if anything was.
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

    /// The connector has an answer.
    pub(crate) fn settle(
        &mut self,
        engine: &mut Engine,
        id: EdgeRef,
        answer: Answer,
        now: Instant,
    ) {
        match answer {
            Answer::Found(ports, socket) => self.resolved(engine, id, (ports, socket), now),
            Answer::Failed(cause) => self.fail(engine, id, cause),
        }
    }

    fn resolved(
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
        match begin(engine, &policy, edge.to, ports, socket, now) {
            Ok(Some(attempt)) => edge.stage = Stage::Opening(attempt),
            // Its process has gone since: ask again.
            Ok(None) => {
                let job = Job::again(id, edge.to);
                self.connector.resolve(job);
            }
            Err(cause) => self.fail(engine, id, cause),
        }
        engine.ready().notify(id.key());
    }

    /// An edge cannot be made.
    fn fail(&mut self, engine: &mut Engine, id: EdgeRef, cause: TargetError) {
        if let Some(edge) = self.get_mut(id) {
            edge.stage = Stage::Failed(Arc::new(cause));
            engine.ready().notify(id.key());
        }
    }

    /// Goes on with everything that waits.
    pub(crate) fn advance(&mut self, engine: &mut Engine, queues: &mut QueueTable, now: Instant) {
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
            // The connector says when its patience is over.
            Stage::Resolving | Stage::Open(_) | Stage::Failed(_) => return,
        };
        let timed_out = now >= edge.deadline;
        let by_packets = matches!(edge.stage, Stage::Opening(Attempt::Packets(_)));
        let begun = edge.begun;
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
                let waited = std::time::Duration::from_nanos(now.since(begun));
                let cause = TargetError::TimedOut { target: to, waited };
                return self.fail(engine, id, cause);
            }
            Ok(None) => return,
            Err(Blocked::Gone(reason)) => reason,
            Err(_) => None,
        };
        let policy = Arc::clone(self.connector.policy());
        match refusal(&policy, to, reason, by_packets) {
            Some(cause) => self.fail(engine, id, cause),
            None if timed_out => {
                let cause = TargetError::PeerGone { target: to, reason };
                self.fail(engine, id, cause);
            }
            // Another process took its place since: ask again.
            None => {
                if let Some(edge) = self.get_mut(id) {
                    edge.stage = Stage::Resolving;
                }
                self.connector.resolve(Job::again(id, to));
            }
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
            // The next thread that steps the engine is told, too.
            tracing::warn!("sending what was posted: {cause}");
        }
    }

    /// What has gone along the edges of this table.
    pub(crate) fn traffic(&self, engine: &Engine) -> Vec<EdgeTraffic> {
        let open = self.slots.iter().flatten();
        open.filter_map(|edge| match &edge.stage {
            Stage::Open(target) => Some(engine.edge_traffic(edge.source, target)),
            _ => None,
        })
        .collect()
    }
}
