//! Sleeping until a descriptor is readable or somebody wakes the sleeper.
//!
//! A [`Sleeper`] is a `ppoll` on a few descriptors and one eventfd. It keeps no
//! memory of its own: after every return the caller looks at all its sources,
//! whatever the reason given. A standing epoll was measured and refused: the
//! kernel then visits it for every packet that arrives, whether anybody sleeps
//! or not, which costs the sender of a packet some 0.2 us.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Descriptors that one sleeper can have beside its bell.
pub const MAX_DESCRIPTORS: usize = 15;

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// At least one descriptor is readable (or has failed).
    Readable,
    /// A [`Waker`] was used, and no descriptor is readable.
    Waker,
    /// The time has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps on several descriptors; shared by reference between threads.
#[derive(Debug)]
pub struct Sleeper {
    /// Copies of the descriptors given: they stay open as long as this.
    descriptors: Vec<OwnedFd>,
    bell: Arc<OwnedFd>,
}

/// Ends sleeps of one [`Sleeper`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    bell: Arc<OwnedFd>,
}

impl Sleeper {
    /// Makes a sleeper for these descriptors.
    ///
    /// # Errors
    /// When descriptors have run out, or more than [`MAX_DESCRIPTORS`] are given.
    pub fn new(descriptors: &[BorrowedFd<'_>]) -> io::Result<Sleeper> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a sleeper takes {MAX_DESCRIPTORS} descriptors, {} were given",
                    descriptors.len()
                ),
            ));
        }
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let descriptors = descriptors
            .iter()
            .map(BorrowedFd::try_clone_to_owned)
            .collect::<io::Result<_>>()?;
        Ok(Sleeper { descriptors, bell })
    }

    /// Sleeps until a descriptor is readable, a wake comes, or `timeout` has
    /// passed; `None` sleeps without end.
    ///
    /// Each wake ends at least one sleep that runs now or begins later. When
    /// several threads sleep, it may end only one of them.
    ///
    /// # Errors
    /// Only when the kernel object is broken.
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<Woken> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let count = self.descriptors.len() + 1;
        let mut polled: [PollFd<'_>; MAX_DESCRIPTORS + 1] =
            std::array::from_fn(|index| match self.descriptors.get(index) {
                Some(descriptor) => PollFd::new(descriptor, PollFlags::IN),
                None => PollFd::new(&self.bell, PollFlags::IN),
            });
        match poll(&mut polled[..count], timeout.as_ref()) {
            Ok(0) => return Ok(Woken::TimedOut),
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Woken::Interrupted),
            Err(error) => return Err(error.into()),
        }
        if !polled[count - 1].revents().is_empty() {
            self.drain()?;
        }
        let readable = polled[..count - 1]
            .iter()
            .any(|descriptor| !descriptor.revents().is_empty());
        Ok(if readable { Woken::Readable } else { Woken::Waker })
    }

    /// A handle that ends sleeps of this sleeper.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker {
            bell: Arc::clone(&self.bell),
        }
    }

    /// Takes back what wakers rang. Whoever drains returns from its sleep
    /// afterwards, so the rings it takes have ended a sleep.
    fn drain(&self) -> io::Result<()> {
        match rustix::io::read(&self.bell, &mut [0; 8]) {
            // `AGAIN`: another sleeper has taken it meanwhile.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Waker {
    /// Ends a sleep; one that begins later when none runs. Never blocks.
    pub fn wake(&self) {
        // Interruption apart, the write can fail only with `AGAIN`: the counter
        // is at its limit, so the bell already rings.
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
        assert_eq!(sleeper.sleep(None).unwrap(), Woken::Waker);
        assert_eq!(
            sleeper.sleep(Some(Duration::ZERO)).unwrap(),
            Woken::TimedOut
        );
    }

    #[test]
    fn a_short_sleep_lasts_at_least_its_time() {
        let sleeper = Sleeper::new(&[]).unwrap();
        for timeout in [Duration::from_nanos(100), Duration::from_micros(1500)] {
            let start = Instant::now();
            assert_eq!(sleeper.sleep(Some(timeout)).unwrap(), Woken::TimedOut);
            assert!(start.elapsed() >= timeout);
        }
    }

    #[test]
    fn an_endless_timeout_is_accepted() {
        let sleeper = Sleeper::new(&[]).unwrap();
        sleeper.waker().wake();
        assert_eq!(sleeper.sleep(Some(Duration::MAX)).unwrap(), Woken::Waker);
    }

    #[test]
    fn a_readable_descriptor_ends_the_sleep_until_it_is_read() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let sleeper = Sleeper::new(&[reader.as_fd()]).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(sleeper.sleep(None).unwrap(), Woken::Readable);
        sleeper.waker().wake();
        assert_eq!(sleeper.sleep(None).unwrap(), Woken::Readable);
        rustix::io::read(&reader, &mut [0; 1]).unwrap();
        assert_eq!(
            sleeper.sleep(Some(Duration::ZERO)).unwrap(),
            Woken::TimedOut
        );
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
                    // Passes the end on to the sleepers that are left.
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
