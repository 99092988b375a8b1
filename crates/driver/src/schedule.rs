//! The lock, the wait of a thread, and its sleep.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task;
use std::time::Duration;

use dipole_proto::Instant;

use super::progress::{Busy, Progress};
use super::stepper::Stepper;
use super::sync::{
    AtomicBool, AtomicUsize, Clock, Mutex, MutexGuard, Reading, Sleeper, Waker, yield_core,
};
use super::waiters::{WaiterId, Waiters, wait_parked};
use super::want::{Attempt, Polled, Want};
use crate::clock::nanoseconds;
use crate::ready::WaitKey;
use crate::timeout::Timeout;

/// System calls that looks at the small port in one turn of a spinning waiter may take.
const LOOKS: u32 = 8;
/// Looks at shared memory in one turn of a waiter that expects something there.
const MEMORY_LOOKS: u32 = 64;
/// Turns of such a waiter between two looks at everything else, some 0.3 us each.
const MEMORY_TURNS: u32 = 8;
/// Turns of a spinning waiter between two offers of its core.
const TURNS_PER_YIELD: u32 = 16;
/// How long a waiter spins while others want its core: it may wait for one of them.
const CROWDED_SPIN_NS: u64 = 20_000;
/// A yield that takes longer than this has let somebody else run.
const CROWDED_YIELD_NS: u64 = 5_000;
/// Looks of a spinning waiter at whether others still want the lock, before it goes on.
const MAX_LOOKS_GIVING_WAY: u32 = 1000;
/// How often the stepped thing gets its tick.
const TICK_NS: u64 = 200_000_000;
/// Sends between two readings of the clock for the tick, at most.
const MAX_SENDS_PER_READING: u32 = 4096;
/// Waits that found at once what they were for between two looks at everything else.
const MAX_UNSTEPPED: u32 = 256;
/// Looks that found packets and took only these between two looks at everything else.
const MAX_FOUND: u32 = 16;
/// Looks at shared memory, one after the other, of those who never wait.
const GLANCES: u32 = 8;
/// Looks at the network of those who never wait, of which one is at everything.
const TURNS_PER_STEP: u32 = 4;
/// Steps that a thread takes at most to arm for those who sleep.
const MAX_STEPS_TO_ARM: u32 = 64;
/// When a wait is first worth a warning.
const FIRST_WARNING_NS: u64 = 2_000_000_000;

/// Why a wait ended without what it was for.
#[derive(Debug)]
pub enum WaitError {
    /// Time was up.
    TimedOut {
        /// After so long.
        waited: Duration,
    },
    /// The link is broken.
    Broken(io::Error),
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct State<S> {
    pub(super) stepper: S,
    /// The last reading of the clock, for what needs no better one.
    pub(super) last: Instant,
    pub(super) waiters: Waiters,
    /// The leader sleeps in the kernel until then.
    pub(super) leader_until: Option<Instant>,
    /// Sleepers in the kernel: leader and progress thread.
    pub(super) armed: usize,
    pub(super) progress: Progress,
    unstepped: u32,
    /// Looks in a row that took only the packets they found.
    found: u32,
    /// Looks at the network of those who never wait.
    turns: u32,
    /// Waits and sends, to see whether there are any.
    pub(super) calls: u32,
    ticked: Instant,
    sends_unseen: u32,
    sends_per_reading: u32,
}

impl<S: Stepper> State<S> {
    /// True if somebody waits who is in no call of the driver.
    pub(super) fn is_polled(&self) -> bool {
        self.waiters.has_tasks() || self.stepper.is_polled()
    }
}

/// See the crate.
#[derive(Debug)]
pub struct Driver<S> {
    pub(super) state: Mutex<State<S>>,
    sleeper: Sleeper,
    pub(super) waker: Waker,
    pub(super) clock: Clock,
    spin: Duration,
    /// Threads that want the lock while another spins on it.
    pub(super) contenders: AtomicUsize,
    /// Others wanted this core lately: spin less, yield more.
    crowded: AtomicBool,
}

impl<S: Stepper> Driver<S> {
    /// A driver of `stepper`, whose waiters spin for `spin` before they sleep.
    ///
    /// # Errors
    /// No descriptors are left for its sleeper.
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
                unstepped: 0,
                found: 0,
                turns: 0,
                calls: 0,
                ticked: now,
                sends_unseen: 0,
                sends_per_reading: 1,
            }),
            clock,
            spin,
            contenders: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
        })
    }

    /// A fresh reading of the clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs something on what is stepped; waiters of what it made ready are woken.
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

    /// The same with the last reading of the clock, which costs nothing but may be
    /// old: for what sends nothing.
    #[inline]
    pub fn with_last<R>(&self, action: impl FnOnce(&mut S, Instant) -> R) -> R {
        let mut state = self.lock();
        let last = state.last;
        let result = action(&mut state.stepper, last);
        self.publish(&mut state, last);
        self.leave(state);
        result
    }

    /// Like [`with_last`](Self::with_last), for sends, which read the clock only if packets
    /// leave: a process that does nothing else gets its ticks, too.
    #[inline]
    pub fn sending<R>(&self, action: impl FnOnce(&mut S, &mut Reading<'_>) -> R) -> R {
        let mut state = self.lock();
        let mut reading = Reading::new(&self.clock, state.last);
        let result = action(&mut state.stepper, &mut reading);
        let last = reading.last();
        state.last = last;
        self.publish(&mut state, last);
        state.calls = state.calls.wrapping_add(1);
        state.sends_unseen += 1;
        if state.sends_unseen >= state.sends_per_reading {
            self.tick_after_sends(&mut state);
        }
        self.leave(state);
        result
    }

    /// Every some sends, as many as keep this rare but not too rare.
    #[cold]
    fn tick_after_sends(&self, state: &mut State<S>) {
        state.sends_unseen = 0;
        let sends = match self.tick_if_due(state, self.clock.now()) {
            true => state.sends_per_reading / 4,
            false => state.sends_per_reading * 2,
        };
        state.sends_per_reading = sends.clamp(1, MAX_SENDS_PER_READING);
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

    /// Registers a task that found `keys` not ready: `waker` is used when one becomes
    /// ready. `attempt` tries once more under the same lock; with a result nothing is
    /// registered.
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

    /// Steps until `attempt` gives something; while asleep, this thread is woken for
    /// `keys`. `what` says for whom it waits, should it last. The first attempt has the
    /// last reading of the clock.
    pub fn wait<R>(
        &self,
        until: Timeout,
        keys: &[WaitKey],
        what: &dyn Fn(&S) -> String,
        attempt: impl FnMut(&mut S, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        self.wait_for(until, keys, what, Attempt(attempt))
    }

    /// The same for what shared memory may hand over.
    #[inline]
    pub fn wait_for<W: Want<S>>(
        &self,
        until: Timeout,
        keys: &[WaitKey],
        what: &dyn Fn(&S) -> String,
        mut want: W,
    ) -> Result<W::Got, WaitError> {
        let mut state = self.lock();
        state.calls = state.calls.wrapping_add(1);
        state.unstepped += 1;
        if state.unstepped >= MAX_UNSTEPPED {
            self.step_for_others(&mut state)
                .map_err(WaitError::Broken)?;
        }
        let last = state.last;
        state.stepper.flush_deferred();
        let mut result = want.attempt(&mut state.stepper, last);
        if result.is_none() {
            result = match want.poll_memory(&mut state.stepper) {
                Polled::Got(got) => Some(got),
                Polled::Came => want.attempt(&mut state.stepper, last),
                Polled::Nothing => None,
            };
        }
        // Also if what came was not for us: credit of a writer who sits in `poll`.
        self.publish(&mut state, last);
        if let Some(result) = result {
            let (state, _) = self.run_work(state, None, Busy::Otherwise, &mut || ());
            self.leave(state);
            return Ok(result);
        }
        let now = self.clock.now();
        if until != Timeout::Zero {
            state.progress.enter();
        }
        let mut waiter = None;
        let wait = Wait { until, keys, what };
        let (mut state, now, result) = self.wait_on(state, now, &wait, &mut waiter, want);
        if let Some(id) = waiter {
            state.waiters.leave(id);
            let recording = !state.waiters.is_empty();
            state.stepper.ready().set_recording(recording);
        }
        if until != Timeout::Zero {
            state.progress.leave(now);
        }
        self.leave(state);
        result
    }

    /// What `want` finds of what has come and of what lies in shared memory, without a wait.
    /// Looks at the network only if it is to.
    #[inline]
    pub fn glance<W: Want<S>>(&self, at_network: bool, mut want: W) -> io::Result<Option<W::Got>> {
        let mut state = self.lock();
        state.calls = state.calls.wrapping_add(1);
        if at_network {
            state.unstepped += 1;
            if state.unstepped >= MAX_UNSTEPPED {
                self.step_for_others(&mut state)?;
            }
        }
        let mut now = state.last;
        state.stepper.flush_deferred();
        let mut result = want.attempt(&mut state.stepper, now);
        if result.is_none() {
            // Whoever asks will ask again: a message that comes meanwhile is there sooner.
            let glances = if at_network { 1 } else { GLANCES };
            for _ in 0..glances {
                match want.poll_memory(&mut state.stepper) {
                    Polled::Got(got) => result = Some(got),
                    Polled::Came => result = want.attempt(&mut state.stepper, now),
                    Polled::Nothing => continue,
                }
                break;
            }
        }
        if result.is_none() && at_network {
            state.turns = state.turns.wrapping_add(1);
            let is_due = state.turns.is_multiple_of(TURNS_PER_STEP);
            now = self.clock.now();
            self.glance_at_network(&mut state, now, is_due)?;
            result = want.attempt(&mut state.stepper, now);
        }
        self.publish(&mut state, now);
        let (state, _) = self.run_work(state, None, Busy::Otherwise, &mut || ());
        self.leave(state);
        Ok(result)
    }

    /// Takes what lies in the small port, or looks at everything if that is due.
    fn glance_at_network(
        &self,
        state: &mut State<S>,
        now: Instant,
        is_due: bool,
    ) -> io::Result<()> {
        let State { stepper, found, .. } = state;
        // Whoever waits for shared memory looks here too seldom to look at one port alone.
        let is_near = stepper.expects_memory();
        let is_found = !is_near && stepper.look(now, 1)?;
        if is_found && *found < MAX_FOUND {
            *found += 1;
            stepper.take_found(now)?;
        } else if is_found || is_due || is_near || stepper.expects_bulk() {
            *found = 0;
            state.unstepped = 0;
            stepper.step(now, false)?;
            state.progress.stepped(now);
        }
        state.last = now;
        self.tick_if_due(state, now);
        Ok(())
    }

    /// Bounds how long connection events and packets wait while one thread always
    /// finds a message ready.
    #[cold]
    fn step_for_others(&self, state: &mut State<S>) -> io::Result<()> {
        state.unstepped = 0;
        let now = self.clock.now();
        state.stepper.step(now, false)?;
        state.last = now;
        state.progress.stepped(now);
        self.publish(state, now);
        Ok(())
    }

    /// The wait itself; the state comes back locked.
    fn wait_on<'a, W: Want<S>>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        mut now: Instant,
        wait: &Wait<'_, S>,
        waiter: &mut Option<WaiterId>,
        mut want: W,
    ) -> (MutexGuard<'a, State<S>>, Instant, Result<W::Got, WaitError>) {
        let (begun, mut spinning_since) = (now, now);
        let (full_spin_ns, busy) = match wait.until {
            Timeout::Zero => (0, Busy::Otherwise),
            Timeout::Infinite | Timeout::After(_) => (nanoseconds(self.spin), Busy::Waiting),
        };
        let mut warn_ns = FIRST_WARNING_NS;
        let mut turns = 0_u32;
        loop {
            let spin_ns = match self.crowded.load(Ordering::Relaxed) {
                true => full_spin_ns.min(CROWDED_SPIN_NS),
                false => full_spin_ns,
            };
            let mut spinning = now.since(spinning_since) < spin_ns;
            let looked = match spinning {
                true => self.look(&mut state, &mut now, &mut want, turns),
                false => Self::look_before_sleep(&mut state, now, wait, &mut want),
            };
            let got = match looked {
                Ok(got) => got,
                Err(cause) => return (state, now, Err(WaitError::Broken(cause))),
            };
            state.last = now;
            if state.stepper.take_served() {
                spinning_since = now;
                // Whoever was served asks again at once, more often than not.
                spinning = spin_ns > 0;
            }
            self.tick_if_due(&mut state, now);
            let mut result = got.or_else(|| want.attempt(&mut state.stepper, now));
            self.publish(&mut state, now);
            let worked;
            (state, worked) = self.run_work(state, *waiter, busy, &mut || want.worked());
            if worked {
                result = result.or_else(|| want.attempt(&mut state.stepper, now));
            }
            if let Some(result) = result {
                return (state, now, Ok(result));
            }
            if worked {
                now = self.clock.now();
                spinning_since = now;
            }
            let waited_ns = now.since(begun);
            let left_ns = wait.left_ns(waited_ns);
            if left_ns == 0 {
                let waited = Duration::from_nanos(waited_ns);
                return (state, now, Err(WaitError::TimedOut { waited }));
            }
            if waited_ns >= warn_ns {
                Self::warn(&mut state, wait, now, waited_ns);
                warn_ns *= 2;
            }
            if worked {
                // There may be more of it.
            } else if spinning {
                unlock(state);
                turns = turns.wrapping_add(1);
                self.pause(turns);
                state = self.lock();
            } else {
                let id = *waiter.get_or_insert_with(|| state.waiters.enter(wait.keys));
                state.stepper.ready().set_recording(true);
                let nap_ns = warn_ns.saturating_sub(waited_ns).min(left_ns);
                let (back, slept) = self.sleep(state, id, now, nap_ns);
                state = back;
                if let Err(cause) = slept {
                    return (state, now, Err(WaitError::Broken(cause)));
                }
            }
            now = self.clock.now();
        }
    }

    /// Logs a long wait.
    #[cold]
    fn warn(state: &mut State<S>, wait: &Wait<'_, S>, now: Instant, waited_ns: u64) {
        let seconds = waited_ns / 1_000_000_000;
        tracing::warn!("waiting since {seconds} s: {}", (wait.what)(&state.stepper));
        state.stepper.waited_long(now);
    }

    /// One turn of a waiter that no longer spins: what woke it comes first, the rest is looked at
    /// before the next sleep.
    #[inline]
    fn look_before_sleep<W: Want<S>>(
        state: &mut State<S>,
        now: Instant,
        wait: &Wait<'_, S>,
        want: &mut W,
    ) -> io::Result<Option<W::Got>> {
        match want.poll_memory(&mut state.stepper) {
            Polled::Nothing => {
                let everywhere = wait.until != Timeout::Zero;
                state.stepper.step(now, everywhere).map(|_| None)
            }
            Polled::Came => Ok(None),
            Polled::Got(got) => Ok(Some(got)),
        }
    }

    /// One turn of a spinning waiter: where the last came from first.
    #[inline]
    fn look<W: Want<S>>(
        &self,
        state: &mut State<S>,
        now: &mut Instant,
        want: &mut W,
        turns: u32,
    ) -> io::Result<Option<W::Got>> {
        let State { stepper, found, .. } = state;
        if stepper.expects_memory() {
            for _ in 0..MEMORY_LOOKS {
                match want.poll_memory(stepper) {
                    Polled::Nothing => {}
                    Polled::Came => return Ok(None),
                    Polled::Got(got) => return Ok(Some(got)),
                }
            }
            if !turns.is_multiple_of(MEMORY_TURNS) {
                return Ok(None);
            }
        } else if stepper.look(*now, LOOKS)? && *found < MAX_FOUND {
            // What somebody waits for is handed over first.
            *found += 1;
            stepper.take_found(*now)?;
            return Ok(None);
        }
        *found = 0;
        *now = self.clock.now();
        stepper.step(*now, false)?;
        Ok(None)
    }

    /// Between two turns of a spinning waiter.
    #[inline]
    fn pause(&self, turns: u32) {
        let crowded = self.crowded.load(Ordering::Relaxed);
        if crowded || turns.is_multiple_of(TURNS_PER_YIELD) {
            let before = self.clock.now();
            yield_core();
            let others_ran = self.clock.now().since(before) > CROWDED_YIELD_NS;
            if others_ran != crowded {
                self.crowded.store(others_ran, Ordering::Relaxed);
            }
        }
        for _ in 0..MAX_LOOKS_GIVING_WAY {
            if self.contenders.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::hint::spin_loop();
            if crowded {
                yield_core();
            }
        }
        // A thread that wants the lock may need this very core to get it.
        yield_core();
    }

    /// Sleeps at most `nap_ns`: in the kernel as the leader, or parked behind one.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        id: WaiterId,
        now: Instant,
        nap_ns: u64,
    ) -> (MutexGuard<'a, State<S>>, io::Result<()>) {
        if !state.waiters.try_lead(id) {
            let bell = state.waiters.park(id);
            let mut state = wait_parked(&bell, state, Duration::from_nanos(nap_ns));
            state.waiters.set_asleep(id, false);
            return (state, Ok(()));
        }
        if !state.stepper.arm() {
            self.arm_anew(&mut state);
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
        (state, slept.map(|_| ()))
    }

    /// A sleeper is back: peers need not ring for it any more.
    pub(super) fn disarm(&self, state: &mut State<S>, now: Instant) {
        state.armed -= 1;
        state.stepper.disarm();
        // The other sleeper may have lost its wake-up to this one, and what it waits for.
        self.arm_anew(state);
        self.publish(state, now);
    }

    /// Those who sleep get a new wake-up, and what came before it is taken.
    pub(super) fn arm_anew(&self, state: &mut State<S>) {
        for _ in 0..MAX_STEPS_TO_ARM {
            if state.armed == 0 || state.stepper.arm() {
                return;
            }
            // A broken link is reported to the next thread that steps it.
            if state.stepper.step(state.last, false).is_err() {
                break;
            }
        }
        // Traffic keeps arriving: this thread has other work, so the sleepers are woken
        // instead.
        self.waker.wake();
        state.progress.wake();
    }

    /// At the end of a call: wakes those who wait for what it made ready, and those who
    /// sleep past a deadline it made.
    #[inline]
    pub(super) fn publish(&self, state: &mut State<S>, now: Instant) {
        if state.armed > 0 && state.stepper.take_woken() {
            // This thread may have read the wake-up of one that sleeps.
            self.arm_anew(state);
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

/// Releases the lock, then wakes tasks: their wakers are user code.
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

/// What one call of [`Driver::wait`] waits for.
struct Wait<'a, S> {
    until: Timeout,
    keys: &'a [WaitKey],
    what: &'a dyn Fn(&S) -> String,
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
