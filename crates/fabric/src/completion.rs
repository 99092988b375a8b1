//! Completion queues and counters, and the endpoints that make progress while a program reads them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::fabric::{FI_READ, FI_RECV, FI_REMOTE_WRITE, FI_SEND, FI_WRITE};
use crate::descriptor::Descriptor;
use crate::serial::{self, Serial};

/// Idle polls after which the thread yields the core between two polls.
const MAX_IDLE_POLLS: u32 = 128;
/// Longest sleep of a waiting thread, after which it polls all endpoints again.
const MAX_SLEEP: Duration = Duration::from_millis(10);

/// A lock that is never poisoned.
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

/// A completed or failed operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// The context that the program passed.
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) length: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The address of the sender as a number.
    pub(crate) source: u64,
    /// The error number, and how many bytes did not fit.
    pub(crate) failure: Option<(i32, usize)>,
}

/// A source of completions: an endpoint.
pub(crate) trait Source: Send + Sync {
    /// Advances outstanding operations. Returns the number of polls in a row in which nothing happened
    /// while the program began no operation.
    fn progress(&self) -> u32;

    /// Sleeps until a message arrives, for at most `timeout`.
    fn wait(&self, timeout: Duration);

    /// Processes everything that has arrived. Returns the time after which to do so again even if
    /// nothing arrives.
    fn prepare_sleep(&self) -> Option<Duration>;

    /// Descriptors that are readable while something waits; `None` if they cannot be created.
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]>;

    /// The index in the address vector of an endpoint's address.
    fn find(&self, address: u64) -> Option<u64>;

    /// The endpoint's own address as a number.
    fn number(&self) -> u64;
}

/// The endpoints of a queue or counter.
#[derive(Default)]
pub(crate) struct Sources {
    /// The first endpoint that was added, nearly always the only one. It is reached without a lock,
    /// and stays here until this is dropped.
    first: OnceLock<Arc<dyn Source>>,
    has_first: AtomicBool,
    others: Mutex<Vec<Arc<dyn Source>>>,
    has_others: AtomicBool,
    /// The descriptor that programs sleep on, if one was requested.
    descriptor: OnceLock<Descriptor>,
}

impl Sources {
    pub(crate) fn add(&self, endpoint: Arc<dyn Source>) {
        if let Some(descriptor) = self.descriptor.get() {
            watch(descriptor, &*endpoint);
        }
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
        if let Some(descriptor) = self.descriptor.get() {
            for part in endpoint.descriptors().into_iter().flatten() {
                descriptor.forget(part);
            }
        }
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

    /// Advances the operations of all endpoints and receives messages.
    #[inline]
    pub(crate) fn progress(&self) {
        let mut idle_polls = self.first().map_or(u32::MAX, |first| first.progress());
        if self.has_others.load(Ordering::Acquire) {
            for endpoint in lock(&self.others).iter() {
                idle_polls = idle_polls.min(endpoint.progress());
            }
        }
        if idle_polls > MAX_IDLE_POLLS {
            // The program polls again at once, even where there are more ranks than cores.
            std::thread::yield_now();
        }
    }

    /// The descriptor, created on first use.
    pub(crate) fn open_descriptor(&self) -> io::Result<&Descriptor> {
        if let Some(known) = self.descriptor.get() {
            return Ok(known);
        }
        let made = Descriptor::new()?;
        let descriptor = self.descriptor.get_or_init(|| made);
        for endpoint in self.all() {
            watch(descriptor, &*endpoint);
        }
        Ok(descriptor)
    }

    /// The descriptor, if one was requested.
    #[inline]
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.get()
    }

    /// Processes everything that has arrived, before the program sleeps.
    pub(crate) fn prepare_sleep(&self) {
        let again = self
            .all()
            .iter()
            .filter_map(|source| source.prepare_sleep())
            .min();
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.arm(again);
        }
    }

    fn all(&self) -> Vec<Arc<dyn Source>> {
        let others = lock(&self.others);
        self.first()
            .into_iter()
            .chain(others.iter())
            .cloned()
            .collect()
    }

    /// Polls until `got` returns something, for at most `timeout`; without one, forever.
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
            let left = until.map_or(MAX_SLEEP, |until| {
                until
                    .saturating_duration_since(Instant::now())
                    .min(MAX_SLEEP)
            });
            if left.is_zero() {
                return None;
            }
            // Only one endpoint can be waited for; the others are polled after the sleep.
            let other = || lock(&self.others).first().cloned();
            match self.first().cloned().or_else(other) {
                Some(endpoint) => endpoint.wait(left),
                None => std::thread::sleep(left),
            }
        }
    }

    /// The address of the first endpoint as a number.
    pub(crate) fn number(&self) -> Option<u64> {
        self.first().map(|first| first.number())
    }

    /// The index in the address vector of a message's source.
    pub(crate) fn resolve(&self, source: u64) -> Option<u64> {
        let first = self.first().and_then(|first| first.find(source));
        first.or_else(|| {
            let others = lock(&self.others);
            others.iter().find_map(|endpoint| endpoint.find(source))
        })
    }
}

fn watch(descriptor: &Descriptor, endpoint: &dyn Source) {
    let Some(parts) = endpoint.descriptors() else {
        tracing::warn!(
            "cannot export the descriptors of an endpoint: waiting on a descriptor will miss messages"
        );
        return;
    };
    for part in parts {
        if let Err(cause) = descriptor.watch(part) {
            tracing::warn!("cannot watch a descriptor: {cause}");
        }
    }
}

fn is_same(known: &Arc<dyn Source>, other: &dyn Source) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(known), other)
}

/// A queue of completions.
#[derive(Default)]
pub(crate) struct Cq {
    entries: Serial<VecDeque<Entry>>,
    /// The number of entries, which polls read without the lock.
    length: AtomicUsize,
    pub(crate) sources: Sources,
    /// 1 if waiting threads are to return.
    signalled: AtomicU32,
}

impl Cq {
    #[inline]
    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = lock(&self.entries);
        entries.push_back(entry);
        self.length.store(entries.len(), Ordering::Release);
        self.update_descriptor(&entries);
    }

    /// Makes the descriptor readable exactly while there are entries.
    #[inline]
    fn update_descriptor(&self, entries: &VecDeque<Entry>) {
        if let Some(descriptor) = self.sources.descriptor() {
            match entries.is_empty() {
                true => descriptor.lower(),
                false => descriptor.raise(),
            }
        }
    }

    /// The number of this queue's descriptor.
    pub(crate) fn open_descriptor(&self) -> io::Result<i32> {
        let number = self.sources.open_descriptor()?.number();
        self.update_descriptor(&lock(&self.entries));
        Ok(number)
    }

    /// Processes everything that has arrived. True if there is nothing to read, so that the program
    /// may sleep until the descriptor is readable.
    pub(crate) fn may_sleep(&self) -> bool {
        if self.is_empty() {
            self.sources.prepare_sleep();
        }
        // A signal may have raised the descriptor.
        let entries = lock(&self.entries);
        self.update_descriptor(&entries);
        entries.is_empty()
    }

    /// Takes at most `most` successful entries in order; returns their number. `None`: the next entry
    /// is a failed one.
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
        self.update_descriptor(&entries);
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
        let failed = entries.pop_front();
        self.update_descriptor(&entries);
        failed
    }

    pub(crate) fn signal(&self) {
        self.signalled.store(1, Ordering::Release);
        if let Some(descriptor) = self.sources.descriptor() {
            descriptor.raise();
        }
    }

    /// Waits until there is an entry or a call to [`signal`](Self::signal).
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        self.sources.wait(timeout, || {
            let woken = self.signalled.swap(0, Ordering::Acquire) == 1;
            (woken || !self.is_empty()).then_some(())
        });
    }
}

/// A completion counter, as endpoints see it.
#[derive(Default)]
pub(crate) struct Cntr {
    pub(crate) value: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) sources: Sources,
    /// Value and failures at the last call of [`may_sleep`](Self::may_sleep).
    seen: Mutex<(u64, u64)>,
}

impl Cntr {
    /// Makes the descriptor readable after the value has changed.
    #[inline]
    pub(crate) fn update_descriptor(&self) {
        if let Some(descriptor) = self.sources.descriptor() {
            descriptor.raise();
        }
    }

    fn values(&self) -> (u64, u64) {
        let value = self.value.load(Ordering::Acquire);
        (value, self.failed.load(Ordering::Acquire))
    }

    /// Processes everything that has arrived. True if the counter has not changed since the last
    /// call, so that the program may sleep until the descriptor is readable.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sources.prepare_sleep();
        let mut seen = lock(&self.seen);
        if let Some(descriptor) = self.sources.descriptor() {
            descriptor.lower();
        }
        // An increment from now on raises the descriptor again.
        let now = self.values();
        std::mem::replace(&mut *seen, now) == now
    }
}

/// Where the completions of an endpoint go.
#[derive(Default)]
pub(crate) struct Sinks {
    pub(crate) transmit: Option<Arc<Cq>>,
    pub(crate) receive: Option<Arc<Cq>>,
    /// Counters, each with the kinds of operations that it counts.
    pub(crate) counters: Vec<(u64, Arc<Cntr>)>,
}

impl Sinks {
    /// Reports a completed operation. Failures are always reported, success only if `notify` is set.
    #[inline]
    pub(crate) fn complete(&self, notify: bool, entry: Entry) {
        for (kinds, counter) in &self.counters {
            if entry.flags & kinds & (FI_SEND | FI_RECV | FI_READ | FI_WRITE) != 0 {
                let count = match entry.failure {
                    None => &counter.value,
                    Some(_) => &counter.failed,
                };
                count.fetch_add(1, Ordering::Release);
                counter.update_descriptor();
            }
        }
        if notify || entry.failure.is_some() {
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
