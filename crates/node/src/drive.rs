//! Threads and the engine: who steps it, who sleeps, who wakes whom.
//!
//! The engine lies behind one lock, never held while sleeping or in user code.
//! Whoever waits steps it: first spinning for a bounded time, then one of the
//! waiters leads and sleeps in the kernel on the link's descriptors, the others
//! follow on a condition variable and take over when the leader returns.
//!
//! Where descriptors have been exported, somebody must step the engine while all
//! threads of the program sit in `poll` or compute: a progress thread runs
//! [`Driver::serve`]. It keeps out of the way of threads that wait here
//! themselves: while one does, and for [`NAP`] after, it only naps.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dipole_link::cpu::yield_core;
use dipole_link::wait::{Sleeper, Waker};
use dipole_proto::Instant;

use crate::clock::{Clock, nanoseconds};
use crate::engine::Engine;
use crate::registry::Board;

/// System calls that looks at the small port in one turn of a spinning waiter may take.
const LOOKS: u32 = 8;
/// Looks at this node's processes in one turn of a waiter that expects them.
const LOCAL_LOOKS: u32 = 64;
/// Turns of such a waiter between two looks at everything else, some 0.3 us each.
const LOCAL_TURNS: u32 = 8;
/// How long the progress thread stays out of the way of waiting threads, and so
/// how late a descriptor may become ready after the last of them has returned.
const NAP: Duration = Duration::from_micros(500);
/// A thread that has slept in a wait for this long leaves the progress thread
/// nothing to do: it may sleep until it is called.
const LONG_SLEEP_NS: u64 = 10_000_000;
/// Turns of a spinning waiter between two offers of its core.
const TURNS_PER_YIELD: u32 = 16;
/// How long a waiter spins while others want its core: they may be whom it waits for.
const CROWDED_SPIN_NS: u64 = 20_000;
/// A yield that takes longer than this has let somebody else run.
const CROWDED_YIELD_NS: u64 = 5_000;
/// How often a process looks whether somebody watches it.
const SHOW_EVERY_NS: u64 = 200_000_000;
/// Local sends between two looks at the clock.
const MOST_SENDS_PER_LOOK: u32 = 4096;
/// Waits that found at once what they were for between two looks at everything else.
const MOST_UNSTEPPED: u32 = 256;
/// Steps that a thread takes at most for the sake of those who sleep.
const MOST_STEPS_TO_ARM: u32 = 64;
/// When a wait is first worth mentioning.
const FIRST_WARNING_NS: u64 = 2_000_000_000;

/// Until when to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Not at all.
    Now,
    /// As long as it takes.
    Forever,
    /// This long.
    For(Duration),
}

/// The clock, read only by who needs it.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    clock: &'a Clock,
    last: Instant,
}

impl Reading<'_> {
    /// The last reading, maybe old.
    #[inline]
    pub(crate) fn last(&self) -> Instant {
        self.last
    }

    /// A fresh one.
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        self.last = self.clock.now();
        self.last
    }
}

/// Why a wait ended without what it was for.
#[derive(Debug)]
pub(crate) enum WaitError {
    TimedOut { waited: Duration },
    Broken(io::Error),
}

#[derive(Debug)]
struct State {
    engine: Engine,
    /// The leader sleeps until then, if there is one.
    leader_until: Option<Instant>,
    followers: usize,
    /// The last reading of the clock, for what needs no better one.
    last: Instant,
    /// Sleepers in the kernel, leader and progress thread.
    armed: usize,
    /// Threads inside a wait, and when the last of them left.
    waiting: usize,
    left: Instant,
    server: Server,
    /// The progress thread shall end.
    stop: bool,
    /// Shows the edges of this process to who watches; when it last looked for one.
    board: Option<Board>,
    shown: Instant,
    sends_unseen: u32,
    sends_per_look: u32,
    /// Waits since everything was last looked at.
    unstepped: u32,
}

/// What the progress thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// There is none, or it runs.
    Awake,
    /// Out of the way for a moment.
    Napping,
    /// Out of the way until a waiting thread wakes up.
    Parked,
    /// Sleeping in the kernel until then.
    Sleeping(Instant),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Driver {
    state: Mutex<State>,
    followed: Condvar,
    sleeper: Sleeper,
    waker: Waker,
    /// The progress thread's own, made with it.
    server: OnceLock<Sleeper>,
    unparked: Condvar,
    clock: Clock,
    spin: Duration,
    /// Threads that want the lock while somebody spins on it.
    contenders: AtomicUsize,
    /// Somebody else wanted this core lately: spin less, yield more.
    crowded: AtomicBool,
    /// A process of this node died, and its files have not been swept.
    died: AtomicBool,
}

impl Driver {
    pub(crate) fn new(engine: Engine, clock: Clock, spin: Duration) -> io::Result<Driver> {
        let sleeper = Sleeper::new(&engine.descriptors())?;
        let waker = sleeper.waker();
        Ok(Driver {
            state: Mutex::new(State {
                engine,
                leader_until: None,
                followers: 0,
                last: clock.now(),
                armed: 0,
                waiting: 0,
                left: clock.now(),
                server: Server::Awake,
                stop: false,
                board: None,
                shown: clock.now(),
                sends_unseen: 0,
                sends_per_look: 1,
                unstepped: 0,
            }),
            followed: Condvar::new(),
            sleeper,
            waker,
            server: OnceLock::new(),
            unparked: Condvar::new(),
            clock,
            spin,
            contenders: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
            died: AtomicBool::new(false),
        })
    }

    /// Shows edges on this board while somebody watches.
    pub(crate) fn show_on(&self, board: Board) {
        self.lock().board = Some(board);
    }

    /// Shows the edges of this process if it is time and somebody watches.
    #[cold]
    fn show(state: &mut State, now: Instant) {
        state.shown = now;
        let State { engine, board, .. } = state;
        if let Some(shown) = board
            && shown.is_watched()
            && let Err(cause) = shown.show(engine.edges())
        {
            tracing::warn!("edges are not shown to who watches: {cause}");
            *board = None;
        }
    }

    /// Runs something on the engine; waiters learn what it changed.
    #[inline]
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let mut state = self.lock();
        let before = state.engine.progress();
        let now = self.clock.now();
        state.last = now;
        let result = action(&mut state.engine, now);
        self.rouse(&mut state, before, now);
        result
    }

    /// The same with the last reading of the clock, which costs nothing but may be
    /// old: for what sends nothing.
    #[inline]
    pub(crate) fn with_last<R>(&self, action: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let mut state = self.lock();
        let before = state.engine.progress();
        let last = state.last;
        let result = action(&mut state.engine, last);
        self.rouse(&mut state, before, last);
        result
    }

    /// True once after a process of this node died without a word.
    #[inline]
    pub(crate) fn take_died(&self) -> bool {
        self.died.load(Ordering::Relaxed) && self.died.swap(false, Ordering::Relaxed)
    }

    /// Like [`with_last`](Self::with_last), for sends, which read the clock only if packets
    /// leave: a process that does nothing else shows its edges too.
    #[inline]
    pub(crate) fn sending<R>(&self, action: impl FnOnce(&mut Engine, &mut Reading<'_>) -> R) -> R {
        let mut state = self.lock();
        let before = state.engine.progress();
        let mut reading = Reading {
            clock: &self.clock,
            last: state.last,
        };
        let result = action(&mut state.engine, &mut reading);
        let last = reading.last;
        state.last = last;
        self.rouse(&mut state, before, last);
        state.sends_unseen += 1;
        if state.sends_unseen >= state.sends_per_look {
            self.look_at_clock(&mut state);
        }
        result
    }

    /// Every some sends, as many as keep this rare but not too rare.
    #[cold]
    fn look_at_clock(&self, state: &mut State) {
        state.sends_unseen = 0;
        let now = self.clock.now();
        if now.since(state.shown) > SHOW_EVERY_NS {
            state.sends_per_look = (state.sends_per_look / 4).max(1);
            Driver::show(state, now);
        } else {
            state.sends_per_look = (state.sends_per_look * 2).min(MOST_SENDS_PER_LOOK);
        }
    }

    /// A fresh reading of the clock.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Steps the engine until `attempt` gives something. `what` says for whom this
    /// waits, should it last. The first attempt has the last reading of the clock.
    pub(crate) fn wait<R>(
        &self,
        until: Until,
        what: &dyn Fn(&Engine) -> String,
        mut attempt: impl FnMut(&mut Engine, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let mut state = self.lock();
        state.unstepped += 1;
        if state.unstepped >= MOST_UNSTEPPED {
            self.step_aside(&mut state).map_err(WaitError::Broken)?;
        }
        let last = state.last;
        let before = state.engine.progress();
        state.engine.ring_due();
        let mut result = attempt(&mut state.engine, last);
        if result.is_none() && state.engine.poll_local() {
            result = attempt(&mut state.engine, last);
        }
        // Also if what came was not for us: credit of a writer who sits in `poll`.
        self.rouse(&mut state, before, last);
        if let Some(result) = result {
            return Ok(result);
        }
        let now = self.clock.now();
        if until != Until::Now {
            self.enter(&mut state);
        }
        let (mut state, now, result) = self.wait_on(state, now, until, what, attempt);
        if until != Until::Now {
            state.waiting -= 1;
            state.left = now;
        }
        result
    }

    /// Those who come, go or send packets are not kept waiting by one who always has
    /// a message ready.
    #[cold]
    fn step_aside(&self, state: &mut State) -> io::Result<()> {
        state.unstepped = 0;
        let before = state.engine.progress();
        let now = self.clock.now();
        state.engine.step(now, false)?;
        state.last = now;
        self.rouse(state, before, now);
        Ok(())
    }

    /// The wait itself; the state comes back locked.
    fn wait_on<'a, R>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut now: Instant,
        until: Until,
        what: &dyn Fn(&Engine) -> String,
        mut attempt: impl FnMut(&mut Engine, Instant) -> Option<R>,
    ) -> (MutexGuard<'a, State>, Instant, Result<R, WaitError>) {
        let begun = now;
        let spin_ns = match until {
            Until::Now => 0,
            Until::Forever | Until::For(_) => nanoseconds(self.spin),
        };
        let mut warn_ns = FIRST_WARNING_NS;
        let mut turns = 0_u32;
        loop {
            let spin_ns = match self.crowded.load(Ordering::Relaxed) {
                true => spin_ns.min(CROWDED_SPIN_NS),
                false => spin_ns,
            };
            let spinning = now.since(begun) < spin_ns;
            let before = state.engine.progress();
            let looked = match spinning {
                true => self.look(&mut state, &mut now, turns),
                // What woke us comes first; the rest is looked at before the next sleep.
                false if state.engine.poll_local() => Ok(true),
                false => state.engine.step(now, until != Until::Now),
            };
            if let Err(cause) = looked {
                return (state, now, Err(WaitError::Broken(cause)));
            }
            state.last = now;
            if now.since(state.shown) > SHOW_EVERY_NS {
                Driver::show(&mut state, now);
            }
            self.mind_sleepers(&mut state);
            let result = attempt(&mut state.engine, now);
            self.rouse(&mut state, before, now);
            if let Some(result) = result {
                return (state, now, Ok(result));
            }
            let waited_ns = now.since(begun);
            let left_ns = match until {
                Until::Now => 0,
                Until::Forever => u64::MAX,
                Until::For(limit) => nanoseconds(limit).saturating_sub(waited_ns),
            };
            if left_ns == 0 {
                let waited = Duration::from_nanos(waited_ns);
                return (state, now, Err(WaitError::TimedOut { waited }));
            }
            if waited_ns >= warn_ns {
                let seconds = waited_ns / 1_000_000_000;
                tracing::warn!("waiting since {seconds} s: {}", what(&state.engine));
                state.engine.watch_peers(now, true);
                warn_ns *= 2;
            }
            if spinning {
                drop(state);
                turns = turns.wrapping_add(1);
                self.pause(turns);
            } else {
                let nap_ns = warn_ns.saturating_sub(waited_ns).min(left_ns);
                match self.sleep(state, now, nap_ns) {
                    Ok(()) => {}
                    Err(error) => return (self.lock(), self.clock.now(), Err(error)),
                }
            }
            state = self.lock();
            now = self.clock.now();
        }
    }

    /// One turn of a spinning waiter: where the last came from first.
    #[inline]
    fn look(&self, state: &mut State, now: &mut Instant, turns: u32) -> io::Result<bool> {
        let engine = &mut state.engine;
        if engine.prefers_local() {
            for _ in 0..LOCAL_LOOKS {
                if engine.poll_local() {
                    return Ok(true);
                }
            }
            if !turns.is_multiple_of(LOCAL_TURNS) {
                return Ok(false);
            }
        } else {
            engine.look(*now, LOOKS)?;
        }
        *now = self.clock.now();
        engine.step(*now, false)
    }

    /// A thread begins to wait: the progress thread gets out of its way.
    fn enter(&self, state: &mut State) {
        state.waiting += 1;
        if let Server::Sleeping(_) = state.server
            && let Some(server) = self.server.get()
        {
            state.server = Server::Napping;
            server.waker().wake();
        }
    }

    /// Steps the engine for threads that sit elsewhere, until [`stop`](Self::stop);
    /// `end` is told, with the engine released, which endpoints' descriptors were closed.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub(crate) fn serve(&self, mut end: impl FnMut(&[u32])) -> Result<(), WaitError> {
        let sleeper = match self.server.get() {
            Some(sleeper) => sleeper,
            None => {
                let sleeper = Sleeper::new(&self.lock().engine.descriptors());
                let sleeper = sleeper.map_err(WaitError::Broken)?;
                self.server.get_or_init(|| sleeper)
            }
        };
        let mut state = self.lock();
        while !state.stop {
            let closed = state.engine.take_closed();
            if !closed.is_empty() {
                drop(state);
                end(&closed);
                state = self.lock();
                continue;
            }
            let mut now = self.clock.now();
            if state.waiting > 0 || now.since(state.left) < nanoseconds(NAP) {
                state = self.nap(state, now);
                continue;
            }
            let before = state.engine.progress();
            state.engine.step(now, true).map_err(WaitError::Broken)?;
            state.last = now;
            if now.since(state.shown) > SHOW_EVERY_NS {
                Driver::show(&mut state, now);
            }
            self.rouse(&mut state, before, now);
            // Room in a ring is no news of the engine's, but of those who write.
            state.engine.signal();
            if state.engine.has_closed() || !state.engine.arm() {
                self.arm_anew(&mut state);
                continue;
            }
            state.armed += 1;
            now = self.clock.now();
            let until = state.engine.next_deadline(now);
            state.server = Server::Sleeping(until.unwrap_or(Instant(u64::MAX)));
            drop(state);
            let nap = until.map(|until| Duration::from_nanos(until.since(now)));
            let slept = sleeper.sleep(nap);
            state = self.lock();
            state.server = Server::Awake;
            self.disarm(&mut state);
            slept.map_err(WaitError::Broken)?;
        }
        Ok(())
    }

    /// The progress thread keeps out of the way.
    fn nap<'a>(&'a self, mut state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let asleep = state.waiting > 0
            && state.leader_until.is_some()
            && now.since(state.last) > LONG_SLEEP_NS;
        state.server = if asleep {
            Server::Parked
        } else {
            Server::Napping
        };
        let mut state = if asleep {
            self.unparked
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner)
        } else {
            let napped = self.unparked.wait_timeout(state, NAP);
            napped.unwrap_or_else(PoisonError::into_inner).0
        };
        state.server = Server::Awake;
        state
    }

    /// Ends [`serve`](Self::serve).
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.unparked.notify_all();
        if let Some(server) = self.server.get() {
            server.waker().wake();
        }
    }

    /// A sleeper is back: the bells of this node are armed only for those who sleep.
    fn disarm(&self, state: &mut State) {
        state.armed -= 1;
        state.engine.disarm();
        // The other sleeper may have lost its wake-up to this one.
        self.arm_anew(state);
    }

    /// Who sleeps gets a new wake-up, and what came before it is taken.
    fn arm_anew(&self, state: &mut State) {
        for _ in 0..MOST_STEPS_TO_ARM {
            if state.armed == 0 || state.engine.arm() {
                return;
            }
            // A broken link tells whoever steps it next.
            if state.engine.step(state.last, false).is_err() {
                break;
            }
        }
        // What comes does not end: who sleeps shall see to it, this thread has other work.
        self.waker.wake();
        if let Some(server) = self.server.get() {
            server.waker().wake();
        }
    }

    /// A thread that is awake may have read the wake-up of one that sleeps.
    #[inline]
    fn mind_sleepers(&self, state: &mut State) {
        if state.armed > 0 && state.engine.take_woken() {
            self.arm_anew(state);
            // There may be room for writers, which is no news of the engine's.
            state.engine.signal();
        }
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
        while self.contenders.load(Ordering::Relaxed) > 0 {
            std::hint::spin_loop();
            if crowded {
                yield_core();
            }
        }
    }

    /// Sleeps as the leader, or behind one, at most `nap`.
    fn sleep(
        &self,
        mut state: MutexGuard<'_, State>,
        now: Instant,
        nap_ns: u64,
    ) -> Result<(), WaitError> {
        if state.leader_until.is_some() {
            state.followers += 1;
            let (mut state, _timed_out) = self
                .followed
                .wait_timeout(state, Duration::from_nanos(nap_ns))
                .unwrap_or_else(PoisonError::into_inner);
            state.followers -= 1;
            return Ok(());
        }
        if !state.engine.arm() {
            self.arm_anew(&mut state);
            return Ok(());
        }
        state.armed += 1;
        let wake_at = now.after(nap_ns);
        let wake_at = state
            .engine
            .next_deadline(now)
            .map_or(wake_at, |at| at.min(wake_at));
        state.leader_until = Some(wake_at);
        drop(state);
        let nap = Duration::from_nanos(wake_at.since(now));
        let slept = self.sleeper.sleep(Some(nap));
        let mut state = self.lock();
        state.leader_until = None;
        self.disarm(&mut state);
        state.engine.signal();
        if state.followers > 0 {
            self.followed.notify_one();
        }
        if state.server == Server::Parked {
            self.unparked.notify_one();
        }
        slept.map(|_| ()).map_err(WaitError::Broken)
    }

    /// Wakes sleepers if there is news for them, or an earlier deadline.
    #[inline]
    fn rouse(&self, state: &mut State, before: u64, now: Instant) {
        self.mind_sleepers(state);
        let news = state.engine.progress() != before;
        if news {
            state.engine.signal();
            if state.engine.take_died() {
                self.died.store(true, Ordering::Relaxed);
            }
        }
        if state.followers > 0 && news {
            self.followed.notify_all();
        }
        if let Some(until) = state.leader_until
            && (news || state.engine.next_deadline(now).is_some_and(|at| at < until))
        {
            self.waker.wake();
        }
        if let Server::Sleeping(until) = state.server
            && state.engine.next_deadline(now).is_some_and(|at| at < until)
            && let Some(server) = self.server.get()
        {
            state.server = Server::Awake;
            server.waker().wake();
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        state
    }
}
