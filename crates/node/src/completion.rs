//! Completion queues and counters for posted operations and arrived messages.
//!
//! A queue has one descriptor for everything attached to it. Attached endpoints keep their
//! messages until the queue is polled, so that their credit and limits still apply. A posted
//! operation adds one entry to the queue. A counter is just two numbers.

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

/// A number chosen by the caller and returned with the completion of an operation.
pub type Context = u64;

/// A completed operation or an arrived message.
#[derive(Debug)]
pub enum Completion {
    /// A posted message was sent in its edge's order; its bytes are no longer needed.
    Sent {
        /// The context given when it was posted.
        context: Context,
    },
    /// A posted memory operation has completed.
    Done {
        /// The context given when it was posted.
        context: Context,
        /// For fetch-and-add and compare-and-swap: the previous value of the word.
        value: u64,
        /// For a get: the bytes read.
        data: Data,
    },
    /// A posted operation failed.
    Failed {
        /// The context given when it was posted.
        context: Context,
        /// Why it failed.
        error: SendError,
    },
    /// A posted receive got a message.
    Filled {
        /// The context given when it was posted.
        context: Context,
        /// The receiving endpoint.
        endpoint: EndpointId,
        /// The sender of the message.
        source: Address,
        /// The length of the message.
        length: usize,
        /// The posted memory.
        memory: RegionMemory,
    },
    /// A posted receive failed.
    NotFilled {
        /// The context given when it was posted.
        context: Context,
        /// Why it failed.
        error: ReceiveError,
        /// The posted memory.
        memory: RegionMemory,
    },
    /// A message arrived at an attached endpoint.
    Received {
        /// The receiving endpoint.
        endpoint: EndpointId,
        /// The message.
        message: Message,
    },
}

/// Bytes read by a get.
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

/// Numbers of completed operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionCounts {
    /// Messages sent and memory operations completed.
    pub sent: u64,
    /// Operations that failed.
    pub failed: u64,
}

/// Index of a queue or counter in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueRef(u32);

#[derive(Debug, Default)]
struct QueueState {
    entries: VecDeque<Completion>,
    /// Attached endpoints that have, or recently had, messages.
    ready: VecDeque<u32>,
    signal: Option<Signal>,
}

/// All queues and counters of a process, protected by the driver's lock.
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

    /// True if any endpoint is attached to a queue.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        !self.by_endpoint.is_empty()
    }

    /// True if any queue has a descriptor.
    pub(crate) fn has_exports(&self) -> bool {
        self.queues.values().any(|queue| queue.signal.is_some())
    }

    /// Attaches an endpoint to a queue.
    pub(crate) fn attach_endpoint(&mut self, engine: &mut Engine, endpoint: u32, id: QueueRef) {
        self.by_endpoint.insert(endpoint, id);
        engine.ready().set_watched(true);
        if engine.has_message(endpoint) {
            self.add_ready(engine, endpoint);
        }
    }

    /// Detaches an endpoint that was closed.
    pub(crate) fn detach_endpoint(&mut self, engine: &mut Engine, endpoint: u32) {
        self.by_endpoint.remove(&endpoint);
        engine.ready().set_watched(!self.by_endpoint.is_empty());
    }

    /// Adds attached endpoints with new messages to their queues.
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

    /// Adds an entry to a queue or counts it, if the operation has one.
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

    /// Adds completions of finished operations to their queues.
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

    /// Wakes waiters for the queue.
    fn notify(&mut self, engine: &mut Engine, id: QueueRef) {
        engine.ready().notify(WaitKey::Queue(id.0));
        if let Some(queue) = self.queues.get_mut(&id.0)
            && let Some(signal) = &mut queue.signal
            && let Err(cause) = signal.set_readable()
        {
            tracing::warn!("cannot make a completion queue's descriptor readable: {cause}");
        }
    }

    /// Takes the next entry.
    fn poll(&mut self, engine: &mut Engine, id: QueueRef, now: Instant) -> Option<Completion> {
        let queue = self.queues.get_mut(&id.0)?;
        if let Some(entry) = queue.entries.pop_front() {
            return Some(entry);
        }
        while let Some(endpoint) = queue.ready.pop_front() {
            if let Some(message) = engine.take(now, endpoint) {
                if engine.has_message(endpoint) {
                    // Serve the other endpoints first.
                    queue.ready.push_back(endpoint);
                }
                let endpoint = EndpointId(endpoint);
                return Some(Completion::Received { endpoint, message });
            }
        }
        if let Some(signal) = &mut queue.signal
            && let Err(cause) = signal.clear_readable(None)
        {
            tracing::warn!("cannot clear a completion queue's descriptor: {cause}");
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

/// A completion queue. Endpoints and edges can be attached to it; dropping it detaches them.
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

    /// Returns the next completion if there is one; polls the network once.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn poll(&self) -> Result<Option<Completion>, ReceiveError> {
        self.wait_until(Until::Now)
    }

    /// Waits for the next completion for at most `timeout`; `None` if there was none.
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

    /// Waits for the next completion without blocking the thread.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn next_async(&self) -> impl Future<Output = Result<Completion, ReceiveError>> {
        poll_fn(|context| self.poll_next(context))
    }

    /// Poll-based version of [`next_async`](Self::next_async), for custom futures.
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

    /// Takes the oldest entry, and sends credit that its sender may be waiting for.
    fn take(&self, state: &mut ProcessState, now: Instant) -> Option<io::Result<Completion>> {
        let (engine, _, queues) = state.parts();
        let entry = queues.poll(engine, self.id, now)?;
        Some(engine.transmit(now).map(|()| entry))
    }

    /// The queue's descriptor, for `poll`, `select` and `epoll`: readable while
    /// [`poll`](Self::poll) has an entry. A thread of this node keeps it up to date.
    ///
    /// # Errors
    /// [`OpenError::Sleep`] if there are no descriptors or threads left.
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

/// Counts completions instead of storing them, for callers that only need their number.
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

    /// The current counts.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn counts(&self) -> Result<CompletionCounts, ReceiveError> {
        let all = self.wait_until(0, Until::Now)?;
        Ok(all.unwrap_or_default())
    }

    /// Waits for at most `timeout` until `count` operations have completed or failed; `None` if
    /// they have not.
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
