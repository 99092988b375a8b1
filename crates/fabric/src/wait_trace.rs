//! What a program waits for at its queues of completions, kept if `DIPOLE_TRACE` says where. MPI looks
//! again and again: a row of looks in vain is its wait, and the stack names its call.

use std::sync::{Arc, OnceLock};

use dipole_node::job::Job;
use dipole_trace::waits::{Cause, Keeper, Over, Place, Polls};

use crate::abi::fabric::{FI_RECV, FI_REMOTE_WRITE};
use crate::completion::Entry;

static KEEPER: OnceLock<Option<Arc<Keeper>>> = OnceLock::new();

/// Of one queue.
pub(crate) struct WaitTrace {
    keeper: Arc<Keeper>,
    polls: Polls,
}

impl WaitTrace {
    /// None if waits of this process are not kept.
    pub(crate) fn of_process() -> Option<WaitTrace> {
        let keeper = KEEPER.get_or_init(|| {
            let directory = dipole_node::trace_dir()?;
            let rank = Job::from_env().ok().map(|job| (job.rank, job.size));
            match Keeper::begin(&directory, rank) {
                Ok(keeper) => Some(Arc::new(keeper)),
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
        keeper.clone().map(|keeper| WaitTrace {
            keeper,
            polls: Polls::default(),
        })
    }

    /// The queue is of this endpoint.
    pub(crate) fn owns(&self, number: u64) {
        self.keeper.owns(place(number));
    }

    /// The program has looked, and found this first of all; `own` is the queue's endpoint.
    #[inline]
    pub(crate) fn looked(&self, found: Option<&Entry>, own: impl FnOnce() -> Option<u64>) {
        let Some(entry) = found else {
            self.polls.vain();
            return;
        };
        if let Some(began_ns) = self.polls.found() {
            self.keep(began_ns, entry, own());
        }
    }

    /// The program sleeps until something comes: that is a wait, however short.
    pub(crate) fn sleeps(&self) {
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

/// No queue is read any more.
pub(crate) fn close() {
    if let Some(Some(keeper)) = KEEPER.get() {
        keeper.close();
    }
}

/// From an address in one number ([`name::number`](crate::name::number)).
fn place(number: u64) -> Place {
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    Place {
        node: half(number >> 32),
        endpoint: half(number),
    }
}
