//! The progress thread's loop: it steps until there is work that it may run.

use std::io;
use std::sync::PoisonError;
use std::time::Duration;

use dipole_proto::Instant;

use super::progress::{Busy, Doing, HELD_UP_NS, LONG_NAP, LONG_SLEEP_NS, NAP};
use super::schedule::{Driver, State, WaitError, unlock};
use super::stepper::Stepper;
use super::sync::{Arc, MutexGuard, Sleeper, sleep};

impl<S: Stepper> Driver<S> {
    /// Steps for those who wait elsewhere, until [`stop`](Self::stop). Of several threads that
    /// serve, one steps; it runs work if another can take its place meanwhile, or if it is alone.
    /// `more` has another thread serve: it is called while work waits for what does not return.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub fn serve(&self, more: Option<&dyn Fn()>) -> Result<(), WaitError> {
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
    pub fn stop(&self) {
        let mut state = self.lock();
        state.progress.stop = true;
        state.progress.unparked.notify_one();
        state.progress.vacant.notify_all();
        state.progress.wake();
    }
}
