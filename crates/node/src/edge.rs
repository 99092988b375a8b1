//! An edge: from an endpoint of this process to one target, and to it alone.

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

/// An edge of an endpoint. Messages of one edge arrive once and in order.
///
/// Several threads may use it at once. Dropping it closes it: what was sent still arrives,
/// what was posted and has not begun completes as [`SendError::Cancelled`], also when its endpoint
/// ends. Two edges between the same endpoints share one order.
#[derive(Debug)]
pub struct Edge {
    inner: Arc<Inner>,
    owner: Arc<EndpointOwner>,
    id: EdgeRef,
    to: Address,
    /// Puts have been sent that nobody waited for.
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

    /// The endpoint it begins at.
    #[must_use]
    pub fn source(&self) -> EndpointId {
        self.owner.id
    }

    /// Where it leads.
    #[must_use]
    pub fn target(&self) -> Address {
        self.to
    }

    pub(crate) fn id(&self) -> EdgeRef {
        self.id
    }

    /// Waits until the target's process has answered, at most `timeout`.
    ///
    /// # Errors
    /// [`SendError::Unreachable`] says why it never will be; [`SendError::TimedOut`].
    pub fn wait_open(&self, timeout: Duration) -> Result<(), SendError> {
        self.check_usable()?;
        let until = Timeout::After(timeout);
        self.inner.wait_target(self.id, self.to, until).map(drop)
    }

    /// Has the target's process asked now and then whether it lives, though nothing is sent to
    /// it: for those who only wait for its messages. Never blocks; whoever waits for long calls
    /// it again, to be told when that process is gone.
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

    /// Sends a message. It is copied; it leaves before this returns unless earlier packets
    /// still wait. Blocks while the edge connects, and while frames or the receiver's credit
    /// are used up, receiving meanwhile. Delivery is confirmed only by [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Infinite)
    }

    /// Like [`send`](Self::send), but returns within `timeout`. A long message that has
    /// begun by then goes on by itself, from a copy, and counts as sent.
    ///
    /// # Errors
    /// [`SendError::TimedOut`] and those of `send`; nothing was queued.
    pub fn send_timeout(&self, payload: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_until(payload, Timeout::After(timeout))
    }

    /// Like [`send`](Self::send), but never blocks: the message is queued whole or not at
    /// all.
    ///
    /// # Errors
    /// [`SendError::Full`], also while the edge connects, and those of `send`.
    pub fn try_send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Zero)
    }

    /// Like [`try_send`](Self::try_send), but more follows: by packets the message may wait and
    /// share one. It leaves when that is full, with what is sent to the same process without more
    /// to come, with [`flush_edges`](crate::Endpoint::flush_edges) and the next wait; else a
    /// thread of the node sends it, within a millisecond or so.
    ///
    /// # Errors
    /// Those of `try_send`.
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

    /// Sends a message if nothing is in its way now: the edge is open, nothing waits on it, and
    /// there is room. False: nothing was sent. Takes no step and never waits, so a handler may
    /// call it.
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
    /// longer than `patience`, whatever waits on it.
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

    /// Sends a message without blocking the thread: ready once it is queued whole, as
    /// [`try_send`](Self::try_send) queues it. Dropping the future before sends nothing.
    ///
    /// # Errors
    /// Those of `try_send`, but for [`SendError::Full`].
    pub fn send_async(&self, payload: &[u8]) -> impl Future<Output = Result<(), SendError>> {
        poll_fn(move |context| self.poll_send(context, payload))
    }

    /// [`send_async`](Self::send_async) for callers who write their own futures.
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
            // What it waits for may have come before the task was registered.
            let sent = self.try_send(payload);
            if !matches!(sent, Err(SendError::Full { .. })) {
                return Poll::Ready(sent);
            }
            if room.is_some() || idle().is_none() {
                return Poll::Pending;
            }
        }
    }

    /// Posts an operation on the gathered bytes, which are copied; never blocks. It is begun
    /// in the edge's order, also if the edge still connects. Its `context` appears in the
    /// queue that the edge is [attached](Self::attach) to when it is done or has failed.
    ///
    /// # Errors
    /// [`SendError::Full`]: 1024 operations wait on this edge, or copies of 32 MiB in this process,
    /// or the others are left less than this edge would have; [`SendError::TooLong`] of a get.
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

    /// Like [`post`](Self::post), but the bytes are not copied: the library shares them until the
    /// completion, and a long message goes straight from them to the receiver. Long ones complete
    /// when they have been taken out of them, not in the order in which they were posted.
    /// [`Bytes::from_owner`] makes any memory such bytes.
    ///
    /// # Errors
    /// [`SendError::Full`]: 1024 operations wait on this edge; [`SendError::TooLong`] of a get.
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

    /// Posts a get of as many bytes as there are in `into`, which is to be left alone until the
    /// completion; see [`post`](Self::post).
    ///
    /// # Errors
    /// Those of `post`.
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

    /// Withdraws an operation that was posted with this context and has not begun: it
    /// completes as [`SendError::Cancelled`]. False if there is none.
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

    /// Completions of operations posted from now on appear in this queue.
    pub fn attach(&self, queue: &CompletionQueue) {
        self.complete_at(queue.id());
    }

    /// Completions of operations posted from now on are counted there.
    pub fn attach_counter(&self, counter: &CompletionCounter) {
        self.complete_at(counter.id());
    }

    /// True if completions of what is posted appear, or are counted, anywhere.
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

    /// Waits until everything sent to the target's process has been acknowledged: messages lie
    /// in its endpoint's token buffer pool, what was put lies in its place.
    ///
    /// # Errors
    /// [`SendError::NotDone`]: a put since the last flush was refused, and why the first was.
    /// [`SendError::TimedOut`], [`SendError::PeerGone`], [`SendError::Broken`].
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
            .wait_acknowledged(&target, until.after(begun.elapsed()))
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
    /// Posts an operation to an edge; the progress thread sees to what has to wait.
    pub(crate) fn post(&self, id: EdgeRef, post: NewPost) -> Result<(), SendError> {
        self.driver.with(|state, now| {
            let (engine, edges, queues) = state.parts();
            edges.post((engine, queues), id, post, now)
        })
    }

    /// Waits until an edge is open and nothing posted waits on it; where it leads.
    pub(crate) fn wait_target(
        &self,
        id: EdgeRef,
        to: Address,
        until: Timeout,
    ) -> Result<Target, SendError> {
        let what = |_: &ProcessState| format!("the process of endpoint {to} to answer");
        let waited = self.driver.wait(until, &[id.key()], &what, |state, _| {
            state.edges.idle_target(id)
        });
        match waited {
            Ok(target) => target,
            Err(WaitError::TimedOut { .. }) if until == Timeout::Zero => Err(SendError::Full {
                target: to,
                by_receiver: false,
            }),
            Err(WaitError::TimedOut { waited }) => Err(SendError::TimedOut { target: to, waited }),
            Err(WaitError::Broken(cause)) => Err(SendError::Broken(cause)),
        }
    }
}
