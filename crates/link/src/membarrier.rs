//! Asymmetric fences: only the side that acts rarely pays.
//!
//! Two sides that each write a word and then read the other's need a fence in between, or both
//! may miss the other's write. If one side is about to sleep, it can make all other processes
//! execute a fence (`membarrier(2)`), so that they need none of their own.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use libc::c_int;

use crate::fork::incarnation;

// As in the kernel's `linux/membarrier.h`.
const GLOBAL_EXPEDITED: c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: c_int = 1 << 2;

fn call(command: c_int) -> bool {
    // SAFETY: takes two numbers and touches no memory of this process.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    done == 0
}

/// Lets other processes force a fence on this one. False if the system cannot do that: then this
/// process must use fences of its own.
pub fn register() -> bool {
    /// The next [`incarnation`] to register, doubled; odd if the last one was accepted.
    static REGISTERED: AtomicU64 = AtomicU64::new(0);
    let (known, due) = (REGISTERED.load(Ordering::Relaxed), 2 * (incarnation() + 1));
    if known & !1 == due {
        return known & 1 == 1;
    }
    let is_accepted = call(REGISTER_GLOBAL_EXPEDITED);
    REGISTERED.store(due | u64::from(is_accepted), Ordering::Relaxed);
    is_accepted
}

/// Forces a fence on every [registered](register) process, and on this thread.
pub fn fence_other_processes() {
    fence(Ordering::SeqCst);
    // If the system call is missing, no process is registered.
    let _done = call(GLOBAL_EXPEDITED);
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, compiler_fence};

    use super::*;

    #[test]
    fn at_least_one_of_two_sides_sees_the_other() {
        if cfg!(miri) || !register() {
            eprintln!("skipped: the system has no membarrier");
            return;
        }
        let (words, seen) = (
            [AtomicU32::new(0), AtomicU32::new(0)],
            AtomicBool::new(true),
        );
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let light = scope.spawn(|| {
                (1..2000)
                    .map(|round| {
                        barrier.wait();
                        words[0].store(round, Ordering::Release);
                        compiler_fence(Ordering::SeqCst);
                        let found = words[1].load(Ordering::Acquire) == round;
                        barrier.wait();
                        found
                    })
                    .collect::<Vec<_>>()
            });
            let heavy: Vec<bool> = (1..2000)
                .map(|round| {
                    barrier.wait();
                    words[1].store(round, Ordering::Release);
                    fence_other_processes();
                    let found = words[0].load(Ordering::Acquire) == round;
                    barrier.wait();
                    found
                })
                .collect();
            let light = light.join().expect("it ends");
            let both_missed = heavy.iter().zip(&light).any(|(one, other)| !one && !other);
            seen.store(!both_missed, Ordering::Relaxed);
        });
        assert!(seen.into_inner());
    }
}
