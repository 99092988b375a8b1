//! The loop of the progress threads.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use dipole_proto::Instant;

use super::progress::{CallerKind, LONG_NAP, LONG_SLEEP_NS, NAP, STUCK_WORK_NS, ThreadActivity};
use super::schedule::{Driver, State, unlock};
use super::stepper::Stepper;
use super::sync::{Arc, MutexGuard, Sleeper, Waker, sleep};

/// A sleeper that is made when descriptors for it are available.
#[derive(Default)]
struct LazySleeper {
    sleeper: Option<Sleeper>,
    failures: Failures,
}

impl LazySleeper {
    fn waker(&self) -> Option<Waker> {
        self.sleeper.as_ref().map(Sleeper::waker)
    }

    /// Makes the sleeper if there are descriptors for one now; true if it was made.
    fn make<S: Stepper>(&mut self, state: &State<S>) -> bool {
        if self.sleeper.is_some() {
            return false;
        }
        let made = state.stepper.sleeper();
        let made = made.map(|made| self.sleeper = Some(made));
        self.failures.is_ok("sleep", made)
    }

    /// The sleeper of the thread that steps; `None` if there are no descriptors for one now.
    fn get<S: Stepper>(&mut self, state: &mut State<S>) -> Option<&Sleeper> {
        if self.make(state) {
            state.progress.waker = self.waker();
        }
        self.sleeper.as_ref()
    }
}

/// Failure of the progress thread, logged once until the same action succeeds.
#[derive(Default)]
struct Failures {
    failing: Option<&'static str>,
}

impl Failures {
    fn is_ok(&mut self, doing: &'static str, done: io::Result<()>) -> bool {
        match done {
            Ok(()) => {
                if self.failing.take_if(|failing| *failing == doing).is_some() {
                    tracing::info!("the progress thread can {doing} again");
                }
                true
            }
            Err(cause) => {
                if self.failing.replace(doing) != Some(doing) {
                    tracing::warn!("the progress thread cannot {doing} and tries again: {cause}");
                }
                false
            }
        }
    }
}

impl<S: Stepper> Driver<S> {
    /// Body of a progress thread: steps until [`stop`](Self::stop). One of them steps at a time;
    /// it runs work if another can take over stepping, or if it is the only one. `more` starts
    /// another progress thread; it is called while work is pending and all handlers are stuck.
    ///
    /// A shortage never ends the thread: without descriptors for a sleeper it naps instead, and a
    /// step that fails is repeated.
    pub fn serve(&self, more: Option<&dyn Fn()>) {
        let mut state = self.lock();
        state.progress.threads += 1;
        let mut sleeper = LazySleeper::default();
        // Now, so that its descriptors are not missing later.
        let _else_later = sleeper.make(&state);
        loop {
            while state.progress.has_stepper && !state.progress.stop {
                state.progress.standby += 1;
                let vacant = Arc::clone(&state.progress.vacant);
                let woken = vacant.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                state.progress.standby -= 1;
            }
            if state.progress.stop {
                return;
            }
            state.progress.has_stepper = true;
            state.progress.waker = sleeper.waker();
            state = self.serve_until_work(state, &mut sleeper, more);
            state.progress.has_stepper = false;
            state.progress.vacant.notify_one();
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
        sleeper: &mut LazySleeper,
        more: Option<&dyn Fn()>,
    ) -> MutexGuard<'a, State<S>> {
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
            let stepped = state.stepper.step(now, true);
            if !sleeper.failures.is_ok("step", stepped.map(|_| ())) {
                state = self.nap(state, now);
                continue;
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
            let Some(sleeper) = sleeper
                .get(&mut state)
                .filter(|_| !others_call || state.is_polled())
            else {
                state = self.nap(state, now);
                continue;
            };
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
                tracing::warn!("the progress thread cannot sleep: {cause}");
                state = self.nap(state, now);
            }
        }
        state
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

    /// Ends all sleeps, so that threads sleep again with what has changed.
    pub fn wake_sleepers(&self) {
        let state = self.lock();
        self.waker.wake();
        state.progress.wake();
        self.leave(state);
    }

    /// Stops the progress threads.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.progress.stop = true;
        state.progress.unparked.notify_one();
        state.progress.vacant.notify_all();
        state.progress.wake();
    }
}
