//! Records what calls of this process wait for, if `DIPOLE_TRACE` is set.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use dipole_driver::{LongWait, Timeout};
use dipole_trace::waits::{Cause, EndpointAddress, WaitEnd, WaitRecorder};

use crate::address::Address;
use crate::config::Config;
use crate::job::Job;

/// The trace files of this process, one for each directory. All nodes with one directory share its file.
static FILES: Mutex<Vec<File>> = Mutex::new(Vec::new());

struct File {
    pid: u32,
    directory: PathBuf,
    recorder: Arc<WaitRecorder>,
}

/// Opens the trace file of this process in `directory`, once. `None` if it cannot be created, which is
/// reported on standard error.
#[must_use]
pub fn wait_recorder(directory: &Path) -> Option<Arc<WaitRecorder>> {
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    // Those of the process that has forked this one.
    files.retain(|file| file.pid == pid);
    if let Some(open) = files.iter().find(|file| file.directory == directory) {
        open.recorder.reopen();
        return Some(Arc::clone(&open.recorder));
    }
    match WaitRecorder::create(directory, Job::rank_and_size()) {
        Ok(recorder) => {
            let recorder = Arc::new(recorder);
            files.push(File {
                pid,
                directory: directory.to_owned(),
                recorder: Arc::clone(&recorder),
            });
            Some(recorder)
        }
        Err(cause) => {
            let directory = directory.display();
            eprintln!(
                "dipole: this process is not traced: cannot create a file in {directory} \
                 (DIPOLE_TRACE): {cause}"
            );
            None
        }
    }
}

/// A node's part in the trace file.
#[derive(Debug)]
pub(crate) struct WaitTrace(Arc<WaitRecorder>);

impl WaitTrace {
    /// If the configuration names a directory.
    pub(crate) fn open(config: &Config) -> Option<WaitTrace> {
        let directory = config.recordings.trace_dir.as_deref();
        directory.and_then(wait_recorder).map(WaitTrace)
    }

    pub(crate) fn add_endpoint(&self, address: Address) {
        self.0.add_endpoint(in_trace(address));
    }

    /// Begins a wait, unless it is a poll.
    pub(crate) fn begin(&self, until: Timeout) -> Option<TracedWait> {
        if until == Timeout::Zero {
            return None;
        }
        let (earlier_ns, is_last) = LongWait::earlier_parts();
        Some(TracedWait {
            recorder: Arc::clone(&self.0),
            began_ns: self.0.now_ns().saturating_sub(earlier_ns),
            is_last,
        })
    }
}

impl Drop for WaitTrace {
    fn drop(&mut self) {
        // This one and that of `FILES`.
        if Arc::strong_count(&self.0) <= 2 {
            self.0.close();
        }
    }
}

/// A wait that has begun.
#[derive(Debug)]
#[must_use]
pub struct TracedWait {
    recorder: Arc<WaitRecorder>,
    began_ns: u64,
    is_last: bool,
}

impl TracedWait {
    /// Ends a wait for a message to `own`. `arrived` has its source and its length.
    #[cold]
    pub fn end_receive(self, own: Option<Address>, arrived: Option<(Address, usize)>) {
        self.end(WaitEnd {
            cause: arrived.map_or(Cause::Nothing, |_| Cause::Message),
            own: own.map(in_trace),
            peer: arrived.map(|(source, _)| in_trace(source)),
            bytes: arrived.map_or(0, |(_, bytes)| bytes as u64),
        });
    }

    /// Ends a wait for room at `to`, which is known if it is a single target.
    #[cold]
    pub(crate) fn end_send(self, own: Address, to: Option<Address>, bytes: usize) {
        self.end(WaitEnd {
            cause: Cause::Room,
            own: Some(in_trace(own)),
            peer: to.map(in_trace),
            bytes: bytes as u64,
        });
    }

    /// Ends a wait for operations to be done, by `to` if that is known.
    #[cold]
    pub(crate) fn end_operation(self, to: Option<Address>, is_done: bool) {
        self.end(WaitEnd {
            cause: match is_done {
                true => Cause::Completion,
                false => Cause::Nothing,
            },
            own: None,
            peer: to.map(in_trace),
            bytes: 0,
        });
    }

    fn end(self, end: WaitEnd) {
        // The next part of this wait continues it.
        if end.cause != Cause::Nothing || self.is_last {
            self.recorder.record(self.began_ns, end);
        }
    }
}

fn in_trace(address: Address) -> EndpointAddress {
    EndpointAddress {
        node: address.node.0,
        endpoint: address.endpoint.0,
    }
}
