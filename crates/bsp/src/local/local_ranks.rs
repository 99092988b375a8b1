//! The ranks of this node and their windows.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use dipole_link::cpu;
use dipole_link::shm::pull::{self, Probe, PullRange};
use dipole_link::window::Window;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use super::arena::Chunks;
use super::sync_block::{AbortCause, SyncBlock, SyncPhase};
use crate::failure::Failure;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Polls of a word between two looks at the clock.
const SPINS: u32 = 300;
/// A rank with a core of its own polls for at most so long before it sleeps: longer than it takes to
/// wake a rank, so that ranks that have woken each other find the other one awake. It does not yield
/// its core, which other programs would keep for milliseconds.
const LONGEST_SPIN: Duration = Duration::from_micros(60);
/// One in so many waits polls for that long, even if the last ones did so in vain.
const TRY_EVERY: u32 = 32;
/// Times that a rank that shares its core yields it before it sleeps, divided by the square of the
/// ranks per core, so that together they take little of the time of those that compute.
const YIELDS: u32 = 200;
/// Fewest yields before it sleeps.
const MIN_YIELDS: u32 = 2;
/// Longest window. It takes address space; memory is used only where it is written.
const WINDOW_BYTES: usize = 1 << 36;

/// Data that another rank of the node needs to open this rank's window and to copy its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WindowOffer {
    process: u32,
    descriptor: i32,
    length: u64,
    probe_at: u64,
    probe_number: u64,
}

impl WindowOffer {
    /// As bytes, in the byte order of this machine: offers do not leave the node.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<WindowOffer> {
        WindowOffer::read_from_bytes(bytes).ok()
    }

    fn probe(&self) -> Probe {
        Probe {
            at: self.probe_at,
            number: self.probe_number,
        }
    }
}

#[derive(Debug)]
struct LocalRank {
    rank: u32,
    /// `None` for this rank itself.
    peer: Option<Peer>,
}

/// The process of another rank on this node.
#[derive(Debug)]
struct Peer {
    window: Window,
    /// `None` where the system has no such descriptors, as under valgrind.
    process: Option<OwnedFd>,
    number: i32,
    probe: Probe,
    /// This process may read its memory.
    can_pull: bool,
}

impl Peer {
    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else {
            let pid = Pid::from_raw(self.number);
            return pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        };
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut ended, Some(&now)), Ok(1..))
    }
}

/// A descriptor that becomes readable when a process ends, if the system has them.
fn process_descriptor(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => Ok(Some(descriptor)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(cause) => Err(cause.into()),
    }
}

/// Shared memory of all ranks of this node.
#[derive(Debug)]
pub(crate) struct LocalRanks {
    size: u32,
    own: usize,
    pub(crate) window: Window,
    local_ranks: Vec<LocalRank>,
    /// Holds a number that distinguishes this process from a later one with the same process ID.
    probe: Box<u64>,
    /// Those that any rank may use, of the ranks whose windows are open.
    cores: BTreeSet<usize>,
    waiting: Waiting,
}

/// The way a rank waits before it sleeps until another rank has reached a phase.
#[derive(Debug)]
enum Waiting {
    /// Each rank has a core of its own.
    Spins(SpinBudget),
    /// Ranks share cores: it yields its core so many times.
    Yields(u32),
}

/// How long a rank polls before it sleeps. Where a rank waits for one that needs its core, polling is
/// in vain, and the time is halved; it is the longest again as soon as polling has helped.
#[derive(Debug)]
struct SpinBudget {
    time: Cell<Duration>,
    waits: Cell<u32>,
}

impl SpinBudget {
    fn new() -> SpinBudget {
        SpinBudget {
            time: Cell::new(LONGEST_SPIN),
            waits: Cell::new(0),
        }
    }

    /// Polls until `is_done`. Returns whether it is.
    #[inline]
    fn poll(&self, is_done: impl Fn() -> bool) -> bool {
        spin(&is_done) || self.poll_with_clock(is_done)
    }

    #[cold]
    fn poll_with_clock(&self, is_done: impl Fn() -> bool) -> bool {
        let waits = self.waits.get().wrapping_add(1);
        self.waits.set(waits);
        let time = match waits.is_multiple_of(TRY_EVERY) {
            true => LONGEST_SPIN,
            false => self.time.get(),
        };
        let began = Instant::now();
        while began.elapsed() < time {
            if spin(&is_done) {
                self.time.set(LONGEST_SPIN);
                return true;
            }
        }
        self.time.set(self.time.get() / 2);
        false
    }
}

/// Polls for a few microseconds at most.
#[inline]
fn spin(is_done: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if is_done() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

#[cold]
fn yield_until(is_done: impl Fn() -> bool, yields: u32) -> bool {
    for _ in 0..yields {
        if is_done() {
            return true;
        }
        cpu::yield_core();
    }
    false
}

/// Yields before a sleep. A yield lets each other rank of the core run, so ranks that share a core in
/// pairs still find what they wait for; the number falls with the square of the ranks per core.
fn yields(ranks: usize, cores: usize) -> u32 {
    let per_core = u32::try_from(ranks.div_ceil(cores.max(1))).unwrap_or(u32::MAX);
    (YIELDS / per_core.saturating_mul(per_core).max(1)).max(MIN_YIELDS)
}

impl LocalRanks {
    /// The ranks of this node; `own` is this one of `size`. No other window is open yet.
    ///
    /// # Errors
    /// The window cannot be created.
    pub(crate) fn new(own: u32, size: u32, ranks: &[u32]) -> Result<LocalRanks, Failure> {
        let window = Window::create(WINDOW_BYTES);
        let window = window.map_err(Failure::system("memory for ranks of this node"))?;
        let local_rank = |rank: &u32| LocalRank {
            rank: *rank,
            peer: None,
        };
        let place = ranks.iter().position(|rank| *rank == own);
        let mut all = LocalRanks {
            size,
            own: place.unwrap_or(0),
            window,
            local_ranks: ranks.iter().map(local_rank).collect(),
            probe: Box::new(rand::random()),
            cores: BTreeSet::new(),
            waiting: Waiting::Yields(MIN_YIELDS),
        };
        all.add_cores(None);
        Ok(all)
    }

    /// Adds the cores of a rank's process, or of this one. The number of cores decides how long ranks
    /// wait for each other without sleeping; each may be bound to a core of its own.
    fn add_cores(&mut self, process: Option<Pid>) {
        self.cores
            .extend(cpu::cores_of(process).unwrap_or_default());
        let ranks = self.local_ranks.len();
        self.waiting = match ranks <= self.cores.len() {
            true => Waiting::Spins(SpinBudget::new()),
            false => Waiting::Yields(yields(ranks, self.cores.len())),
        };
    }

    /// The number of ranks on this node.
    pub(crate) fn count(&self) -> usize {
        self.local_ranks.len()
    }

    /// Size of the sync block at the start of each window.
    pub(crate) fn sync_block_bytes(&self) -> usize {
        SyncBlock::bytes(self.size, self.local_ranks.len())
    }

    pub(crate) fn window_offer(&self) -> WindowOffer {
        let probe = Probe::of(&self.probe);
        WindowOffer {
            process: std::process::id(),
            descriptor: self.window.descriptor(),
            length: self.window.length() as u64,
            probe_at: probe.at,
            probe_number: probe.number,
        }
    }

    /// Opens the window of another rank.
    ///
    /// # Errors
    /// Its process has ended, or this one may not access it.
    pub(crate) fn attach(&mut self, rank: u32, offer: WindowOffer) -> Result<(), Failure> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        let failure = Failure::system("shared memory of another rank of this node");
        let peer = (|| {
            let length = usize::try_from(offer.length).map_err(|_| invalid())?;
            let number = i32::try_from(offer.process).map_err(|_| invalid())?;
            let pid = Pid::from_raw(number).ok_or_else(invalid)?;
            Ok(Peer {
                process: process_descriptor(pid)?,
                window: Window::open(offer.process, offer.descriptor, length)?,
                number,
                probe: offer.probe(),
                can_pull: pull::pull(number, offer.probe(), 0, &mut []).is_ok(),
            })
        })();
        let peer = peer.map_err(failure)?;
        let pid = Pid::from_raw(peer.number);
        let known = self.local_ranks.iter_mut().find(|it| it.rank == rank);
        known
            .ok_or(invalid())
            .map_err(Failure::system("a rank of another node sent a window"))?
            .peer = Some(peer);
        self.add_cores(pid);
        Ok(())
    }

    /// Index of this rank on the node.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// Index and rank of the other ranks of the node.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, u32)> + Clone {
        let all = self.local_ranks.iter().enumerate();
        all.map(|(index, local_rank)| (index, local_rank.rank))
            .filter(|(index, _)| *index != self.own)
    }

    /// Indices of the other ranks.
    pub(crate) fn others_in_order(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.own).chain(self.own + 1..self.local_ranks.len())
    }

    /// The rank with an index.
    #[inline]
    pub(crate) fn rank(&self, local_rank: usize) -> u32 {
        self.local_ranks[local_rank].rank
    }

    /// The index of a rank of the node.
    #[inline]
    pub(crate) fn index(&self, rank: u32) -> Option<usize> {
        let found = self
            .local_ranks
            .binary_search_by_key(&rank, |local_rank| local_rank.rank);
        found.ok()
    }

    fn window_of(&self, local_rank: usize) -> &Window {
        match &self.local_ranks[local_rank].peer {
            Some(peer) => &peer.window,
            None => &self.window,
        }
    }

    /// The sync block of a rank of the node.
    #[inline]
    pub(crate) fn block(&self, local_rank: usize) -> SyncBlock<'_> {
        SyncBlock::new(
            self.window_of(local_rank),
            self.size,
            self.local_ranks.len(),
        )
    }

    /// Records that another rank of the node has for this one.
    pub(crate) fn records(&self, local_rank: usize, epoch: u32) -> Chunks<'_> {
        let (block, window) = (self.block(local_rank), self.window_of(local_rank));
        match block.inline_records(epoch) {
            Some(inline) => Chunks::inline(window, inline),
            None => Chunks::new(window, block.records(epoch, self.own)),
        }
    }

    /// Replies that another rank of the node has for this one.
    pub(crate) fn replies(&self, local_rank: usize) -> Chunks<'_> {
        let (block, window) = (self.block(local_rank), self.window_of(local_rank));
        match block.inline_replies(self.own) {
            Some(inline) => Chunks::inline(window, inline),
            None => Chunks::new(window, block.replies(self.own)),
        }
    }

    /// True if this process may read the memory of a rank of the node.
    #[inline]
    pub(crate) fn can_pull(&self, local_rank: usize) -> bool {
        let peer = self.local_ranks[local_rank].peer.as_ref();
        peer.is_some_and(|peer| peer.can_pull)
    }

    /// True if the process of a rank of the node sleeps, as one that waits for input does.
    pub(crate) fn is_asleep(&self, local_rank: usize) -> bool {
        let peer = self.local_ranks[local_rank].peer.as_ref();
        peer.is_some_and(|peer| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", peer.number));
            // The state follows the name of the program in parentheses.
            stat.is_ok_and(|stat| {
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('S'))
            })
        })
    }

    /// Copies memory of another rank of the node.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub(crate) fn pull(
        &self,
        local_rank: usize,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Failure> {
        let Some(peer) = &self.local_ranks[local_rank].peer else {
            return Ok(());
        };
        let pulled = pull::pull(peer.number, peer.probe, address, into);
        pulled.map_err(|cause| Failure::Gone {
            rank: self.local_ranks[local_rank].rank,
            cause: format!("its memory cannot be read: {cause}"),
        })
    }

    /// Copies ranges of memory of another rank of the node.
    ///
    /// # Errors
    /// The memory cannot be read.
    ///
    /// # Safety
    /// The same as for [`pull::pull_ranges`].
    pub(crate) unsafe fn pull_ranges(
        &self,
        local_rank: usize,
        ranges: &[PullRange],
    ) -> Result<(), Failure> {
        let Some(peer) = &self.local_ranks[local_rank].peer else {
            return Ok(());
        };
        // SAFETY: the caller's promise is that of `pull::pull_ranges`.
        let pulled = unsafe { pull::pull_ranges(peer.number, peer.probe, ranges) };
        pulled.map_err(|cause| Failure::Gone {
            rank: self.local_ranks[local_rank].rank,
            cause: format!("its memory cannot be read: {cause}"),
        })
    }

    /// Publishes that this rank has reached a phase, and wakes ranks that sleep for it.
    #[inline]
    pub(crate) fn reach(&self, phase: SyncPhase, epoch: u32) {
        let own = self.block(self.own);
        own.reach(phase, epoch);
        let sleeps = |(local_rank, _)| self.block(local_rank).sleeps_for(self.own);
        if self.others().any(sleeps) {
            own.wake(phase, epoch);
        }
    }

    /// Polls for a short while until a rank has reached a phase. Returns whether it has.
    #[inline]
    pub(crate) fn wait_briefly(&self, local_rank: usize, phase: SyncPhase, epoch: u32) -> bool {
        let block = self.block(local_rank);
        let is_done = || block.has_reached(phase, epoch).is_ok();
        match &self.waiting {
            Waiting::Spins(budget) => budget.poll(is_done),
            Waiting::Yields(yields) => is_done() || yield_until(is_done, *yields),
        }
    }

    /// Sleeps until a rank has reached a phase, at most for `timeout`. Returns whether it has.
    ///
    /// # Errors
    /// The rank's process has ended, or a rank of the node has ended the program.
    pub(crate) fn sleep(
        &self,
        local_rank: usize,
        phase: SyncPhase,
        epoch: u32,
        timeout: Duration,
    ) -> Result<bool, Failure> {
        let (block, own) = (self.block(local_rank), self.block(self.own));
        own.sleep_for(Some(local_rank));
        if let Err(seen) = block.has_reached(phase, epoch) {
            let place = SyncBlock::place(phase, epoch);
            self.window_of(local_rank).sleep(place, seen, timeout);
        }
        own.sleep_for(None);
        if block.has_reached(phase, epoch).is_ok() {
            return Ok(true);
        }
        self.check_abort()?;
        // It may have reached the phase and ended meanwhile.
        if block.has_reached(phase, epoch).is_ok() {
            return Ok(true);
        }
        self.check_alive(local_rank)?;
        Ok(false)
    }

    /// Fails if a rank of the node has ended the program.
    ///
    /// # Errors
    /// [`Failure::Aborted`].
    pub(crate) fn check_abort(&self) -> Result<(), Failure> {
        let aborted = |(local_rank, _): &(usize, u32)| self.block(*local_rank).aborted().is_some();
        match self.others().find(aborted) {
            Some((_, rank)) => Err(Failure::Aborted { rank }),
            None => Ok(()),
        }
    }

    fn check_alive(&self, local_rank: usize) -> Result<(), Failure> {
        let Some(peer) = &self.local_ranks[local_rank].peer else {
            return Ok(());
        };
        match peer.has_ended() {
            true => Err(Failure::Gone {
                rank: self.local_ranks[local_rank].rank,
                cause: format!("process {} has ended", peer.number),
            }),
            false => Ok(()),
        }
    }

    /// Publishes that this rank ends the program.
    pub(crate) fn abort(&self, cause: AbortCause) {
        self.block(self.own).abort(cause);
    }

    /// True if a lower rank of this node has ended the program because of its own error.
    pub(crate) fn lower_rank_failed(&self) -> bool {
        let lower = (0..self.own).map(|local_rank| self.block(local_rank).aborted());
        lower
            .into_iter()
            .any(|aborted| aborted == Some(AbortCause::OwnError))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_in_vain_becomes_shorter_until_it_helps() {
        let budget = SpinBudget::new();
        for _ in 0..6 {
            assert!(!budget.poll(|| false));
        }
        assert!(budget.time.get() <= LONGEST_SPIN / 64);
        assert!(budget.poll(|| true), "found at once");
        assert!(budget.time.get() <= LONGEST_SPIN / 64);
        // The tries with the longest time begin with the 32nd wait.
        let polls = Cell::new(0);
        let is_done = || {
            polls.set(polls.get() + 1);
            polls.get() > SPINS
        };
        budget.waits.set(TRY_EVERY - 1);
        assert!(budget.poll(is_done), "found during the longest time");
        assert_eq!(budget.time.get(), LONGEST_SPIN);
    }
}
