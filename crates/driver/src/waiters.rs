//! Who waits for what, who of them sleeps in the kernel, and whom a key wakes.
//!
//! A thread is registered from its first sleep to the end of its wait. One of them
//! leads: it sleeps in the kernel until a packet, a deadline or a waker. The others
//! are parked, each on its own condition variable. While one is parked there is a
//! leader; a leader that leaves appoints another.
//!
//! Tasks of an asynchronous program are registered with a waker, which is used once.

use std::task;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::sync::{Arc, Condvar, MutexGuard, Waker};
use crate::ready::{Keys, Ready, WaitKey};

/// A registered thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaiterId(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Awake, or about to be.
    Running,
    /// Asleep in the kernel: the leader.
    InKernel,
    /// Asleep behind the leader.
    Parked,
}

#[derive(Debug)]
struct Thread {
    keys: Keys,
    place: Place,
    bell: Arc<Condvar>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    threads: Vec<Option<Thread>>,
    /// Condition variables of threads that have left, used again.
    bells: Vec<Arc<Condvar>>,
    leader: Option<WaiterId>,
    tasks: FxHashMap<WaitKey, Vec<task::Waker>>,
    /// Tasks whose key became ready; they are woken with the lock released.
    ready_tasks: Vec<task::Waker>,
}

impl Waiters {
    /// Registers a thread that is about to sleep.
    pub(super) fn enter(&mut self, keys: &[WaitKey]) -> WaiterId {
        let thread = Thread {
            keys: keys.iter().copied().collect(),
            place: Place::Running,
            bell: self.bells.pop().unwrap_or_else(|| Arc::new(Condvar::new())),
        };
        let free = self.threads.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.threads.push(None);
            self.threads.len() - 1
        });
        self.threads[index] = Some(thread);
        WaiterId(index)
    }

    /// The thread's wait has ended. A leader appoints another.
    pub(super) fn leave(&mut self, id: WaiterId) {
        if let Some(thread) = self.threads[id.0].take() {
            self.bells.push(thread.bell);
        }
        self.resign(id);
    }

    /// The thread will be busy with something else: a parked one leads.
    pub(super) fn resign(&mut self, id: WaiterId) {
        if self.leader == Some(id) {
            self.leader = None;
            self.appoint();
        }
    }

    /// Makes a parked thread the leader and wakes it: it will step and sleep in the
    /// kernel, or leave and appoint the next.
    fn appoint(&mut self) {
        let parked = self
            .threads
            .iter_mut()
            .enumerate()
            .find_map(|(index, thread)| match thread {
                Some(thread) if thread.place == Place::Parked => Some((index, thread)),
                _ => None,
            });
        if let Some((index, thread)) = parked {
            thread.place = Place::Running;
            thread.bell.notify_one();
            self.leader = Some(WaiterId(index));
        }
    }

    /// True if the thread leads from now on, or did before.
    #[inline]
    pub(super) fn try_lead(&mut self, id: WaiterId) -> bool {
        *self.leader.get_or_insert(id) == id
    }

    /// The leader is about to sleep in the kernel, or is back.
    #[inline]
    pub(super) fn set_asleep(&mut self, id: WaiterId, asleep: bool) {
        self.thread(id).place = match asleep {
            true => Place::InKernel,
            false => Place::Running,
        };
    }

    /// The thread is about to be parked: on what.
    pub(super) fn park(&mut self, id: WaiterId) -> Arc<Condvar> {
        let thread = self.thread(id);
        thread.place = Place::Parked;
        Arc::clone(&thread.bell)
    }

    fn thread(&mut self, id: WaiterId) -> &mut Thread {
        let thread = self.threads[id.0].as_mut();
        thread.expect("a thread is registered until it leaves")
    }

    /// Threads that sleep.
    #[cfg(test)]
    pub(super) fn asleep(&self) -> usize {
        let threads = self.threads.iter().flatten();
        threads
            .filter(|thread| thread.place != Place::Running)
            .count()
    }

    /// Registers a task: its waker is used when a key becomes ready.
    pub(super) fn enter_task(&mut self, keys: &[WaitKey], waker: &task::Waker) {
        for key in keys {
            let tasks = self.tasks.entry(*key).or_default();
            if !tasks.iter().any(|known| known.will_wake(waker)) {
                tasks.push(waker.clone());
            }
        }
    }

    /// True if a task waits.
    #[inline]
    pub(super) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// True if there is nobody to be woken.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.threads.iter().all(Option::is_none)
    }

    /// Wakes everybody who waits for what became ready; `leader` is how the one in the
    /// kernel is woken.
    pub(super) fn wake(&mut self, ready: &Ready, leader: &Waker) {
        for thread in self.threads.iter_mut().flatten() {
            if !ready.concerns(&thread.keys) {
                continue;
            }
            match std::mem::replace(&mut thread.place, Place::Running) {
                Place::Running => {}
                Place::InKernel => leader.wake(),
                Place::Parked => thread.bell.notify_one(),
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

    /// True if tasks are to be woken.
    #[inline]
    pub(super) fn has_ready_tasks(&self) -> bool {
        !self.ready_tasks.is_empty()
    }

    /// Tasks to be woken with the lock released.
    pub(super) fn take_ready_tasks(&mut self) -> Vec<task::Waker> {
        std::mem::take(&mut self.ready_tasks)
    }
}

/// Parks the calling thread until its condition variable is notified, at most `nap`.
pub(super) fn wait_parked<'a, T>(
    bell: &Condvar,
    state: MutexGuard<'a, T>,
    nap: Duration,
) -> MutexGuard<'a, T> {
    match bell.wait_timeout(state, nap) {
        Ok((state, _)) => state,
        Err(poisoned) => poisoned.into_inner().0,
    }
}
