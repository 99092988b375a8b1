//! Completions, and the queues and counters that hold them, protected by the driver's lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use dipole_driver::WaitKey;
use dipole_engine::{Context, Data, Departure, Engine, Message, QueueRef};
use dipole_link::Region as RegionMemory;
use dipole_link::signal::Signal;
use dipole_proto::Instant;
use rustc_hash::FxHashMap;

use crate::address::{Address, EndpointId};
use crate::error::{ReceiveError, SendError, operation_result};

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
        /// The bytes read by a get; otherwise empty.
        data: Data,
    },
    /// A posted operation failed.
    Failed {
        /// The context given when it was posted.
        context: Context,
        /// Reason for the failure.
        error: SendError,
    },
    /// A posted receive got a message.
    Filled {
        /// The context given when it was posted.
        context: Context,
        /// Id of the receiving endpoint.
        endpoint: EndpointId,
        /// The sender of the message.
        source: Address,
        /// The length of the message.
        length: usize,
        /// The memory given when it was posted.
        memory: RegionMemory,
    },
    /// A posted receive failed.
    NotFilled {
        /// The context given when it was posted.
        context: Context,
        /// Reason for the failure.
        error: ReceiveError,
        /// The memory given when it was posted.
        memory: RegionMemory,
    },
    /// A message arrived at an attached endpoint.
    Received {
        /// Id of the receiving endpoint.
        endpoint: EndpointId,
        /// The received message.
        message: Message,
    },
    /// A peer is gone; only in queues that
    /// [watch departures](crate::CompletionQueue::watch_departures).
    Departed {
        /// The peer, and why it is gone.
        departure: Departure,
    },
}

/// Numbers of completed operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionCounts {
    /// Messages sent and memory operations completed.
    pub sent: u64,
    /// Number of operations that failed.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct QueueState {
    entries: VecDeque<Completion>,
    /// Attached endpoints that have, or recently had, messages.
    ready: VecDeque<u32>,
    /// Peers that are gone, whose messages come first.
    departed: VecDeque<Departure>,
    signal: Option<Signal>,
}

/// All queues and counters of a process, protected by the driver's lock.
#[derive(Debug, Default)]
pub(crate) struct QueueTable {
    queues: FxHashMap<u32, QueueState>,
    counters: FxHashMap<u32, CompletionCounts>,
    next: u32,
    by_endpoint: FxHashMap<u32, QueueRef>,
    /// Queues that get the departures of peers.
    watching_departures: Vec<QueueRef>,
}

impl QueueTable {
    pub(crate) fn open(&mut self) -> QueueRef {
        self.next += 1;
        self.queues.insert(self.next, QueueState::default());
        QueueRef(self.next)
    }

    pub(crate) fn open_counter(&mut self) -> QueueRef {
        self.next += 1;
        self.counters.insert(self.next, CompletionCounts::default());
        QueueRef(self.next)
    }

    pub(crate) fn counts(&self, id: QueueRef) -> CompletionCounts {
        self.counters.get(&id.0).copied().unwrap_or_default()
    }

    pub(crate) fn close(&mut self, id: QueueRef) {
        self.queues.remove(&id.0);
        self.counters.remove(&id.0);
        self.by_endpoint.retain(|_, queue| *queue != id);
        self.watching_departures.retain(|queue| *queue != id);
    }

    /// True if any endpoint is attached to a queue, or a queue gets departures.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        !self.by_endpoint.is_empty() || !self.watching_departures.is_empty()
    }

    /// From now on, departures of peers appear in this queue.
    pub(crate) fn watch_departures(&mut self, id: QueueRef) {
        if !self.watching_departures.contains(&id) {
            self.watching_departures.push(id);
        }
    }

    /// Adds the departures of peers to the queues that watch them.
    pub(crate) fn collect_departures(&mut self, engine: &mut Engine) {
        if self.watching_departures.is_empty() {
            return;
        }
        for departure in engine.take_departures() {
            for id in self.watching_departures.clone() {
                if let Some(queue) = self.queues.get_mut(&id.0) {
                    queue.departed.push_back(departure);
                    self.notify(engine, id);
                }
            }
        }
    }

    /// True if any queue has a descriptor.
    pub(crate) fn has_exports(&self) -> bool {
        self.queues.values().any(|queue| queue.signal.is_some())
    }

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
        engine.ready().set_watched(self.is_watching());
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
                // Counters do not watch departures.
                Completion::Departed { .. } => return,
            }
        } else {
            return;
        }
        self.notify(engine, id);
    }

    /// Adds completions of finished operations to their queues.
    pub(crate) fn collect_finished(&mut self, engine: &mut Engine) {
        while let Some((posted, sent)) = engine.next_sent_post() {
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
            let completion = match operation_result(result, target) {
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
    pub(crate) fn poll(
        &mut self,
        engine: &mut Engine,
        id: QueueRef,
        now: Instant,
    ) -> Option<Completion> {
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
        if let Some(departure) = queue.departed.pop_front() {
            return Some(Completion::Departed { departure });
        }
        if let Some(signal) = &mut queue.signal
            && let Err(cause) = signal.clear_readable(None)
        {
            tracing::warn!("cannot clear a completion queue's descriptor: {cause}");
        }
        None
    }

    pub(crate) fn export(&mut self, engine: &mut Engine, id: QueueRef) -> io::Result<OwnedFd> {
        let (signal, user) = Signal::pair()?;
        if let Some(queue) = self.queues.get_mut(&id.0) {
            let waits =
                !queue.entries.is_empty() || !queue.ready.is_empty() || !queue.departed.is_empty();
            queue.signal = Some(signal);
            if waits {
                self.notify(engine, id);
            }
        }
        Ok(user)
    }
}
