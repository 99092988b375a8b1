//! Sleeping until a descriptor is readable or another thread wakes the sleeper.
//!
//! A [`Sleeper`] calls `ppoll` on a few descriptors, an eventfd and a timerfd. After every
//! return the caller checks all its sources, whatever the reason given. Two alternatives were
//! measured and rejected:
//!
//! - a permanent epoll: the kernel visits it for every arriving packet, even when no thread
//!   sleeps, which costs the sender of the packet about 0.2 us;
//! - the time-out argument of the call: setting and cancelling a timer for each sleep causes a
//!   VM exit each time, about 5 us per message. The timerfd stays set when a sleep ends
//!   early, and is set again only to an earlier time or after it has fired.
//!   or when it has fired.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Maximum descriptors per sleeper, not counting its eventfd and timerfd.
pub const MAX_DESCRIPTORS: usize = 14;

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// At least one descriptor is readable or has failed.
    Readable,
    /// A [`Waker`] was used, and no descriptor is readable.
    Waker,
    /// The time-out has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Descriptors on which sleepers wait. They can be replaced while threads sleep.
#[derive(Debug)]
pub struct WatchedDescriptors(Mutex<Arc<Vec<OwnedFd>>>);

impl WatchedDescriptors {
    /// Duplicates these descriptors.
    ///
    /// # Errors
    /// No descriptors are left, or more than [`MAX_DESCRIPTORS`] are given.
    pub fn new(descriptors: &[BorrowedFd<'_>]) -> io::Result<Arc<WatchedDescriptors>> {
        let duplicates = Arc::new(duplicate(descriptors)?);
        Ok(Arc::new(WatchedDescriptors(Mutex::new(duplicates))))
    }

    /// Replaces the descriptors. Sleeps that are running go on with the former ones, so wake them.
    ///
    /// # Errors
    /// As for [`new`](Self::new); then nothing has changed.
    pub fn replace(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let duplicates = Arc::new(duplicate(descriptors)?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = duplicates;
        Ok(())
    }

    fn current(&self) -> Arc<Vec<OwnedFd>> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn duplicate(descriptors: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a sleeper takes {MAX_DESCRIPTORS} descriptors, {} were given",
                descriptors.len()
            ),
        ));
    }
    descriptors
        .iter()
        .map(BorrowedFd::try_clone_to_owned)
        .collect()
}

/// Sleeps on several descriptors; can be shared between threads.
#[derive(Debug)]
pub struct Sleeper {
    watched: Arc<WatchedDescriptors>,
    bell: Arc<OwnedFd>,
    timer: OwnedFd,
    /// When the timer fires; locked by the sleeping thread that uses it.
    set_for: Mutex<Option<Instant>>,
}

/// Ends the sleeps of one [`Sleeper`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    bell: Arc<OwnedFd>,
}

impl Sleeper {
    /// Creates a sleeper for these descriptors.
    ///
    /// # Errors
    /// No descriptors are left, or more than [`MAX_DESCRIPTORS`] are given.
    pub fn new(descriptors: &[BorrowedFd<'_>]) -> io::Result<Sleeper> {
        Sleeper::on(WatchedDescriptors::new(descriptors)?)
    }

    /// Creates a sleeper for descriptors that it shares with others.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn on(watched: Arc<WatchedDescriptors>) -> io::Result<Sleeper> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(Sleeper {
            watched,
            bell,
            timer,
            set_for: Mutex::new(None),
        })
    }

    /// Sleeps until a descriptor is readable, a wake arrives, or `timeout` has passed; `None`
    /// means no time-out.
    ///
    /// Each wake ends at least one sleep that is running or starts later. With several sleeping
    /// threads it may end only one of the sleeps.
    ///
    /// # Errors
    /// Only if the kernel object is broken.
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<WakeReason> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut set_for = match self.set_for.try_lock() {
            Ok(set_for) => set_for,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread sleeps with the timer; this one uses the call's time-out.
            Err(TryLockError::WouldBlock) => return self.poll_once(false, timeout),
        };
        if timeout == Some(Duration::ZERO) {
            return self.poll_once(false, timeout);
        }
        loop {
            if let Some(until) = until
                && set_for.is_none_or(|at| at > until)
            {
                self.set_timer(until.saturating_duration_since(Instant::now()))?;
                *set_for = Some(until);
            }
            match self.poll_once(true, None)? {
                WakeReason::TimedOut => {
                    // It has fired, perhaps for an earlier sleep.
                    *set_for = None;
                    rustix::io::read(&self.timer, &mut [0; 8]).or_else(nothing_there)?;
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Ok(WakeReason::TimedOut);
                    }
                }
                woken => return Ok(woken),
            }
        }
    }

    /// One `ppoll` call; returns `TimedOut` also when only the timer has fired.
    fn poll_once(&self, with_timer: bool, timeout: Option<Duration>) -> io::Result<WakeReason> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let descriptors = self.watched.current();
        let bell = descriptors.len();
        let count = bell + 1 + usize::from(with_timer);
        let mut polled: [PollFd<'_>; MAX_DESCRIPTORS + 2] = std::array::from_fn(|index| {
            let descriptor = match descriptors.get(index) {
                Some(descriptor) => descriptor,
                None if index == bell => &self.bell,
                None => &self.timer,
            };
            PollFd::new(descriptor, PollFlags::IN)
        });
        match poll(&mut polled[..count], timeout.as_ref()) {
            Ok(0) => return Ok(WakeReason::TimedOut),
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(WakeReason::Interrupted),
            Err(error) => return Err(error.into()),
        }
        let ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let rung = ready(&polled[bell]);
        if rung {
            self.drain()?;
        }
        Ok(if polled[..bell].iter().any(ready) {
            WakeReason::Readable
        } else if rung {
            WakeReason::Waker
        } else {
            WakeReason::TimedOut
        })
    }

    fn set_timer(&self, after: Duration) -> io::Result<()> {
        let after = after.max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(after).map_err(io::Error::other)?;
        let new = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &new)?;
        Ok(())
    }

    /// A handle that ends sleeps of this sleeper.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker {
            bell: Arc::clone(&self.bell),
        }
    }

    /// Resets the eventfd. A thread that resets it returns from its sleep afterwards, so every
    /// wake that is consumed here ends a sleep.
    fn drain(&self) -> io::Result<()> {
        rustix::io::read(&self.bell, &mut [0; 8]).or_else(nothing_there)?;
        Ok(())
    }
}

/// Treats a read that another sleeper has already done as success.
fn nothing_there(error: Errno) -> io::Result<usize> {
    match error {
        Errno::AGAIN | Errno::INTR => Ok(0),
        error => Err(error.into()),
    }
}

impl Waker {
    /// Ends a running sleep, or the next one if none is running. Never blocks.
    pub fn wake(&self) {
        // Apart from EINTR, the write fails only with EAGAIN: the counter is at its limit, so a
        // wake is pending anyway.
        while rustix::io::write(&self.bell, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    #[test]
    fn a_wake_before_the_sleep_ends_it_once() {
        let sleeper = Sleeper::new(&[]).unwrap();
        sleeper.waker().wake();
        sleeper.waker().wake();
        assert_eq!(sleeper.sleep(None).unwrap(), WakeReason::Waker);
        assert_eq!(
            sleeper.sleep(Some(Duration::ZERO)).unwrap(),
            WakeReason::TimedOut
        );
    }

    #[test]
    fn a_short_sleep_lasts_at_least_its_time() {
        let sleeper = Sleeper::new(&[]).unwrap();
        for timeout in [Duration::from_nanos(100), Duration::from_micros(1500)] {
            let start = Instant::now();
            assert_eq!(sleeper.sleep(Some(timeout)).unwrap(), WakeReason::TimedOut);
            assert!(start.elapsed() >= timeout);
        }
    }

    #[test]
    fn an_endless_timeout_is_accepted() {
        let sleeper = Sleeper::new(&[]).unwrap();
        sleeper.waker().wake();
        assert_eq!(
            sleeper.sleep(Some(Duration::MAX)).unwrap(),
            WakeReason::Waker
        );
    }

    #[test]
    fn a_readable_descriptor_ends_the_sleep_until_it_is_read() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let sleeper = Sleeper::new(&[reader.as_fd()]).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(sleeper.sleep(None).unwrap(), WakeReason::Readable);
        sleeper.waker().wake();
        assert_eq!(sleeper.sleep(None).unwrap(), WakeReason::Readable);
        rustix::io::read(&reader, &mut [0; 1]).unwrap();
        assert_eq!(
            sleeper.sleep(Some(Duration::ZERO)).unwrap(),
            WakeReason::TimedOut
        );
    }

    #[test]
    fn a_woken_sleeper_waits_for_the_descriptors_that_replaced_the_former_ones() {
        let pipes = [(); 2].map(|()| rustix::pipe::pipe().unwrap());
        let [(former, former_end), (reader, end)] = &pipes;
        let watched = WatchedDescriptors::new(&[former.as_fd()]).unwrap();
        let sleepers = [(); 2].map(|()| Sleeper::on(Arc::clone(&watched)).unwrap());
        std::thread::scope(|scope| {
            let wakers = sleepers.each_ref().map(Sleeper::waker);
            for sleeper in &sleepers {
                scope.spawn(|| {
                    let mut reason = sleeper.sleep(None).unwrap();
                    while reason == WakeReason::Waker {
                        reason = sleeper.sleep(None).unwrap();
                    }
                    assert_eq!(reason, WakeReason::Readable);
                });
            }
            watched.replace(&[reader.as_fd()]).unwrap();
            wakers.iter().for_each(Waker::wake);
            rustix::io::write(end, b"x").unwrap();
        });
        rustix::io::read(reader, &mut [0; 1]).unwrap();
        rustix::io::write(former_end, b"x").unwrap();
        let slept = sleepers[0].sleep(Some(Duration::ZERO)).unwrap();
        assert_eq!(slept, WakeReason::TimedOut);
    }

    #[test]
    fn no_wake_is_lost_between_threads_that_answer_each_other() {
        const ROUNDS: u64 = 20_000;
        let ping = Sleeper::new(&[]).unwrap();
        let pong = Sleeper::new(&[]).unwrap();
        let turn = AtomicU64::new(0);
        // Each side sleeps without end, so one lost wake hangs the test.
        let play = |mine: &Sleeper, other: &Waker, parity: u64| {
            loop {
                let now = turn.load(Ordering::Acquire);
                if now >= ROUNDS {
                    other.wake();
                    return;
                }
                if now % 2 == parity {
                    turn.store(now + 1, Ordering::Release);
                    other.wake();
                } else {
                    mine.sleep(None).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play(&ping, &pong.waker(), 0));
            scope.spawn(|| play(&pong, &ping.waker(), 1));
        });
        assert_eq!(turn.load(Ordering::Acquire), ROUNDS);
    }

    #[test]
    fn work_announced_by_a_wake_is_always_seen_by_one_of_several_sleepers() {
        const WORK: u64 = 20_000;
        let sleeper = Sleeper::new(&[]).unwrap();
        let (posted, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let finished = Sleeper::new(&[]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while done.load(Ordering::SeqCst) < WORK {
                        let seen = done.load(Ordering::SeqCst);
                        if posted.load(Ordering::SeqCst) > seen {
                            let next = seen + 1;
                            let swap = done.compare_exchange(
                                seen,
                                next,
                                Ordering::SeqCst,
                                Ordering::SeqCst,
                            );
                            if swap.is_ok() {
                                finished.waker().wake();
                            }
                        } else {
                            sleeper.sleep(None).unwrap();
                        }
                    }
                    // Pass the end on to the remaining sleepers.
                    sleeper.waker().wake();
                });
            }
            for number in 1..=WORK {
                posted.store(number, Ordering::SeqCst);
                sleeper.waker().wake();
                while done.load(Ordering::SeqCst) < number {
                    finished.sleep(None).unwrap();
                }
            }
        });
        assert_eq!(done.load(Ordering::SeqCst), WORK);
    }
}
