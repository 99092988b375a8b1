//! Reports of the launcher while the job runs: ranks that have failed, and requests to all ranks.
//!
//! The client of a launcher's service that stays connected (`pmix.rs`) passes them to [`report`].

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A request of the launcher to all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LauncherRequest {
    /// Save the job, and go on.
    Checkpoint = 1,
    /// Save the job, and end: the launcher needs its nodes.
    Preempt = 2,
}

/// A report of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Failed(u32),
    Request(LauncherRequest),
}

/// Gets each rank that has failed; returns false if it needs no more of them. It must not block.
type Watcher = Box<dyn Fn(u32) -> bool + Send>;

static WATCHERS: Mutex<Vec<Watcher>> = Mutex::new(Vec::new());
/// The greatest request that has not been taken, or 0.
static REQUEST: AtomicU8 = AtomicU8::new(0);

/// Servers send old events again to a process that connects again, at once. Before it did so, the job was
/// saved, so a new request within this time does not need more.
const REPETITION: Duration = Duration::from_secs(5);
/// The requests that this process has had, as bits.
static SEEN: AtomicU8 = AtomicU8::new(0);
static REJOINED: Mutex<Option<Instant>> = Mutex::new(None);

fn rejoined() -> MutexGuard<'static, Option<Instant>> {
    REJOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that this process connects to the launcher again.
pub(super) fn rejoin() {
    *rejoined() = Some(Instant::now());
}

fn watchers() -> MutexGuard<'static, Vec<Watcher>> {
    WATCHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes all ranks that fail from now on to a function, until it returns false.
pub fn watch_failures(watcher: impl Fn(u32) -> bool + Send + 'static) {
    watchers().push(Box::new(watcher));
}

/// Takes the launcher's request.
#[must_use]
pub fn take_request() -> Option<LauncherRequest> {
    if REQUEST.load(Ordering::Relaxed) == 0 {
        return None;
    }
    match REQUEST.swap(0, Ordering::Relaxed) {
        0 => None,
        1 => Some(LauncherRequest::Checkpoint),
        _ => Some(LauncherRequest::Preempt),
    }
}

/// Notes a report of the launcher, and passes it on.
pub(super) fn report(report: Report) {
    match report {
        Report::Failed(rank) => watchers().retain(|watcher| watcher(rank)),
        Report::Request(request) => {
            let bit = request as u8;
            let is_old = SEEN.fetch_or(bit, Ordering::Relaxed) & bit != 0;
            let rejoined = *rejoined();
            if !is_old || rejoined.is_none_or(|at| at.elapsed() > REPETITION) {
                REQUEST.fetch_max(bit, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn failures_reach_all_watchers_and_requests_are_kept_until_they_are_taken() {
        let (sender, ranks) = channel();
        watch_failures(move |rank| sender.send(rank).is_ok());
        report(Report::Failed(2));
        assert_eq!(ranks.try_iter().collect::<Vec<_>>(), [2]);
        drop(ranks);
        report(Report::Failed(3));
        assert!(watchers().is_empty());

        assert_eq!(take_request(), None);
        report(Report::Request(LauncherRequest::Preempt));
        report(Report::Request(LauncherRequest::Checkpoint));
        assert_eq!(take_request(), Some(LauncherRequest::Preempt));
        assert_eq!(take_request(), None);
        report(Report::Request(LauncherRequest::Checkpoint));
        assert_eq!(take_request(), Some(LauncherRequest::Checkpoint));
        // The server repeats what it has sent.
        rejoin();
        report(Report::Request(LauncherRequest::Checkpoint));
        report(Report::Request(LauncherRequest::Preempt));
        assert_eq!(take_request(), None);
        *rejoined() = Instant::now().checked_sub(2 * REPETITION);
        report(Report::Request(LauncherRequest::Checkpoint));
        assert_eq!(take_request(), Some(LauncherRequest::Checkpoint));
    }
}
