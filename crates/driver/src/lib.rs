//! The lock around the engine, and how threads take turns at stepping it.
//!
//! The lock is never held while a thread sleeps or runs user code. A waiting thread steps
//! the engine and spins for a bounded time. After that, one of the waiting threads becomes
//! the leader and sleeps in the kernel on the link's descriptors; the others are parked
//! until their key becomes ready or the leader leaves.
//!
//! The engine ([`Stepper`]) reports which keys became ready ([`Ready`]), and only waiters
//! for those keys are woken (`waiters.rs`). If descriptors were exported or tasks are
//! waiting, a progress thread steps the engine while no other thread does (`serve.rs`).
//! Port handlers run between steps (`work.rs`).
//!
//! `model.rs` checks this driver with loom.

#![forbid(unsafe_code)]

mod clock;
mod condition;
mod contention;
mod interrupt;
mod long_wait;
mod progress;
mod ready;
mod schedule;
mod serve;
mod stepper;
mod sync;
mod timeout;
mod waiters;
mod work;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use clock::{Clock, Reading, nanoseconds};
pub use condition::{Polled, WaitCondition};
pub use interrupt::interruptible;
pub use long_wait::LongWait;
pub use ready::{Keys, Ready, WaitKey};
pub use schedule::Driver;
pub use stepper::{Stepper, Work};
pub use timeout::{Timeout, WaitError};
