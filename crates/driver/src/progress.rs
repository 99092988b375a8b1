//! The progress thread: steps the engine for waits outside the driver, in `poll` or in an
//! executor.
//!
//! While threads wait in the driver, and for [`NAP`] afterwards, it only naps.

use std::time::Duration;

use dipole_proto::Instant;

use super::sync::{Arc, Condvar, Waker};
use crate::clock::nanoseconds;

/// How long the progress thread leaves stepping to waiting threads after the last of them
/// returned; a descriptor may become ready this much later.
pub(super) const NAP: Duration = Duration::from_micros(500);
/// Nap while no descriptor or task is waiting: the thread only finishes what calls left undone.
pub(super) const LONG_NAP: Duration = Duration::from_millis(4);
/// Once a waiting thread has slept this long, the progress thread sleeps until it is called.
pub(super) const LONG_SLEEP_NS: u64 = 10_000_000;
/// Work pending this long, while no other work finishes, means that a handler does not return.
pub(super) const STUCK_WORK_NS: u64 = 10_000_000;

/// State of the progress threads. With ports there are two: one steps while the other runs
/// handlers. More are started if all but one are stuck in handlers.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) activity: ThreadActivity,
    /// Ends the thread's sleep in the kernel; set when the thread starts.
    pub(super) waker: Option<Waker>,
    pub(super) unparked: Arc<Condvar>,
    /// Threads inside a wait.
    pub(super) waiting: usize,
    last_step: Instant,
    pub(super) stop: bool,
    /// Progress threads in total; `standby` of them wait to take over stepping.
    pub(super) threads: usize,
    pub(super) standby: usize,
    pub(super) has_stepper: bool,
    pub(super) vacant: Arc<Condvar>,
    /// Handlers that have returned.
    done: u64,
    pub(super) stuck_since: Option<(u64, Instant)>,
}

/// Other activity of the thread that runs work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerKind {
    /// It waits in the driver, and steps for others.
    Waiting,
    /// It does anything else.
    Otherwise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadActivity {
    /// Running, or not started.
    Running,
    /// Asleep for a short, fixed time.
    Napping,
    /// Parked until a waiting thread wakes up.
    Parked,
    /// Asleep in the kernel until this time.
    Sleeping(Instant),
}

impl Progress {
    pub(super) fn new(now: Instant) -> Progress {
        Progress {
            activity: ThreadActivity::Running,
            waker: None,
            unparked: Arc::new(Condvar::new()),
            waiting: 0,
            last_step: now,
            stop: false,
            threads: 0,
            standby: 0,
            has_stepper: false,
            vacant: Arc::new(Condvar::new()),
            done: 0,
            stuck_since: None,
        }
    }

    /// A thread begins to wait and steps from now on.
    #[inline]
    pub(super) fn enter(&mut self) {
        self.waiting += 1;
        if let ThreadActivity::Sleeping(_) = self.activity {
            self.activity = ThreadActivity::Napping;
            self.wake();
        }
    }

    /// A thread has finished its wait.
    #[inline]
    pub(super) fn leave(&mut self, now: Instant) {
        self.waiting -= 1;
        self.last_step = now;
        self.unpark();
    }

    /// A thread stepped although its own wait ended at once.
    #[inline]
    pub(super) fn stepped(&mut self, now: Instant) {
        self.last_step = now;
    }

    /// A waiting thread is awake: the progress thread may be needed soon.
    #[inline]
    pub(super) fn unpark(&mut self) {
        if self.activity == ThreadActivity::Parked {
            self.activity = ThreadActivity::Napping;
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

    /// Ends a sleep that would last past `deadline`.
    #[inline]
    pub(super) fn wake_for(&mut self, deadline: Instant) {
        if let ThreadActivity::Sleeping(until) = self.activity
            && deadline < until
        {
            self.activity = ThreadActivity::Running;
            self.wake();
        }
    }

    /// A thread starts running work and does not step meanwhile.
    #[inline]
    pub(super) fn begin_work(&mut self, caller: CallerKind, now: Instant) {
        if caller == CallerKind::Waiting {
            self.leave(now);
        }
    }

    /// Called when a handler has returned.
    #[inline]
    pub(super) fn work_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// Called while work is pending that no progress thread can run; true if none has finished
    /// for [`STUCK_WORK_NS`].
    pub(super) fn is_work_stuck(&mut self, now: Instant) -> bool {
        match self.stuck_since {
            Some((done, since)) if done == self.done => now.since(since) >= STUCK_WORK_NS,
            _ => {
                self.stuck_since = Some((self.done, now));
                false
            }
        }
    }

    /// A thread has run work and resumes its wait if it was in one.
    #[inline]
    pub(super) fn end_work(&mut self, caller: CallerKind) {
        if caller == CallerKind::Waiting {
            self.enter();
        }
    }

    /// True if the stepping progress thread may run work: another can take over, or it is alone.
    #[inline]
    pub(super) fn can_run_work(&self) -> bool {
        self.standby > 0 || self.threads == 1
    }

    /// There is work that no other thread can run.
    pub(super) fn request_worker(&mut self) {
        self.unpark();
        self.wake_for(Instant(0));
    }

    /// True if other threads step now, or did less than [`NAP`] ago.
    pub(super) fn others_step(&self, now: Instant) -> bool {
        self.waiting > 0 || now.since(self.last_step) < nanoseconds(NAP)
    }
}
