//! The interface between the driver and what it steps.

use std::io;

use dipole_proto::Instant;

use super::sync::Sleeper;
use crate::ready::Ready;

/// User code that runs without the lock. It must not panic.
pub trait Work {
    /// Runs the work item.
    fn run(&mut self);
}

impl Work for std::convert::Infallible {
    fn run(&mut self) {
        match *self {}
    }
}

/// The state machine behind the driver's lock. It receives, sends and handles timers when it is
/// stepped, and never blocks.
pub trait Stepper {
    /// User code that runs without the lock.
    type Work: Work;

    /// A sleeper that returns when [`step`](Self::step) has something to do.
    fn sleeper(&self) -> io::Result<Sleeper>;

    /// Receives, handles timers, and sends. True if anything arrived. With `look_everywhere` it
    /// also polls sources that have long been quiet.
    fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool>;

    /// Polls shared memory only; true if anything arrived.
    fn poll_memory(&mut self) -> bool;

    /// True if a spinning thread should expect its result in shared memory.
    fn expects_memory(&self) -> bool;

    /// True if results of steps are awaited outside the driver's calls: in `poll`, or by
    /// posted operations.
    fn is_polled(&self) -> bool;

    /// Polls for small packets with up to `calls` system calls. True if there are some and
    /// nothing else is urgent; then [`take_polled`](Self::take_polled) may follow. Otherwise
    /// [`step`](Self::step) must follow.
    fn spin_poll(&mut self, now: Instant, calls: u32) -> io::Result<bool>;

    /// True while bulk traffic arrives; only [`step`](Self::step) polls its socket.
    fn expects_bulk(&self) -> bool;

    /// Handles the packets that [`spin_poll`](Self::spin_poll) found and sends the replies.
    /// Everything else is left to the next step.
    fn take_polled(&mut self, now: Instant) -> io::Result<bool>;

    /// Sends what was queued with more to follow.
    fn flush_deferred(&mut self);

    /// Prepares for sleep. False, and not armed, if something has already arrived.
    fn arm(&mut self) -> bool;

    /// Ends the sleep that [`arm`](Self::arm) prepared.
    fn disarm(&mut self);

    /// True once after a step consumed the wake-up of a sleeping thread, which must then be
    /// rearmed.
    fn take_woken(&mut self) -> bool;

    /// When a step is needed even if nothing arrives.
    fn next_deadline(&mut self, now: Instant) -> Option<Instant>;

    /// Keys that became ready.
    fn ready(&mut self) -> &mut Ready;

    /// Called at the end of a call in which a key became ready: updates exported descriptors.
    fn publish(&mut self);

    /// True if there is work to run.
    fn has_work(&self) -> bool;

    /// Takes work for the calling thread to run.
    fn take_work(&mut self, now: Instant) -> Option<Self::Work>;

    /// Takes work back after it has run; returns it if its owner has abandoned it.
    fn finish_work(&mut self, work: Self::Work) -> Option<Self::Work>;

    /// Called a few times per second while the process is active.
    fn tick(&mut self);

    /// True once after a peer's request was served. A waiting thread then spins on, because the
    /// peer usually sends another one.
    #[inline]
    fn take_served(&mut self) -> bool {
        false
    }

    /// Called at the end of a wait that did not succeed at once.
    #[inline]
    fn waited(&mut self, _duration_ns: u64) {}

    /// Called when a thread has waited for seconds.
    fn waited_long(&mut self, now: Instant);
}
