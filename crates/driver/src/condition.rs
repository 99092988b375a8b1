//! Wait conditions, and the result of polling shared memory for them.

use dipole_proto::Instant;

use super::stepper::Stepper;

/// Result of polling shared memory.
#[derive(Debug)]
pub enum Polled<T> {
    /// No event arrived.
    Nothing,
    /// Something arrived, but not (yet) what the caller waits for.
    Progress,
    /// The caller's result arrived and is handed over directly.
    Ready(T),
}

impl<T> Polled<T> {
    /// True if anything arrived.
    #[inline]
    #[must_use]
    pub fn made_progress(&self) -> bool {
        !matches!(self, Polled::Nothing)
    }
}

impl<T> From<bool> for Polled<T> {
    #[inline]
    fn from(progress: bool) -> Polled<T> {
        match progress {
            true => Polled::Progress,
            false => Polled::Nothing,
        }
    }
}

/// The condition for which a thread waits.
pub trait WaitCondition<S: Stepper> {
    /// The result of the wait.
    type Output;

    /// Returns the output if the condition holds now.
    fn attempt(&mut self, stepper: &mut S, now: Instant) -> Option<Self::Output>;

    /// Called after a handler has run on this thread; the lock is not held.
    fn on_work_done(&mut self) {}

    /// Polls shared memory only, which may hand over the result directly.
    #[inline]
    fn poll_memory(&mut self, stepper: &mut S) -> Polled<Self::Output> {
        stepper.poll_memory().into()
    }
}

/// A condition that is checked only by calling a closure.
pub(super) struct Attempt<F>(pub(super) F);

impl<S, R, F> WaitCondition<S> for Attempt<F>
where
    S: Stepper,
    F: FnMut(&mut S, Instant) -> Option<R>,
{
    type Output = R;

    #[inline]
    fn attempt(&mut self, stepper: &mut S, now: Instant) -> Option<R> {
        (self.0)(stepper, now)
    }
}
