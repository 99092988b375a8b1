//! Threads and the engine: who steps it, who sleeps, who wakes whom.
//!
//! The engine lies behind one lock, never held while sleeping or in user code.
//! Whoever waits steps it: first spinning for a bounded time, then one of the
//! waiters leads and sleeps in the kernel on the link's descriptors, the others
//! follow on a condition variable and take over when the leader returns.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as WallInstant};

use dipole_link::cpu::yield_core;
use dipole_link::wait::{Sleeper, Waker};
use dipole_link::Link;
use dipole_proto::Instant;

use crate::clock::{Clock, nanoseconds};
use crate::engine::Engine;

/// Turns of a spinning waiter between two offers of its core.
const TURNS_PER_YIELD: u32 = 64;
/// A yield that takes longer than this has let somebody else run.
const CROWDED_YIELD: Duration = Duration::from_micros(5);
/// When a wait is first worth mentioning.
const FIRST_WARNING: Duration = Duration::from_secs(2);

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
        let result = action(&mut state.engine, now);
        self.rouse(&state, before, now);
        result
    }

    /// Steps the engine until `attempt` gives something. `what` says for whom this
    /// waits, should it last.
    pub(crate) fn wait<R>(
        &self,
        until: Until,
        what: &dyn Fn(&Engine) -> String,
        mut attempt: impl FnMut(&mut Engine, Instant) -> Option<R>,
    ) -> Result<R, WaitError> {
        let begun = WallInstant::now();
        let mut warning = FIRST_WARNING;
        let mut turns = 0_u32;
        let mut spinning = self.spin > Duration::ZERO && until != Until::Now;
        loop {
            let mut state = self.lock();
            let now = self.clock.now();
            let before = state.engine.progress();
            let mut result = attempt(&mut state.engine, now);
            if result.is_none() {
                let everywhere = !spinning;
                state.engine.step(now, everywhere).map_err(WaitError::Broken)?;
                result = attempt(&mut state.engine, now);
            }
            self.rouse(&state, before, now);
            if let Some(result) = result {
                return Ok(result);
            }
            turns = turns.wrapping_add(1);
            let waited = if turns.is_multiple_of(16) || !spinning {
                begun.elapsed()
            } else {
                Duration::ZERO
            };
            let left = match until {
                Until::Now => Some(Duration::ZERO),
                Until::Forever => None,
                Until::For(limit) => Some(limit.saturating_sub(waited)),
            };
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut {
                    waited: begun.elapsed(),
                });
            }
            if waited >= warning {
                tracing::warn!("waiting since {} s: {}", waited.as_secs(), what(&state.engine));
                state.engine.watch_peers(now, true);
                warning *= 2;
            }
            if spinning {
                drop(state);
                spinning = waited < self.spin;
                self.pause(turns);
            } else {
                let nap = (warning - waited.min(warning)).min(left.unwrap_or(Duration::MAX));
                self.sleep(state, now, nap)?;
            }
        }
    }

    /// Between two turns of a spinning waiter.
    fn pause(&self, turns: u32) {
        let crowded = self.crowded.load(Ordering::Relaxed);
        if crowded || turns.is_multiple_of(TURNS_PER_YIELD) {
            let before = WallInstant::now();
            yield_core();
            let others_ran = before.elapsed() > CROWDED_YIELD;
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
        nap: Duration,
    ) -> Result<(), WaitError> {
        if state.leader_until.is_some() {
            state.followers += 1;
            let (mut state, _timed_out) = self
                .followed
                .wait_timeout(state, nap)
                .unwrap_or_else(PoisonError::into_inner);
            state.followers -= 1;
            return Ok(());
        }
        let wake_at = now.after(nanoseconds(nap));
        let wake_at = state.engine.next_deadline(now).map_or(wake_at, |at| at.min(wake_at));
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
    fn rouse(&self, state: &State, before: u64, now: Instant) {
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
