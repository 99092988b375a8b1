//! Injects faults into any link: drop, delay, repeat, reorder, corrupt. Other faults of a [`Plan`]
//! are shortages of resources, which concern the link and what is above it.
//!
//! Faults apply to outgoing frames one by one, whatever batch they are in. Runs of unaffected
//! frames pass to the inner link unchanged, so that it can still join them. At most
//! [`MAX_HELD_FRAMES`] frames are held back; beyond that, frames are not delayed or reordered.

mod hub;
mod plan;
mod shortage;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use hub::FaultyHub;
pub use plan::{Plan, PlanError};
pub use shortage::{Shortage, Shortages};

use crate::chance::{corrupt, happens};
use crate::{Caps, Class, Incoming, Link, Outgoing};
use delegate::delegate;

/// Maximum frames held back.
pub const MAX_HELD_FRAMES: usize = 4096;

/// Maximum bits flipped by one corruption.
const MAX_BITS: u32 = 3;

/// A reordered frame that is not overtaken leaves after this time.
const REORDER_TIMEOUT_NS: u64 = 1_000_000;

/// Counters of injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames dropped.
    pub dropped: u64,
    /// Frames delayed.
    pub delayed: u64,
    /// Frames sent twice.
    pub repeated: u64,
    /// Frames held back until later ones had overtaken them.
    pub reordered: u64,
    /// Frames damaged.
    pub corrupted: u64,
    /// Calls that took no frames.
    pub refused: u64,
}

/// The faults to apply to one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fate {
    drop: bool,
    delay: bool,
    repeat: bool,
    /// Frames that will overtake it; 0 for none.
    overtakers: u8,
    /// Seed of the damage.
    corrupt: Option<u64>,
}

/// A frame held back until its time has come or its overtakers have passed.
#[derive(Debug)]
struct DelayedFrame {
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
    /// Decides when the link takes no frames.
    shortage: Option<Shortage>,
    is_short: bool,
    rng: ChaCha8Rng,
    stats: FaultStats,
    held: Vec<DelayedFrame>,
    /// Frames that are due while the inner link is full.
    ready: VecDeque<DelayedFrame>,
    /// Decisions drawn for frames that the inner link did not take: those frames are offered
    /// again and must keep their fate.
    spared_again: usize,
    fate_again: Option<Fate>,
}

impl<L: Link> Fault<L> {
    /// Wraps a link and applies the plan to the frames it sends.
    pub fn new(inner: L, plan: Plan) -> Fault<L> {
        Fault {
            inner,
            zero: !plan.affects_packets(),
            shortage: Shortage::new(plan.shortages.link, plan.seed),
            is_short: false,
            rng: ChaCha8Rng::seed_from_u64(plan.seed),
            plan,
            stats: FaultStats::default(),
            held: Vec::new(),
            ready: VecDeque::new(),
            spared_again: 0,
            fate_again: None,
        }
    }

    /// Returns the wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Returns the wrapped link, to change it.
    pub fn inner_mut(&mut self) -> &mut L {
        &mut self.inner
    }

    /// Returns the counters since the link was opened.
    pub fn stats(&self) -> FaultStats {
        self.stats
    }

    /// Draws the faults of the next frame; `None` for none.
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
        let rng = &mut self.rng;
        let mut fate = Fate {
            drop: happens(rng, self.plan.drop),
            delay: happens(rng, self.plan.delay),
            repeat: happens(rng, self.plan.repeat),
            ..Fate::default()
        };
        if happens(rng, self.plan.reorder) {
            fate.overtakers = rng.random_range(1..=3);
        }
        if happens(rng, self.plan.corrupt) {
            fate.corrupt = Some(rng.random());
        }
        (fate != Fate::default()).then_some(fate)
    }

    /// Applies faults to a frame. Returns false if the inner link was full; then nothing has
    /// happened yet.
    fn apply(&mut self, now_ns: u64, frame: &Outgoing<'_>, fate: Fate) -> io::Result<bool> {
        if fate.drop {
            self.stats.dropped += 1;
            return Ok(true);
        }
        let damaged = fate.corrupt.filter(|_| !frame.bytes.is_empty());
        let damaged = damaged.map(|seed| {
            let mut bytes = frame.bytes.to_vec();
            corrupt(&mut ChaCha8Rng::seed_from_u64(seed), &mut bytes, MAX_BITS);
            bytes
        });
        let frame = match &damaged {
            Some(bytes) => Outgoing { bytes, ..*frame },
            None => *frame,
        };
        let held = |due_ns, overtakers| {
            let (class, to) = (frame.class, frame.to);
            DelayedFrame {
                due_ns,
                overtakers,
                class,
                to,
                bytes: frame.bytes.to_vec(),
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
        // A frame that is both repeated and held back is sent now and again later.
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

    /// Counts a sent frame for those waiting to be overtaken.
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

    /// Sends held frames that are due.
    #[inline]
    fn release(&mut self, now_ns: u64) -> io::Result<()> {
        if self.held.is_empty() && self.ready.is_empty() {
            return Ok(());
        }
        // Sort by due time; frames with equal times stay in arrival order.
        let start = self.ready.len();
        let due = self.held.extract_if(.., |held| held.due_ns <= now_ns);
        self.ready.extend(due);
        self.ready.make_contiguous()[start..].sort_by_key(|held| held.due_ns);
        self.send_ready(now_ns)
    }

    fn send_ready(&mut self, now_ns: u64) -> io::Result<()> {
        while let Some(held) = self.ready.front() {
            let frame = Outgoing::frame(held.class, held.to, &held.bytes);
            // A frame that the link refuses now was already counted as taken; it is lost.
            if self.inner.send(now_ns, &[frame])? == 0 && !self.inner.refuses_next() {
                break;
            }
            self.ready.pop_front();
        }
        Ok(())
    }

    /// Sends unaffected frames; true if all were taken.
    fn pass_through(
        &mut self,
        now_ns: u64,
        run: &[Outgoing<'_>],
        taken: &mut usize,
    ) -> io::Result<bool> {
        if run.is_empty() {
            return Ok(true);
        }
        let count = self.inner.send(now_ns, run)?;
        *taken += count;
        self.spared_again = run.len() - count;
        Ok(count == run.len())
    }

    fn send_with_faults(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        let mut scanned = 0;
        let mut awaited = self.awaits_overtakers();
        while scanned < batch.len() {
            let fate = self.next_fate();
            if fate.is_none() && !awaited {
                scanned += 1;
                continue;
            }
            // Decisions drawn earlier for frames after this one.
            let spared_behind = std::mem::take(&mut self.spared_again);
            let fate_behind = self.fate_again.take();
            if !self.pass_through(now_ns, &batch[taken..scanned], &mut taken)? {
                match fate {
                    // After a drawn fate all frames are fresh.
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
            if !self.apply(now_ns, &batch[scanned], fate.unwrap_or_default())? {
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
        self.pass_through(now_ns, &batch[taken..scanned], &mut taken)?;
        self.spared_again += spared_behind;
        self.fate_again = fate_behind;
        Ok(taken)
    }
}

impl<L: Link> Link for Fault<L> {
    #[inline]
    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        if let Some(shortage) = &mut self.shortage {
            self.is_short = shortage.strikes();
            self.stats.refused = shortage.count();
            if self.is_short {
                return Ok(0);
            }
        }
        if self.zero {
            return self.inner.send(now_ns, batch);
        }
        self.release(now_ns)?;
        let frames = batch.iter().flat_map(|entry| entry.frames());
        let frames: Vec<Outgoing<'_>> = frames.collect();
        self.send_with_faults(now_ns, &frames)
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        self.release(now_ns)?;
        self.inner.poll(now_ns, class)
    }

    fn refuses_next(&self) -> bool {
        !self.is_short && self.inner.refuses_next()
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

    fn caps(&self) -> Caps {
        Caps {
            // Damage is done above the kernel.
            checks_frames: false,
            ..self.inner.caps()
        }
    }

    delegate! {
        to self.inner {
            fn local(&self, class: Class) -> SocketAddr;
            fn locals(&self, class: Class) -> Vec<SocketAddr>;
            fn is_in_use(&self, interface: usize) -> bool;
            fn set_present(&mut self, present: &[IpAddr], destinations: &[IpAddr]) -> Option<Vec<IpAddr>>;
            fn source(&self, class: Class, to: SocketAddr) -> SocketAddr;
            fn message(&self, index: usize) -> Incoming<'_>;
            fn arm(&mut self) -> bool;
            fn disarm(&mut self);
            fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
        }
    }
}

#[cfg(test)]
mod tests;
