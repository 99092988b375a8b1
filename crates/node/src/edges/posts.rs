//! What was posted to an edge and has not begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use dipole_proto::Instant;

use crate::address::Address;
use crate::error::{SendError, TargetError};
use crate::queues::{Completion, QueueTable};
use dipole_engine::{Begun, Blocked, Context, Engine, Operation, Posted, QueueRef, Target};
use dipole_link::Region as RegionMemory;

/// Operations that wait on one edge at most.
const MAX_POSTED: usize = 1024;
/// Bytes that posted operations hold copies of at most, waiting or begun; one edge has no more
/// than it leaves to the others.
const MAX_POSTED_BYTES: usize = 32 << 20;

/// The bytes of an operation that is posted.
pub(crate) enum PostedBytes {
    /// Copied from the caller's.
    Copied(Vec<u8>),
    /// Shared with the caller, who keeps them as they are.
    Shared(Bytes),
    /// None: of a get, where its data go.
    Into(RegionMemory),
}

/// An operation that is to be posted.
pub(crate) struct NewPost {
    pub(crate) operation: Operation,
    pub(crate) bytes: PostedBytes,
    /// The number that its completion carries.
    pub(crate) context: Context,
}

/// Bytes that were copied when they were posted, counted among those of the process and of their
/// edge until they are no longer needed.
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

/// An operation that waits for its turn.
#[derive(Debug)]
struct Post {
    operation: Operation,
    context: Context,
    bytes: Bytes,
    /// Of a get, where its data go; else they come with the completion.
    into: Option<RegionMemory>,
}

impl Post {
    fn begin(
        &self,
        engine: &mut Engine,
        target: &Target,
        queue: Option<QueueRef>,
        now: Instant,
    ) -> Result<Begun, Blocked> {
        let posted = Posted {
            context: self.context,
            queue,
            to: target.address,
        };
        let what = (&self.operation, &self.bytes, self.into.as_ref());
        let begun = engine.begin_posted(now, target.edge, what, Some(posted))?;
        target.sent.count(self.bytes.len());
        Ok(begun)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Posts {
    waiting: VecDeque<Post>,
    /// Where completions go.
    queue: Option<QueueRef>,
    /// Bytes of copies of what was posted.
    copied_bytes: Option<Arc<AtomicUsize>>,
}

impl Posts {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Completions of what is posted from now on go there.
    pub(super) fn attach(&mut self, queue: QueueRef) {
        self.queue = Some(queue);
    }

    /// True if completions go anywhere.
    pub(super) fn is_attached(&self) -> bool {
        self.queue.is_some()
    }

    /// Adds one behind the others; false if as much waits as may, where `all` counts the bytes
    /// of copies of all edges.
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

    /// Withdraws what was posted with this context; true if anything was.
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
        self.withdrawn((engine, queues), to, context);
        true
    }

    /// Withdraws all: the edge is closed.
    pub(super) fn cancel_all(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        to: Address,
    ) {
        while let Some(post) = self.waiting.pop_front() {
            self.withdrawn((&mut *engine, &mut *queues), to, post.context);
        }
    }

    fn withdrawn(
        &self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        to: Address,
        context: Context,
    ) {
        let error = SendError::Cancelled { target: to };
        queues.push(engine, self.queue, Completion::Failed { context, error });
    }

    /// Begins all that can begin along an edge to `to`; where that has failed all fails likewise.
    /// True if anything did.
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
            let begun = match target {
                Err(cause) => Err(SendError::Unreachable(Arc::clone(cause))),
                Ok(target) => match post.begin(engine, target, self.queue, now) {
                    Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => break,
                    begun => begun.map_err(|why| SendError::from_blocked(why, to, length)),
                },
            };
            self.waiting.pop_front();
            moved = true;
            let completion = match begun {
                Ok(Begun::Sent) => Completion::Sent { context },
                // The engine says when it is done.
                Ok(Begun::GoesOn | Begun::Asked(_)) => continue,
                Err(error) => Completion::Failed { context, error },
            };
            queues.push(engine, self.queue, completion);
        }
        moved
    }
}
