//! What has completed: queues and counters that programs read, and who is asked to go on
//! while they do.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::fabric::{FI_READ, FI_RECV, FI_REMOTE_WRITE, FI_SEND, FI_WRITE};
use crate::descriptor::Descriptor;
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

    /// Takes all that has come; after which time to do so again though nothing comes.
    fn prepare_sleep(&self) -> Option<Duration>;

    /// What is readable while something has come; none if it cannot be had.
    fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]>;

    /// The program's number of whoever has this address.
    fn find(&self, address: u64) -> Option<u64>;

    /// The endpoint's own address, as a number.
    fn number(&self) -> u64;
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
    /// Tells programs that sleep when to look, if they asked for it.
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

    /// The descriptor, which there is from now on.
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

    /// The descriptor, if the program has asked for it.
    #[inline]
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.get()
    }

    /// Takes all that has come, before the program sleeps.
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

    /// The address of the first endpoint, as a number.
    pub(crate) fn number(&self) -> Option<u64> {
        self.first().map(|first| first.number())
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

fn watch(descriptor: &Descriptor, endpoint: &dyn Source) {
    let Some(parts) = endpoint.descriptors() else {
        tracing::warn!("an endpoint has no descriptors: waiting for one misses what comes");
        return;
    };
    for part in parts {
        if let Err(cause) = descriptor.watch(part) {
            tracing::warn!("a descriptor cannot be watched: {cause}");
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
        self.tell(&entries);
    }

    /// The descriptor says whether there are entries.
    #[inline]
    fn tell(&self, entries: &VecDeque<Entry>) {
        if let Some(descriptor) = self.sources.descriptor() {
            match entries.is_empty() {
                true => descriptor.lower(),
                false => descriptor.raise(),
            }
        }
    }

    /// The descriptor of this queue.
    pub(crate) fn open_descriptor(&self) -> io::Result<i32> {
        let number = self.sources.open_descriptor()?.number();
        self.tell(&lock(&self.entries));
        Ok(number)
    }

    /// Takes what has come; true if there is nothing to read, so that the program may sleep until
    /// the descriptor is readable.
    pub(crate) fn may_sleep(&self) -> bool {
        if self.is_empty() {
            self.sources.prepare_sleep();
        }
        // It was raised for a signal, perhaps.
        let entries = lock(&self.entries);
        self.tell(&entries);
        entries.is_empty()
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
        self.tell(&entries);
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
        self.tell(&entries);
        failed
    }

    pub(crate) fn signal(&self) {
        self.signalled.store(1, Ordering::Release);
        if let Some(descriptor) = self.sources.descriptor() {
            descriptor.raise();
        }
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
    /// What the program saw when it last asked whether it may sleep.
    seen: Mutex<(u64, u64)>,
}

impl Cntr {
    /// It has another value than before.
    #[inline]
    pub(crate) fn tell(&self) {
        if let Some(descriptor) = self.sources.descriptor() {
            descriptor.raise();
        }
    }

    fn values(&self) -> (u64, u64) {
        let value = self.value.load(Ordering::Acquire);
        (value, self.failed.load(Ordering::Acquire))
    }

    /// Takes what has come; true if the counter is as it was when this was asked before, so that
    /// the program may sleep until the descriptor is readable.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sources.prepare_sleep();
        let mut seen = lock(&self.seen);
        if let Some(descriptor) = self.sources.descriptor() {
            descriptor.lower();
        }
        // Whoever counts from now on raises it again.
        let now = self.values();
        std::mem::replace(&mut *seen, now) == now
    }
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
                counter.tell();
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
