//! Completion queues and counters: what was posted and has gone, and what has arrived.
//!
//! A queue has one descriptor for everything attached to it. Endpoints attached to a queue
//! keep their messages until the queue is asked, so credit and bounds stay theirs; of
//! posted operations a queue holds one entry each. A counter holds two numbers.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use dipole_link::signal::Signal;
use dipole_proto::Instant;
use rustc_hash::FxHashMap;

use crate::Message;
use crate::address::{Address, EndpointId};
use crate::driver::{Stepper, Until, WaitError, WaitKey};
use crate::engine::Engine;
use crate::error::{OpenError, ReceiveError, SendError};
use crate::inbox::Buffer;
use crate::inner::Inner;
use crate::process::ProcessState;
use crate::region::RegionMemory;

/// A number of the caller's that comes back with the completion of an operation.
pub type Context = u64;

/// What has happened.
#[derive(Debug)]
pub enum Completion {
    /// A posted message is on its way, in its edge's order; its bytes are no longer needed.
    Sent {
        /// As it was posted.
        context: Context,
    },
    /// A posted operation on memory is done.
    Done {
        /// As it was posted.
        context: Context,
        /// Of fetch-and-add and compare-and-swap: what the word was.
        value: u64,
        /// What was got.
        data: Data,
    },
    /// A posted operation was not done.
    Failed {
        /// As it was posted.
        context: Context,
        /// Why.
        error: SendError,
    },
    /// The memory of a posted receive holds a message.
    Filled {
        /// As it was posted.
        context: Context,
        /// Where.
        endpoint: EndpointId,
        /// Who sent the message.
        source: Address,
        /// Its length.
        length: usize,
        /// As it was posted.
        memory: RegionMemory,
    },
    /// A posted receive got no message.
    NotFilled {
        /// As it was posted.
        context: Context,
        /// Why.
        error: ReceiveError,
        /// As it was posted.
        memory: RegionMemory,
    },
    /// A message has arrived at an attached endpoint.
    Received {
        /// The endpoint.
        endpoint: EndpointId,
        /// The message.
        message: Message,
    },
}

/// What a get has brought.
#[derive(Debug, Default)]
pub struct Data(Option<Buffer>);

impl Data {
    pub(crate) fn new(buffer: Buffer) -> Data {
        Data(Some(buffer))
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Buffer::bytes)
    }
}

/// How many operations are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionCounts {
    /// Messages that are on their way, and operations on memory that are done.
    pub sent: u64,
    /// Operations that were not done.
    pub failed: u64,
}

/// A queue or counter of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueRef(u32);

#[derive(Debug, Default)]
struct QueueState {
    entries: VecDeque<Completion>,
    /// Attached endpoints that have, or had, messages.
    ready: VecDeque<u32>,
    signal: Option<Signal>,
}

/// All queues and counters of a process, under the driver's lock.
#[derive(Debug, Default)]
pub(crate) struct QueueTable {
    queues: FxHashMap<u32, QueueState>,
    counters: FxHashMap<u32, CompletionCounts>,
    next: u32,
    by_endpoint: FxHashMap<u32, QueueRef>,
}

impl QueueTable {
    fn open(&mut self) -> QueueRef {
        self.next += 1;
        self.queues.insert(self.next, QueueState::default());
        QueueRef(self.next)
    }

    fn open_counter(&mut self) -> QueueRef {
        self.next += 1;
        self.counters.insert(self.next, CompletionCounts::default());
        QueueRef(self.next)
    }

    fn counts(&self, id: QueueRef) -> CompletionCounts {
        self.counters.get(&id.0).copied().unwrap_or_default()
    }

    fn close(&mut self, id: QueueRef) {
        self.queues.remove(&id.0);
        self.counters.remove(&id.0);
        self.by_endpoint.retain(|_, queue| *queue != id);
    }

    /// True if messages of endpoints are to be noted.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        !self.by_endpoint.is_empty()
    }

    /// True if a queue has a descriptor.
    pub(crate) fn has_exports(&self) -> bool {
        self.queues.values().any(|queue| queue.signal.is_some())
    }

    /// From now on an endpoint's messages are noted in a queue.
    pub(crate) fn attach_endpoint(&mut self, engine: &mut Engine, endpoint: u32, id: QueueRef) {
        self.by_endpoint.insert(endpoint, id);
        engine.ready().set_watched(true);
        if engine.has_message(endpoint) {
            self.add_ready(engine, endpoint);
        }
    }

    /// An endpoint has ended.
    pub(crate) fn detach_endpoint(&mut self, engine: &mut Engine, endpoint: u32) {
        self.by_endpoint.remove(&endpoint);
        engine.ready().set_watched(!self.by_endpoint.is_empty());
    }

    /// Notes which attached endpoints got messages.
    pub(crate) fn collect_messages(&mut self, engine: &mut Engine) {
        if !engine.ready().has_keys() {
            return;
        }
        let keys = engine.ready().keys().map(<[WaitKey]>::to_vec);
        let endpoints: Vec<u32> = match keys {
            Some(keys) => {
                let endpoints = keys.into_iter().filter_map(|key| match key {
                    WaitKey::Endpoint(endpoint) => Some(endpoint),
                    _ => None,
                });
                endpoints
                    .filter(|endpoint| self.by_endpoint.contains_key(endpoint))
                    .collect()
            }
            None => self.by_endpoint.keys().copied().collect(),
        };
        for endpoint in endpoints {
            if engine.has_message(endpoint) {
                self.add_ready(engine, endpoint);
            }
        }
    }

    fn add_ready(&mut self, engine: &mut Engine, endpoint: u32) {
        if let Some(id) = self.by_endpoint.get(&endpoint)
            && let Some(queue) = self.queues.get_mut(&id.0)
            && !queue.ready.contains(&endpoint)
        {
            queue.ready.push_back(endpoint);
            let id = *id;
            self.notify(engine, id);
        }
    }

    /// Puts an entry into a queue, or counts it, if the operation has one.
    pub(crate) fn push(
        &mut self,
        engine: &mut Engine,
        id: Option<QueueRef>,
        completion: Completion,
    ) {
        let Some(id) = id else { return };
        if let Some(queue) = self.queues.get_mut(&id.0) {
            queue.entries.push_back(completion);
        } else if let Some(counts) = self.counters.get_mut(&id.0) {
            match completion {
                Completion::Failed { .. } | Completion::NotFilled { .. } => counts.failed += 1,
                Completion::Sent { .. }
                | Completion::Done { .. }
                | Completion::Filled { .. }
                | Completion::Received { .. } => counts.sent += 1,
            }
        } else {
            return;
        }
        self.notify(engine, id);
    }

    /// Notes posted operations that are done since they were begun.
    pub(crate) fn collect_finished(&mut self, engine: &mut Engine) {
        while let Some((posted, sent)) = engine.sent_posts().pop_front() {
            let (context, target) = (posted.context, posted.to);
            let completion = match sent {
                Ok(()) => Completion::Sent { context },
                Err(reason) => Completion::Failed {
                    context,
                    error: SendError::PeerGone { target, reason },
                },
            };
            self.push(engine, posted.queue, completion);
        }
        while let Some((posted, result)) = engine.next_finished() {
            let (context, target) = (posted.context, posted.to);
            let completion = match result.of(target) {
                Ok((value, data)) => Completion::Done {
                    context,
                    value,
                    data,
                },
                Err(error) => Completion::Failed { context, error },
            };
            self.push(engine, posted.queue, completion);
        }
    }

    /// Somebody who waits for the queue looks at it.
    fn notify(&mut self, engine: &mut Engine, id: QueueRef) {
        engine.ready().notify(WaitKey::Queue(id.0));
        if let Some(queue) = self.queues.get_mut(&id.0)
            && let Some(signal) = &mut queue.signal
            && let Err(cause) = signal.set_readable()
        {
            tracing::warn!("a completion queue's descriptor is not readable: {cause}");
        }
    }

    /// The next entry.
    fn poll(&mut self, engine: &mut Engine, id: QueueRef, now: Instant) -> Option<Completion> {
        let queue = self.queues.get_mut(&id.0)?;
        if let Some(entry) = queue.entries.pop_front() {
            return Some(entry);
        }
        while let Some(endpoint) = queue.ready.pop_front() {
            if let Some(message) = engine.take(now, endpoint) {
                if engine.has_message(endpoint) {
                    // Its turn comes again after the others'.
                    queue.ready.push_back(endpoint);
                }
                let endpoint = EndpointId(endpoint);
                return Some(Completion::Received { endpoint, message });
            }
        }
        if let Some(signal) = &mut queue.signal
            && let Err(cause) = signal.clear_readable(None)
        {
            tracing::warn!("a completion queue's descriptor stays readable: {cause}");
        }
        None
    }

    fn export(&mut self, engine: &mut Engine, id: QueueRef) -> io::Result<OwnedFd> {
        let (signal, user) = Signal::pair()?;
        if let Some(queue) = self.queues.get_mut(&id.0) {
            let waits = !queue.entries.is_empty() || !queue.ready.is_empty();
            queue.signal = Some(signal);
            if waits {
                self.notify(engine, id);
            }
        }
        Ok(user)
    }
}

/// A queue of completions. Endpoints and edges are attached to it; dropping it detaches them.
#[derive(Debug)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
    id: QueueRef,
}

impl CompletionQueue {
    pub(crate) fn new(inner: &Arc<Inner>) -> CompletionQueue {
        let id = inner.driver.with_last(|state, _| {
            let (_, _, queues) = state.parts();
            queues.open()
        });
        CompletionQueue {
            inner: Arc::clone(inner),
            id,
        }
    }

    pub(crate) fn id(&self) -> QueueRef {
        self.id
    }

    /// The next completion, if there is one; looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn poll(&self) -> Result<Option<Completion>, ReceiveError> {
        self.wait_until(Until::Now)
    }

    /// Waits for the next completion, at most `timeout`; `None` if there was none.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>, ReceiveError> {
        self.wait_until(Until::For(timeout))
    }

    fn wait_until(&self, until: Until) -> Result<Option<Completion>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        let what = |_: &ProcessState| "a completion queue to have an entry".to_string();
        let keys = [WaitKey::Queue(self.id.0)];
        let waited =
            (self.inner.driver).wait(until, &keys, &what, |state, now| self.take(state, now));
        match waited {
            Ok(Ok(entry)) => Ok(Some(entry)),
            Err(WaitError::TimedOut { .. }) => Ok(None),
            Ok(Err(cause)) | Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
        }
    }

    /// The next completion, without blocking the thread.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn next_async(&self) -> impl Future<Output = Result<Completion, ReceiveError>> {
        poll_fn(|context| self.poll_next(context))
    }

    /// [`next_async`](Self::next_async) for callers who write their own futures.
    pub fn poll_next(
        &self,
        context: &mut task::Context<'_>,
    ) -> Poll<Result<Completion, ReceiveError>> {
        if self.inner.is_forked() {
            return Poll::Ready(Err(ReceiveError::Forked));
        }
        if let Err(cause) = self.inner.ensure_progress() {
            return Poll::Ready(Err(ReceiveError::Broken(cause)));
        }
        let keys = [WaitKey::Queue(self.id.0)];
        let driver = &self.inner.driver;
        let taken = driver.wait_task(&keys, context.waker(), |state, now| {
            let entry = self.take(state, now)?;
            Some(entry.map_err(ReceiveError::Broken))
        });
        taken.map_or(Poll::Pending, Poll::Ready)
    }

    /// The oldest entry. Credit that its sender waits for leaves with it.
    fn take(&self, state: &mut ProcessState, now: Instant) -> Option<io::Result<Completion>> {
        let (engine, _, queues) = state.parts();
        let entry = queues.poll(engine, self.id, now)?;
        Some(engine.transmit(now).map(|()| entry))
    }

    /// The queue's descriptor, for `poll`, `select`, `epoll` and their like: readable while
    /// [`poll`](Self::poll) has something. A thread of this node keeps it up to date.
    ///
    /// # Errors
    /// [`OpenError::Sleep`]: no descriptors or threads are left.
    pub fn export(&self) -> Result<OwnedFd, OpenError> {
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        let user = self.inner.driver.with(|state, _| {
            let (engine, _, queues) = state.parts();
            queues.export(engine, self.id)
        });
        let user = user.map_err(OpenError::Sleep)?;
        self.inner.ensure_progress().map_err(OpenError::Sleep)?;
        Ok(user)
    }
}

/// Counts completions instead of keeping them, for a caller who wants to know how many of its
/// operations are done, not which.
#[derive(Debug)]
pub struct CompletionCounter {
    inner: Arc<Inner>,
    id: QueueRef,
}

impl CompletionCounter {
    pub(crate) fn new(inner: &Arc<Inner>) -> CompletionCounter {
        let id = inner.driver.with_last(|state, _| {
            let (_, _, queues) = state.parts();
            queues.open_counter()
        });
        CompletionCounter {
            inner: Arc::clone(inner),
            id,
        }
    }

    pub(crate) fn id(&self) -> QueueRef {
        self.id
    }

    /// What has been counted so far.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn counts(&self) -> Result<CompletionCounts, ReceiveError> {
        let all = self.wait_until(0, Until::Now)?;
        Ok(all.unwrap_or_default())
    }

    /// Waits until `count` operations are done, whether they failed or not, at most `timeout`;
    /// `None` if they are not.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn wait(
        &self,
        count: u64,
        timeout: Duration,
    ) -> Result<Option<CompletionCounts>, ReceiveError> {
        self.wait_until(count, Until::For(timeout))
    }

    fn wait_until(
        &self,
        count: u64,
        until: Until,
    ) -> Result<Option<CompletionCounts>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        let what = |_: &ProcessState| format!("{count} operations to be done");
        let keys = [WaitKey::Queue(self.id.0)];
        let waited = self.inner.driver.wait(until, &keys, &what, |state, _| {
            let (_, _, queues) = state.parts();
            let counts = queues.counts(self.id);
            (counts.sent + counts.failed >= count).then_some(counts)
        });
        match waited {
            Ok(counts) => Ok(Some(counts)),
            Err(WaitError::TimedOut { .. }) => Ok(None),
            Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
        }
    }
}

impl Drop for CompletionCounter {
    fn drop(&mut self) {
        if !self.inner.is_forked() {
            self.inner.driver.with_last(|state, _| {
                let (_, _, queues) = state.parts();
                queues.close(self.id);
            });
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.inner.is_forked() {
            self.inner.driver.with_last(|state, _| {
                let (engine, _, queues) = state.parts();
                queues.close(self.id);
                engine.ready().set_watched(queues.is_watching());
                state.close_queue(self.id);
            });
        }
    }
}
