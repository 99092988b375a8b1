//! Locked state that a forked child does not share with its parent.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a lock. Another thread may hold the lock when the process forks, and would never
/// release it in the child. So the child gets a new lock with a new value.
pub(crate) struct PerProcess<T>(AtomicPtr<Mutex<T>>);

impl<T: Default + Send> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex().lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mutex(&self) -> &Mutex<T> {
        // SAFETY: null, or a mutex made below, which is never freed.
        if let Some(known) = unsafe { self.0.load(Ordering::Acquire).as_ref() } {
            return known;
        }
        let new: &Mutex<T> = Box::leak(Box::default());
        let place = ptr::from_ref(new).cast_mut();
        let null = ptr::null_mut();
        match (self.0).compare_exchange(null, place, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // SAFETY: another thread made this one first; it is never freed.
            Err(first) => unsafe { first.as_ref() }.unwrap_or(new),
        }
    }

    /// Begins anew in a forked child. The parent's value is neither used nor dropped.
    pub(crate) fn forget(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}
