//! The primitives that the driver uses. The loom model (`model.rs`) replaces them with its own.

pub(super) use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(super) use std::thread::sleep;

pub(super) use dipole_link::cpu::yield_core;
pub(super) use dipole_link::wait::{Sleeper, Waker};

pub(super) use crate::clock::{Clock, Reading};

thread_local! {
    /// Handlers that this thread is running, nested.
    pub(super) static NESTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}
