//! What is run between steps, with the lock released: handlers of active ports.
//!
//! A thread that waits or polls runs what it finds after each step; what nobody is there for is
//! left to the progress thread. What runs may wait in the driver itself and then runs other
//! work meanwhile, a bounded number of times one within another.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::progress::Busy;
use super::schedule::{Driver, State, unlock};
use super::stepper::{Stepper, Work};
use super::sync::{MutexGuard, NESTED};
use super::waiters::WaiterId;

/// Pieces of work that a thread runs before it looks whether its own wait is over.
const MAX_IN_A_ROW: usize = 16;
/// Pieces of work of one thread of which each waits for the next: their stacks add up.
const MAX_NESTED: u32 = 8;

/// True if this thread runs a piece of work.
fn is_nested() -> bool {
    NESTED.with(|nested| nested.get() > 0)
}

impl<S: Stepper> Driver<S> {
    /// Runs work that is there, if this thread may; whether it did. `worked` is called after each
    /// piece, with the lock released.
    #[inline]
    pub(super) fn run_work<'a>(
        &'a self,
        state: MutexGuard<'a, State<S>>,
        waiter: Option<WaiterId>,
        busy: Busy,
        worked: &mut dyn FnMut(),
    ) -> (MutexGuard<'a, State<S>>, bool) {
        match state.stepper.has_work() {
            true => self.run_some(state, waiter, busy, worked),
            false => (state, false),
        }
    }

    fn run_some<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        waiter: Option<WaiterId>,
        busy: Busy,
        worked: &mut dyn FnMut(),
    ) -> (MutexGuard<'a, State<S>>, bool) {
        let depth = NESTED.with(std::cell::Cell::get);
        if depth >= MAX_NESTED {
            self.call_for_work(&mut state);
            return (state, false);
        }
        NESTED.with(|nested| nested.set(depth + 1));
        if let Some(id) = waiter {
            // Somebody must step for those who are parked, however long this takes.
            state.waiters.resign(id);
        }
        let now = state.last;
        state.progress.begin_work(busy, now);
        for _ in 0..MAX_IN_A_ROW {
            if !state.stepper.has_work() {
                break;
            }
            let now = state.last;
            let Some(mut work) = state.stepper.take_work(now) else {
                break;
            };
            unlock(state);
            work.run();
            worked();
            state = self.lock();
            let left = state.stepper.finish_work(work);
            state.progress.note_done();
            let now = state.last;
            self.publish(&mut state, now);
            if left.is_some() {
                // Dropping it is user code, too.
                unlock(state);
                let _told_by_the_hook = catch_unwind(AssertUnwindSafe(|| drop(left)));
                state = self.lock();
            }
        }
        state.progress.end_work(busy);
        NESTED.with(|nested| nested.set(depth));
        (state, true)
    }

    /// Releases the lock at the end of a call. Work that is left is somebody else's.
    #[inline]
    pub(super) fn leave(&self, mut state: MutexGuard<'_, State<S>>) {
        if state.stepper.has_work() && !is_nested() {
            self.call_for_work(&mut state);
        }
        unlock(state);
    }

    /// Has somebody else look at the work that is there.
    #[cold]
    fn call_for_work(&self, state: &mut State<S>) {
        if state.leader_until.is_some() {
            self.waker.wake();
        }
        state.progress.call();
    }
}
