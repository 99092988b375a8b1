//! Completions and the queues and counters that keep them, under the driver's lock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use dipole_driver::WaitKey;
use dipole_engine::{Context, Data, Engine, Message, QueueRef};
use dipole_link::Region as RegionMemory;
use dipole_link::signal::Signal;
use dipole_proto::Instant;
use rustc_hash::FxHashMap;

use crate::address::{Address, EndpointId};
use crate::error::{ReceiveError, SendError, operation_result};

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

/// How many operations are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that are on their way, and operations on memory that are done.
    pub sent: u64,
    /// Operations that were not done.
    pub failed: u64,
}

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
    counters: FxHashMap<u32, Counts>,
    next: u32,
    by_endpoint: FxHashMap<u32, QueueRef>,
}

impl QueueTable {
    pub(crate) fn open(&mut self) -> QueueRef {
        self.next += 1;
        self.queues.insert(self.next, QueueState::default());
        QueueRef(self.next)
    }

    pub(crate) fn open_counter(&mut self) -> QueueRef {
        self.next += 1;
        self.counters.insert(self.next, Counts::default());
        QueueRef(self.next)
    }

    pub(crate) fn counts(&self, id: QueueRef) -> Counts {
        self.counters.get(&id.0).copied().unwrap_or_default()
    }

    pub(crate) fn close(&mut self, id: QueueRef) {
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
            self.note(engine, endpoint);
        }
    }

    /// An endpoint has ended.
    pub(crate) fn detach_endpoint(&mut self, engine: &mut Engine, endpoint: u32) {
        self.by_endpoint.remove(&endpoint);
        engine.ready().set_watched(!self.by_endpoint.is_empty());
    }

    /// Notes which attached endpoints got messages.
    pub(crate) fn note_messages(&mut self, engine: &mut Engine) {
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
                self.note(engine, endpoint);
            }
        }
    }

    fn note(&mut self, engine: &mut Engine, endpoint: u32) {
        if let Some(id) = self.by_endpoint.get(&endpoint)
            && let Some(queue) = self.queues.get_mut(&id.0)
            && !queue.ready.contains(&endpoint)
        {
            queue.ready.push_back(endpoint);
            let id = *id;
            self.tell(engine, id);
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
        self.tell(engine, id);
    }

    /// Notes posted operations that are done since they were begun.
    pub(crate) fn note_finished(&mut self, engine: &mut Engine) {
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

    /// Somebody who waits for the queue looks at it.
    fn tell(&mut self, engine: &mut Engine, id: QueueRef) {
        engine.ready().notify(WaitKey::Queue(id.0));
        if let Some(queue) = self.queues.get_mut(&id.0)
            && let Some(signal) = &mut queue.signal
            && let Err(cause) = signal.set_readable()
        {
            tracing::warn!("a completion queue's descriptor is not readable: {cause}");
        }
    }

    /// The next entry.
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

    pub(crate) fn export(&mut self, engine: &mut Engine, id: QueueRef) -> io::Result<OwnedFd> {
        let (signal, user) = Signal::pair()?;
        if let Some(queue) = self.queues.get_mut(&id.0) {
            let waits = !queue.entries.is_empty() || !queue.ready.is_empty();
            queue.signal = Some(signal);
            if waits {
                self.tell(engine, id);
            }
        }
        Ok(user)
    }
}
