//! Threads and the engine: who steps it, who sleeps, who wakes whom.
//!
//! The engine lies behind one lock, never held while sleeping or in user code.
//! A thread that waits steps it: first spinning for a bounded time, then one of the
//! waiting threads leads and sleeps in the kernel on the link's descriptors, and the
//! others are parked until what they wait for is ready or the leader leaves.
//!
//! What steps, [`Stepper`], says which keys became ready ([`Ready`]); only waiters of
//! these keys are woken ([`waiters`]). Where descriptors have been exported or tasks
//! wait, a progress thread steps while no thread waits here ([`progress`]). Handlers of ports
//! run between steps ([`work`]).
//!
//! `model.rs` runs this driver under loom.

mod progress;
mod ready;
mod schedule;
mod stepper;
mod sync;
mod waiters;
mod want;
mod work;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub(crate) use ready::{Ready, WaitKey};
pub(crate) use schedule::{Driver, Until, WaitError};
pub(crate) use stepper::Stepper;
pub use want::Polled;
pub(crate) use want::Want;
pub(crate) use work::Work;
