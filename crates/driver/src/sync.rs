//! The primitives the driver is built on. The loom model (`model.rs`) compiles the
//! same driver against its own set.

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize};
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::sleep;

pub(super) use dipole_link::cpu::yield_core;
pub(super) use dipole_link::wait::{Sleeper, Waker};

pub(super) use crate::clock::{Clock, Reading};

thread_local! {
    /// Pieces of work that this thread runs, one within another.
    pub(super) static NESTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}
