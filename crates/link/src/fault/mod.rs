//! Faults injected into any link: drop, delay, repeat, reorder, corrupt.
//!
//! Faults strike frames on their way out, one by one, whatever batch they are
//! in. Runs of frames that are spared go to the inner link as they came, so
//! that it can still join them. At most [`MAX_HELD_FRAMES`] frames are held
//! back; beyond that, frames are spared from delay and reordering.

mod plan;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use plan::{Plan, PlanError};

use crate::chance::{corrupt, happens};
use crate::{Caps, Class, Incoming, Link, Outgoing};
use delegate::delegate;

/// Frames held back at most.
pub const MAX_HELD_FRAMES: usize = 4096;

/// Bits that a corruption flips at most.
const MOST_BITS: u32 = 3;

/// A reordered frame that nobody overtakes leaves after this time.
const REORDER_TIMEOUT_NS: u64 = 1_000_000;

/// How often each fault has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames that vanished.
    pub dropped: u64,
    /// Frames held back for a time.
    pub delayed: u64,
    /// Frames sent twice.
    pub repeated: u64,
    /// Frames held back until others had overtaken them.
    pub reordered: u64,
    /// Frames damaged.
    pub corrupted: u64,
}

/// What is to happen to one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fate {
    drop: bool,
    delay: bool,
    repeat: bool,
    /// Frames that overtake it; 0 for none.
    overtakers: u8,
    /// Seed of the damage.
    corrupt: Option<u64>,
}

/// A frame held back: until its time has come or its overtakers have passed.
#[derive(Debug)]
struct Held {
    due_ns: u64,
    overtakers: Option<u8>,
    class: Class,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// Wraps a link and injects the faults of a [`Plan`].
#[derive(Debug)]
pub struct Fault<L> {
    inner: L,
    plan: Plan,
    zero: bool,
    dice: ChaCha8Rng,
    stats: FaultStats,
    held: Vec<Held>,
    /// Frames whose time has come while the inner link was full.
    ready: VecDeque<Held>,
    /// Fates drawn for frames that the inner link then did not take; they are
    /// offered again, and must not get a second chance.
    spared_again: usize,
    fate_again: Option<Fate>,
}

impl<L: Link> Fault<L> {
    /// Wraps a link.
    pub fn new(inner: L, plan: Plan) -> Fault<L> {
        Fault {
            inner,
            zero: plan.is_zero(),
            dice: ChaCha8Rng::seed_from_u64(plan.seed),
            plan,
            stats: FaultStats::default(),
            held: Vec::new(),
            ready: VecDeque::new(),
            spared_again: 0,
            fate_again: None,
        }
    }

    /// The link inside.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// How often each fault has struck.
    pub fn stats(&self) -> FaultStats {
        self.stats
    }

    /// Draws what is to happen to the next frame; `None` spares it.
    fn next_fate(&mut self) -> Option<Fate> {
        if self.spared_again > 0 {
            self.spared_again -= 1;
            return None;
        }
        if let Some(fate) = self.fate_again.take() {
            return Some(fate);
        }
        if self.zero {
            return None;
        }
        let dice = &mut self.dice;
        let mut fate = Fate {
            drop: happens(dice, self.plan.drop),
            delay: happens(dice, self.plan.delay),
            repeat: happens(dice, self.plan.repeat),
            ..Fate::default()
        };
        if happens(dice, self.plan.reorder) {
            fate.overtakers = dice.random_range(1..=3);
        }
        if happens(dice, self.plan.corrupt) {
            fate.corrupt = Some(dice.random());
        }
        (fate != Fate::default()).then_some(fate)
    }

    /// Lets a fate happen to a frame; false when the inner link was full, and
    /// then nothing has happened yet.
    fn strike(&mut self, now_ns: u64, frame: &Outgoing<'_>, fate: Fate) -> io::Result<bool> {
        if fate.drop {
            self.stats.dropped += 1;
            return Ok(true);
        }
        let damaged = fate.corrupt.filter(|_| !frame.is_empty()).map(|seed| {
            let mut bytes = whole(frame);
            corrupt(&mut ChaCha8Rng::seed_from_u64(seed), &mut bytes, MOST_BITS);
            bytes
        });
        let frame = match &damaged {
            Some(bytes) => Outgoing {
                head: bytes,
                payload: &[],
                ..*frame
            },
            None => *frame,
        };
        let held = |due_ns, overtakers| {
            let (class, to) = (frame.class, frame.to);
            Held {
                due_ns,
                overtakers,
                class,
                to,
                bytes: whole(&frame),
            }
        };
        let delay_ns = u64::try_from(self.plan.delay_time.as_nanos()).unwrap_or(u64::MAX);
        let delayed = fate
            .delay
            .then(|| held(now_ns.saturating_add(delay_ns), None));
        let overtaken = (fate.overtakers > 0 && !fate.delay).then(|| {
            held(
                now_ns.saturating_add(REORDER_TIMEOUT_NS),
                Some(fate.overtakers),
            )
        });
        let room = self.held.len() < MAX_HELD_FRAMES;
        let later = delayed.or(overtaken).filter(|_| room);
        // A frame that is repeated and held back goes now and again later.
        if (later.is_none() || fate.repeat) && self.inner.send(now_ns, &[frame])? == 0 {
            return Ok(false);
        }
        self.stats.corrupted += u64::from(damaged.is_some());
        match later {
            Some(later) => {
                self.stats.repeated += u64::from(fate.repeat);
                self.stats.delayed += u64::from(later.overtakers.is_none());
                self.stats.reordered += u64::from(later.overtakers.is_some());
                self.held.push(later);
            }
            None if fate.repeat && self.ready.len() < MAX_HELD_FRAMES => {
                self.stats.repeated += 1;
                self.ready.push_back(held(now_ns, None));
                self.send_ready(now_ns)?;
            }
            None => {}
        }
        Ok(true)
    }

    /// Notes that a frame went by those waiting to be overtaken.
    fn overtake(&mut self, now_ns: u64) {
        for held in &mut self.held {
            if let Some(overtakers) = &mut held.overtakers {
                *overtakers = overtakers.saturating_sub(1);
                if *overtakers == 0 {
                    held.due_ns = now_ns;
                }
            }
        }
    }

    fn awaits_overtakers(&self) -> bool {
        self.held.iter().any(|held| held.overtakers.is_some())
    }

    /// Sends what was held back and is due.
    #[inline]
    fn release(&mut self, now_ns: u64) -> io::Result<()> {
        if self.held.is_empty() && self.ready.is_empty() {
            return Ok(());
        }
        // In the order of their times, equal ones in the order they came.
        let start = self.ready.len();
        let due = self.held.extract_if(.., |held| held.due_ns <= now_ns);
        self.ready.extend(due);
        self.ready.make_contiguous()[start..].sort_by_key(|held| held.due_ns);
        self.send_ready(now_ns)
    }

    fn send_ready(&mut self, now_ns: u64) -> io::Result<()> {
        while let Some(held) = self.ready.front() {
            let frame = Outgoing {
                any_port: false,
                class: held.class,
                to: held.to,
                head: &held.bytes,
                payload: &[],
            };
            // What the link refuses by now was taken once, and is lost.
            if self.inner.send(now_ns, &[frame])? == 0 && !self.inner.refuses_next() {
                break;
            }
            self.ready.pop_front();
        }
        Ok(())
    }

    /// Hands over frames that are spared; true when all were taken.
    fn spare(&mut self, now_ns: u64, run: &[Outgoing<'_>], taken: &mut usize) -> io::Result<bool> {
        if run.is_empty() {
            return Ok(true);
        }
        let count = self.inner.send(now_ns, run)?;
        *taken += count;
        self.spared_again = run.len() - count;
        Ok(count == run.len())
    }

    fn send_struck(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        let mut scanned = 0;
        let mut awaited = self.awaits_overtakers();
        while scanned < batch.len() {
            let fate = self.next_fate();
            if fate.is_none() && !awaited {
                scanned += 1;
                continue;
            }
            // Fates drawn before for frames behind this one.
            let spared_behind = std::mem::take(&mut self.spared_again);
            let fate_behind = self.fate_again.take();
            if !self.spare(now_ns, &batch[taken..scanned], &mut taken)? {
                match fate {
                    // A fate has only fresh frames behind it.
                    Some(fate) => self.fate_again = Some(fate),
                    None => {
                        self.spared_again += 1 + spared_behind;
                        self.fate_again = fate_behind;
                    }
                }
                return Ok(taken);
            }
            self.spared_again = spared_behind;
            self.fate_again = fate_behind;
            if !self.strike(now_ns, &batch[scanned], fate.unwrap_or_default())? {
                match fate {
                    Some(fate) => self.fate_again = Some(fate),
                    None => self.spared_again += 1,
                }
                return Ok(taken);
            }
            scanned += 1;
            taken = scanned;
            if awaited {
                self.overtake(now_ns);
                self.release(now_ns)?;
            }
            awaited = self.awaits_overtakers();
        }
        let spared_behind = std::mem::take(&mut self.spared_again);
        let fate_behind = self.fate_again.take();
        self.spare(now_ns, &batch[taken..scanned], &mut taken)?;
        self.spared_again += spared_behind;
        self.fate_again = fate_behind;
        Ok(taken)
    }
}

/// All bytes of a frame.
fn whole(frame: &Outgoing<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len());
    frame.append_to(&mut bytes);
    bytes
}

impl<L: Link> Link for Fault<L> {
    #[inline]
    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        if self.zero {
            return self.inner.send(now_ns, batch);
        }
        self.release(now_ns)?;
        self.send_struck(now_ns, batch)
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        self.release(now_ns)?;
        self.inner.poll(now_ns, class)
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let held = self
            .held
            .iter()
            .chain(&self.ready)
            .map(|held| held.due_ns)
            .min();
        held.into_iter().chain(self.inner.next_deadline_ns()).min()
    }

    delegate! {
        to self.inner {
            fn caps(&self) -> Caps;
            fn local(&self, class: Class) -> SocketAddr;
            fn locals(&self, class: Class) -> Vec<SocketAddr>;
            fn source(&self, class: Class, to: SocketAddr) -> SocketAddr;
            fn refuses_next(&self) -> bool;
            fn frame(&self, index: usize) -> Incoming<'_>;
            fn arm(&mut self) -> bool;
            fn disarm(&mut self);
            fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
        }
    }
}

#[cfg(test)]
mod tests;
