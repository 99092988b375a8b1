//! A lock that is almost free for the first thread that uses it.
//!
//! Nearly every program uses an endpoint and its queues from one thread, and the atomic instructions
//! of a lock would be a noticeable part of the cost of a short message. So the first thread that
//! locks a value owns it: it only sets a flag, without a fence. When a second thread comes, it ends
//! the ownership for good: it has the kernel execute the missing fence in all threads
//! (`membarrier`(2)) and waits until the owner has unlocked. From then on all threads use a mutex.

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

/// True if the kernel can execute fences in other threads.
fn has_membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// A number that is not zero and differs between running threads.
#[inline]
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| ptr::from_ref(place).addr())
}

/// A value that one thread at a time uses; cheaper than a mutex for a single owner.
#[derive(Debug)]
pub(crate) struct Serial<T> {
    /// The first thread that locked; 0 before that.
    owner: AtomicUsize,
    /// The owner holds the lock without the mutex.
    is_inside: AtomicBool,
    /// All threads use the mutex.
    is_shared: AtomicBool,
    mutex: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time reaches the value, as `lock` explains.
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

    /// Waits until no other thread holds the lock.
    ///
    /// # Panics
    /// If this thread already holds it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) == me {
            let is_again = self.is_inside.load(Ordering::Relaxed);
            assert!(!is_again, "a thread locks the same value twice");
            self.is_inside.store(true, Ordering::Relaxed);
            // The fence between this store and the load below is missing. The thread that sets
            // `is_shared` makes up for it: either it sees `is_inside`, or we see `is_shared`.
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
                // While we hold the mutex, no other thread becomes the owner or checks `is_inside`.
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

    /// Makes all threads, including the owner, use the mutex; waits until the owner has unlocked.
    fn share(&self) {
        self.is_shared.store(true, Ordering::SeqCst);
        if !membarrier(PRIVATE_EXPEDITED) {
            // It was available at the start. Without it the lock cannot be made safe.
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

/// Access to the value while the lock is held.
pub(crate) struct Guard<'a, T> {
    serial: &'a Serial<T>,
    held: Option<MutexGuard<'a, ()>>,
    /// Keeps the guard on its thread.
    _here: PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is no other guard. A guard without the mutex belongs to the owner, which
        // checks `is_inside` before it creates another. A guard with the mutex is created only after
        // `share` has waited for the owner's guard, and the owner creates no more without the mutex.
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
            // Release: a thread that waits in `share` sees all changes to the value.
            self.serial.is_inside.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thread_at_a_time_holds_the_lock() {
        for round in 0..200_u64 {
            let serial = Serial::new((0_u64, 0_u64));
            let add = |count: u64| {
                for _ in 0..count {
                    let mut value = serial.lock();
                    value.0 += 1;
                    // Another thread in here would be noticed.
                    std::hint::black_box(&mut *value);
                    value.1 += 1;
                    assert_eq!(value.0, value.1);
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| add(20_000));
                for _ in 0..2 {
                    scope.spawn(|| {
                        // Start at varying moments of the owner's work.
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
    fn locking_twice_in_the_owner_panics() {
        let serial = Serial::new(());
        let held = serial.lock();
        if held.held.is_some() {
            // The kernel does not support `membarrier`.
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
