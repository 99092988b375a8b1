//! What has completed: queues and counters that programs read, and who is asked to go on
//! while they do.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::fabric::{FI_READ, FI_RECV, FI_REMOTE_WRITE, FI_SEND, FI_WRITE};
use crate::serial::{self, Serial};

/// Looks that find nothing after which others get the core between them.
const IDLE_LOOKS: u32 = 128;
/// How long a waiter sleeps before it looks at all endpoints again.
const NAP: Duration = Duration::from_millis(10);

/// What one thread at a time has.
pub(crate) trait Lock {
    type Guard<'a>
    where
        Self: 'a;

    fn guard(&self) -> Self::Guard<'_>;
}

impl<T> Lock for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Lock for Serial<T> {
    type Guard<'a>
        = serial::Guard<'a, T>
    where
        T: 'a;

    #[inline]
    fn guard(&self) -> serial::Guard<'_, T> {
        self.lock()
    }
}

#[inline]
pub(crate) fn lock<L: Lock>(lock: &L) -> L::Guard<'_> {
    lock.guard()
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
    /// The first one ever, nearly always the only one: it is reached without a lock, and stays
    /// here until this is dropped.
    first: OnceLock<Arc<dyn Source>>,
    has_first: AtomicBool,
    others: Mutex<Vec<Arc<dyn Source>>>,
    has_others: AtomicBool,
    idle: AtomicU32,
}

impl Sources {
    pub(crate) fn add(&self, endpoint: Arc<dyn Source>) {
        let first = self.first.get_or_init(|| Arc::clone(&endpoint));
        if is_same(first, &*endpoint) {
            self.has_first.store(true, Ordering::Release);
            return;
        }
        let mut others = lock(&self.others);
        if !others.iter().any(|known| is_same(known, &*endpoint)) {
            others.push(endpoint);
        }
        self.has_others.store(true, Ordering::Release);
    }

    pub(crate) fn remove(&self, endpoint: &dyn Source) {
        if (self.first.get()).is_some_and(|first| is_same(first, endpoint)) {
            self.has_first.store(false, Ordering::Release);
        }
        let mut others = lock(&self.others);
        others.retain(|known| !is_same(known, endpoint));
        (self.has_others).store(!others.is_empty(), Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first().is_none() && !self.has_others.load(Ordering::Acquire)
    }

    #[inline]
    fn first(&self) -> Option<&Arc<dyn Source>> {
        let is_there = self.has_first.load(Ordering::Acquire);
        self.first.get().filter(|_| is_there)
    }

    /// Goes on with what the endpoints have begun, and takes what has come.
    #[inline]
    pub(crate) fn progress(&self) {
        let mut moved = self.first().is_some_and(|first| first.progress());
        if self.has_others.load(Ordering::Acquire) {
            for endpoint in lock(&self.others).iter() {
                moved |= endpoint.progress();
            }
        }
        // Threads that look at the same time may count wrong.
        let idle = self.idle.load(Ordering::Relaxed);
        if moved {
            self.idle.store(0, Ordering::Relaxed);
        } else if idle < IDLE_LOOKS {
            self.idle.store(idle + 1, Ordering::Relaxed);
        } else {
            // Programs look again at once, also where they are more than there are cores.
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
            let other = || lock(&self.others).first().cloned();
            match self.first().cloned().or_else(other) {
                Some(endpoint) => endpoint.wait(left),
                None => std::thread::sleep(left),
            }
        }
    }

    /// The program's number of whoever sent a message.
    pub(crate) fn resolve(&self, source: u64) -> Option<u64> {
        let first = self.first().and_then(|first| first.find(source));
        first.or_else(|| {
            let others = lock(&self.others);
            others.iter().find_map(|endpoint| endpoint.find(source))
        })
    }
}

fn is_same(known: &Arc<dyn Source>, other: &dyn Source) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(known), other)
}

/// A queue of completions.
#[derive(Default)]
pub(crate) struct Cq {
    entries: Serial<VecDeque<Entry>>,
    /// How many they are, for those who look in vain.
    length: AtomicUsize,
    pub(crate) sources: Sources,
    /// Waiters are to return.
    signalled: AtomicU32,
}

impl Cq {
    #[inline]
    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = lock(&self.entries);
        entries.push_back(entry);
        self.length.store(entries.len(), Ordering::Release);
    }

    /// Takes at most `most` entries that have not failed, in order: how many. `None`: the
    /// next one has failed.
    #[inline]
    pub(crate) fn read(&self, most: usize, mut out: impl FnMut(usize, &Entry)) -> Option<usize> {
        if self.is_empty() {
            return Some(0);
        }
        let mut count = 0;
        let mut entries = lock(&self.entries);
        let has_failed = loop {
            match entries.front() {
                Some(entry) if count < most && entry.failure.is_none() => out(count, entry),
                next => break next.is_some_and(|entry| count < most && entry.failure.is_some()),
            }
            entries.pop_front();
            count += 1;
        };
        self.length.store(entries.len(), Ordering::Release);
        (count > 0 || !has_failed).then_some(count)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    /// Takes the next entry if it has failed.
    pub(crate) fn read_failed(&self) -> Option<Entry> {
        let mut entries = lock(&self.entries);
        entries.front()?.failure?;
        self.length.store(entries.len() - 1, Ordering::Release);
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
            let queue = match entry.flags & (FI_RECV | FI_REMOTE_WRITE) {
                0 => &self.transmit,
                _ => &self.receive,
            };
            if let Some(queue) = queue {
                queue.push(entry);
            }
        }
    }
}
