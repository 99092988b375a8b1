//! Edges: each leads from an endpoint of this process to one target endpoint.

mod memory;

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::address::{Address, EndpointId};
use crate::completion::{CompletionCounter, CompletionQueue};
use crate::edges::{EdgeRef, NewPost, PostedBytes};
use crate::error::SendError;
use crate::inner::Inner;
use crate::owner::EndpointOwner;
use crate::process::ProcessState;
use crate::region::RegionMemory;
use dipole_driver::{Timeout, WaitError, nanoseconds};
use dipole_engine::{Context, MAX_GET_BYTES, Operation, QueueRef, RegionKey, Target, wait_keys};

/// An edge of an endpoint. Its messages arrive once and in order.
///
/// Several threads may use it at once. Dropping it closes it: messages already sent still arrive,
/// and posted operations that have not started complete as [`SendError::Cancelled`]. The same
/// happens when its endpoint closes. Two edges between the same endpoints share one order.
#[derive(Debug)]
pub struct Edge {
    inner: Arc<Inner>,
    owner: Arc<EndpointOwner>,
    id: EdgeRef,
    to: Address,
    /// Puts without an answer have been sent.
    has_put: AtomicBool,
}

impl Edge {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        owner: &Arc<EndpointOwner>,
        id: EdgeRef,
        to: Address,
    ) -> Edge {
        Edge {
            inner: Arc::clone(inner),
            owner: Arc::clone(owner),
            id,
            to,
            has_put: AtomicBool::new(false),
        }
    }

    /// The endpoint that the edge belongs to.
    #[must_use]
    pub fn source(&self) -> EndpointId {
        self.owner.id
    }

    /// Returns the address of the target.
    #[must_use]
    pub fn target(&self) -> Address {
        self.to
    }

    /// Waits for at most `timeout` until the target's process has answered.
    ///
    /// # Errors
    /// [`SendError::Unreachable`] if it never will; [`SendError::TimedOut`].
    pub fn wait_open(&self, timeout: Duration) -> Result<(), SendError> {
        self.check_usable()?;
        let until = Timeout::After(timeout);
        self.inner.wait_target(self.id, self.to, until).map(drop)
    }

    /// Probes the target's process even though nothing is sent to it, for programs that only wait
    /// for its messages. Never blocks. Call it again during a long wait; it reports an error if
    /// the process is gone.
    ///
    /// # Errors
    /// [`SendError::PeerGone`], [`SendError::Unreachable`]; [`SendError::Full`] while the edge
    /// connects.
    pub fn watch(&self) -> Result<(), SendError> {
        self.check_usable()?;
        let to = self.to;
        self.inner.driver.with(|state, now| {
            let connecting = SendError::Full {
                target: to,
                by_receiver: false,
            };
            let peer = state.edges.target(self.id).ok_or(connecting)??.edge.peer;
            let (engine, _, _) = state.parts();
            let lives = engine.is_open(peer);
            lives.map_err(|gone| SendError::from_blocked(gone, to, 0))?;
            engine.watch(now, peer);
            Ok(())
        })
    }

    /// Sends a message. It is copied, and leaves before this returns unless earlier packets are
    /// waiting. Blocks while the edge connects and while there are no free frames or no credit
    /// from the receiver, and receives meanwhile. Only [`flush`](Self::flush) confirms delivery.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Infinite)
    }

    /// Like [`send`](Self::send), but returns within `timeout`. A long message that has started by
    /// then is completed from a copy in the background and counts as sent.
    ///
    /// # Errors
    /// [`SendError::TimedOut`] and those of `send`; nothing was queued.
    pub fn send_timeout(&self, payload: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_until(payload, Timeout::After(timeout))
    }

    /// Like [`send`](Self::send), but never blocks: the message is queued as a whole or not at
    /// all.
    ///
    /// # Errors
    /// [`SendError::Full`], also while the edge connects, and those of `send`.
    pub fn try_send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Zero)
    }

    /// Like [`try_send`](Self::try_send), but more messages follow, so this one may wait to share
    /// a packet with them. The packet leaves when it is full, with the next ordinary message to the
    /// same process, with [`flush_edges`](crate::Endpoint::flush_edges), or during the next wait;
    /// otherwise a thread of the node sends it within about a millisecond.
    ///
    /// # Errors
    /// The errors of `try_send`.
    #[inline]
    pub fn try_send_more(&self, payload: &[u8]) -> Result<(), SendError> {
        self.check_usable()?;
        let sent = self.inner.driver.sending(|state, clock| {
            let (engine, edges, _) = state.parts();
            edges.send_fast(engine, self.id, payload.into(), true, clock)
        });
        match sent.map_err(SendError::Broken)? {
            true => Ok(()),
            false => self.send_until(payload, Timeout::Zero),
        }
    }

    /// Sends a message if that is possible at once: the edge is open, no posted operations wait,
    /// and there is room. False if nothing was sent. Never waits and does not step the engine, so
    /// that handlers may call it.
    ///
    /// # Errors
    /// [`SendError::Broken`], [`SendError::Ended`] and [`SendError::Forked`].
    pub fn send_if_room(&self, payload: &[u8]) -> Result<bool, SendError> {
        self.check_usable()?;
        let sent = self.inner.driver.sending(|state, clock| {
            let (engine, edges, _) = state.parts();
            edges.send_fast(engine, self.id, payload.into(), false, clock)
        });
        sent.map_err(SendError::Broken)
    }

    /// True if the edge has failed, its target's process is gone, or it has been connecting for
    /// longer than `patience`, regardless of posted operations.
    #[must_use]
    pub fn is_lost(&self, patience: Duration) -> bool {
        let patience_ns = nanoseconds(patience);
        self.inner.driver.with(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.is_lost(engine, self.id, (now, patience_ns))
        })
    }

    fn send_until(&self, payload: &[u8], until: Timeout) -> Result<(), SendError> {
        self.check_usable()?;
        let source = self.owner.id.0;
        let edge = (self.id, self.to);
        self.inner.send_along(source, edge, payload.into(), until)
    }

    /// Sends a message without blocking the thread: the future is ready once the message is queued
    /// as by [`try_send`](Self::try_send). If it is dropped before, nothing is sent.
    ///
    /// # Errors
    /// The errors of `try_send`, except [`SendError::Full`].
    pub fn send_async(&self, payload: &[u8]) -> impl Future<Output = Result<(), SendError>> {
        poll_fn(move |context| self.poll_send(context, payload))
    }

    /// Poll-based version of [`send_async`](Self::send_async), for custom futures.
    pub fn poll_send(
        &self,
        context: &mut task::Context<'_>,
        payload: &[u8],
    ) -> Poll<Result<(), SendError>> {
        let sent = self.try_send(payload);
        if !matches!(sent, Err(SendError::Full { .. })) {
            return Poll::Ready(sent);
        }
        let driver = &self.inner.driver;
        let idle = || driver.with_last(|state, _| state.edges.idle_target(self.id));
        loop {
            let target = idle().and_then(Result::ok);
            let room = target.map(|target| wait_keys(target.edge));
            let opening = [self.id.key()];
            let keys = room.as_ref().map_or(&opening[..], |keys| &keys[..]);
            let _none: Option<()> = driver.wait_task(keys, context.waker(), |_, _| None);
            // Room may have become free before the task was registered.
            let sent = self.try_send(payload);
            if !matches!(sent, Err(SendError::Full { .. })) {
                return Poll::Ready(sent);
            }
            if room.is_some() || idle().is_none() {
                return Poll::Pending;
            }
        }
    }

    /// Posts an operation with a copy of the gathered bytes; never blocks. Operations start in
    /// order, also while the edge still connects. When one completes or fails, its `context`
    /// appears in the queue that the edge is [attached](Self::attach) to.
    ///
    /// # Errors
    /// [`SendError::Full`] if 1024 operations wait on this edge, if the copies of this process
    /// reach 32 MiB, or if this edge would use more of that than it leaves to the others;
    /// [`SendError::TooLong`] for a get.
    pub fn post(
        &self,
        operation: Operation,
        bytes: &[IoSlice<'_>],
        context: Context,
    ) -> Result<(), SendError> {
        let mut gathered = Vec::with_capacity(bytes.iter().map(|slice| slice.len()).sum());
        for slice in bytes {
            gathered.extend_from_slice(slice);
        }
        self.post_any(operation, PostedBytes::Copied(gathered), context)
    }

    /// Like [`post`](Self::post), but without the copy that `post` makes: the library shares the bytes
    /// until the completion. From them the message is copied into packets, or on the same node into
    /// shared memory, or the receiver copies a long message from them. Long messages complete when
    /// they have been copied so, which may be out of order.
    /// [`Bytes::from_owner`] turns any memory into such bytes.
    ///
    /// # Errors
    /// [`SendError::Full`] if 1024 operations wait on this edge; [`SendError::TooLong`] for a get.
    ///
    /// # Source
    /// The non-blocking zero-copy send of GAMMA §2.
    pub fn post_bytes(
        &self,
        operation: Operation,
        bytes: Bytes,
        context: Context,
    ) -> Result<(), SendError> {
        self.post_any(operation, PostedBytes::Shared(bytes), context)
    }

    /// Posts a get that fills `into`, which must not be touched until the completion; see
    /// [`post`](Self::post).
    ///
    /// # Errors
    /// The errors of `post`.
    pub fn post_get(
        &self,
        key: RegionKey,
        offset: u64,
        into: RegionMemory,
        context: Context,
    ) -> Result<(), SendError> {
        let length = into.bytes();
        let get = Operation::Get {
            key,
            offset,
            length,
        };
        self.post_any(get, PostedBytes::Into(into), context)
    }

    fn post_any(
        &self,
        operation: Operation,
        bytes: PostedBytes,
        context: Context,
    ) -> Result<(), SendError> {
        self.check_usable()?;
        if let Operation::Get { length, .. } = operation
            && length > MAX_GET_BYTES
        {
            let limit = MAX_GET_BYTES as u64;
            return Err(SendError::TooLong { length, limit });
        }
        let post = NewPost {
            operation,
            bytes,
            context,
        };
        self.inner.post(self.id, post)
    }

    /// Cancels a posted operation with this context that has not started. It completes as
    /// [`SendError::Cancelled`]. False if it does not exist.
    #[must_use]
    pub fn cancel(&self, context: Context) -> bool {
        if self.inner.is_forked() {
            return false;
        }
        self.inner.driver.with(|state, _| {
            let (engine, edges, queues) = state.parts();
            edges.cancel((engine, queues), self.id, context)
        })
    }

    /// From now on, completions of posted operations appear in this queue.
    pub fn attach(&self, queue: &CompletionQueue) {
        self.complete_at(queue.id());
    }

    /// From now on, this counter counts completions of posted operations.
    pub fn attach_counter(&self, counter: &CompletionCounter) {
        self.complete_at(counter.id());
    }

    /// True if a queue or a counter is attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        let driver = &self.inner.driver;
        !self.inner.is_forked() && driver.with_last(|state, _| state.edges.is_attached(self.id))
    }

    fn complete_at(&self, sink: QueueRef) {
        if !self.inner.is_forked() {
            self.inner.driver.with_last(|state, _| {
                let (_, edges, _) = state.parts();
                edges.attach(self.id, sink);
            });
        }
    }

    /// Waits until the target's process has acknowledged everything: messages are in its endpoint's
    /// token buffer pool, and puts are in place.
    ///
    /// # Errors
    /// [`SendError::OperationFailed`] if a put since the last flush was refused, with the first reason.
    /// [`SendError::Refused`] if the target has refused a message and no call of its endpoint or edges
    /// has reported it. [`SendError::TimedOut`], [`SendError::PeerGone`], [`SendError::Broken`].
    pub fn flush(&self, timeout: Duration) -> Result<(), SendError> {
        self.check_usable()?;
        let begun = Instant::now();
        let until = Timeout::After(timeout);
        if self.has_put.load(Ordering::Relaxed) {
            self.fence(until)?;
        }
        let until = until.after(begun.elapsed());
        let target = self.inner.wait_target(self.id, self.to, until)?;
        self.inner
            .wait_acknowledged(self.source().0, &target, until.after(begun.elapsed()))
    }

    /// Closes the edge, as dropping it does.
    pub fn close(self) {}

    fn check_usable(&self) -> Result<(), SendError> {
        if self.inner.is_forked() {
            return Err(SendError::Forked);
        }
        if self.owner.is_ended() {
            return Err(SendError::Ended);
        }
        Ok(())
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        if !self.inner.is_forked() {
            self.inner.driver.with(|state, now| {
                let (engine, edges, queues) = state.parts();
                edges.close(engine, queues, self.id);
                if let Err(cause) = engine.transmit(now) {
                    tracing::warn!("closing the edge to {}: {cause}", self.to);
                }
            });
        }
    }
}

impl Inner {
    /// Posts an operation to an edge; if it has to wait, the progress thread continues it.
    pub(crate) fn post(&self, id: EdgeRef, post: NewPost) -> Result<(), SendError> {
        self.driver.with(|state, now| {
            let (engine, edges, queues) = state.parts();
            edges.post((engine, queues), id, post, now)
        })
    }

    /// Waits until an edge is open and has no posted operations left; returns its target.
    pub(crate) fn wait_target(
        &self,
        id: EdgeRef,
        to: Address,
        until: Timeout,
    ) -> Result<Target, SendError> {
        let what = |state: &ProcessState| state.edges.awaited(id, to);
        let traced = self.trace_wait(until).map(|traced| {
            let was_open = (self.driver).with_last(|state, _| state.edges.target(id).is_some());
            (traced, was_open)
        });
        let waited = self.driver.wait(until, &[id.key()], &what, |state, _| {
            state.edges.idle_target(id)
        });
        if let Some((traced, was_open)) = traced {
            traced.end_target(to, was_open, waited.is_ok());
        }
        match waited {
            Ok(target) => target,
            Err(WaitError::TimedOut { .. }) if until == Timeout::Zero => Err(SendError::Full {
                target: to,
                by_receiver: false,
            }),
            Err(WaitError::TimedOut { waited }) => Err(SendError::TimedOut { target: to, waited }),
            Err(WaitError::Interrupted { .. }) => Err(SendError::Interrupted { target: to }),
            Err(WaitError::Broken(cause)) => Err(SendError::Broken(cause)),
        }
    }
}
