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

#![forbid(unsafe_code)]

mod clock;
mod progress;
mod ready;
mod schedule;
mod serve;
mod stepper;
mod sync;
mod timeout;
mod waiters;
mod want;
mod work;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use clock::{Clock, Reading, nanoseconds};
pub use ready::{Ready, WaitKey};
pub use schedule::{Driver, WaitError};
pub use stepper::{Stepper, Work};
pub use timeout::Timeout;
pub use want::{Polled, Want};
