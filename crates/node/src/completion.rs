//! Completion queues and counters for posted operations and arrived messages.
//!
//! A queue has one descriptor for everything attached to it. Attached endpoints keep their
//! messages until the queue is polled, so that their credit and limits still apply. A posted
//! operation adds one entry to the queue. A counter is just two numbers.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use dipole_driver::{Timeout, WaitError, WaitKey};
use dipole_engine::QueueRef;
use dipole_proto::Instant;

use crate::error::{OpenError, ReceiveError};
use crate::inner::Inner;
use crate::process::ProcessState;
use crate::queues::{Completion, CompletionCounts};

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
        self.wait_until(Timeout::Zero)
    }

    /// Waits for the next completion for at most `timeout`; `None` after the time-out.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>, ReceiveError> {
        self.wait_until(Timeout::After(timeout))
    }

    fn wait_until(&self, until: Timeout) -> Result<Option<Completion>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        let what = |_: &ProcessState| "a completion queue to have an entry".to_string();
        let keys = [WaitKey::Queue(self.id.0)];
        let traced = self.inner.trace_wait(until);
        let waited =
            (self.inner.driver).wait(until, &keys, &what, |state, now| self.take(state, now));
        if let Some(traced) = traced {
            match &waited {
                Ok(Ok(Completion::Received { message, .. })) => {
                    traced.end_receive(None, Some((message.source(), message.len())));
                }
                Ok(Ok(Completion::Filled { source, length, .. })) => {
                    traced.end_receive(None, Some((*source, *length)));
                }
                _ => traced.end_operation(None, waited.is_ok()),
            }
        }
        match waited {
            Ok(Ok(entry)) => Ok(Some(entry)),
            Err(WaitError::TimedOut { .. }) => Ok(None),
            Err(WaitError::Interrupted { .. }) => Err(ReceiveError::Interrupted),
            Ok(Err(cause)) | Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
        }
    }

    /// Takes the entries that are there, at most `limit`, oldest first; returns their number. Does
    /// not poll the network: for programs that wait for the queue's
    /// [descriptor](Self::export), which a thread of this node keeps up to date.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn take_many(
        &self,
        entries: &mut impl Extend<Completion>,
        limit: usize,
    ) -> Result<usize, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        self.inner.driver.with(|state, now| {
            let (engine, _, queues) = state.parts();
            let mut taken = 0;
            while taken < limit
                && let Some(entry) = queues.poll(engine, self.id, now)
            {
                entries.extend(Some(entry));
                taken += 1;
            }
            // Send credit that the senders may be waiting for.
            engine.transmit(now).map_err(ReceiveError::Broken)?;
            Ok(taken)
        })
    }

    /// From now on, [`Completion::Departed`] appears in this queue when a peer is gone, also while
    /// nothing is sent to it. [`Node::take_departures`](crate::Node::take_departures) no longer
    /// returns these.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] if no thread can start; [`ReceiveError::Forked`].
    pub fn watch_departures(&self) -> Result<(), ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        self.inner.ensure_progress().map_err(ReceiveError::Broken)?;
        self.inner.driver.with_last(|state, _| {
            let (engine, _, queues) = state.parts();
            queues.watch_departures(self.id);
            engine.ready().set_watched(true);
        });
        Ok(())
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
        let all = self.wait_until(0, Timeout::Zero)?;
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
        self.wait_until(count, Timeout::After(timeout))
    }

    fn wait_until(
        &self,
        count: u64,
        until: Timeout,
    ) -> Result<Option<CompletionCounts>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        let what = |_: &ProcessState| format!("{count} operations to be done");
        let keys = [WaitKey::Queue(self.id.0)];
        let traced = self.inner.trace_wait(until);
        let waited = self.inner.driver.wait(until, &keys, &what, |state, _| {
            let (_, _, queues) = state.parts();
            let counts = queues.counts(self.id);
            (counts.sent + counts.failed >= count).then_some(counts)
        });
        if let Some(traced) = traced {
            traced.end_operation(None, waited.is_ok());
        }
        match waited {
            Ok(counts) => Ok(Some(counts)),
            Err(WaitError::TimedOut { .. }) => Ok(None),
            Err(WaitError::Interrupted { .. }) => Err(ReceiveError::Interrupted),
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
