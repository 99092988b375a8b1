//! Records the waits of this process, if `DIPOLE_TRACE` names a directory.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dipole_link::clock::monotonic_ns;
use dipole_link::fork::ForkMark;
use rustix::time::{ClockId, clock_gettime};

use super::{Cause, EndpointAddress, Header, LIVED_AT, MIN_WAIT, STATE_AT, Wait, file_name};
use crate::bytes::put_value;
use crate::ring::Ring;
use crate::stacks::Stacks;

/// Blocks of a file: 4 MiB, about 60 000 waits.
const BLOCKS: usize = 64;
/// Number of unsuccessful polls after which the clock is read. Fewer take less time than any wait
/// that is recorded, unless the program yields its core between polls, as MPI does when it has more
/// ranks than cores.
const FEW_POLLS: usize = 16;
/// One in this many waits of few polls is timed, to find out whether it was long all the same.
const SAMPLE: usize = 8;
/// After such a long wait this many waits are timed from their first poll, as are the first ones.
const TIMED_WAITS: usize = 64;
/// Two polls with more CPU time than this between them belong to different waits.
const MAX_WORK_NS: u64 = 50_000;
/// How often a series of polls reads the CPU time of its thread.
const READ_CPU_EVERY_NS: u64 = 10_000;

/// The trace file of this process, which its threads share.
#[derive(Debug)]
pub struct WaitRecorder {
    /// Detects forked children, which must not write to the file.
    fork: ForkMark,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    stacks: Stacks,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitEnd {
    /// Event that the process waited for.
    pub cause: Cause,
    /// Endpoint of the process, if it has one.
    pub own: Option<EndpointAddress>,
    /// Sender of the message, or the receiver without room.
    pub peer: Option<EndpointAddress>,
    /// Bytes received, or to be sent.
    pub bytes: u64,
}

impl WaitRecorder {
    /// Creates the trace file of this process in a directory. `rank` is the rank and size of its
    /// job.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(directory: &Path, rank: Option<(u32, u32)>) -> std::io::Result<WaitRecorder> {
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
        Ok(WaitRecorder {
            fork: ForkMark::new()?,
            inner: Mutex::new(Inner {
                ring: Ring::create(&path, &header.encode(), BLOCKS)?,
                stacks: Stacks::new(begun_ns),
            }),
        })
    }

    /// Adds an endpoint of the process, so that waits of its peers can be attributed to it. There
    /// is room for 8191.
    pub fn add_endpoint(&self, endpoint: EndpointAddress) {
        if self.fork.is_child() {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        put_value(&mut bytes, &endpoint);
        inner.ring.add_site(&bytes);
    }

    /// The current time, as [`record`](Self::record) expects it.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    /// Records a wait that began at `began_ns` and ends now, unless it was shorter than
    /// [`MIN_WAIT`].
    pub fn record(&self, began_ns: u64, over: WaitEnd) {
        let ended_ns = monotonic_ns();
        if Duration::from_nanos(ended_ns.saturating_sub(began_ns)) < MIN_WAIT
            || self.fork.is_child()
        {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { ring, stacks } = &mut *inner;
        let wait = Wait {
            cause: over.cause,
            stack: stacks.record(over.cause as u32, ended_ns, ring),
            began_ns,
            ended_ns,
            own: over.own,
            peer: over.peer,
            bytes: over.bytes,
        };
        ring.push(|into| wait.encode(into));
        ring.set_head(LIVED_AT, ended_ns);
    }

    /// Marks the end of the process's work with endpoints.
    pub fn close(&self) {
        self.set_ended(true);
    }

    /// The process goes on after [`close`](Self::close).
    pub fn reopen(&self) {
        self.set_ended(false);
    }

    fn set_ended(&self, has_ended: bool) {
        if self.fork.is_child() {
            return;
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.ring.set_head(LIVED_AT, monotonic_ns());
        inner.ring.set_half_head(STATE_AT, has_ended.into());
    }
}

/// Finds waits of a program that polls, as MPI does: a series of unsuccessful polls without work
/// between them is a wait. Threads that poll at the same time may miscount.
#[derive(Debug)]
pub struct PollTracker {
    empty: AtomicUsize,
    /// Waits of few polls so far.
    few: AtomicUsize,
    /// Time of the first poll of the latest such wait that was timed.
    sampled_ns: AtomicU64,
    /// Number of following waits that are timed from their first poll.
    timed: AtomicUsize,
    series: Mutex<PollSeries>,
}

impl Default for PollTracker {
    fn default() -> PollTracker {
        PollTracker {
            empty: AtomicUsize::new(0),
            few: AtomicUsize::new(0),
            sampled_ns: AtomicU64::new(0),
            timed: AtomicUsize::new(TIMED_WAITS),
            series: Mutex::default(),
        }
    }
}

/// A series of unsuccessful polls. Times are of the clock and of the thread's CPU time.
#[derive(Debug, Default)]
struct PollSeries {
    began_ns: u64,
    last_ns: u64,
    /// When the CPU time was last read, and its value.
    seen_ns: u64,
    used_ns: u64,
}

impl PollTracker {
    /// Counts a poll that returned nothing.
    #[inline]
    pub fn empty_poll(&self) {
        self.count_empty_poll(monotonic_ns, thread_ns);
    }

    #[inline]
    fn count_empty_poll(&self, now_ns: impl Fn() -> u64, used_ns: impl Fn() -> u64) {
        let empty = self.empty.load(Ordering::Relaxed) + 1;
        self.empty.store(empty, Ordering::Relaxed);
        if empty >= FEW_POLLS || self.timed.load(Ordering::Relaxed) > 0 {
            self.series().count_poll(now_ns(), used_ns);
        } else if empty == 1 && self.few.load(Ordering::Relaxed).is_multiple_of(SAMPLE) {
            self.sampled_ns.store(now_ns(), Ordering::Relaxed);
        }
    }

    /// Starts a wait in which the program sleeps instead of polling.
    pub fn start_sleep(&self) {
        self.empty.store(FEW_POLLS, Ordering::Relaxed);
        self.series().count_poll(monotonic_ns(), thread_ns);
    }

    /// Counts a poll that returned something; returns when the wait for it began, if there was one.
    #[inline]
    pub fn successful_poll(&self) -> Option<u64> {
        self.count_successful_poll(monotonic_ns, thread_ns)
    }

    #[inline]
    fn count_successful_poll(
        &self,
        now_ns: impl Fn() -> u64,
        used_ns: impl Fn() -> u64,
    ) -> Option<u64> {
        let empty = self.empty.load(Ordering::Relaxed);
        if empty == 0 {
            return None;
        }
        self.empty.store(0, Ordering::Relaxed);
        let timed = self.timed.load(Ordering::Relaxed);
        if empty >= FEW_POLLS || timed > 0 {
            let mut series = self.series();
            series.count_poll(now_ns(), used_ns);
            let found = std::mem::take(&mut *series);
            let is_long = Duration::from_nanos(found.last_ns - found.began_ns) >= MIN_WAIT;
            let left = match is_long && empty < FEW_POLLS {
                true => TIMED_WAITS,
                false => timed.saturating_sub(1),
            };
            self.timed.store(left, Ordering::Relaxed);
            return Some(found.began_ns);
        }
        let few = self.few.load(Ordering::Relaxed);
        self.few.store(few.wrapping_add(1), Ordering::Relaxed);
        if few.is_multiple_of(SAMPLE) {
            let took_ns = now_ns().saturating_sub(self.sampled_ns.load(Ordering::Relaxed));
            if Duration::from_nanos(took_ns) >= MIN_WAIT {
                self.timed.store(TIMED_WAITS, Ordering::Relaxed);
            }
        }
        None
    }

    fn series(&self) -> MutexGuard<'_, PollSeries> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PollSeries {
    /// Counts a poll. Reading the CPU time costs as much as a poll, so it is not read each time.
    fn count_poll(&mut self, now_ns: u64, used_ns: impl Fn() -> u64) {
        let apart_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        if self.began_ns != 0 && apart_ns <= MAX_WORK_NS {
            if now_ns.saturating_sub(self.seen_ns) > READ_CPU_EVERY_NS {
                (self.seen_ns, self.used_ns) = (now_ns, used_ns());
            }
            return;
        }
        // Either the program worked, or other threads had its core.
        let used_ns = used_ns();
        let worked_ns = used_ns.saturating_sub(self.used_ns);
        if self.began_ns == 0 || worked_ns > MAX_WORK_NS + READ_CPU_EVERY_NS {
            self.began_ns = now_ns;
        }
        (self.seen_ns, self.used_ns) = (now_ns, used_ns);
    }
}

/// CPU time of this thread.
fn thread_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(used.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::WaitFile;
    use super::*;

    fn over(peer: u32) -> WaitEnd {
        WaitEnd {
            cause: Cause::Message,
            own: None,
            peer: Some(EndpointAddress {
                node: 1,
                endpoint: peer,
            }),
            bytes: 8,
        }
    }

    #[test]
    fn long_waits_are_kept_with_their_stacks_and_short_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder =
            WaitRecorder::create(folder.path(), Some((2, 4))).expect("it can be written");
        let own = EndpointAddress {
            node: 7,
            endpoint: 8,
        };
        recorder.add_endpoint(own);
        let now_ns = monotonic_ns();
        recorder.record(now_ns.saturating_sub(5_000_000), over(1));
        // This wait begins in the future, so it has no duration.
        recorder.record(now_ns + 1_000_000_000_000, over(2));
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
        recorder.close();
        let closed = read().header;
        assert!(closed.has_ended && closed.lived_ns >= wait.ended_ns);
    }

    #[test]
    fn empty_polls_are_one_wait_unless_the_program_worked_between_them() {
        let mut series = PollSeries::default();
        // Clock and CPU time in microseconds, and the expected start of the wait.
        for (clock, used, began) in [
            (1000, 500, 1000),
            (1001, 501, 1000),
            (1012, 512, 1000),
            // Other threads had the core for 3 ms.
            (4012, 514, 1000),
            // The program computed for 2 ms.
            (6012, 2514, 6012),
            (6013, 2515, 6012),
        ] {
            series.count_poll(clock * 1000, || used * 1000);
            assert_eq!(series.began_ns, began * 1000, "at {clock}");
        }
    }

    #[test]
    fn few_empty_polls_are_no_wait() {
        let polls = PollTracker::default();
        assert_eq!(polls.successful_poll(), None);
        polls.timed.store(0, Ordering::Relaxed);
        (1..FEW_POLLS).for_each(|_| polls.empty_poll());
        assert_eq!(polls.successful_poll(), None);
        (0..FEW_POLLS).for_each(|_| polls.empty_poll());
        let now_ns = monotonic_ns();
        assert!(
            polls
                .successful_poll()
                .is_some_and(|began_ns| began_ns >= now_ns.saturating_sub(1 << 40))
        );
        assert_eq!(polls.successful_poll(), None, "each wait is reported once");
    }

    #[test]
    fn few_looks_of_a_program_that_gives_its_core_away_are_a_wait() {
        let polls = PollTracker::default();
        let clock = Cell::new(1_000_000);
        let (now_ns, used_ns) = (|| clock.get(), || 0);
        // Waits of this length, each with two empty polls; the number of those that are reported.
        let kept = |waits: usize, length_ns: u64| {
            let wait = || {
                polls.count_empty_poll(now_ns, used_ns);
                let began_ns = clock.replace(clock.get() + length_ns);
                polls.count_empty_poll(now_ns, used_ns);
                let reported_ns = polls.count_successful_poll(now_ns, used_ns);
                clock.set(clock.get() + 100_000_000);
                reported_ns.inspect(|reported_ns| assert_eq!(*reported_ns, began_ns))
            };
            (0..waits).filter_map(|_| wait()).count()
        };
        assert_eq!(kept(SAMPLE, 1_000_000), SAMPLE);
        // Short waits end the timing of waits with few polls, after those that are reported anyway.
        assert_eq!(kept(2 * TIMED_WAITS, 1000), TIMED_WAITS);
        // One of `SAMPLE` waits is timed. After it all are.
        let later = kept(3 * SAMPLE, 1_000_000);
        assert!((2 * SAMPLE..3 * SAMPLE).contains(&later), "{later}");
    }
}
