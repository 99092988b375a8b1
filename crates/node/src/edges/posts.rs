//! Operations posted to an edge that have not started.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use dipole_proto::Instant;

use crate::address::Address;
use crate::error::{SendError, TargetError};
use crate::queues::{Completion, QueueTable};
use dipole_engine::{
    Blocked, Context, Engine, Operation, OperationStart, PostedOperation, QueueRef, Target,
};
use dipole_link::Region as RegionMemory;

/// Limit of posted operations per edge.
pub(super) const MAX_POSTED: usize = 1024;
/// Limit of bytes copied by posted operations of a process, waiting or started. One edge may use at
/// most as much as it leaves to the others.
pub(crate) const MAX_POSTED_BYTES: usize = 32 << 20;

/// The bytes of a posted operation.
pub(crate) enum PostedBytes {
    /// A copy of the caller's bytes.
    Copied(Vec<u8>),
    /// Shared with the caller, who must not change them.
    Shared(Bytes),
    /// None; for a get, where its data is stored.
    Into(RegionMemory),
}

/// An operation to post.
pub(crate) struct NewPost {
    pub(crate) operation: Operation,
    pub(crate) bytes: PostedBytes,
    /// The caller's number, returned with the completion.
    pub(crate) context: Context,
}

/// Copied bytes, counted for the process and the edge while they exist.
struct Copied {
    bytes: Vec<u8>,
    counters: [Arc<AtomicUsize>; 2],
}

impl Copied {
    fn new(bytes: Vec<u8>, counters: [Arc<AtomicUsize>; 2]) -> Copied {
        for counter in &counters {
            counter.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        Copied { bytes, counters }
    }
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        for counter in &self.counters {
            counter.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

/// A posted operation and the bytes that it sends.
#[derive(Debug)]
struct Post {
    operation: Operation,
    context: Context,
    bytes: Bytes,
    /// For a get, where its data is stored; otherwise the completion contains the data.
    into: Option<RegionMemory>,
}

impl Post {
    fn begin(
        &self,
        engine: &mut Engine,
        target: &Target,
        queue: Option<QueueRef>,
        now: Instant,
    ) -> Result<OperationStart, Blocked> {
        let posted = PostedOperation {
            context: self.context,
            queue,
            to: target.address,
        };
        let what = (&self.operation, &self.bytes, self.into.as_ref());
        let started_at = engine.begin_posted(now, target.edge, what, Some(posted))?;
        target.sent.count(self.bytes.len());
        Ok(started_at)
    }
}

/// All operations posted to an edge.
#[derive(Debug, Default)]
pub(super) struct Posts {
    waiting: VecDeque<Post>,
    /// The attached queue or counter.
    queue: Option<QueueRef>,
    /// Bytes copied by this edge's operations.
    copied_bytes: Option<Arc<AtomicUsize>>,
    /// Why the last operation could not start, if it failed.
    failure: Option<Blocked>,
}

impl Posts {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Why the last operation could not start, if it failed.
    pub(super) fn failure(&self) -> Option<Blocked> {
        self.failure
    }

    /// Number of waiting operations and their bytes.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let bytes = self.waiting.iter().map(|post| post.bytes.len());
        (self.waiting.len(), bytes.sum())
    }

    /// Adds a message whose bytes several edges share.
    pub(super) fn push_message(&mut self, bytes: Bytes) {
        self.waiting.push_back(Post {
            operation: Operation::Message,
            context: 0,
            bytes,
            into: None,
        });
    }

    /// Removes the oldest waiting operation; false if no operation waits.
    pub(super) fn drop_oldest(&mut self) -> bool {
        self.waiting.pop_front().is_some()
    }

    /// Attaches a queue or counter for operations posted from now on.
    pub(super) fn attach(&mut self, queue: QueueRef) {
        self.queue = Some(queue);
    }

    /// True if a queue or counter is attached.
    pub(super) fn is_attached(&self) -> bool {
        self.queue.is_some()
    }

    /// Adds an operation; false if too much is waiting. `all` counts the bytes copied by all
    /// edges.
    pub(super) fn push(&mut self, post: NewPost, all: &Arc<AtomicUsize>) -> bool {
        let NewPost {
            operation,
            bytes,
            context,
        } = post;
        let is_full =
            matches!(&bytes, PostedBytes::Copied(bytes) if !self.may_copy(bytes.len(), all));
        if is_full || self.waiting.len() >= MAX_POSTED {
            return false;
        }
        let (bytes, into) = match bytes {
            PostedBytes::Shared(bytes) => (bytes, None),
            PostedBytes::Into(memory) => (Bytes::new(), Some(memory)),
            PostedBytes::Copied(bytes) => {
                let own = self.copied_bytes.get_or_insert_default();
                let counters = [Arc::clone(all), Arc::clone(own)];
                (Bytes::from_owner(Copied::new(bytes, counters)), None)
            }
        };
        self.waiting.push_back(Post {
            operation,
            context,
            bytes,
            into,
        });
        true
    }

    fn may_copy(&self, more: usize, all: &AtomicUsize) -> bool {
        let all = all.load(Ordering::Relaxed);
        let left = MAX_POSTED_BYTES.saturating_sub(all);
        let own = self.copied_bytes.as_ref();
        let own = own.map_or(0, |own| own.load(Ordering::Relaxed));
        all == 0 || all + more <= left || own + more <= left
    }

    /// Cancels an operation with this context; true if there was one.
    pub(super) fn cancel(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        to: Address,
        context: Context,
    ) -> bool {
        let found = self.waiting.iter().position(|post| post.context == context);
        if found.and_then(|at| self.waiting.remove(at)).is_none() {
            return false;
        }
        self.complete_cancelled((engine, queues), to, context);
        true
    }

    /// Cancels all operations of an edge that is being closed.
    pub(super) fn cancel_all(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        to: Address,
    ) {
        while let Some(post) = self.waiting.pop_front() {
            self.complete_cancelled((&mut *engine, &mut *queues), to, post.context);
        }
    }

    fn complete_cancelled(
        &self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        to: Address,
        context: Context,
    ) {
        let error = SendError::Cancelled { target: to };
        queues.push(engine, self.queue, Completion::Failed { context, error });
    }

    /// Starts all operations that can start on an edge to `to`, or fails them all if the edge has
    /// failed. True if there was any change.
    pub(super) fn advance(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        to: Address,
        target: Result<&Target, &Arc<TargetError>>,
        now: Instant,
    ) -> bool {
        let mut moved = false;
        while let Some(post) = self.waiting.front() {
            let (context, length) = (post.context, post.bytes.len());
            let started_at = match target {
                Err(cause) => Err(SendError::Unreachable(Arc::clone(cause))),
                Ok(target) => match post.begin(engine, target, self.queue, now) {
                    Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => break,
                    Err(why) => {
                        self.failure = Some(why);
                        Err(SendError::from_blocked(why, to, length))
                    }
                    Ok(started) => Ok(started),
                },
            };
            self.waiting.pop_front();
            moved = true;
            let completion = match started_at {
                Ok(OperationStart::Sent) => Completion::Sent { context },
                // The engine completes it later.
                Ok(OperationStart::InBackground | OperationStart::AwaitsAnswer(_)) => continue,
                Err(error) => Completion::Failed { context, error },
            };
            queues.push(engine, self.queue, completion);
        }
        moved
    }
}
