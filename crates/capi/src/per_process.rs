//! State of this process: a forked child starts afresh.
//!
//! A child inherits the parent's memory, and its locks as they were at the fork: another thread
//! of the parent may have held one. So the child never locks or drops the parent's state.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static HOOKED: AtomicBool = AtomicBool::new(false);

/// The generation that objects created now belong to.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A value that every process has of its own.
pub(crate) struct PerProcess<T> {
    current: ArcSwapOption<Instance<T>>,
}

/// The value of one process.
#[derive(Debug)]
pub(crate) struct Instance<T> {
    pub(crate) generation: u32,
    value: T,
    /// The value of the parent process, never dropped.
    pub(crate) parent: Option<Arc<Instance<T>>>,
}

impl<T> Deref for Instance<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess {
            current: ArcSwapOption::const_empty(),
        }
    }

    /// The value of this process, created on first use.
    pub(crate) fn get(&self) -> Arc<Instance<T>> {
        install_fork_hook();
        let generation = generation();
        loop {
            let known = self.current.load_full();
            if let Some(instance) = &known
                && instance.generation == generation
            {
                return Arc::clone(instance);
            }
            let fresh = Arc::new(Instance {
                generation,
                value: T::default(),
                parent: known.clone(),
            });
            self.current.compare_and_swap(&known, Some(fresh));
        }
    }

    /// The value of this process, if it has been created.
    pub(crate) fn existing(&self) -> Option<Arc<Instance<T>>> {
        let known = self.current.load_full();
        known.filter(|instance| instance.generation == generation())
    }
}

/// Locks a mutex even if a thread panicked while it held the lock: the data is consistent between
/// any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn install_fork_hook() {
    if HOOKED.load(Ordering::Relaxed) || HOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the child's handler adds to an atomic, which is async-signal-safe; it stays loaded
    // because the library cannot be unloaded (build.rs).
    unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
}

unsafe extern "C" fn on_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
