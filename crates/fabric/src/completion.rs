//! What has completed: queues and counters that programs read, and who is asked to go on
//! while they do.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::fabric::{FI_READ, FI_RECV, FI_SEND, FI_WRITE};

/// Looks that find nothing after which others get the core between them.
const IDLE_LOOKS: u32 = 128;
/// How long a waiter sleeps before it looks at all endpoints again.
const NAP: Duration = Duration::from_millis(10);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An operation that is done or has failed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// The program's.
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) length: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// Who sent a message, by its number.
    pub(crate) source: u64,
    /// Why it failed, and how many bytes found no room.
    pub(crate) failure: Option<(i32, usize)>,
}

/// What completions come from: an endpoint.
pub(crate) trait Source: Send + Sync {
    /// Goes on with what has begun; true if anything happened.
    fn progress(&self) -> bool;

    /// Sleeps until something comes, at most `timeout`.
    fn wait(&self, timeout: Duration);

    /// The program's number of whoever has this address.
    fn find(&self, address: u64) -> Option<u64>;
}

/// Endpoints that somebody waits for.
#[derive(Default)]
pub(crate) struct Sources {
    endpoints: Mutex<Vec<Arc<dyn Source>>>,
    idle: AtomicU32,
}

impl Sources {
    pub(crate) fn add(&self, endpoint: Arc<dyn Source>) {
        let mut endpoints = lock(&self.endpoints);
        let is_it = |known: &Arc<dyn Source>| is_same(known, &*endpoint);
        if !endpoints.iter().any(is_it) {
            endpoints.push(endpoint);
        }
    }

    pub(crate) fn remove(&self, endpoint: &dyn Source) {
        lock(&self.endpoints).retain(|known| !is_same(known, endpoint));
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.endpoints).is_empty()
    }

    /// Goes on with what the endpoints have begun, and takes what has come.
    #[inline]
    pub(crate) fn progress(&self) {
        let mut moved = false;
        for endpoint in lock(&self.endpoints).iter() {
            moved |= endpoint.progress();
        }
        if moved {
            self.idle.store(0, Ordering::Relaxed);
        } else if self.idle.fetch_add(1, Ordering::Relaxed) >= IDLE_LOOKS {
            // Programs look again at once, also where they are more than there are cores.
            self.idle.store(IDLE_LOOKS, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Waits until `got` has something, at most `timeout`; for ever without one.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut got: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.progress();
            if let Some(found) = got() {
                return Some(found);
            }
            let left = until.map_or(NAP, |until| {
                until.saturating_duration_since(Instant::now()).min(NAP)
            });
            if left.is_zero() {
                return None;
            }
            // Only one can be slept for; the others are looked at when the nap is over.
            let first = lock(&self.endpoints).first().cloned();
            match first {
                Some(endpoint) => endpoint.wait(left),
                None => std::thread::sleep(left),
            }
        }
    }

    /// The program's number of whoever sent a message.
    pub(crate) fn resolve(&self, source: u64) -> Option<u64> {
        let endpoints = lock(&self.endpoints);
        endpoints.iter().find_map(|endpoint| endpoint.find(source))
    }
}

fn is_same(known: &Arc<dyn Source>, other: &dyn Source) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(known), other)
}

/// A queue of completions.
#[derive(Default)]
pub(crate) struct Cq {
    entries: Mutex<VecDeque<Entry>>,
    pub(crate) sources: Sources,
    /// Waiters are to return.
    signalled: AtomicU32,
}

impl Cq {
    #[inline]
    pub(crate) fn push(&self, entry: Entry) {
        lock(&self.entries).push_back(entry);
    }

    /// Takes at most `most` entries that have not failed, in order: how many. `None`: the
    /// next one has failed.
    #[inline]
    pub(crate) fn read(&self, most: usize, mut out: impl FnMut(usize, &Entry)) -> Option<usize> {
        let mut count = 0;
        let mut entries = lock(&self.entries);
        while count < most
            && let Some(entry) = entries.front()
        {
            if entry.failure.is_some() {
                return (count > 0).then_some(count);
            }
            out(count, entry);
            entries.pop_front();
            count += 1;
        }
        Some(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }

    /// Takes the next entry if it has failed.
    pub(crate) fn read_failed(&self) -> Option<Entry> {
        let mut entries = lock(&self.entries);
        entries.front()?.failure?;
        entries.pop_front()
    }

    pub(crate) fn signal(&self) {
        self.signalled.store(1, Ordering::Release);
    }

    /// Waits until there is an entry or somebody signals.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.sources.wait(timeout, || {
            let woken = self.signalled.swap(0, Ordering::Acquire) == 1;
            (woken || !self.is_empty()).then_some(())
        });
    }
}

/// Counts completions.
#[derive(Default)]
pub(crate) struct Cntr {
    pub(crate) value: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) sources: Sources,
}

/// Where an endpoint's completions go.
#[derive(Default)]
pub(crate) struct Sinks {
    pub(crate) transmit: Option<Arc<Cq>>,
    pub(crate) receive: Option<Arc<Cq>>,
    /// With the kinds of operations that they count.
    pub(crate) counters: Vec<(u64, Arc<Cntr>)>,
}

impl Sinks {
    /// An operation is done, which the program wants to see in its queue, or has failed, which
    /// it sees in any case.
    #[inline]
    pub(crate) fn complete(&self, wanted: bool, entry: Entry) {
        for (kinds, counter) in &self.counters {
            if entry.flags & kinds & (FI_SEND | FI_RECV | FI_READ | FI_WRITE) != 0 {
                let count = match entry.failure {
                    None => &counter.value,
                    Some(_) => &counter.failed,
                };
                count.fetch_add(1, Ordering::Release);
            }
        }
        if wanted || entry.failure.is_some() {
            let queue = match entry.flags & FI_RECV {
                0 => &self.transmit,
                _ => &self.receive,
            };
            if let Some(queue) = queue {
                queue.push(entry);
            }
        }
    }
}
