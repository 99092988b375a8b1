//! The driver's lock, the wait loop of a thread, and its sleep.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task;
use std::time::Duration;

use dipole_proto::Instant;

use super::condition::{Attempt, Polled, WaitCondition};
use super::contention::Contention;
use super::progress::{CallerKind, Progress};
use super::stepper::Stepper;
use super::sync::{AtomicUsize, Clock, Mutex, MutexGuard, Reading, Sleeper, Waker, yield_core};
use super::waiters::{WaiterId, Waiters, wait_parked};
use crate::clock::nanoseconds;
use crate::interrupt;
use crate::long_wait::Part;
use crate::ready::WaitKey;
use crate::timeout::{Timeout, WaitError};

/// System calls per spin round to poll the small-packet socket.
const SPIN_SYSCALLS: u32 = 8;
/// Polls of shared memory per spin round, if the result is expected there.
const MEMORY_POLLS: u32 = 64;
/// Such rounds (about 0.3 us each) between two full steps.
const MEMORY_ROUNDS: u32 = 8;
/// Checks whether other threads still want the lock before the spinning thread takes it again.
const MAX_CONTENDER_CHECKS: u32 = 1000;
/// Interval of [`Stepper::tick`].
const TICK_NS: u64 = 200_000_000;
/// Upper limit for the number of sends between two clock readings for the tick.
const MAX_SENDS_PER_CLOCK_READ: u32 = 4096;
/// Calls that find their result at once between two full steps.
const MAX_CALLS_WITHOUT_STEP: u32 = 256;
/// Consecutive polls that took only the small packets they found, between two full steps.
const MAX_HITS_IN_ROW: u32 = 16;
/// Polls of shared memory in one call that never waits.
const LOCAL_POLLS: u32 = 8;
/// Of this many network polls in calls that never wait, one is a full step.
const NETWORK_POLLS_PER_STEP: u32 = 4;
/// Steps to take at most while rearming sleeping threads.
const MAX_STEPS_TO_ARM: u32 = 64;

/// State protected by the driver's lock.
#[derive(Debug)]
pub(super) struct State<S> {
    pub(super) stepper: S,
    /// Last reading of the clock, for uses that tolerate an old one.
    pub(super) last: Instant,
    pub(super) waiters: Waiters,
    /// The leader sleeps in the kernel until this time.
    pub(super) leader_until: Option<Instant>,
    /// Threads asleep in the kernel: the leader and the progress thread.
    pub(super) armed: usize,
    pub(super) progress: Progress,
    calls_since_step: u32,
    /// Consecutive polls that took only the small packets they found.
    hits_in_row: u32,
    /// Network polls in calls that never wait.
    network_polls: u32,
    /// Waits and sends; the progress thread watches whether this grows.
    pub(super) calls: u32,
    ticked: Instant,
    sends_since_clock_read: u32,
    sends_per_clock_read: u32,
}

impl<S: Stepper> State<S> {
    /// True if anything waits outside a call: in `poll`, or as a task.
    pub(super) fn is_polled(&self) -> bool {
        self.waiters.has_tasks() || self.stepper.is_polled()
    }
}

/// The lock around a stepper, and the threads that use it.
#[derive(Debug)]
pub struct Driver<S> {
    pub(super) state: Mutex<State<S>>,
    sleeper: Sleeper,
    pub(super) waker: Waker,
    pub(super) clock: Clock,
    spin: Duration,
    /// Threads waiting for the lock.
    pub(super) contenders: AtomicUsize,
    contention: Contention,
}

/// The locked state after a wait, when that was, and the outcome.
type Waited<'a, S, R> = (MutexGuard<'a, State<S>>, Instant, Result<R, WaitError>);

impl<S: Stepper> Driver<S> {
    /// Creates a driver of `stepper`; waiting threads spin for `spin` before they sleep.
    ///
    /// # Errors
    /// There are no descriptors left for its sleeper.
    pub fn new(stepper: S, clock: Clock, spin: Duration) -> io::Result<Driver<S>> {
        let sleeper = stepper.sleeper()?;
        let now = clock.now();
        Ok(Driver {
            waker: sleeper.waker(),
            sleeper,
            state: Mutex::new(State {
                stepper,
                last: now,
                waiters: Waiters::default(),
                leader_until: None,
                armed: 0,
                progress: Progress::new(now),
                calls_since_step: 0,
                hits_in_row: 0,
                network_polls: 0,
                calls: 0,
                ticked: now,
                sends_since_clock_read: 0,
                sends_per_clock_read: 1,
            }),
            clock,
            spin,
            contenders: AtomicUsize::new(0),
            contention: Contention::default(),
        })
    }

    /// Reads the clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs `action` under the lock and wakes the waiters it made ready.
    #[inline]
    pub fn with<R>(&self, action: impl FnOnce(&mut S, Instant) -> R) -> R {
        let mut state = self.lock();
        let now = self.clock.now();
        state.last = now;
        let result = action(&mut state.stepper, now);
        self.publish(&mut state, now);
        self.leave(state);
        result
    }

    /// Like [`with`](Self::with), but with the last clock reading, which is free and may be
    /// old: for actions that send nothing.
    #[inline]
    pub fn with_last<R>(&self, action: impl FnOnce(&mut S, Instant) -> R) -> R {
        let mut state = self.lock();
        let last = state.last;
        let result = action(&mut state.stepper, last);
        self.publish(&mut state, last);
        self.leave(state);
        result
    }

    /// Like [`with_last`](Self::with_last), for sends: the clock is read only if packets
    /// leave. Also ticks, for processes that do nothing but send.
    #[inline]
    pub fn sending<R>(&self, action: impl FnOnce(&mut S, &mut Reading<'_>) -> R) -> R {
        let mut state = self.lock();
        let mut reading = Reading::new(&self.clock, state.last);
        let result = action(&mut state.stepper, &mut reading);
        let last = reading.last();
        state.last = last;
        self.publish(&mut state, last);
        state.calls = state.calls.wrapping_add(1);
        state.sends_since_clock_read += 1;
        if state.sends_since_clock_read >= state.sends_per_clock_read {
            self.tick_after_sends(&mut state);
        }
        self.leave(state);
        result
    }

    /// Called every N sends; N adapts so that this stays cheap but timely.
    #[cold]
    fn tick_after_sends(&self, state: &mut State<S>) {
        state.sends_since_clock_read = 0;
        let sends = match self.tick_if_due(state, self.clock.now()) {
            true => state.sends_per_clock_read / 4,
            false => state.sends_per_clock_read * 2,
        };
        state.sends_per_clock_read = sends.clamp(1, MAX_SENDS_PER_CLOCK_READ);
    }

    #[inline]
    pub(super) fn tick_if_due(&self, state: &mut State<S>, now: Instant) -> bool {
        let due = now.since(state.ticked) > TICK_NS;
        if due {
            state.ticked = now;
            state.stepper.tick();
        }
        due
    }

    /// Tries `attempt`; if it finds nothing, registers the task's `waker`, which is called when
    /// one of `keys` becomes ready. Both happen under the same lock.
    pub fn wait_task<R>(
        &self,
        keys: &[WaitKey],
        waker: &task::Waker,
        attempt: impl FnOnce(&mut S, Instant) -> Option<R>,
    ) -> Option<R> {
        let mut state = self.lock();
        let now = self.clock.now();
        state.last = now;
        let result = attempt(&mut state.stepper, now);
        if result.is_none() {
            state.stepper.ready().set_recording(true);
            state.waiters.enter_task(keys, waker);
        }
        self.publish(&mut state, now);
        self.leave(state);
        result
    }

    /// Steps until `attempt` returns a result. `keys` wake this thread while it sleeps; `what`
    /// describes the wait in log messages if it lasts long. The first attempt gets the last
    /// clock reading.
    pub fn wait<R>(
        &self,
        until: Timeout,
        keys: &[WaitKey],
        what: &dyn Fn(&S) -> String,
        attempt: impl FnMut(&mut S, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        self.wait_for(until, keys, what, Attempt(attempt))
    }

    /// Like [`wait`](Self::wait), for conditions that shared memory can satisfy directly.
    #[inline]
    pub fn wait_for<W: WaitCondition<S>>(
        &self,
        until: Timeout,
        keys: &[WaitKey],
        what: &dyn Fn(&S) -> String,
        mut condition: W,
    ) -> Result<W::Output, WaitError> {
        let mut state = self.lock();
        state.calls = state.calls.wrapping_add(1);
        state.calls_since_step += 1;
        if state.calls_since_step >= MAX_CALLS_WITHOUT_STEP {
            self.step_for_others(&mut state)
                .map_err(WaitError::Broken)?;
        }
        let last = state.last;
        state.stepper.flush_deferred();
        let mut result = condition.attempt(&mut state.stepper, last);
        if result.is_none() {
            result = match condition.poll_memory(&mut state.stepper) {
                Polled::Ready(output) => Some(output),
                Polled::Progress => condition.attempt(&mut state.stepper, last),
                Polled::Nothing => None,
            };
        }
        // Even if it was not for us: credit may have arrived for a sender that sits in `poll`.
        self.publish(&mut state, last);
        if let Some(result) = result {
            let (state, _) = self.run_work(state, None, CallerKind::Otherwise, &mut || ());
            self.leave(state);
            return Ok(result);
        }
        let begun = self.clock.now();
        if until != Timeout::Zero {
            state.progress.enter();
        }
        let mut waiter = None;
        let mut wait = Wait {
            until,
            keys,
            what,
            part: Part::begin(),
        };
        let (mut state, now, result) =
            self.wait_on(state, begun, &mut wait, &mut waiter, condition);
        wait.part.end(now.since(begun));
        if let Some(id) = waiter {
            state.waiters.leave(id);
            let recording = !state.waiters.is_empty();
            state.stepper.ready().set_recording(recording);
        }
        if until != Timeout::Zero {
            self.contention.on_waited(waiter.is_some());
            state.progress.leave(now);
            state.stepper.waited(now.since(begun));
        }
        self.leave(state);
        result
    }

    /// Checks `condition` against messages that have arrived and against shared memory, without
    /// waiting. Polls the network only if `at_network` is set.
    #[inline]
    pub fn poll_once<W: WaitCondition<S>>(
        &self,
        at_network: bool,
        mut condition: W,
    ) -> io::Result<Option<W::Output>> {
        let mut state = self.lock();
        state.calls = state.calls.wrapping_add(1);
        if at_network {
            state.calls_since_step += 1;
            if state.calls_since_step >= MAX_CALLS_WITHOUT_STEP {
                self.step_for_others(&mut state)?;
            }
        }
        let mut now = state.last;
        state.stepper.flush_deferred();
        let mut result = condition.attempt(&mut state.stepper, now);
        if result.is_none() {
            // The caller polls in a loop, so a few more polls here find a message sooner.
            let polls = if at_network { 1 } else { LOCAL_POLLS };
            for _ in 0..polls {
                match condition.poll_memory(&mut state.stepper) {
                    Polled::Ready(output) => result = Some(output),
                    Polled::Progress => result = condition.attempt(&mut state.stepper, now),
                    Polled::Nothing => continue,
                }
                break;
            }
        }
        if result.is_none() && at_network {
            state.network_polls = state.network_polls.wrapping_add(1);
            let is_due = state.network_polls.is_multiple_of(NETWORK_POLLS_PER_STEP);
            now = self.clock.now();
            self.poll_network(&mut state, now, is_due)?;
            result = condition.attempt(&mut state.stepper, now);
        }
        self.publish(&mut state, now);
        let (state, _) = self.run_work(state, None, CallerKind::Otherwise, &mut || ());
        self.leave(state);
        Ok(result)
    }

    /// Takes small packets if there are any; does a full step if one is due.
    fn poll_network(&self, state: &mut State<S>, now: Instant, is_due: bool) -> io::Result<()> {
        let State {
            stepper,
            hits_in_row,
            ..
        } = state;
        // While shared memory is polled the network is polled rarely, so it gets a full step.
        let expects_memory = stepper.expects_memory();
        let is_found = !expects_memory && stepper.spin_poll(now, 1)?;
        if is_found && *hits_in_row < MAX_HITS_IN_ROW {
            *hits_in_row += 1;
            stepper.take_polled(now)?;
        } else if is_found || is_due || expects_memory || stepper.expects_bulk() {
            *hits_in_row = 0;
            state.calls_since_step = 0;
            stepper.step(now, false)?;
            state.progress.stepped(now);
        }
        state.last = now;
        self.tick_if_due(state, now);
        Ok(())
    }

    /// Takes a full step now and then while a thread always finds its message ready, so that
    /// connection events and other packets do not wait forever.
    #[cold]
    fn step_for_others(&self, state: &mut State<S>) -> io::Result<()> {
        state.calls_since_step = 0;
        let now = self.clock.now();
        state.stepper.step(now, false)?;
        state.last = now;
        state.progress.stepped(now);
        self.publish(state, now);
        Ok(())
    }

    /// The wait loop. Returns with the lock held.
    fn wait_on<'a, W: WaitCondition<S>>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        mut now: Instant,
        wait: &mut Wait<'_, S>,
        waiter: &mut Option<WaiterId>,
        mut condition: W,
    ) -> Waited<'a, S, W::Output> {
        let (started_at, mut spinning_since) = (now, now);
        let (full_spin_ns, caller) = match wait.until {
            Timeout::Zero => (0, CallerKind::Otherwise),
            Timeout::Infinite | Timeout::After(_) => (nanoseconds(self.spin), CallerKind::Waiting),
        };
        let mut rounds = 0_u32;
        loop {
            let round_began = now;
            let spin_ns = self.contention.limit_spin(full_spin_ns, now);
            let mut spinning = now.since(spinning_since) < spin_ns;
            let polled = match spinning {
                true => self.spin_once(&mut state, &mut now, &mut condition, rounds),
                false => Self::look_before_sleep(&mut state, now, wait, &mut condition),
            };
            let is_idle = matches!(polled, Ok(Polled::Nothing));
            state.last = now;
            if state.stepper.take_served() {
                spinning_since = now;
                // A peer whose request was just served usually sends another at once.
                spinning = spin_ns > 0;
            }
            self.tick_if_due(&mut state, now);
            let mut result = match polled {
                Ok(Polled::Ready(output)) => Some(output),
                Ok(_) => condition.attempt(&mut state.stepper, now),
                Err(cause) => return (state, now, Err(WaitError::Broken(cause))),
            };
            self.publish(&mut state, now);
            let worked;
            (state, worked) =
                self.run_work(state, *waiter, caller, &mut || condition.on_work_done());
            if worked {
                result = result.or_else(|| condition.attempt(&mut state.stepper, now));
            }
            if let Some(result) = result {
                return (state, now, Ok(result));
            }
            if worked {
                now = self.clock.now();
                spinning_since = now;
            }
            let waited_ns = now.since(started_at);
            let left_ns = wait.left_ns(waited_ns);
            if left_ns == 0 {
                let waited = Duration::from_nanos(waited_ns);
                return (state, now, Err(WaitError::TimedOut { waited }));
            }
            if wait.part.ns_until_report(waited_ns) == 0 {
                Self::warn(&mut state, wait, now, waited_ns);
            }
            if worked {
                // There may be more work.
            } else if spinning {
                rounds = rounds.wrapping_add(1);
                let idle_since = is_idle.then_some(round_began);
                (state, now) = self.end_round(state, idle_since);
                continue;
            } else {
                let id = *waiter.get_or_insert_with(|| state.waiters.enter(wait.keys));
                state.stepper.ready().set_recording(true);
                let nap_ns = wait.part.ns_until_report(waited_ns).min(left_ns);
                let (back, slept) = self.sleep(state, id, now, nap_ns);
                state = back;
                if let Err(cause) = slept {
                    return (state, now, Err(WaitError::of_sleep(cause, waited_ns)));
                }
            }
            now = self.clock.now();
        }
    }

    /// Logs a long wait.
    #[cold]
    fn warn(state: &mut State<S>, wait: &mut Wait<'_, S>, now: Instant, waited_ns: u64) {
        let seconds = wait.part.report(waited_ns) / 1_000_000_000;
        tracing::warn!("waiting for {seconds} s: {}", (wait.what)(&state.stepper));
        state.stepper.waited_long(now);
    }

    /// One round of a thread that no longer spins: handles what woke it first; a full step follows
    /// before the next sleep.
    #[inline]
    fn look_before_sleep<W: WaitCondition<S>>(
        state: &mut State<S>,
        now: Instant,
        wait: &Wait<'_, S>,
        condition: &mut W,
    ) -> io::Result<Polled<W::Output>> {
        match condition.poll_memory(&mut state.stepper) {
            Polled::Nothing => {
                let everywhere = wait.until != Timeout::Zero;
                state.stepper.step(now, everywhere)?;
                Ok(Polled::Nothing)
            }
            found => Ok(found),
        }
    }

    /// One round of spinning: polls first where the last message came from.
    #[inline]
    fn spin_once<W: WaitCondition<S>>(
        &self,
        state: &mut State<S>,
        now: &mut Instant,
        condition: &mut W,
        rounds: u32,
    ) -> io::Result<Polled<W::Output>> {
        let State {
            stepper,
            hits_in_row,
            ..
        } = state;
        if stepper.expects_memory() {
            for _ in 0..MEMORY_POLLS {
                match condition.poll_memory(stepper) {
                    Polled::Nothing => {}
                    found => return Ok(found),
                }
            }
            if !rounds.is_multiple_of(MEMORY_ROUNDS) {
                return Ok(Polled::Nothing);
            }
        } else if stepper.spin_poll(*now, SPIN_SYSCALLS)? && *hits_in_row < MAX_HITS_IN_ROW {
            // Hand over these packets before taking a full step.
            *hits_in_row += 1;
            stepper.take_polled(*now)?;
            return Ok(Polled::Progress);
        }
        *hits_in_row = 0;
        *now = self.clock.now();
        Ok(match stepper.step(*now, false)? {
            true => Polled::Progress,
            false => Polled::Nothing,
        })
    }

    /// Ends a round of spinning, which began at `idle_since` if it found nothing.
    #[inline]
    fn end_round<'a>(
        &'a self,
        state: MutexGuard<'a, State<S>>,
        idle_since: Option<Instant>,
    ) -> (MutexGuard<'a, State<S>>, Instant) {
        unlock(state);
        self.let_contenders_lock();
        let state = self.lock();
        let now = self.clock.now();
        if let Some(began) = idle_since {
            self.contention.on_idle_round(began, now);
        }
        (state, now)
    }

    /// Waits a moment if other threads want the lock.
    #[inline]
    fn let_contenders_lock(&self) {
        for _ in 0..MAX_CONTENDER_CHECKS {
            if self.contenders.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        // The thread that wants the lock may need this core to get it.
        yield_core();
    }

    /// Sleeps for at most `nap_ns`: in the kernel as the leader, otherwise parked.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        id: WaiterId,
        now: Instant,
        nap_ns: u64,
    ) -> (MutexGuard<'a, State<S>>, io::Result<()>) {
        if !state.waiters.try_lead(id) {
            let condvar = state.waiters.park(id);
            let mut state = wait_parked(&condvar, state, Duration::from_nanos(nap_ns));
            state.waiters.set_asleep(id, false);
            return (state, Ok(()));
        }
        if !state.stepper.arm() {
            self.rearm(&mut state);
            self.publish(&mut state, now);
            return (state, Ok(()));
        }
        state.armed += 1;
        let wake_at = now.after(nap_ns);
        let deadline = state.stepper.next_deadline(now);
        let wake_at = deadline.map_or(wake_at, |at| at.min(wake_at));
        state.leader_until = Some(wake_at);
        state.waiters.set_asleep(id, true);
        unlock(state);
        let slept = self
            .sleeper
            .sleep(Some(Duration::from_nanos(wake_at.since(now))));
        let mut state = self.lock();
        state.leader_until = None;
        state.waiters.set_asleep(id, false);
        self.disarm(&mut state, now);
        state.progress.unpark();
        (state, slept.and_then(interrupt::check))
    }

    /// Called after a sleep in the kernel: peers need not send wake-ups any more.
    pub(super) fn disarm(&self, state: &mut State<S>, now: Instant) {
        state.armed -= 1;
        state.stepper.disarm();
        // This thread may have consumed the wake-up of the other sleeping thread.
        self.rearm(state);
        self.publish(state, now);
    }

    /// Rearms the wake-up of sleeping threads and takes what arrived before that.
    pub(super) fn rearm(&self, state: &mut State<S>) {
        for _ in 0..MAX_STEPS_TO_ARM {
            if state.armed == 0 || state.stepper.arm() {
                return;
            }
            // The next thread that steps a broken link gets the error.
            if state.stepper.step(state.last, false).is_err() {
                break;
            }
        }
        // Traffic keeps arriving, and this thread has other work: wake the sleeping threads.
        self.waker.wake();
        state.progress.wake();
    }

    /// Ends a call: wakes the waiters for keys that became ready, and sleeping threads if there
    /// is now an earlier deadline.
    #[inline]
    pub(super) fn publish(&self, state: &mut State<S>, now: Instant) {
        if state.armed > 0 && state.stepper.take_woken() {
            // This thread may have read the wake-up of a sleeping thread.
            self.rearm(state);
        }
        if state.stepper.ready().take_changed() {
            state.stepper.publish();
            if state.stepper.ready().has_keys() {
                self.wake_waiters(state);
            }
        }
        if state.armed > 0 {
            self.wake_for_deadline(state, now);
        }
    }

    #[cold]
    fn wake_waiters(&self, state: &mut State<S>) {
        let State {
            stepper, waiters, ..
        } = state;
        let ready = stepper.ready();
        waiters.wake(ready, &self.waker);
        ready.clear();
        ready.set_recording(!waiters.is_empty());
    }

    fn wake_for_deadline(&self, state: &mut State<S>, now: Instant) {
        let Some(deadline) = state.stepper.next_deadline(now) else {
            return;
        };
        if state.leader_until.is_some_and(|until| deadline < until) {
            self.waker.wake();
        }
        state.progress.wake_for(deadline);
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State<S>> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        state
    }
}

/// Releases the lock, then wakes tasks, because wakers are user code.
#[inline]
pub(super) fn unlock<S>(state: MutexGuard<'_, State<S>>) {
    if state.waiters.has_ready_tasks() {
        wake_tasks(state);
    }
}

#[cold]
fn wake_tasks<S>(mut state: MutexGuard<'_, State<S>>) {
    let tasks = state.waiters.take_ready_tasks();
    drop(state);
    for task in tasks {
        task.wake();
    }
}

/// Arguments of one call of [`Driver::wait`].
struct Wait<'a, S> {
    until: Timeout,
    keys: &'a [WaitKey],
    what: &'a dyn Fn(&S) -> String,
    part: Part,
}

impl<S> Wait<'_, S> {
    fn left_ns(&self, waited_ns: u64) -> u64 {
        match self.until {
            Timeout::Zero => 0,
            Timeout::Infinite => u64::MAX,
            Timeout::After(limit) => nanoseconds(limit).saturating_sub(waited_ns),
        }
    }
}
