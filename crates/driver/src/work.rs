//! Runs port handlers between steps, without the lock.
//!
//! A thread that waits or polls runs the work it finds after each step; without such a
//! thread, the progress thread runs it. A handler may itself wait in the driver, where it runs
//! other work; the nesting is bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::progress::CallerKind;
use super::schedule::{Driver, State, unlock};
use super::stepper::{Stepper, Work};
use super::sync::{MutexGuard, NESTED};
use super::waiters::WaiterId;

/// Handlers that a thread runs before it checks its own wait again.
const MAX_IN_A_ROW: usize = 16;
/// Nested handlers on one thread, each waiting for the next; bounded because of the stack.
const MAX_NESTED: u32 = 8;

/// True if this thread is running a handler.
fn is_nested() -> bool {
    NESTED.with(|nested| nested.get() > 0)
}

impl<S: Stepper> Driver<S> {
    /// Runs pending work if this thread may; true if it ran any. `worked` is called after each
    /// handler, without the lock.
    #[inline]
    pub(super) fn run_work<'a>(
        &'a self,
        state: MutexGuard<'a, State<S>>,
        waiter: Option<WaiterId>,
        caller: CallerKind,
        worked: &mut dyn FnMut(),
    ) -> (MutexGuard<'a, State<S>>, bool) {
        match state.stepper.has_work() {
            true => self.run_some(state, waiter, caller, worked),
            false => (state, false),
        }
    }

    fn run_some<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        waiter: Option<WaiterId>,
        caller: CallerKind,
        worked: &mut dyn FnMut(),
    ) -> (MutexGuard<'a, State<S>>, bool) {
        let depth = NESTED.with(std::cell::Cell::get);
        if depth >= MAX_NESTED {
            self.request_worker(&mut state);
            return (state, false);
        }
        NESTED.with(|nested| nested.set(depth + 1));
        if let Some(id) = waiter {
            // Another thread must step for the parked ones, however long the handler takes.
            state.waiters.resign(id);
        }
        let now = state.last;
        state.progress.begin_work(caller, now);
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
            state.progress.work_done();
            let now = state.last;
            self.publish(&mut state, now);
            if left.is_some() {
                // Dropping it runs user code, too.
                unlock(state);
                let _reported_by_the_panic_hook = catch_unwind(AssertUnwindSafe(|| drop(left)));
                state = self.lock();
            }
        }
        state.progress.end_work(caller);
        NESTED.with(|nested| nested.set(depth));
        (state, true)
    }

    /// Releases the lock at the end of a call. Remaining work is left to another thread.
    #[inline]
    pub(super) fn leave(&self, mut state: MutexGuard<'_, State<S>>) {
        if state.stepper.has_work() && !is_nested() {
            self.request_worker(&mut state);
        }
        unlock(state);
    }

    /// Makes another thread run the pending work.
    #[cold]
    fn request_worker(&self, state: &mut State<S>) {
        if state.leader_until.is_some() {
            self.waker.wake();
        }
        state.progress.request_worker();
    }
}
