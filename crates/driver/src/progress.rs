//! The thread that steps for those who wait elsewhere: in `poll`, in an executor.
//!
//! It keeps out of the way of threads that wait in the driver themselves: while one
//! does, and for [`NAP`] after, it only naps.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use dipole_proto::Instant;

use super::schedule::{Driver, State, WaitError, unlock};
use super::stepper::Stepper;
use super::sync::{Arc, Condvar, MutexGuard, Sleeper, Waker, sleep};
use crate::clock::nanoseconds;

/// How long the progress thread stays out of the way of waiting threads, and so
/// how late a descriptor may become ready after the last of them has returned.
const NAP: Duration = Duration::from_micros(500);
/// The same while nobody waits elsewhere: it only ends what threads that call leave unfinished.
const LONG_NAP: Duration = Duration::from_millis(4);
/// A thread that has slept in a wait for this long leaves the progress thread
/// nothing to do: it may sleep until it is called.
const LONG_SLEEP_NS: u64 = 10_000_000;
/// Work that waits for so long, while no other is done, is held up by what does not return.
const HELD_UP_NS: u64 = 10_000_000;

/// What the progress thread does, and when it has something to do. Where work is to be run there
/// are two, which take turns; more come when all but one are held up in work.
#[derive(Debug)]
pub(super) struct Progress {
    doing: Doing,
    /// Ends its sleep in the kernel; made with the thread.
    waker: Option<Waker>,
    unparked: Arc<Condvar>,
    /// Threads inside a wait, and when the last of them left, or stepped.
    waiting: usize,
    left: Instant,
    stop: bool,
    /// Threads that serve; those of them that wait until nobody steps any more.
    threads: usize,
    spare: usize,
    is_served: bool,
    vacant: Arc<Condvar>,
    /// Pieces of work that are done; how many were when some was first found that nobody may
    /// run, and when that was.
    done: u64,
    held_up: Option<(u64, Instant)>,
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
enum Doing {
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
    pub(super) fn enter(&mut self) {
        self.waiting += 1;
        if let Doing::Sleeping(_) = self.doing {
            self.doing = Doing::Napping;
            self.wake();
        }
    }

    /// A thread has waited.
    pub(super) fn leave(&mut self, now: Instant) {
        self.waiting -= 1;
        self.left = now;
        self.unpark();
    }

    /// A thread that always finds at once what it waits for has stepped.
    pub(super) fn stepped(&mut self, now: Instant) {
        self.left = now;
    }

    /// A waiting thread is awake: the progress thread may soon be needed.
    pub(super) fn unpark(&mut self) {
        if self.doing == Doing::Parked {
            self.doing = Doing::Napping;
            self.unparked.notify_one();
        }
    }

    /// Ends a sleep in the kernel.
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Ends a sleep that would last beyond `deadline`.
    pub(super) fn wake_for(&mut self, deadline: Instant) {
        if let Doing::Sleeping(until) = self.doing
            && deadline < until
        {
            self.doing = Doing::Running;
            self.wake();
        }
    }

    /// A thread runs work: it does not step meanwhile.
    pub(super) fn begin_work(&mut self, busy: Busy, now: Instant) {
        if busy == Busy::Waiting {
            self.leave(now);
        }
    }

    /// A piece of work is done.
    pub(super) fn note_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// There is work that no thread that serves may run: whether they are held up.
    fn is_held_up(&mut self, now: Instant) -> bool {
        match self.held_up {
            Some((done, since)) if done == self.done => now.since(since) >= HELD_UP_NS,
            _ => {
                self.held_up = Some((self.done, now));
                false
            }
        }
    }

    /// It goes on with its wait, if it was in one.
    pub(super) fn end_work(&mut self, busy: Busy) {
        if busy == Busy::Waiting {
            self.enter();
        }
    }

    /// True if the thread that serves may run work.
    fn may_work(&self) -> bool {
        self.spare > 0 || self.threads == 1
    }

    /// There is work that nobody else may run.
    pub(super) fn call(&mut self) {
        self.unpark();
        self.wake_for(Instant(0));
    }

    /// True while threads step that wait in the driver, or did until a moment ago.
    fn is_needless(&self, now: Instant) -> bool {
        self.waiting > 0 || now.since(self.left) < nanoseconds(NAP)
    }
}

impl<S: Stepper> Driver<S> {
    /// Steps for those who wait elsewhere, until [`stop`](Self::stop). Of several threads that
    /// serve, one steps; it runs work if another can take its place meanwhile, or if it is alone.
    /// `more` has another thread serve: it is called while work waits for what does not return.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub(crate) fn serve(&self, more: Option<&dyn Fn()>) -> Result<(), WaitError> {
        let mut state = self.lock();
        let sleeper = state.stepper.sleeper().map_err(WaitError::Broken)?;
        state.progress.threads += 1;
        loop {
            while state.progress.is_served && !state.progress.stop {
                state.progress.spare += 1;
                let vacant = Arc::clone(&state.progress.vacant);
                let woken = vacant.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                state.progress.spare -= 1;
            }
            if state.progress.stop {
                return Ok(());
            }
            state.progress.is_served = true;
            state.progress.waker = Some(sleeper.waker());
            let stepped;
            (state, stepped) = self.serve_until_work(state, &sleeper, more);
            state.progress.is_served = false;
            state.progress.vacant.notify_one();
            stepped.map_err(WaitError::Broken)?;
            let mut worked = true;
            while worked {
                (state, worked) = self.run_work(state, None, Busy::Otherwise, &mut || ());
            }
        }
    }

    /// Steps until there is work that this thread may run, or it is told to stop.
    fn serve_until_work<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        sleeper: &Sleeper,
        more: Option<&dyn Fn()>,
    ) -> (MutexGuard<'a, State<S>>, io::Result<()>) {
        let mut calls = state.calls;
        while !state.progress.stop {
            // It may be what threads that wait have left.
            if state.stepper.has_work() && state.progress.may_work() {
                break;
            }
            let mut now = self.clock.now();
            if state.progress.is_needless(now) {
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
            if waits && state.progress.may_work() {
                break;
            }
            let more = more.filter(|_| waits);
            if let Some(more) = more
                && state.progress.is_held_up(now)
            {
                state.progress.held_up = None;
                unlock(state);
                more();
                state = self.lock();
                continue;
            }
            // To be woken for all that threads that call will look at soon would slow them down.
            let others_call = std::mem::replace(&mut calls, state.calls) != state.calls;
            if others_call && !state.is_polled() {
                state = self.nap(state, now);
                continue;
            }
            if !state.stepper.arm() {
                self.arm_anew(&mut state);
                self.publish(&mut state, now);
                continue;
            }
            state.armed += 1;
            now = self.clock.now();
            let mut until = state.stepper.next_deadline(now);
            if more.is_some() {
                let look = now.after(HELD_UP_NS);
                until = Some(until.map_or(look, |until| until.min(look)));
            }
            state.progress.doing = Doing::Sleeping(until.unwrap_or(Instant(u64::MAX)));
            unlock(state);
            let slept = sleeper.sleep(until.map(|until| Duration::from_nanos(until.since(now))));
            state = self.lock();
            state.progress.doing = Doing::Running;
            self.disarm(&mut state, now);
            if let Err(cause) = slept {
                return (state, Err(cause));
            }
        }
        (state, Ok(()))
    }

    /// The progress thread keeps out of the way.
    fn nap<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        now: Instant,
    ) -> MutexGuard<'a, State<S>> {
        let asleep = state.progress.waiting > 0
            && state.leader_until.is_some()
            && now.since(state.last) > LONG_SLEEP_NS;
        if asleep {
            state.progress.doing = Doing::Parked;
            let unparked = Arc::clone(&state.progress.unparked);
            let parked = unparked.wait(state);
            state = parked.unwrap_or_else(PoisonError::into_inner);
        } else {
            state.progress.doing = Doing::Napping;
            let nap = match state.is_polled() {
                true => NAP,
                false => LONG_NAP,
            };
            unlock(state);
            sleep(nap);
            state = self.lock();
        }
        state.progress.doing = Doing::Running;
        state
    }

    /// Ends [`serve`](Self::serve).
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.progress.stop = true;
        state.progress.unparked.notify_one();
        state.progress.vacant.notify_all();
        state.progress.wake();
    }
}
