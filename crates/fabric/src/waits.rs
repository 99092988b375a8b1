//! What a program waits for at its queues of completions, kept if `DIPOLE_TRACE` says where. MPI looks
//! again and again: a row of looks in vain is its wait, and the stack names its call.

use std::sync::{Arc, OnceLock};

use dipole_node::job::Job;
use dipole_trace::waits::{Cause, EndpointAddress, PollTracker, WaitEnd, WaitRecorder};

use crate::abi::fabric::{FI_RECV, FI_REMOTE_WRITE};
use crate::completion::Entry;

static RECORDER: OnceLock<Option<Arc<WaitRecorder>>> = OnceLock::new();

/// Of one queue.
pub(crate) struct Waits {
    recorder: Arc<WaitRecorder>,
    polls: PollTracker,
}

impl Waits {
    /// None if waits of this process are not kept.
    pub(crate) fn of_process() -> Option<Waits> {
        let recorder = RECORDER.get_or_init(|| {
            let directory = dipole_node::trace_dir()?;
            let rank = Job::from_env().ok().map(|job| (job.rank, job.size));
            match WaitRecorder::create(&directory, rank) {
                Ok(recorder) => Some(Arc::new(recorder)),
                Err(cause) => {
                    let directory = directory.display();
                    eprintln!(
                        "dipole: this process is not traced: cannot make a file in {directory} \
                         (DIPOLE_TRACE): {cause}"
                    );
                    None
                }
            }
        });
        recorder.clone().map(|recorder| Waits {
            recorder,
            polls: PollTracker::default(),
        })
    }

    /// The queue is of this endpoint.
    pub(crate) fn owns(&self, number: u64) {
        self.recorder.add_endpoint(place(number));
    }

    /// The program has looked, and found this first of all; `own` is the queue's endpoint.
    #[inline]
    pub(crate) fn looked(&self, found: Option<&Entry>, own: impl FnOnce() -> Option<u64>) {
        let Some(entry) = found else {
            self.polls.empty_poll();
            return;
        };
        if let Some(began_ns) = self.polls.successful_poll() {
            self.keep(began_ns, entry, own());
        }
    }

    /// The program sleeps until something comes: that is a wait, however short.
    pub(crate) fn sleeps(&self) {
        self.polls.start_sleep();
    }

    #[cold]
    fn keep(&self, began_ns: u64, entry: &Entry, own: Option<u64>) {
        let is_message = entry.flags & (FI_RECV | FI_REMOTE_WRITE) != 0;
        let over = WaitEnd {
            cause: match is_message {
                true => Cause::Message,
                false => Cause::Completion,
            },
            own: own.map(place),
            peer: (is_message && entry.source != 0).then(|| place(entry.source)),
            bytes: entry.length as u64,
        };
        self.recorder.record(began_ns, over);
    }
}

/// No queue is read any more.
pub(crate) fn close() {
    if let Some(Some(recorder)) = RECORDER.get() {
        recorder.close();
    }
}

/// From an address in one number ([`name::number`](crate::name::number)).
fn place(number: u64) -> EndpointAddress {
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    EndpointAddress {
        node: half(number >> 32),
        endpoint: half(number),
    }
}
