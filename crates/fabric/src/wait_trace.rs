//! Records what a program waits for at its completion queues, if `DIPOLE_TRACE` is set. MPI libraries
//! poll: a series of empty polls is one wait, and the stack shows the MPI call.

use std::sync::{Arc, OnceLock};

use dipole_node::job::Job;
use dipole_trace::waits::{Cause, Keeper, Over, Place, Polls};

use crate::abi::fabric::{FI_RECV, FI_REMOTE_WRITE};
use crate::completion::Entry;

static KEEPER: OnceLock<Option<Arc<Keeper>>> = OnceLock::new();

/// The recorder of one queue.
pub(crate) struct WaitTrace {
    keeper: Arc<Keeper>,
    polls: Polls,
}

impl WaitTrace {
    /// `None` if waits of this process are not recorded.
    pub(crate) fn of_process() -> Option<WaitTrace> {
        let keeper = KEEPER.get_or_init(|| {
            let directory = dipole_node::trace_dir()?;
            let rank = Job::from_env().ok().map(|job| (job.rank, job.size));
            match Keeper::begin(&directory, rank) {
                Ok(keeper) => Some(Arc::new(keeper)),
                Err(cause) => {
                    let directory = directory.display();
                    eprintln!(
                        "dipole: this process is not traced: cannot create a file in {directory} \
                         (DIPOLE_TRACE): {cause}"
                    );
                    None
                }
            }
        });
        keeper.clone().map(|keeper| WaitTrace {
            keeper,
            polls: Polls::default(),
        })
    }

    /// Records that the queue belongs to an endpoint.
    pub(crate) fn owns(&self, number: u64) {
        self.keeper.owns(place(number));
    }

    /// Counts a poll. `found` is the first entry, if there was one; `own` is the queue's endpoint.
    #[inline]
    pub(crate) fn on_poll(&self, found: Option<&Entry>, own: impl FnOnce() -> Option<u64>) {
        let Some(entry) = found else {
            self.polls.vain();
            return;
        };
        if let Some(began_ns) = self.polls.found() {
            self.keep(began_ns, entry, own());
        }
    }

    /// Begins a wait, however short, because the program sleeps.
    pub(crate) fn on_sleep(&self) {
        self.polls.begin();
    }

    #[cold]
    fn keep(&self, began_ns: u64, entry: &Entry, own: Option<u64>) {
        let is_message = entry.flags & (FI_RECV | FI_REMOTE_WRITE) != 0;
        let over = Over {
            cause: match is_message {
                true => Cause::Message,
                false => Cause::Completion,
            },
            own: own.map(place),
            peer: (is_message && entry.source != 0).then(|| place(entry.source)),
            bytes: entry.length as u64,
        };
        self.keeper.keep(began_ns, over);
    }
}

/// Closes the file when all queues are closed.
pub(crate) fn close() {
    if let Some(Some(keeper)) = KEEPER.get() {
        keeper.close();
    }
}

/// From an address as a number ([`name::number`](crate::name::number)).
fn place(number: u64) -> Place {
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    Place {
        node: half(number >> 32),
        endpoint: half(number),
    }
}
