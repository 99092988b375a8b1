//! The ranks of this node and their windows.

use std::os::fd::OwnedFd;
use std::time::Duration;

use dipole_link::cpu;
use dipole_link::shm::pull::{self, Probe, PullRange};
use dipole_link::window::Window;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::arena::Chunks;
use super::board::{Board, By, Milestone};
use crate::failure::Failure;
use crate::superstep::facts::{put, put_long, take, take_long};

/// Looks at a word before the core is given to others, when each rank has a core.
const SPINS: u32 = 300;
/// Times the core is given to others before the rank sleeps.
const YIELDS: u32 = 200;
/// Most bytes of a window, taken from the address space only.
const WINDOW_BYTES: usize = 1 << 36;

/// What a rank tells the others of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invitation {
    process: u32,
    descriptor: i32,
    length: u64,
    probe: Probe,
}

impl Invitation {
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        put(into, self.process);
        put(into, self.descriptor.cast_unsigned());
        let probe = self.probe;
        for word in [self.length, probe.at, probe.number] {
            put_long(into, word);
        }
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Invitation> {
        Some(Invitation {
            process: take(&mut bytes)?,
            descriptor: take(&mut bytes)?.cast_signed(),
            length: take_long(&mut bytes)?,
            probe: Probe {
                at: take_long(&mut bytes)?,
                number: take_long(&mut bytes)?,
            },
        })
    }
}

#[derive(Debug)]
struct Mate {
    rank: u32,
    /// None of this rank itself.
    other: Option<Other>,
}

#[derive(Debug)]
struct Other {
    window: Window,
    process: OwnedFd,
    number: i32,
    probe: Probe,
    /// Its memory can be read.
    is_open: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Mates {
    size: u32,
    own: usize,
    pub(crate) window: Window,
    mates: Vec<Mate>,
    /// Where others find a number that tells this process from a later one.
    probe: Box<u64>,
    spins: u32,
}

impl Mates {
    /// Of the rank `own` of `size`, alone so far, among these ranks of its node.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(own: u32, size: u32, ranks: &[u32]) -> Result<Mates, Failure> {
        let window = Window::create(WINDOW_BYTES);
        let window = window.map_err(Failure::system("memory for ranks of this node"))?;
        let cores = cpu::usable_cores().map_or(1, |cores| cores.len());
        let mate = |rank: &u32| Mate {
            rank: *rank,
            other: None,
        };
        let place = ranks.iter().position(|rank| *rank == own);
        Ok(Mates {
            size,
            own: place.unwrap_or(0),
            window,
            mates: ranks.iter().map(mate).collect(),
            probe: Box::new(rand::random()),
            spins: if ranks.len() <= cores { SPINS } else { 1 },
        })
    }

    /// Bytes of a window in front of its arenas.
    pub(crate) fn board_bytes(&self) -> usize {
        Board::bytes(self.size, self.mates.len())
    }

    pub(crate) fn invitation(&self) -> Invitation {
        Invitation {
            process: std::process::id(),
            descriptor: self.window.descriptor(),
            length: self.window.length() as u64,
            probe: Probe::of(&self.probe),
        }
    }

    /// Opens the window of another rank.
    ///
    /// # Errors
    /// It is gone or out of sight.
    pub(crate) fn join(&mut self, rank: u32, invited: Invitation) -> Result<(), Failure> {
        let wrong = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        let told = Failure::system("shared memory of another rank of this node");
        let other = (|| {
            let length = usize::try_from(invited.length).map_err(|_| wrong())?;
            let number = i32::try_from(invited.process).map_err(|_| wrong())?;
            let pid = Pid::from_raw(number).ok_or_else(wrong)?;
            Ok(Other {
                process: pidfd_open(pid, PidfdFlags::empty())?,
                window: Window::open(invited.process, invited.descriptor, length)?,
                number,
                probe: invited.probe,
                is_open: pull::pull(number, invited.probe, 0, &mut []).is_ok(),
            })
        })();
        let other = other.map_err(told)?;
        let mate = self.mates.iter_mut().find(|mate| mate.rank == rank);
        mate.ok_or(wrong())
            .map_err(Failure::system("a rank"))?
            .other = Some(other);
        Ok(())
    }

    /// This rank's index on the node.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// The ranks of the node but this one, by index.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, u32)> + Clone {
        let all = self.mates.iter().enumerate();
        all.map(|(index, mate)| (index, mate.rank))
            .filter(|(index, _)| *index != self.own)
    }

    /// Their indices.
    pub(crate) fn others_in_order(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.own).chain(self.own + 1..self.mates.len())
    }

    /// Their indices, beginning behind this rank.
    pub(crate) fn others_in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        (self.own + 1..self.mates.len()).chain(0..self.own)
    }

    /// The rank with an index.
    #[inline]
    pub(crate) fn rank(&self, mate: usize) -> u32 {
        self.mates[mate].rank
    }

    /// The index of a rank of the node.
    #[inline]
    pub(crate) fn index(&self, rank: u32) -> Option<usize> {
        let found = self.mates.binary_search_by_key(&rank, |mate| mate.rank);
        found.ok()
    }

    fn window_of(&self, mate: usize) -> &Window {
        match &self.mates[mate].other {
            Some(other) => &other.window,
            None => &self.window,
        }
    }

    /// The board of a rank of the node, by index.
    #[inline]
    pub(crate) fn board(&self, mate: usize) -> Board<'_> {
        Board::new(self.window_of(mate), self.size, self.mates.len())
    }

    /// What another rank of the node has recorded for this one.
    pub(crate) fn records(&self, mate: usize, epoch: u32) -> Chunks<'_> {
        let (board, window) = (self.board(mate), self.window_of(mate));
        match board.few(epoch) {
            Some(few) => Chunks::few(window, few),
            None => Chunks::new(window, board.records(epoch, self.own)),
        }
    }

    /// What it has answered to this one.
    pub(crate) fn answers(&self, mate: usize) -> Chunks<'_> {
        let (board, window) = (self.board(mate), self.window_of(mate));
        match board.few_answers(self.own) {
            Some(few) => Chunks::few(window, few),
            None => Chunks::new(window, board.answers(self.own)),
        }
    }

    /// True if the memory of a rank of the node can be read.
    #[inline]
    pub(crate) fn can_pull(&self, mate: usize) -> bool {
        let other = self.mates[mate].other.as_ref();
        other.is_some_and(|other| other.is_open)
    }

    /// Copies memory of another rank of the node.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn pull(&self, mate: usize, address: u64, into: &mut [u8]) -> Result<(), Failure> {
        let Some(other) = &self.mates[mate].other else {
            return Ok(());
        };
        let pulled = pull::pull(other.number, other.probe, address, into);
        pulled.map_err(|cause| Failure::Gone {
            rank: self.mates[mate].rank,
            cause: format!("its memory cannot be read: {cause}"),
        })
    }

    /// Copies pieces of it.
    ///
    /// # Errors
    /// It is not there.
    ///
    /// # Safety
    /// That of [`pull::pull_ranges`].
    pub(crate) unsafe fn pull_ranges(
        &self,
        mate: usize,
        pieces: &[PullRange],
    ) -> Result<(), Failure> {
        let Some(other) = &self.mates[mate].other else {
            return Ok(());
        };
        // SAFETY: the caller's promise.
        let pulled = unsafe { pull::pull_ranges(other.number, other.probe, pieces) };
        pulled.map_err(|cause| Failure::Gone {
            rank: self.mates[mate].rank,
            cause: format!("its memory cannot be read: {cause}"),
        })
    }

    /// Says that this rank has reached a milestone, and wakes who sleeps for it.
    #[inline]
    pub(crate) fn reach(&self, milestone: Milestone, epoch: u32) {
        let own = self.board(self.own);
        own.reach(milestone, epoch);
        let sleeps = |(mate, _)| self.board(mate).sleeps_for(self.own);
        if self.others().any(sleeps) {
            own.wake(milestone, epoch);
        }
    }

    /// Waits a short while until a rank has reached a milestone; whether it has.
    #[inline]
    pub(crate) fn wait_briefly(&self, mate: usize, milestone: Milestone, epoch: u32) -> bool {
        let board = self.board(mate);
        for _ in 0..=self.spins {
            if board.has_reached(milestone, epoch).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        Mates::wait_yielding(&board, milestone, epoch)
    }

    #[cold]
    fn wait_yielding(board: &Board<'_>, milestone: Milestone, epoch: u32) -> bool {
        for _ in 0..YIELDS {
            if board.has_reached(milestone, epoch).is_ok() {
                return true;
            }
            cpu::yield_core();
        }
        false
    }

    /// Sleeps until a rank has reached a milestone, at most so long; whether it has.
    ///
    /// # Errors
    /// The rank is gone, or a rank of the node has ended the program.
    pub(crate) fn sleep(
        &self,
        mate: usize,
        milestone: Milestone,
        epoch: u32,
        most: Duration,
    ) -> Result<bool, Failure> {
        let (board, own) = (self.board(mate), self.board(self.own));
        own.sleep_for(Some(mate));
        if let Err(seen) = board.has_reached(milestone, epoch) {
            let place = Board::place(milestone, epoch);
            self.window_of(mate).sleep(place, seen, most);
        }
        own.sleep_for(None);
        if board.has_reached(milestone, epoch).is_ok() {
            return Ok(true);
        }
        self.check()?;
        // It may have arrived and ended since.
        if board.has_reached(milestone, epoch).is_ok() {
            return Ok(true);
        }
        self.check_alive(mate)?;
        Ok(false)
    }

    /// Fails if a rank of the node has ended the program.
    ///
    /// # Errors
    /// [`Failure::Aborted`].
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let aborted = |(mate, _): &(usize, u32)| self.board(*mate).aborted().is_some();
        match self.others().find(aborted) {
            Some((_, rank)) => Err(Failure::Aborted { rank }),
            None => Ok(()),
        }
    }

    fn check_alive(&self, mate: usize) -> Result<(), Failure> {
        let Some(other) = &self.mates[mate].other else {
            return Ok(());
        };
        let mut ended = [PollFd::new(&other.process, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match poll(&mut ended, Some(&now)) {
            Ok(1..) => Err(Failure::Gone {
                rank: self.mates[mate].rank,
                cause: format!("process {} has ended", other.number),
            }),
            _ => Ok(()),
        }
    }

    /// Tells the others that this rank ends the program.
    pub(crate) fn abort(&self, by: By) {
        self.board(self.own).abort(by);
    }

    /// True if a rank below this one has ended the program by an error of its own.
    pub(crate) fn lower_was_wrong(&self) -> bool {
        let lower = (0..self.own).map(|mate| self.board(mate).aborted());
        lower.into_iter().any(|aborted| aborted == Some(By::Itself))
    }
}
