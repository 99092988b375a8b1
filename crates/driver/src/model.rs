//! Checks the driver with loom, which tries all interleavings of its threads within bounds.
//!
//! The driver's files are compiled a second time with loom's primitives, and a [`Device`]
//! replaces the kernel's descriptors. Sleeps never time out here, so loom reports a lost
//! wake-up as a deadlock.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the model does not use everything that the engine uses"
)]

#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "condition.rs"]
mod condition;
#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "progress.rs"]
mod progress;
#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "schedule.rs"]
mod schedule;
#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "serve.rs"]
mod serve;
#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "stepper.rs"]
mod stepper;
#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "waiters.rs"]
mod waiters;
#[expect(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "work.rs"]
mod work;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use dipole_proto::Instant;
use loom::sync::Arc;

use super::contention;
use super::ready::{Ready, WaitKey};
use crate::timeout::Timeout;
use schedule::Driver;
use stepper::{Stepper, Work};
use sync::{Clock, Device, Sleeper};

/// The driver's primitives for loom.
mod sync {
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{LockResult, PoisonError};
    use std::time::Duration;

    use dipole_link::wait::WakeReason;
    use dipole_proto::Instant;

    // Only spinning uses these; no ordering between threads depends on them.
    pub(super) use std::sync::atomic::AtomicUsize;

    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(super) use loom::thread::yield_now as yield_core;

    loom::thread_local! {
        pub(super) static NESTED: std::cell::Cell<u32> = std::cell::Cell::new(0);
    }

    /// A nap ends as soon as another thread has run.
    pub(super) fn sleep(_nap: Duration) {
        loom::thread::yield_now();
    }

    /// A condition variable that never times out.
    #[derive(Debug, Default)]
    pub(super) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(super) fn new() -> Condvar {
            Condvar::default()
        }

        pub(super) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(super) fn wait<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
        ) -> LockResult<MutexGuard<'a, T>> {
            self.0.wait(guard)
        }

        pub(super) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _timeout: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, ())> {
            let guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
            Ok((guard, ()))
        }
    }

    /// Advances by 5 ms per reading, so that naps end soon.
    #[derive(Debug, Default)]
    pub(super) struct Clock(AtomicU64);

    impl Clock {
        pub(super) fn now(&self) -> Instant {
            Instant(1 + self.0.fetch_add(5_000_000, Ordering::Relaxed))
        }
    }

    #[derive(Debug)]
    pub(super) struct Reading<'a> {
        clock: &'a Clock,
        last: Instant,
    }

    impl<'a> Reading<'a> {
        pub(super) fn new(clock: &'a Clock, last: Instant) -> Reading<'a> {
            Reading { clock, last }
        }

        pub(super) fn last(&self) -> Instant {
            self.last
        }
    }

    /// The transport: a queue in memory. As in shared memory, the sender signals the reader only
    /// if the reader announced that it sleeps.
    #[derive(Debug, Default)]
    pub(super) struct Device {
        state: Mutex<DeviceState>,
        changed: loom::sync::Condvar,
    }

    #[derive(Debug, Default)]
    pub(super) struct DeviceState {
        pub(super) queue: std::collections::VecDeque<u32>,
        pub(super) armed: bool,
        /// The wake-up signal: readable for every sleeper until one of them reads it.
        pub(super) rung: bool,
        /// Sleepers woken by a waker, by number.
        called: u32,
        sleepers: u32,
    }

    impl Device {
        pub(super) fn lock(&self) -> MutexGuard<'_, DeviceState> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Sends a message to `endpoint` from a peer.
        pub(super) fn push(&self, endpoint: u32) {
            let mut state = self.lock();
            state.queue.push_back(endpoint);
            if std::mem::take(&mut state.armed) {
                state.rung = true;
                self.changed.notify_all();
            }
        }
    }

    /// Sleeps until the device signals or a waker is called.
    #[derive(Debug)]
    pub(super) struct Sleeper {
        device: Arc<Device>,
        bit: u32,
    }

    #[derive(Debug)]
    pub(super) struct Waker {
        device: Arc<Device>,
        bit: u32,
    }

    impl Sleeper {
        pub(super) fn new(device: &Arc<Device>) -> Sleeper {
            let mut state = device.lock();
            state.sleepers += 1;
            let bit = 1 << state.sleepers;
            drop(state);
            let device = Arc::clone(device);
            Sleeper { device, bit }
        }

        pub(super) fn waker(&self) -> Waker {
            Waker {
                device: Arc::clone(&self.device),
                bit: self.bit,
            }
        }

        pub(super) fn sleep(&self, _timeout: Option<Duration>) -> io::Result<WakeReason> {
            let mut state = self.device.lock();
            while !state.rung && state.called & self.bit == 0 {
                let woken = self.device.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
            state.called &= !self.bit;
            Ok(WakeReason::Waker)
        }
    }

    impl Waker {
        pub(super) fn wake(&self) {
            self.device.lock().called |= self.bit;
            self.device.changed.notify_all();
        }
    }
}

/// The stepped state machine: messages for endpoints.
struct Mailbox {
    device: Arc<Device>,
    inboxes: [VecDeque<()>; 3],
    woken: bool,
    ready: Ready,
    /// Called for each message to [`PORT`].
    handler: Option<Box<dyn FnMut() + Send>>,
    handled: usize,
}

/// The endpoint with a handler.
const PORT: u32 = 2;

/// A handler that is running.
struct Handling(Box<dyn FnMut() + Send>);

impl Work for Handling {
    fn run(&mut self) {
        (self.0)();
    }
}

impl Mailbox {
    fn take(&mut self, endpoint: u32) -> Option<()> {
        self.inboxes[endpoint as usize].pop_front()
    }

    fn deliver(&mut self, endpoint: u32) {
        self.inboxes[endpoint as usize].push_back(());
        self.ready.notify(WaitKey::Endpoint(endpoint));
    }
}

impl Stepper for Mailbox {
    type Work = Handling;

    fn has_work(&self) -> bool {
        self.handler.is_some() && !self.inboxes[PORT as usize].is_empty()
    }

    fn take_work(&mut self, _now: Instant) -> Option<Handling> {
        match self.has_work() {
            true => {
                self.take(PORT);
                self.handler.take().map(Handling)
            }
            false => None,
        }
    }

    fn finish_work(&mut self, work: Handling) -> Option<Handling> {
        self.handler = Some(work.0);
        self.handled += 1;
        self.ready.notify(WaitKey::Port(PORT));
        None
    }

    fn sleeper(&self) -> io::Result<Sleeper> {
        Ok(Sleeper::new(&self.device))
    }

    fn step(&mut self, _now: Instant, _look_everywhere: bool) -> io::Result<bool> {
        let mut state = self.device.lock();
        self.woken |= std::mem::take(&mut state.rung);
        let came: Vec<u32> = state.queue.drain(..).collect();
        drop(state);
        for endpoint in &came {
            self.deliver(*endpoint);
        }
        Ok(!came.is_empty())
    }

    fn poll_memory(&mut self) -> bool {
        false
    }

    /// A registered task is enough to keep the progress thread from long naps.
    fn is_polled(&self) -> bool {
        false
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
        let mut state = self.device.lock();
        state.armed = state.queue.is_empty();
        state.armed
    }

    fn disarm(&mut self) {
        self.device.lock().armed = false;
    }

    fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    fn next_deadline(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    fn ready(&mut self) -> &mut Ready {
        &mut self.ready
    }

    fn publish(&mut self) {}

    fn tick(&mut self) {}

    fn waited_long(&mut self, _now: Instant) {}
}

struct Process {
    device: Arc<Device>,
    driver: Arc<Driver<Mailbox>>,
}

impl Process {
    fn new() -> Process {
        let device = Arc::new(Device::default());
        let mailbox = Mailbox {
            device: Arc::clone(&device),
            inboxes: Default::default(),
            woken: false,
            ready: Ready::default(),
            handler: None,
            handled: 0,
        };
        let driver = Driver::new(mailbox, Clock::default(), Duration::ZERO);
        Process {
            device,
            driver: Arc::new(driver.expect("a model has descriptors")),
        }
    }

    /// Registers the handler that `handler` returns for [`PORT`].
    fn open_port<H: FnMut() + Send + 'static>(
        &self,
        handler: impl FnOnce(Arc<Driver<Mailbox>>) -> H,
    ) {
        let handler = Box::new(handler(Arc::clone(&self.driver)));
        self.driver
            .with_last(|mailbox, _| mailbox.handler = Some(handler));
    }

    /// Drops the handler, which may own the process.
    fn close_port(&self) {
        drop(self.driver.with_last(|mailbox, _| mailbox.handler.take()));
    }

    /// Spawns a thread that receives this many messages from an endpoint.
    fn receiver(&self, endpoint: u32, messages: u32) -> loom::thread::JoinHandle<()> {
        let driver = Arc::clone(&self.driver);
        loom::thread::spawn(move || {
            for _ in 0..messages {
                receive(&driver, endpoint);
            }
        })
    }
}

fn receive(driver: &Driver<Mailbox>, endpoint: u32) {
    let keys = [WaitKey::Endpoint(endpoint)];
    driver
        .wait(
            Timeout::Infinite,
            &keys,
            &|_| String::new(),
            |mailbox, _| mailbox.take(endpoint),
        )
        .expect("the model's link never breaks");
}

/// A task of an executor with its own thread.
#[derive(Default)]
struct Task {
    woken: loom::sync::Mutex<bool>,
    changed: loom::sync::Condvar,
}

impl Task {
    fn sleep(&self) {
        let mut woken = self.woken.lock().expect("no panic");
        while !std::mem::take(&mut *woken) {
            woken = self.changed.wait(woken).expect("no panic");
        }
    }
}

impl std::task::Wake for Task {
    fn wake(self: std::sync::Arc<Self>) {
        *self.woken.lock().expect("no panic") = true;
        self.changed.notify_one();
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn a_message_wakes_the_thread_waiting_for_it() {
    check(3, || {
        let process = Process::new();
        let waiting = process.receiver(0, 2);
        process.device.push(0);
        process.device.push(0);
        waiting.join().expect("no panic");
    });
}

#[test]
fn a_key_made_ready_by_another_thread_wakes_the_leader() {
    check(3, || {
        let process = Process::new();
        let waiting = process.receiver(0, 1);
        process.driver.with(|mailbox, _| mailbox.deliver(0));
        waiting.join().expect("no panic");
    });
}

#[test]
fn a_parked_thread_takes_over_when_the_leader_leaves() {
    check(3, || {
        let process = Process::new();
        let first = process.receiver(0, 1);
        let second = process.receiver(1, 1);
        process.device.push(0);
        process.device.push(1);
        first.join().expect("no panic");
        second.join().expect("no panic");
    });
}

#[test]
fn a_polling_thread_does_not_lose_the_wake_up_of_a_sleeping_one() {
    check(3, || {
        let process = Process::new();
        let waiting = process.receiver(0, 1);
        process.device.push(1);
        let driver = &process.driver;
        let passing = driver.wait(Timeout::Zero, &[], &|_| String::new(), |mailbox, _| {
            mailbox.take(2)
        });
        assert!(passing.is_err());
        process.device.push(0);
        waiting.join().expect("no panic");
    });
}

#[test]
fn the_progress_thread_yields_to_a_waiting_thread_and_serves_a_task_afterwards() {
    check(2, || {
        let process = Process::new();
        let serving = {
            let driver = Arc::clone(&process.driver);
            loom::thread::spawn(move || driver.serve(None))
        };
        let sender = {
            let device = Arc::clone(&process.device);
            loom::thread::spawn(move || {
                device.push(0);
                device.push(1);
            })
        };
        receive(&process.driver, 0);
        let task = std::sync::Arc::new(Task::default());
        let waker = std::task::Waker::from(std::sync::Arc::clone(&task));
        let keys = [WaitKey::Endpoint(1)];
        let attempt = |mailbox: &mut Mailbox, _| mailbox.take(1);
        while process.driver.wait_task(&keys, &waker, attempt).is_none() {
            task.sleep();
        }
        process.driver.stop();
        sender.join().expect("no panic");
        serving.join().expect("no panic");
    });
}

#[test]
fn a_handler_runs_on_a_thread_that_waits_for_another_endpoint() {
    check(3, || {
        let process = Process::new();
        process.open_port(|driver| move || driver.with(|mailbox, _| mailbox.deliver(0)));
        let waiting = process.receiver(0, 2);
        process.device.push(PORT);
        process.device.push(PORT);
        waiting.join().expect("no panic");
        process.close_port();
    });
}

#[test]
fn threads_get_their_messages_while_one_of_them_runs_a_handler_that_waits() {
    check(2, || {
        let process = Process::new();
        process.open_port(|driver| move || receive(&driver, 0));
        let first = process.receiver(1, 1);
        process.device.push(PORT);
        process.device.push(1);
        process.device.push(0);
        let handled = |mailbox: &mut Mailbox, _| (mailbox.handled > 0).then_some(());
        let keys = [WaitKey::Port(PORT)];
        let what = |_: &Mailbox| String::new();
        let waited = process
            .driver
            .wait(Timeout::Infinite, &keys, &what, handled);
        waited.expect("the model's link never breaks");
        first.join().expect("no panic");
        process.close_port();
    });
}

#[test]
fn another_thread_steps_while_a_handler_sleeps() {
    check(2, || {
        let process = Process::new();
        let [released, done] = [(); 2].map(|()| std::sync::Arc::new(Task::default()));
        let (release, told) = (
            std::sync::Arc::clone(&released),
            std::sync::Arc::clone(&done),
        );
        // It sleeps outside the driver until the other thread has received.
        process.open_port(|_| {
            move || {
                released.sleep();
                std::task::Wake::wake_by_ref(&told);
            }
        });
        let serving = [(); 2].map(|()| {
            let driver = Arc::clone(&process.driver);
            loom::thread::spawn(move || driver.serve(None))
        });
        process.device.push(PORT);
        process.device.push(1);
        let waker = std::task::Waker::from(release);
        let keys = [WaitKey::Endpoint(1)];
        let attempt = |mailbox: &mut Mailbox, _| mailbox.take(1);
        let taken = process.driver.wait_task(&keys, &waker, attempt);
        if taken.is_some() {
            waker.wake();
        }
        done.sleep();
        process.driver.stop();
        for thread in serving {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn the_progress_thread_runs_handlers_if_no_thread_waits() {
    check(2, || {
        let process = Process::new();
        let task = std::sync::Arc::new(Task::default());
        let told = std::sync::Arc::clone(&task);
        process.open_port(|_| move || std::task::Wake::wake_by_ref(&told));
        let serving = {
            let driver = Arc::clone(&process.driver);
            loom::thread::spawn(move || driver.serve(None))
        };
        process.device.push(PORT);
        task.sleep();
        process.driver.with(|mailbox, _| mailbox.deliver(PORT));
        task.sleep();
        process.driver.stop();
        serving.join().expect("no panic");
    });
}
