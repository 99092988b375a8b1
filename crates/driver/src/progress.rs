//! The thread that steps for those who wait elsewhere: in `poll`, in an executor.
//!
//! It keeps out of the way of threads that wait in the driver themselves: while one
//! does, and for [`NAP`] after, it only naps.

use std::time::Duration;

use dipole_proto::Instant;

use super::sync::{Arc, Condvar, Waker};
use crate::clock::nanoseconds;

/// How long the progress thread stays out of the way of waiting threads, and so
/// how late a descriptor may become ready after the last of them has returned.
pub(super) const NAP: Duration = Duration::from_micros(500);
/// The same while nobody waits elsewhere: it only ends what threads that call leave unfinished.
pub(super) const LONG_NAP: Duration = Duration::from_millis(4);
/// A thread that has slept in a wait for this long leaves the progress thread
/// nothing to do: it may sleep until it is called.
pub(super) const LONG_SLEEP_NS: u64 = 10_000_000;
/// Work that waits for so long, while no other is done, is held up by what does not return.
pub(super) const HELD_UP_NS: u64 = 10_000_000;

/// What the progress thread does, and when it has something to do. Where work is to be run there
/// are two, which take turns; more come when all but one are held up in work.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) doing: Doing,
    /// Ends its sleep in the kernel; made with the thread.
    pub(super) waker: Option<Waker>,
    pub(super) unparked: Arc<Condvar>,
    /// Threads inside a wait, and when the last of them left, or stepped.
    pub(super) waiting: usize,
    left: Instant,
    pub(super) stop: bool,
    /// Threads that serve; those of them that wait until nobody steps any more.
    pub(super) threads: usize,
    pub(super) spare: usize,
    pub(super) is_served: bool,
    pub(super) vacant: Arc<Condvar>,
    /// Pieces of work that are done; how many were when some was first found that nobody may
    /// run, and when that was.
    done: u64,
    pub(super) held_up: Option<(u64, Instant)>,
}

/// What a thread that runs work does otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// It waits, and steps for others.
    Waiting,
    /// Something else.
    Otherwise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// There is no such thread, or it runs.
    Running,
    /// Out of the way for a moment.
    Napping,
    /// Out of the way until a waiting thread wakes up.
    Parked,
    /// Asleep in the kernel until then.
    Sleeping(Instant),
}

impl Progress {
    pub(super) fn new(now: Instant) -> Progress {
        Progress {
            doing: Doing::Running,
            waker: None,
            unparked: Arc::new(Condvar::new()),
            waiting: 0,
            left: now,
            stop: false,
            threads: 0,
            spare: 0,
            is_served: false,
            vacant: Arc::new(Condvar::new()),
            done: 0,
            held_up: None,
        }
    }

    /// A thread begins to wait: it steps from now on.
    #[inline]
    pub(super) fn enter(&mut self) {
        self.waiting += 1;
        if let Doing::Sleeping(_) = self.doing {
            self.doing = Doing::Napping;
            self.wake();
        }
    }

    /// A thread has waited.
    #[inline]
    pub(super) fn leave(&mut self, now: Instant) {
        self.waiting -= 1;
        self.left = now;
        self.unpark();
    }

    /// A thread that always finds at once what it waits for has stepped.
    #[inline]
    pub(super) fn stepped(&mut self, now: Instant) {
        self.left = now;
    }

    /// A waiting thread is awake: the progress thread may soon be needed.
    #[inline]
    pub(super) fn unpark(&mut self) {
        if self.doing == Doing::Parked {
            self.doing = Doing::Napping;
            self.unparked.notify_one();
        }
    }

    /// Ends a sleep in the kernel.
    #[inline]
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Ends a sleep that would last beyond `deadline`.
    #[inline]
    pub(super) fn wake_for(&mut self, deadline: Instant) {
        if let Doing::Sleeping(until) = self.doing
            && deadline < until
        {
            self.doing = Doing::Running;
            self.wake();
        }
    }

    /// A thread runs work: it does not step meanwhile.
    #[inline]
    pub(super) fn begin_work(&mut self, busy: Busy, now: Instant) {
        if busy == Busy::Waiting {
            self.leave(now);
        }
    }

    /// A piece of work is done.
    #[inline]
    pub(super) fn note_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// There is work that no thread that serves may run: whether they are held up.
    pub(super) fn is_held_up(&mut self, now: Instant) -> bool {
        match self.held_up {
            Some((done, since)) if done == self.done => now.since(since) >= HELD_UP_NS,
            _ => {
                self.held_up = Some((self.done, now));
                false
            }
        }
    }

    /// It goes on with its wait, if it was in one.
    #[inline]
    pub(super) fn end_work(&mut self, busy: Busy) {
        if busy == Busy::Waiting {
            self.enter();
        }
    }

    /// True if the thread that serves may run work.
    #[inline]
    pub(super) fn may_work(&self) -> bool {
        self.spare > 0 || self.threads == 1
    }

    /// There is work that nobody else may run.
    pub(super) fn call(&mut self) {
        self.unpark();
        self.wake_for(Instant(0));
    }

    /// True while threads step that wait in the driver, or did until a moment ago.
    pub(super) fn is_needless(&self, now: Instant) -> bool {
        self.waiting > 0 || now.since(self.left) < nanoseconds(NAP)
    }
}
