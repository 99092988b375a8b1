//! What a wait is for, and how shared memory hands it over.

use dipole_proto::Instant;

use super::stepper::Stepper;

/// What a look at shared memory has brought.
#[derive(Debug)]
pub enum Polled<T> {
    /// Nothing came in.
    Nothing,
    /// Something came in.
    Came,
    /// What the caller waits for came in, and is its.
    Got(T),
}

impl<T> Polled<T> {
    /// True if anything came in.
    #[inline]
    #[must_use]
    pub fn came(&self) -> bool {
        !matches!(self, Polled::Nothing)
    }
}

impl<T> From<bool> for Polled<T> {
    /// Whether anything came in.
    #[inline]
    fn from(came: bool) -> Polled<T> {
        match came {
            true => Polled::Came,
            false => Polled::Nothing,
        }
    }
}

/// What a thread waits for.
pub trait Want<S: Stepper> {
    /// What it gets.
    type Got;

    /// Looks whether it is there.
    fn attempt(&mut self, stepper: &mut S, now: Instant) -> Option<Self::Got>;

    /// A handler has run on this thread, which has the lock released.
    fn worked(&mut self) {}

    /// Looks only at shared memory, from where it may be handed over at once.
    #[inline]
    fn poll_memory(&mut self, stepper: &mut S) -> Polled<Self::Got> {
        stepper.poll_memory().into()
    }
}

/// What is found by an attempt alone.
pub(super) struct Attempt<F>(pub(super) F);

impl<S, R, F> Want<S> for Attempt<F>
where
    S: Stepper,
    F: FnMut(&mut S, Instant) -> Option<R>,
{
    type Got = R;

    #[inline]
    fn attempt(&mut self, stepper: &mut S, now: Instant) -> Option<R> {
        (self.0)(stepper, now)
    }
}
