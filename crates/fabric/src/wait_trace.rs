//! Records what a program waits for at its completion queues, if `DIPOLE_TRACE` is set. MPI libraries
//! poll: a series of empty polls is one wait, and the stack shows the MPI call.

use std::sync::{Arc, OnceLock};

use dipole_trace::waits::{Cause, EndpointAddress, PollTracker, WaitEnd, WaitRecorder};

use crate::abi::fabric::{FI_RECV, FI_REMOTE_WRITE};
use crate::completion::Entry;

static RECORDER: OnceLock<Option<Arc<WaitRecorder>>> = OnceLock::new();

/// The recorder of one queue.
pub(crate) struct WaitTrace {
    recorder: Arc<WaitRecorder>,
    polls: PollTracker,
}

impl WaitTrace {
    /// `None` if waits of this process are not recorded.
    pub(crate) fn of_process() -> Option<WaitTrace> {
        let recorder =
            RECORDER.get_or_init(|| dipole_node::wait_recorder(&dipole_node::trace_dir()?));
        recorder.clone().map(|recorder| WaitTrace {
            recorder,
            polls: PollTracker::default(),
        })
    }

    /// Records that the queue belongs to an endpoint.
    pub(crate) fn set_endpoint(&self, number: u64) {
        self.recorder.add_endpoint(endpoint_address(number));
    }

    /// Counts a poll. `found` is the first entry, if there was one; `own` is the queue's endpoint.
    #[inline]
    pub(crate) fn on_poll(&self, found: Option<&Entry>, own: impl FnOnce() -> Option<u64>) {
        let Some(entry) = found else {
            self.polls.empty_poll();
            return;
        };
        if let Some(began_ns) = self.polls.successful_poll() {
            self.keep(began_ns, entry, own());
        }
    }

    /// Begins a wait, however short, because the program sleeps.
    pub(crate) fn on_sleep(&self) {
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
            own: own.map(endpoint_address),
            peer: (is_message && entry.source != 0).then(|| endpoint_address(entry.source)),
            bytes: entry.length as u64,
        };
        self.recorder.record(began_ns, over);
    }
}

/// Closes the file when all queues are closed.
pub(crate) fn close() {
    if let Some(Some(recorder)) = RECORDER.get() {
        recorder.close();
    }
}

/// From an address as a number ([`name::number`](crate::name::number)).
fn endpoint_address(number: u64) -> EndpointAddress {
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    EndpointAddress {
        node: half(number >> 32),
        endpoint: half(number),
    }
}
