//! Who keeps the waits of this process: nobody, unless `DIPOLE_TRACE` says where.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dipole_link::clock::monotonic_ns;
use dipole_link::fork::ForkMark;
use rustix::time::{ClockId, clock_gettime};

use super::{Cause, Header, LEAST, LIVED_AT, Place, STATE_AT, Wait, file_name};
use crate::ring::Ring;
use crate::stacks::Stacks;

/// Blocks of a file: 4 MiB, of 60 000 waits.
const BLOCKS: usize = 64;
/// Looks in vain after which the clock is read: fewer are over sooner than any wait that is kept, unless
/// the program gives its core away between them, as MPI does where it has more ranks than cores.
const FEW_LOOKS: usize = 16;
/// One in so many waits of few looks is timed, to find out whether it was long all the same.
const SAMPLE: usize = 8;
/// After such a one so many waits are timed from their first look on, as are the first of a queue.
const TIMED: usize = 64;
/// Looks with more work than this between them are not one wait.
const APART_NS: u64 = 50_000;
/// How often a row of looks asks what its thread has used of its core.
const ASKED_NS: u64 = 10_000;

/// The file of this process, which its threads share.
#[derive(Debug)]
pub struct Keeper {
    /// The file is no memory of children.
    fork: ForkMark,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    stacks: Stacks,
}

/// What is known when a wait is over.
#[derive(Clone, Copy, Debug)]
pub struct Over {
    /// What it was for.
    pub cause: Cause,
    /// The process's endpoint.
    pub own: Option<Place>,
    /// Whose message came, or who had no room.
    pub peer: Option<Place>,
    /// Bytes that came, or were to be sent.
    pub bytes: u64,
}

impl Keeper {
    /// Begins to keep waits in a directory, of a process with a rank in a job of so many, if it
    /// belongs to one.
    ///
    /// # Errors
    /// No file can be made there.
    pub fn begin(directory: &Path, rank: Option<(u32, u32)>) -> std::io::Result<Keeper> {
        let begun_ns = monotonic_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let name = std::env::current_exe().ok();
        let name = name.as_deref().and_then(Path::file_name);
        let header = Header {
            has_ended: false,
            lived_ns: begun_ns,
            pid: std::process::id(),
            rank,
            begun_ns,
            begun_unix_ns: unix.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0)),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            program: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        };
        let path = directory.join(file_name(&header.host, header.pid));
        Ok(Keeper {
            fork: ForkMark::new()?,
            inner: Mutex::new(Inner {
                ring: Ring::create(&path, &header.encode(), BLOCKS)?,
                stacks: Stacks::new(begun_ns),
            }),
        })
    }

    /// The process has this endpoint: those who wait for it are told to wait for the process. There is
    /// room for 8191.
    pub fn owns(&self, endpoint: Place) {
        if self.fork.is_child() {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.ring.add_site(&endpoint.encode());
    }

    /// The time, as [`keep`](Self::keep) takes it.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    /// A wait that began then is over now; a shorter one than [`LEAST`] is not kept.
    pub fn keep(&self, began_ns: u64, over: Over) {
        let ended_ns = monotonic_ns();
        if Duration::from_nanos(ended_ns.saturating_sub(began_ns)) < LEAST || self.fork.is_child() {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { ring, stacks } = &mut *inner;
        let wait = Wait {
            cause: over.cause,
            stack: stacks.here(over.cause as u32, ended_ns, ring),
            began_ns,
            ended_ns,
            own: over.own,
            peer: over.peer,
            bytes: over.bytes,
        };
        ring.push(|into| wait.encode(into));
        ring.set_head(LIVED_AT, ended_ns);
    }

    /// The process ends its work with endpoints.
    pub fn close(&self) {
        if self.fork.is_child() {
            return;
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.ring.set_head(LIVED_AT, monotonic_ns());
        inner.ring.set_half_head(STATE_AT, 1);
    }
}

/// Looks of a program that waits by looking again and again, as MPI does: a row of looks in vain, with
/// no work between them, is a wait. Threads that look at the same time may count wrong.
#[derive(Debug)]
pub struct Polls {
    vain: AtomicUsize,
    /// Waits with few looks so far.
    few: AtomicUsize,
    /// When the first look of the latest sample of them was.
    sampled_ns: AtomicU64,
    /// Waits to come that are timed from their first look on.
    timed: AtomicUsize,
    row: Mutex<Row>,
}

impl Default for Polls {
    fn default() -> Polls {
        Polls {
            vain: AtomicUsize::new(0),
            few: AtomicUsize::new(0),
            sampled_ns: AtomicU64::new(0),
            timed: AtomicUsize::new(TIMED),
            row: Mutex::default(),
        }
    }
}

/// A row of looks in vain. Times are of the clock, and of the thread's use of its core.
#[derive(Debug, Default)]
struct Row {
    began_ns: u64,
    last_ns: u64,
    /// When the use was looked at last, and what it was.
    seen_ns: u64,
    used_ns: u64,
}

impl Polls {
    /// A look found nothing.
    #[inline]
    pub fn vain(&self) {
        let vain = self.vain.load(Ordering::Relaxed) + 1;
        self.vain.store(vain, Ordering::Relaxed);
        if vain >= FEW_LOOKS || self.timed.load(Ordering::Relaxed) > 0 {
            self.row().look(monotonic_ns(), thread_ns);
        } else if vain == 1 && self.few.load(Ordering::Relaxed).is_multiple_of(SAMPLE) {
            self.sampled_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
    }

    /// The program sleeps until something comes, instead of looking again.
    pub fn begin(&self) {
        self.vain.store(FEW_LOOKS, Ordering::Relaxed);
        self.row().look(monotonic_ns(), thread_ns);
    }

    /// A look found something: when the wait for it began, if there was one.
    #[inline]
    pub fn found(&self) -> Option<u64> {
        let vain = self.vain.load(Ordering::Relaxed);
        if vain == 0 {
            return None;
        }
        self.vain.store(0, Ordering::Relaxed);
        let timed = self.timed.load(Ordering::Relaxed);
        if vain >= FEW_LOOKS || timed > 0 {
            let mut row = self.row();
            row.look(monotonic_ns(), thread_ns);
            let found = std::mem::take(&mut *row);
            let is_long = Duration::from_nanos(found.last_ns - found.began_ns) >= LEAST;
            let left = match is_long && vain < FEW_LOOKS {
                true => TIMED,
                false => timed.saturating_sub(1),
            };
            self.timed.store(left, Ordering::Relaxed);
            return Some(found.began_ns);
        }
        let few = self.few.load(Ordering::Relaxed);
        self.few.store(few.wrapping_add(1), Ordering::Relaxed);
        if few.is_multiple_of(SAMPLE) {
            let took_ns = monotonic_ns().saturating_sub(self.sampled_ns.load(Ordering::Relaxed));
            if Duration::from_nanos(took_ns) >= LEAST {
                self.timed.store(TIMED, Ordering::Relaxed);
            }
        }
        None
    }

    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    /// A look at a time. Asking for the use costs as much as a look, so it is not asked each time.
    fn look(&mut self, now_ns: u64, used_ns: impl Fn() -> u64) {
        let apart_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        if self.began_ns != 0 && apart_ns <= APART_NS {
            if now_ns.saturating_sub(self.seen_ns) > ASKED_NS {
                (self.seen_ns, self.used_ns) = (now_ns, used_ns());
            }
            return;
        }
        // Either the program did something, or others had its core.
        let used_ns = used_ns();
        let worked_ns = used_ns.saturating_sub(self.used_ns);
        if self.began_ns == 0 || worked_ns > APART_NS + ASKED_NS {
            self.began_ns = now_ns;
        }
        (self.seen_ns, self.used_ns) = (now_ns, used_ns);
    }
}

/// How long this thread has used a core.
fn thread_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(used.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::WaitFile;
    use super::*;

    fn over(peer: u32) -> Over {
        Over {
            cause: Cause::Message,
            own: None,
            peer: Some(Place {
                node: 1,
                endpoint: peer,
            }),
            bytes: 8,
        }
    }

    #[test]
    fn long_waits_are_kept_with_their_stacks_and_short_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let keeper = Keeper::begin(folder.path(), Some((2, 4))).expect("it can be written");
        let own = Place {
            node: 7,
            endpoint: 8,
        };
        keeper.owns(own);
        let now_ns = monotonic_ns();
        keeper.keep(now_ns.saturating_sub(5_000_000), over(1));
        // A clock that stands still would keep none: this began in the future.
        keeper.keep(now_ns + 1_000_000_000_000, over(2));
        let read = || {
            let mut files = std::fs::read_dir(folder.path()).expect("it is there");
            let file = files.next().expect("a file").expect("it can be read");
            WaitFile::parse(&std::fs::read(file.path()).expect("it is there")).expect("as written")
        };
        let found = read();
        assert_eq!(found.waits.records.len(), 1);
        assert_eq!(found.endpoints, [own]);
        let wait = found.waits.records[0];
        assert!(wait.ns() >= 5_000_000 && wait.stack == 1, "{wait:?}");
        assert!(!found.stacks[0].is_empty());
        assert_eq!(found.header.rank, Some((2, 4)));
        assert!(!found.header.has_ended && found.header.lived_ns == wait.ended_ns);
        keeper.close();
        let closed = read().header;
        assert!(closed.has_ended && closed.lived_ns >= wait.ended_ns);
    }

    #[test]
    fn looks_in_vain_are_one_wait_unless_the_program_worked_between_them() {
        let mut row = Row::default();
        // (clock, used) in microseconds; when the wait began.
        for (clock, used, began) in [
            (1000, 500, 1000),
            (1001, 501, 1000),
            (1012, 512, 1000),
            // Others had the core for 3 ms.
            (4012, 514, 1000),
            // The program computed for 2 ms.
            (6012, 2514, 6012),
            (6013, 2515, 6012),
        ] {
            row.look(clock * 1000, || used * 1000);
            assert_eq!(row.began_ns, began * 1000, "at {clock}");
        }
    }

    #[test]
    fn few_looks_in_vain_are_no_wait() {
        let polls = Polls::default();
        assert_eq!(polls.found(), None);
        polls.timed.store(0, Ordering::Relaxed);
        (1..FEW_LOOKS).for_each(|_| polls.vain());
        assert_eq!(polls.found(), None);
        (0..FEW_LOOKS).for_each(|_| polls.vain());
        let now_ns = monotonic_ns();
        assert!(
            polls
                .found()
                .is_some_and(|began_ns| began_ns >= now_ns.saturating_sub(1 << 40))
        );
        assert_eq!(polls.found(), None, "each wait is told once");
    }

    #[test]
    fn few_looks_of_a_program_that_gives_its_core_away_are_a_wait() {
        let polls = Polls::default();
        // Not all: a busy host's own work may be taken for the program's.
        let kept = |waits: usize| {
            let wait = || {
                polls.vain();
                std::thread::sleep(Duration::from_millis(1));
                polls.vain();
                let began_ns = polls.found();
                began_ns.is_some_and(|began_ns| monotonic_ns() - began_ns >= 1_000_000)
            };
            (0..waits).filter(|_| wait()).count()
        };
        let first = kept(SAMPLE);
        assert!(first >= SAMPLE / 2, "{first} of {SAMPLE}");
        // Until short ones have shown that clocks need not be read, whatever this machine does meanwhile.
        let is_over = (0..100_000).any(|_| {
            polls.vain();
            polls.found();
            polls.timed.load(Ordering::Relaxed) == 0
        });
        assert!(is_over);
        let later = kept(3 * SAMPLE);
        assert!(later >= SAMPLE, "{later} of {}", 3 * SAMPLE);
    }
}
