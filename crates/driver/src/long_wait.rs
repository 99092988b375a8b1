//! Waits that take so long that they are reported.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use crate::clock::nanoseconds;

/// A wait this long is reported for the first time, then again after twice, four times and so on.
const FIRST_REPORT_NS: u64 = 2_000_000_000;

thread_local! {
    /// The long wait that this thread's next wait is a part of.
    static WHOLE: Cell<Option<Progress>> = const { Cell::new(None) };
    /// Its record, unless a later part makes another.
    static UNRECORDED: Cell<Option<Record>> = const { Cell::new(None) };
}

/// Writes the record of a wait.
struct Record(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Record")
    }
}

/// How long a wait has lasted, and when it is reported next.
#[derive(Clone, Copy, Debug)]
struct Progress {
    waited_ns: u64,
    report_at_ns: u64,
    /// True if the wait ends with this part even if that fails.
    is_last: bool,
}

impl Progress {
    const NEW: Progress = Progress {
        waited_ns: 0,
        report_at_ns: FIRST_REPORT_NS,
        is_last: true,
    };
}

/// One wait of a program that a library makes in several calls, because it looks for signals or a
/// cancelled call in between. The wait is reported as if it were one call.
#[derive(Debug)]
pub struct LongWait {
    progress: Progress,
    began: Option<Instant>,
    /// Of the latest part, which failed: written if no other part follows.
    unrecorded: Option<Record>,
}

impl Default for LongWait {
    fn default() -> LongWait {
        LongWait::new()
    }
}

impl LongWait {
    /// A wait that has not begun.
    #[must_use]
    pub const fn new() -> LongWait {
        LongWait {
            progress: Progress::NEW,
            began: None,
            unrecorded: None,
        }
    }

    /// Runs `body`, a part of the wait: the driver counts its waits on this thread together with
    /// those of earlier parts, and reports what they are for.
    pub fn part<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.run(false, body)
    }

    /// Like [`part`](Self::part), for a part after which the wait is over even if it fails.
    pub fn last_part<R>(&mut self, body: impl FnOnce() -> R) -> R {
        self.run(true, body)
    }

    /// How long, in nanoseconds, earlier parts of this thread's wait have lasted, and whether its next
    /// part is the last one; 0 and true for a wait without parts.
    #[must_use]
    pub fn earlier_parts() -> (u64, bool) {
        let progress = WHOLE.get().unwrap_or(Progress::NEW);
        (progress.waited_ns, progress.is_last)
    }

    /// A part of this thread's wait has ended: `record` is called when the wait is dropped, unless another
    /// part ends before that. `None` if the wait is recorded already.
    pub fn set_record<F: FnOnce() + Send + 'static>(record: Option<F>) {
        UNRECORDED.set(record.map(|record| Record(Box::new(record))));
    }

    fn run<R>(&mut self, is_last: bool, body: impl FnOnce() -> R) -> R {
        struct Restore(Option<Progress>, Option<Record>);
        impl Drop for Restore {
            fn drop(&mut self) {
                WHOLE.set(self.0);
                UNRECORDED.set(self.1.take());
            }
        }
        self.progress.is_last = is_last;
        let _restore = Restore(
            WHOLE.replace(Some(self.progress)),
            UNRECORDED.replace(self.unrecorded.take()),
        );
        let result = body();
        self.progress = WHOLE.get().unwrap_or(self.progress);
        self.unrecorded = UNRECORDED.take();
        result
    }

    /// For callers that report the wait themselves: how long it has lasted since the first such
    /// call, if it should be reported now.
    pub fn due(&mut self) -> Option<Duration> {
        let waited = self.began.get_or_insert_with(Instant::now).elapsed();
        self.due_after(waited).then_some(waited)
    }

    fn due_after(&mut self, waited: Duration) -> bool {
        let part = Part(self.progress);
        let waited_ns = nanoseconds(waited);
        let is_due = part.ns_until_report(waited_ns) == 0;
        if is_due {
            self.progress.report_at_ns = next_report(self.progress.report_at_ns, waited_ns);
        }
        is_due
    }
}

impl Drop for LongWait {
    fn drop(&mut self) {
        if let Some(Record(record)) = self.unrecorded.take() {
            record();
        }
    }
}

fn next_report(mut report_at_ns: u64, waited_ns: u64) -> u64 {
    while waited_ns >= report_at_ns {
        report_at_ns = report_at_ns.saturating_mul(2);
    }
    report_at_ns
}

/// One wait of a thread, alone or as a part of a longer one.
#[derive(Debug)]
pub(crate) struct Part(Progress);

impl Part {
    pub(crate) fn begin() -> Part {
        Part(WHOLE.get().unwrap_or(Progress::NEW))
    }

    /// Time until the next report if this part has lasted for `waited_ns`.
    pub(crate) fn ns_until_report(&self, waited_ns: u64) -> u64 {
        let Progress {
            waited_ns: before_ns,
            report_at_ns,
            ..
        } = self.0;
        report_at_ns.saturating_sub(before_ns.saturating_add(waited_ns))
    }

    /// Notes that the wait is reported; returns how long it has lasted with earlier parts.
    pub(crate) fn report(&mut self, waited_ns: u64) -> u64 {
        let whole_ns = self.0.waited_ns.saturating_add(waited_ns);
        self.0.report_at_ns = next_report(self.0.report_at_ns, whole_ns);
        whole_ns
    }

    /// Ends this part, after which the next one continues.
    pub(crate) fn end(self, waited_ns: u64) {
        let Part(mut progress) = self;
        if WHOLE.get().is_some() {
            progress.waited_ns = progress.waited_ns.saturating_add(waited_ns);
            WHOLE.set(Some(progress));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Makes a wait of this thread; returns the durations that it reports.
    fn wait(seconds: u64) -> Vec<u64> {
        let mut part = Part::begin();
        let due = (0..=seconds).filter(|second| part.ns_until_report(second * SECOND) == 0);
        let due: Vec<_> = due.take(1).collect();
        let reported = due.iter().map(|second| part.report(second * SECOND));
        let reported = reported.map(|ns| ns / SECOND).collect();
        part.end(seconds * SECOND);
        reported
    }

    #[test]
    fn parts_of_a_wait_are_reported_as_one_wait() {
        let mut long = LongWait::new();
        let reported: Vec<_> = (0..10).map(|_| long.part(|| wait(1))).collect();
        let reported = reported.concat();
        assert_eq!(reported, [2, 4, 8]);
        assert_eq!(wait(1), [0; 0], "a wait of its own");
    }

    #[test]
    fn a_wait_inside_another_ones_pause_counts_alone() {
        let mut outer = LongWait::new();
        outer.part(|| wait(1));
        let mut inner = LongWait::new();
        assert_eq!(inner.part(|| wait(1)), [0; 0]);
        assert_eq!(outer.part(|| wait(1)), [2]);
    }

    #[test]
    fn a_wait_that_its_caller_reports_is_due_after_2_4_and_8_seconds() {
        let mut long = LongWait::new();
        let due = (0..12).filter(|second| long.due_after(Duration::from_secs(*second)));
        assert_eq!(due.collect::<Vec<_>>(), [2, 4, 8]);
    }

    #[test]
    fn the_record_of_the_latest_part_is_made_when_the_wait_is_given_up() {
        let records = Arc::new(Mutex::new(Vec::new()));
        let fails = |name: &'static str| {
            let records = Arc::clone(&records);
            LongWait::set_record(Some(move || records.lock().expect("sound").push(name)));
        };
        let mut given_up = LongWait::new();
        given_up.part(|| fails("first"));
        given_up.part(|| {
            let mut inner = LongWait::new();
            inner.part(|| fails("inner"));
        });
        let mut successful = LongWait::new();
        successful.part(|| fails("earlier"));
        successful.part(|| LongWait::set_record(None::<fn()>));
        drop((successful, given_up));
        assert_eq!(*records.lock().expect("sound"), ["inner", "first"]);
    }
}
