//! A lock that costs its first user next to nothing.
//!
//! Nearly every program uses an endpoint and its queues from one thread, and a lock's atomic
//! instructions would be a good part of a short message. So the first thread to lock a value owns
//! it until another one comes: while it does it only says so in a word of its own, without a fence.
//! The other one withdraws that, once and for all, has the kernel put the missing fence into all
//! threads (`membarrier`(2)), and waits until the owner has let go. From then on all take a mutex.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Commands of `membarrier`(2).
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether the kernel can put fences into other threads.
fn has_membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Differs between threads that live, and is never zero.
#[inline]
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| ptr::from_ref(place).addr())
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Serial<T> {
    /// The thread that was first; zero before.
    owner: AtomicUsize,
    /// The owner is inside without the mutex.
    is_inside: AtomicBool,
    /// All take the mutex.
    is_shared: AtomicBool,
    mutex: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value, as `lock` explains.
unsafe impl<T: Send> Sync for Serial<T> {}

impl<T> Serial<T> {
    pub(crate) fn new(value: T) -> Serial<T> {
        Serial {
            owner: AtomicUsize::new(0),
            is_inside: AtomicBool::new(false),
            is_shared: AtomicBool::new(!has_membarrier()),
            mutex: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else has the value.
    ///
    /// # Panics
    /// When this thread has it already.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) == me {
            let is_again = self.is_inside.load(Ordering::Relaxed);
            assert!(!is_again, "a thread locks the same value twice");
            self.is_inside.store(true, Ordering::Relaxed);
            // Between the store and the load a fence is missing; whoever sets the flag makes
            // up for it: either it sees that we are inside, or we see the flag.
            compiler_fence(Ordering::SeqCst);
            if !self.is_shared.load(Ordering::Acquire) {
                return Guard {
                    serial: self,
                    held: None,
                    _here: PhantomData,
                };
            }
            self.is_inside.store(false, Ordering::Release);
        }
        self.lock_slowly(me)
    }

    #[cold]
    fn lock_slowly(&self, me: usize) -> Guard<'_, T> {
        let held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_shared.load(Ordering::Acquire) {
            let owner = self.owner.load(Ordering::Relaxed);
            if owner == 0 {
                // With the mutex held nobody else becomes it, or looks whether we are inside.
                self.is_inside.store(true, Ordering::Relaxed);
                self.owner.store(me, Ordering::Relaxed);
                return Guard {
                    serial: self,
                    held: None,
                    _here: PhantomData,
                };
            }
            self.share();
        }
        Guard {
            serial: self,
            held: Some(held),
            _here: PhantomData,
        }
    }

    /// The owner takes the mutex from now on, as does everybody; waits until it is outside.
    fn share(&self) {
        self.is_shared.store(true, Ordering::SeqCst);
        if !membarrier(PRIVATE_EXPEDITED) {
            // It was possible before: without it nothing here is sure.
            std::process::abort();
        }
        while self.is_inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl<T: Default> Default for Serial<T> {
    fn default() -> Self {
        Serial::new(T::default())
    }
}

/// The value, for as long as this lives.
pub(crate) struct Guard<'a, T> {
    serial: &'a Serial<T>,
    held: Option<MutexGuard<'a, ()>>,
    /// It stays with its thread.
    _here: PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: nobody else has a guard. One without the mutex is the owner's, who looks at
        // `is_inside` before it makes another. One with the mutex is only made when `share` has
        // waited for that of the owner, which makes no more without it.
        unsafe { &*self.serial.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.serial.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.held.is_none() {
            // Release: whoever waits in `share` sees what was done to the value.
            self.serial.is_inside.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_belongs_to_one_thread_at_a_time_whoever_comes_when() {
        for round in 0..200_u64 {
            let serial = Serial::new((0_u64, 0_u64));
            let add = |count: u64| {
                for _ in 0..count {
                    let mut value = serial.lock();
                    value.0 += 1;
                    // In between another thread would be seen.
                    std::hint::black_box(&mut *value);
                    value.1 += 1;
                    assert_eq!(value.0, value.1);
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| add(20_000));
                for _ in 0..2 {
                    scope.spawn(|| {
                        // At any moment of the owner's work.
                        for _ in 0..round * 20 {
                            std::hint::spin_loop();
                        }
                        add(500);
                    });
                }
            });
            assert_eq!(*serial.lock(), (21_000, 21_000));
        }
    }

    #[test]
    fn the_owner_that_locks_twice_is_told() {
        let serial = Serial::new(());
        let held = serial.lock();
        if held.held.is_some() {
            // The kernel knows no `membarrier`.
            return;
        }
        let twice = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(serial.lock());
        }));
        assert!(twice.is_err());
        drop(held);
        drop(serial.lock());
    }
}
