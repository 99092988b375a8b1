//! The driver with a test double of the engine, on real threads that sleep in the kernel.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker as TaskWaker};
use std::time::Duration;

use dipole_link::wait::{Sleeper, Waker};
use dipole_proto::Instant;

use super::{Driver, Ready, Stepper, Timeout, WaitError, WaitKey};
use crate::clock::Clock;

/// Endpoint numbers of messages in flight.
#[derive(Debug, Default)]
struct Wire {
    queue: Mutex<VecDeque<usize>>,
    sleepers: Mutex<Vec<Waker>>,
}

impl Wire {
    fn send(&self, endpoint: usize) {
        locked(&self.queue).push_back(endpoint);
        for sleeper in locked(&self.sleepers).iter() {
            sleeper.wake();
        }
    }
}

/// The stepped state machine: messages for endpoints.
#[derive(Debug)]
struct Mailbox {
    wire: Arc<Wire>,
    inboxes: Vec<usize>,
    broken: bool,
    ticks: usize,
    ready: Ready,
}

impl Mailbox {
    fn take(&mut self, endpoint: usize) -> Option<()> {
        self.inboxes[endpoint] = self.inboxes[endpoint].checked_sub(1)?;
        Some(())
    }

    fn deliver(&mut self, endpoint: usize) {
        self.inboxes[endpoint] += 1;
        self.ready.notify(key(endpoint));
    }
}

impl Stepper for Mailbox {
    type Work = std::convert::Infallible;

    fn has_work(&self) -> bool {
        false
    }

    fn take_work(&mut self, _now: Instant) -> Option<Self::Work> {
        None
    }

    fn finish_work(&mut self, work: Self::Work) -> Option<Self::Work> {
        match work {}
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        let sleeper = Sleeper::new(&[])?;
        locked(&self.wire.sleepers).push(sleeper.waker());
        Ok(sleeper)
    }

    fn step(&mut self, _now: Instant, _look_everywhere: bool) -> io::Result<bool> {
        if self.broken {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let came = std::mem::take(&mut *locked(&self.wire.queue));
        for endpoint in &came {
            self.deliver(*endpoint);
        }
        Ok(!came.is_empty())
    }

    fn poll_memory(&mut self) -> bool {
        false
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn expects_memory(&self) -> bool {
        false
    }

    fn expects_bulk(&self) -> bool {
        false
    }

    /// Treats all messages as small packets.
    fn spin_poll(&mut self, _now: Instant, _calls: u32) -> io::Result<bool> {
        Ok(true)
    }

    fn take_polled(&mut self, now: Instant) -> io::Result<bool> {
        self.step(now, false)
    }

    fn flush_deferred(&mut self) {}

    fn arm(&mut self) -> bool {
        locked(&self.wire.queue).is_empty()
    }

    fn disarm(&mut self) {}

    fn take_woken(&mut self) -> bool {
        false
    }

    fn next_deadline(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    fn ready(&mut self) -> &mut Ready {
        &mut self.ready
    }

    fn publish(&mut self) {}

    fn tick(&mut self) {
        self.ticks += 1;
    }

    fn waited_long(&mut self, _now: Instant) {}
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(endpoint: usize) -> WaitKey {
    WaitKey::Endpoint(u32::try_from(endpoint).unwrap())
}

fn driver(endpoints: usize, spin: Duration) -> (Driver<Mailbox>, Arc<Wire>) {
    let wire = Arc::new(Wire::default());
    let mailbox = Mailbox {
        wire: Arc::clone(&wire),
        inboxes: vec![0; endpoints],
        broken: false,
        ticks: 0,
        ready: Ready::default(),
    };
    (Driver::new(mailbox, Clock::new(), spin).unwrap(), wire)
}

fn receive(driver: &Driver<Mailbox>, endpoint: usize, until: Timeout) -> Result<(), WaitError> {
    let what = |_: &Mailbox| format!("a message to {endpoint}");
    driver.wait(until, &[key(endpoint)], &what, |mailbox, _| {
        mailbox.take(endpoint)
    })
}

/// Waits until this many threads sleep, including the leader.
fn wait_for_sleepers(driver: &Driver<Mailbox>, count: usize) {
    while driver.lock().waiters.asleep() < count {
        std::thread::yield_now();
    }
}

#[test]
fn each_thread_gets_the_messages_of_its_own_endpoint() {
    const THREADS: usize = 6;
    const MESSAGES: usize = 500;
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let (driver, wire) = driver(THREADS, spin);
        std::thread::scope(|scope| {
            for endpoint in 0..THREADS {
                let driver = &driver;
                scope.spawn(move || {
                    for _ in 0..MESSAGES {
                        receive(driver, endpoint, Timeout::Infinite).unwrap();
                    }
                });
            }
            for number in 0..THREADS * MESSAGES {
                wire.send(number * 7 % THREADS);
            }
        });
    }
}

#[test]
fn a_parked_thread_is_woken_only_for_its_own_keys() {
    let (driver, _wire) = driver(3, Duration::ZERO);
    let attempts = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| receive(&driver, 0, Timeout::Infinite));
        wait_for_sleepers(&driver, 1);
        let parked = scope.spawn(|| {
            driver.wait(
                Timeout::Infinite,
                &[key(1)],
                &|_| String::new(),
                |mailbox, _| {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    mailbox.take(1)
                },
            )
        });
        wait_for_sleepers(&driver, 2);
        let before = attempts.load(Ordering::Relaxed);
        for _ in 0..100 {
            driver.with(|mailbox, _| mailbox.deliver(2));
        }
        driver.with(|mailbox, _| mailbox.deliver(1));
        parked.join().unwrap().unwrap();
        assert_eq!(attempts.load(Ordering::Relaxed), before + 1);
        driver.with(|mailbox, _| mailbox.deliver(0));
        leader.join().unwrap().unwrap();
    });
}

#[test]
fn nothing_is_listed_for_a_lone_thread() {
    let (driver, wire) = driver(1, Duration::ZERO);
    wire.send(0);
    receive(&driver, 0, Timeout::Infinite).unwrap();
    driver.with(|mailbox, _| mailbox.deliver(0));
    assert!(!driver.lock().stepper.ready.has_keys());
}

#[test]
fn a_wait_times_out_whether_or_not_its_thread_leads() {
    let (driver, _wire) = driver(2, Duration::ZERO);
    let limit = Duration::from_millis(20);
    std::thread::scope(|scope| {
        let waits = [0, 1].map(|endpoint| {
            let driver = &driver;
            scope.spawn(move || receive(driver, endpoint, Timeout::After(limit)))
        });
        for wait in waits {
            let Err(WaitError::TimedOut { waited }) = wait.join().unwrap() else {
                panic!("nothing was sent");
            };
            assert!(waited >= limit);
        }
    });
    let now = receive(&driver, 0, Timeout::Zero);
    assert!(matches!(now, Err(WaitError::TimedOut { .. })));
}

#[test]
fn a_wait_times_out_even_if_a_thread_that_wants_the_lock_never_gets_a_core() {
    let (driver, _wire) = driver(1, Duration::from_millis(5));
    // Like a thread of lower real-time priority on the core of the spinning thread.
    driver.contenders.fetch_add(1, Ordering::Relaxed);
    let timed_out = receive(&driver, 0, Timeout::After(Duration::from_millis(10)));
    assert!(matches!(timed_out, Err(WaitError::TimedOut { .. })));
}

#[test]
fn a_broken_link_ends_every_wait() {
    let (driver, wire) = driver(2, Duration::ZERO);
    std::thread::scope(|scope| {
        let waits = [0, 1].map(|endpoint| {
            let driver = &driver;
            scope.spawn(move || receive(driver, endpoint, Timeout::Infinite))
        });
        wait_for_sleepers(&driver, 2);
        driver.with(|mailbox, _| mailbox.broken = true);
        wire.send(0);
        for wait in waits {
            assert!(matches!(wait.join().unwrap(), Err(WaitError::Broken(_))));
        }
    });
}

#[test]
fn sends_alone_cause_ticks() {
    let (driver, _wire) = driver(1, Duration::ZERO);
    while driver.with_last(|mailbox, _| mailbox.ticks) == 0 {
        driver.sending(|_, _| ());
    }
}

#[test]
fn a_task_is_woken_once_per_registration_without_the_lock() {
    struct Relock {
        driver: Driver<Mailbox>,
        woken: AtomicUsize,
    }
    impl Wake for Relock {
        fn wake(self: Arc<Self>) {
            self.driver.with_last(|mailbox, _| mailbox.ticks = 100);
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (driver, _wire) = driver(2, Duration::ZERO);
    let woken = AtomicUsize::new(0);
    let task = Arc::new(Relock { driver, woken });
    let waker = TaskWaker::from(Arc::clone(&task));
    let driver = &task.driver;
    for _ in 0..3 {
        let taken = driver.wait_task(&[key(0)], &waker, |mailbox, _| mailbox.take(0));
        assert!(taken.is_none());
    }
    driver.with(|mailbox, _| mailbox.deliver(1));
    assert_eq!(task.woken.load(Ordering::Relaxed), 0);
    driver.with(|mailbox, _| mailbox.deliver(0));
    driver.with(|mailbox, _| mailbox.deliver(0));
    assert_eq!(task.woken.load(Ordering::Relaxed), 1);
    let taken = driver.wait_task(&[key(0)], &waker, |mailbox, _| mailbox.take(0));
    assert!(taken.is_some());
}
