//! What a driver steps.

use std::io;

use dipole_proto::Instant;

use super::sync::Sleeper;
use crate::ready::Ready;

/// A piece of work: user code, run with the lock released. It must not panic.
pub trait Work {
    /// Runs it.
    fn run(&mut self);
}

impl Work for std::convert::Infallible {
    fn run(&mut self) {
        match *self {}
    }
}

/// Something that receives, sends and keeps time when it is stepped, and never waits.
/// The driver calls it with its lock held.
pub trait Stepper {
    /// What is to be run with the lock released.
    type Work: Work;

    /// A sleeper that returns when [`step`](Self::step) has something to do.
    fn sleeper(&self) -> io::Result<Sleeper>;

    /// One turn: receive, let time act, send. True if anything came in.
    /// `look_everywhere` also looks where it has long been quiet.
    fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool>;

    /// Looks only at shared memory; true if anything came in.
    fn poll_memory(&mut self) -> bool;

    /// True if what a spinning thread waits for is expected in shared memory.
    fn expects_memory(&self) -> bool;

    /// True if somebody waits for what steps bring who is in no call of the driver: in `poll`,
    /// or for something posted.
    fn is_polled(&self) -> bool;

    /// Looks for small packets for as long as so many system calls take. True if there are
    /// some and nothing else is urgent: [`take_found`](Self::take_found) may follow. Else
    /// [`step`](Self::step) must.
    fn look(&mut self, now: Instant, calls: u32) -> io::Result<bool>;

    /// True while much comes elsewhere than in the small port: only [`step`](Self::step) looks
    /// there.
    fn expects_bulk(&self) -> bool;

    /// Takes what [`look`](Self::look) has found, sends what that asks for, and leaves all
    /// else to the next step.
    fn take_found(&mut self, now: Instant) -> io::Result<bool>;

    /// What was queued with more to come leaves.
    fn flush_deferred(&mut self);

    /// Before sleeping: false, and not armed, if something has come already.
    fn arm(&mut self) -> bool;

    /// After sleeping.
    fn disarm(&mut self);

    /// True once after a step took what a sleeper was to be woken for: it must be armed
    /// anew.
    fn take_woken(&mut self) -> bool;

    /// When a step has something to do though nothing came in.
    fn next_deadline(&mut self, now: Instant) -> Option<Instant>;

    /// What became ready.
    fn ready(&mut self) -> &mut Ready;

    /// At the end of a call in which something became ready: descriptors of the user's
    /// are brought up to date.
    fn publish(&mut self);

    /// True if there is work to be run.
    fn has_work(&self) -> bool;

    /// Work to be run by the calling thread.
    fn take_work(&mut self, now: Instant) -> Option<Self::Work>;

    /// After it has run; what is left of it, if nobody wants it any more.
    fn finish_work(&mut self, work: Self::Work) -> Option<Self::Work>;

    /// Called a few times a second by a process that does anything.
    fn tick(&mut self);

    /// True once after it has served others: a waiter that does spins on, as they will ask again.
    #[inline]
    fn take_served(&mut self) -> bool {
        false
    }

    /// A thread has waited for seconds.
    fn waited_long(&mut self, now: Instant);
}
