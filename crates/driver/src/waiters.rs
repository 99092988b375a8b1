//! Registered waiters: their keys, which thread leads, and which are parked.
//!
//! A thread is registered from its first sleep to the end of its wait. One of the threads is
//! the leader: it sleeps in the kernel until a packet, a deadline or a waker. The others are
//! parked, each on its own condition variable. While any thread is parked there is a leader;
//! a leader that leaves appoints another.
//!
//! Tasks of an asynchronous program are registered with a waker, which is called once.

use std::task;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::sync::{Arc, Condvar, MutexGuard, Waker};
use crate::ready::{Keys, Ready, WaitKey};

/// Identifies a registered thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaiterId(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    /// Awake, or about to wake up.
    Running,
    /// The leader, asleep in the kernel.
    InKernel,
    /// Asleep on its condition variable.
    Parked,
}

#[derive(Debug)]
struct Thread {
    keys: Keys,
    state: ThreadState,
    condvar: Arc<Condvar>,
}

/// All registered threads and tasks.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    threads: Vec<Option<Thread>>,
    /// Condition variables of threads that have left, for reuse.
    spare_condvars: Vec<Arc<Condvar>>,
    leader: Option<WaiterId>,
    tasks: FxHashMap<WaitKey, Vec<task::Waker>>,
    /// Tasks whose key became ready, to be woken without the lock.
    ready_tasks: Vec<task::Waker>,
}

impl Waiters {
    /// Registers a thread that is about to sleep.
    pub(super) fn enter(&mut self, keys: &[WaitKey]) -> WaiterId {
        let thread = Thread {
            keys: Keys::of(keys),
            state: ThreadState::Running,
            condvar: self
                .spare_condvars
                .pop()
                .unwrap_or_else(|| Arc::new(Condvar::new())),
        };
        let free = self.threads.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.threads.push(None);
            self.threads.len() - 1
        });
        self.threads[index] = Some(thread);
        WaiterId(index)
    }

    /// Removes a thread whose wait has ended. A leader appoints another.
    pub(super) fn leave(&mut self, id: WaiterId) {
        if let Some(thread) = self.threads[id.0].take() {
            self.spare_condvars.push(thread.condvar);
        }
        self.resign(id);
    }

    /// The thread will be busy with something else: a parked thread becomes the leader.
    pub(super) fn resign(&mut self, id: WaiterId) {
        if self.leader == Some(id) {
            self.leader = None;
            self.appoint();
        }
    }

    /// Makes a parked thread the leader and wakes it. It then steps and sleeps in the kernel, or
    /// leaves and appoints the next.
    fn appoint(&mut self) {
        let parked = self
            .threads
            .iter_mut()
            .enumerate()
            .find_map(|(index, thread)| match thread {
                Some(thread) if thread.state == ThreadState::Parked => Some((index, thread)),
                _ => None,
            });
        if let Some((index, thread)) = parked {
            thread.state = ThreadState::Running;
            thread.condvar.notify_one();
            self.leader = Some(WaiterId(index));
        }
    }

    /// Makes the thread the leader if the role is free; true if it is the leader.
    #[inline]
    pub(super) fn try_lead(&mut self, id: WaiterId) -> bool {
        *self.leader.get_or_insert(id) == id
    }

    /// Marks the leader as asleep in the kernel, or as awake.
    #[inline]
    pub(super) fn set_asleep(&mut self, id: WaiterId, asleep: bool) {
        self.thread(id).state = match asleep {
            true => ThreadState::InKernel,
            false => ThreadState::Running,
        };
    }

    /// Marks a thread as parked and returns its condition variable.
    pub(super) fn park(&mut self, id: WaiterId) -> Arc<Condvar> {
        let thread = self.thread(id);
        thread.state = ThreadState::Parked;
        Arc::clone(&thread.condvar)
    }

    fn thread(&mut self, id: WaiterId) -> &mut Thread {
        let thread = self.threads[id.0].as_mut();
        thread.expect("a thread is registered until it leaves")
    }

    /// Number of sleeping threads.
    #[cfg(test)]
    pub(super) fn asleep(&self) -> usize {
        let threads = self.threads.iter().flatten();
        threads
            .filter(|thread| thread.state != ThreadState::Running)
            .count()
    }

    /// Registers a task; its waker is called when one of `keys` becomes ready.
    pub(super) fn enter_task(&mut self, keys: &[WaitKey], waker: &task::Waker) {
        for key in keys {
            let tasks = self.tasks.entry(*key).or_default();
            if !tasks.iter().any(|known| known.will_wake(waker)) {
                tasks.push(waker.clone());
            }
        }
    }

    /// True if a task is registered.
    #[inline]
    pub(super) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// True if there are no waiters.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.threads.iter().all(Option::is_none)
    }

    /// Wakes the waiters for keys that became ready; `leader` wakes the thread asleep in the
    /// kernel.
    pub(super) fn wake(&mut self, ready: &Ready, leader: &Waker) {
        for thread in self.threads.iter_mut().flatten() {
            if !thread.keys.are_in(ready) {
                continue;
            }
            match std::mem::replace(&mut thread.state, ThreadState::Running) {
                ThreadState::Running => {}
                ThreadState::InKernel => leader.wake(),
                ThreadState::Parked => thread.condvar.notify_one(),
            }
        }
        if self.tasks.is_empty() {
            return;
        }
        match ready.keys() {
            Some(keys) => {
                let concerned = keys.iter().filter_map(|key| self.tasks.remove(key));
                self.ready_tasks.extend(concerned.flatten());
            }
            None => {
                let all = self.tasks.drain().flat_map(|(_, tasks)| tasks);
                self.ready_tasks.extend(all);
            }
        }
    }

    /// True if there are tasks to wake.
    #[inline]
    pub(super) fn has_ready_tasks(&self) -> bool {
        !self.ready_tasks.is_empty()
    }

    /// Takes the tasks to wake; the caller wakes them without the lock.
    pub(super) fn take_ready_tasks(&mut self) -> Vec<task::Waker> {
        std::mem::take(&mut self.ready_tasks)
    }
}

/// Parks the calling thread for at most `nap`, or until its condition variable is notified.
pub(super) fn wait_parked<'a, T>(
    condvar: &Condvar,
    state: MutexGuard<'a, T>,
    nap: Duration,
) -> MutexGuard<'a, T> {
    match condvar.wait_timeout(state, nap) {
        Ok((state, _)) => state,
        Err(poisoned) => poisoned.into_inner().0,
    }
}
