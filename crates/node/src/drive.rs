//! Threads and the engine: who steps it, who sleeps, who wakes whom.
//!
//! The engine lies behind one lock, never held while sleeping or in user code.
//! Whoever waits steps it: first spinning for a bounded time, then one of the
//! waiters leads and sleeps in the kernel on the link's descriptors, the others
//! follow on a condition variable and take over when the leader returns.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipole_link::Link;
use dipole_link::cpu::yield_core;
use dipole_link::wait::{Sleeper, Waker};
use dipole_proto::Instant;

use crate::clock::{Clock, nanoseconds};
use crate::engine::Engine;

/// Looks at the small port in one turn of a spinning waiter.
const LOOKS: u32 = 8;
/// Turns of a spinning waiter between two offers of its core.
const TURNS_PER_YIELD: u32 = 16;
/// A yield that takes longer than this has let somebody else run.
const CROWDED_YIELD_NS: u64 = 5_000;
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
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Driver {
    state: Mutex<State>,
    followed: Condvar,
    sleeper: Sleeper,
    waker: Waker,
    clock: Clock,
    spin: Duration,
    /// Threads that want the lock while somebody spins on it.
    contenders: AtomicUsize,
    /// Somebody else wanted this core lately: spin less, yield more.
    crowded: AtomicBool,
}

impl Driver {
    pub(crate) fn new(engine: Engine, clock: Clock, spin: Duration) -> io::Result<Driver> {
        let sleeper = Sleeper::new(&engine.link().descriptors())?;
        let waker = sleeper.waker();
        Ok(Driver {
            state: Mutex::new(State {
                engine,
                leader_until: None,
                followers: 0,
                last: clock.now(),
            }),
            followed: Condvar::new(),
            sleeper,
            waker,
            clock,
            spin,
            contenders: AtomicUsize::new(0),
            crowded: AtomicBool::new(false),
        })
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
        let last = state.last;
        let before = state.engine.progress();
        if let Some(result) = attempt(&mut state.engine, last) {
            self.rouse(&mut state, before, last);
            return Ok(result);
        }
        let mut now = self.clock.now();
        let begun = now;
        let spin_ns = match until {
            Until::Now => 0,
            Until::Forever | Until::For(_) => nanoseconds(self.spin),
        };
        let mut warn_ns = FIRST_WARNING_NS;
        let mut turns = 0_u32;
        loop {
            let spinning = now.since(begun) < spin_ns;
            let before = state.engine.progress();
            if spinning {
                state.engine.look(now, LOOKS).map_err(WaitError::Broken)?;
                now = self.clock.now();
            }
            state
                .engine
                .step(now, !spinning)
                .map_err(WaitError::Broken)?;
            state.last = now;
            let result = attempt(&mut state.engine, now);
            self.rouse(&mut state, before, now);
            if let Some(result) = result {
                return Ok(result);
            }
            let waited_ns = now.since(begun);
            let left_ns = match until {
                Until::Now => 0,
                Until::Forever => u64::MAX,
                Until::For(limit) => nanoseconds(limit).saturating_sub(waited_ns),
            };
            if left_ns == 0 {
                return Err(WaitError::TimedOut {
                    waited: Duration::from_nanos(waited_ns),
                });
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
                self.sleep(state, now, nap_ns)?;
            }
            state = self.lock();
            now = self.clock.now();
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
        if state.followers > 0 {
            self.followed.notify_one();
        }
        slept.map(|_| ()).map_err(WaitError::Broken)
    }

    /// Wakes sleepers if there is news for them, or an earlier deadline.
    #[inline]
    fn rouse(&self, state: &mut State, before: u64, now: Instant) {
        let news = state.engine.progress() != before;
        if state.followers > 0 && news {
            self.followed.notify_all();
        }
        if let Some(until) = state.leader_until
            && (news || state.engine.next_deadline(now).is_some_and(|at| at < until))
        {
            self.waker.wake();
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
