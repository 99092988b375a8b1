//! The progress thread: steps the engine for waits outside the driver, in `poll` or in an
//! executor.
//!
//! While threads wait in the driver, and for [`NAP`] afterwards, it only naps.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use dipole_proto::Instant;

use super::schedule::{Driver, State, WaitError, unlock};
use super::stepper::Stepper;
use super::sync::{Arc, Condvar, MutexGuard, Sleeper, Waker, sleep};
use crate::clock::nanoseconds;

/// How long the progress thread leaves stepping to waiting threads after the last of them
/// returned; a descriptor may become ready this much later.
const NAP: Duration = Duration::from_micros(500);
/// The same if no descriptor or task is waiting: it only finishes what calls left undone.
const LONG_NAP: Duration = Duration::from_millis(4);
/// Once a waiting thread has slept this long, the progress thread sleeps until it is called.
const LONG_SLEEP_NS: u64 = 10_000_000;
/// Work pending this long, while no other work finishes, means that a handler does not return.
const STUCK_WORK_NS: u64 = 10_000_000;

/// State of the progress threads. With ports there are two: one steps while the other runs
/// handlers. More are started if all but one are stuck in handlers.
#[derive(Debug)]
pub(super) struct Progress {
    activity: ThreadActivity,
    /// Ends its sleep in the kernel.
    waker: Option<Waker>,
    unparked: Arc<Condvar>,
    /// Threads inside a wait.
    waiting: usize,
    last_step: Instant,
    stop: bool,
    /// Progress threads in total; `standby` of them wait to take over stepping.
    threads: usize,
    standby: usize,
    has_stepper: bool,
    vacant: Arc<Condvar>,
    /// Handlers that have returned.
    done: u64,
    stuck_since: Option<(u64, Instant)>,
}

/// What the thread that runs work does otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerKind {
    /// It waits in the driver, and steps for others.
    Waiting,
    /// Anything else.
    Otherwise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadActivity {
    /// Running, or not started.
    Running,
    /// Napping.
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
    pub(super) fn enter(&mut self) {
        self.waiting += 1;
        if let ThreadActivity::Sleeping(_) = self.activity {
            self.activity = ThreadActivity::Napping;
            self.wake();
        }
    }

    /// A thread has finished its wait.
    pub(super) fn leave(&mut self, now: Instant) {
        self.waiting -= 1;
        self.last_step = now;
        self.unpark();
    }

    /// A thread stepped although its own wait ended at once.
    pub(super) fn stepped(&mut self, now: Instant) {
        self.last_step = now;
    }

    /// A waiting thread is awake: the progress thread may be needed soon.
    pub(super) fn unpark(&mut self) {
        if self.activity == ThreadActivity::Parked {
            self.activity = ThreadActivity::Napping;
            self.unparked.notify_one();
        }
    }

    /// Ends a sleep in the kernel.
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Ends a sleep that would last past `deadline`.
    pub(super) fn wake_for(&mut self, deadline: Instant) {
        if let ThreadActivity::Sleeping(until) = self.activity
            && deadline < until
        {
            self.activity = ThreadActivity::Running;
            self.wake();
        }
    }

    /// A thread starts running work and does not step meanwhile.
    pub(super) fn begin_work(&mut self, caller: CallerKind, now: Instant) {
        if caller == CallerKind::Waiting {
            self.leave(now);
        }
    }

    /// A handler has returned.
    pub(super) fn work_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// Called while work is pending that no progress thread can run; true if none has finished
    /// for [`STUCK_WORK_NS`].
    fn is_work_stuck(&mut self, now: Instant) -> bool {
        match self.stuck_since {
            Some((done, since)) if done == self.done => now.since(since) >= STUCK_WORK_NS,
            _ => {
                self.stuck_since = Some((self.done, now));
                false
            }
        }
    }

    /// A thread has run work and resumes its wait if it was in one.
    pub(super) fn end_work(&mut self, caller: CallerKind) {
        if caller == CallerKind::Waiting {
            self.enter();
        }
    }

    /// True if the stepping progress thread may run work: another can take over, or it is alone.
    fn can_run_work(&self) -> bool {
        self.standby > 0 || self.threads == 1
    }

    /// There is work that no other thread can run.
    pub(super) fn request_worker(&mut self) {
        self.unpark();
        self.wake_for(Instant(0));
    }

    /// True if other threads step now, or did less than [`NAP`] ago.
    fn others_step(&self, now: Instant) -> bool {
        self.waiting > 0 || now.since(self.last_step) < nanoseconds(NAP)
    }
}

impl<S: Stepper> Driver<S> {
    /// Body of a progress thread: steps until [`stop`](Self::stop). One of them steps at a time;
    /// it runs work if another can take over stepping, or if it is the only one. `more` starts
    /// another progress thread; it is called while work is pending and all handlers are stuck.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub(crate) fn serve(&self, more: Option<&dyn Fn()>) -> Result<(), WaitError> {
        let mut state = self.lock();
        let sleeper = state.stepper.sleeper().map_err(WaitError::Broken)?;
        state.progress.threads += 1;
        loop {
            while state.progress.has_stepper && !state.progress.stop {
                state.progress.standby += 1;
                let vacant = Arc::clone(&state.progress.vacant);
                let woken = vacant.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                state.progress.standby -= 1;
            }
            if state.progress.stop {
                return Ok(());
            }
            state.progress.has_stepper = true;
            state.progress.waker = Some(sleeper.waker());
            let stepped;
            (state, stepped) = self.serve_until_work(state, &sleeper, more);
            state.progress.has_stepper = false;
            state.progress.vacant.notify_one();
            stepped.map_err(WaitError::Broken)?;
            let mut worked = true;
            while worked {
                (state, worked) = self.run_work(state, None, CallerKind::Otherwise, &mut || ());
            }
        }
    }

    /// Steps until there is work that this thread may run, or until it is stopped.
    fn serve_until_work<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        sleeper: &Sleeper,
        more: Option<&dyn Fn()>,
    ) -> (MutexGuard<'a, State<S>>, io::Result<()>) {
        let mut calls = state.calls;
        while !state.progress.stop {
            // Waiting threads may have left work behind.
            if state.stepper.has_work() && state.progress.can_run_work() {
                break;
            }
            let mut now = self.clock.now();
            if state.progress.others_step(now) {
                state = self.nap(state, now);
                continue;
            }
            if let Err(cause) = state.stepper.step(now, true) {
                return (state, Err(cause));
            }
            state.last = now;
            self.tick_if_due(&mut state, now);
            self.publish(&mut state, now);
            let waits = state.stepper.has_work();
            if waits && state.progress.can_run_work() {
                break;
            }
            let more = more.filter(|_| waits);
            if let Some(more) = more
                && state.progress.is_work_stuck(now)
            {
                state.progress.stuck_since = None;
                unlock(state);
                more();
                state = self.lock();
                continue;
            }
            // Waking up for packets that calling threads will find anyway would slow them down.
            let others_call = std::mem::replace(&mut calls, state.calls) != state.calls;
            if others_call && !state.is_polled() {
                state = self.nap(state, now);
                continue;
            }
            if !state.stepper.arm() {
                self.rearm(&mut state);
                self.publish(&mut state, now);
                continue;
            }
            state.armed += 1;
            now = self.clock.now();
            let mut until = state.stepper.next_deadline(now);
            if more.is_some() {
                let look = now.after(STUCK_WORK_NS);
                until = Some(until.map_or(look, |until| until.min(look)));
            }
            state.progress.activity = ThreadActivity::Sleeping(until.unwrap_or(Instant(u64::MAX)));
            unlock(state);
            let slept = sleeper.sleep(until.map(|until| Duration::from_nanos(until.since(now))));
            state = self.lock();
            state.progress.activity = ThreadActivity::Running;
            self.disarm(&mut state, now);
            if let Err(cause) = slept {
                return (state, Err(cause));
            }
        }
        (state, Ok(()))
    }

    /// Naps or parks while other threads step.
    fn nap<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        now: Instant,
    ) -> MutexGuard<'a, State<S>> {
        let asleep = state.progress.waiting > 0
            && state.leader_until.is_some()
            && now.since(state.last) > LONG_SLEEP_NS;
        if asleep {
            state.progress.activity = ThreadActivity::Parked;
            let unparked = Arc::clone(&state.progress.unparked);
            let parked = unparked.wait(state);
            state = parked.unwrap_or_else(PoisonError::into_inner);
        } else {
            state.progress.activity = ThreadActivity::Napping;
            let nap = match state.is_polled() {
                true => NAP,
                false => LONG_NAP,
            };
            unlock(state);
            sleep(nap);
            state = self.lock();
        }
        state.progress.activity = ThreadActivity::Running;
        state
    }

    /// Stops the progress threads.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.progress.stop = true;
        state.progress.unparked.notify_one();
        state.progress.vacant.notify_all();
        state.progress.wake();
    }
}
