//! Records what calls of this process wait for, if `DIPOLE_TRACE` is set.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dipole_driver::{LongWait, Timeout};
use dipole_trace::waits::{Cause, EndpointAddress, WaitEnd, WaitRecorder};

use crate::address::Address;
use crate::config::Config;
use crate::job::Job;

/// The trace files of a process. A forked child gets new ones, since its parent's lock may be held.
struct Files {
    pid: u32,
    open: Mutex<Vec<File>>,
    child: OnceLock<Box<Files>>,
}

/// The trace file in a directory, which all nodes of the process share.
struct File {
    directory: PathBuf,
    recorder: Arc<WaitRecorder>,
    /// Nodes that use it.
    nodes: usize,
}

static FILES: OnceLock<Files> = OnceLock::new();

impl Files {
    fn new() -> Files {
        Files {
            pid: std::process::id(),
            open: Mutex::default(),
            child: OnceLock::new(),
        }
    }

    /// Those of this process.
    fn lock() -> MutexGuard<'static, Vec<File>> {
        let (mut files, pid) = (FILES.get_or_init(Files::new), std::process::id());
        while files.pid != pid {
            files = files.child.get_or_init(|| Box::new(Files::new()));
        }
        files.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the trace file of this process in a directory. `None` if it cannot be created, which is
/// reported on standard error.
#[must_use]
pub fn wait_recorder(directory: &Path) -> Option<Arc<WaitRecorder>> {
    open(&mut Files::lock(), directory).map(|file| Arc::clone(&file.recorder))
}

fn open<'a>(files: &'a mut Vec<File>, directory: &Path) -> Option<&'a mut File> {
    if let Some(at) = files.iter().position(|file| file.directory == directory) {
        return files.get_mut(at);
    }
    match WaitRecorder::create(directory, Job::rank_and_size()) {
        Ok(recorder) => files.push(File {
            directory: directory.to_owned(),
            recorder: Arc::new(recorder),
            nodes: 0,
        }),
        Err(cause) => {
            let directory = directory.display();
            eprintln!(
                "dipole: this process is not traced: cannot create a file in {directory} \
                 (DIPOLE_TRACE): {cause}"
            );
            return None;
        }
    }
    files.last_mut()
}

/// A node's use of the trace file.
#[derive(Debug)]
pub(crate) struct WaitTrace {
    recorder: Arc<WaitRecorder>,
    is_closed: AtomicBool,
}

impl WaitTrace {
    /// If the configuration names a directory.
    pub(crate) fn open(config: &Config) -> Option<WaitTrace> {
        let directory = config.recordings.trace_dir.as_deref()?;
        let mut files = Files::lock();
        let file = open(&mut files, directory)?;
        file.nodes += 1;
        file.recorder.reopen();
        Some(WaitTrace {
            recorder: Arc::clone(&file.recorder),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The node has finished its work. If it was the last one, the file is complete.
    pub(crate) fn close(&self) {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut files = Files::lock();
        let own = |file: &&mut File| Arc::ptr_eq(&file.recorder, &self.recorder);
        if let Some(file) = files.iter_mut().find(own) {
            file.nodes -= 1;
            if file.nodes == 0 {
                file.recorder.close();
            }
        }
    }

    pub(crate) fn add_endpoint(&self, address: Address) {
        self.recorder.add_endpoint(in_trace(address));
    }

    /// Begins a wait, unless it is a poll.
    pub(crate) fn begin(&self, until: Timeout) -> Option<TracedWait> {
        if until == Timeout::Zero {
            return None;
        }
        let (earlier_ns, is_last) = LongWait::earlier_parts();
        Some(TracedWait {
            recorder: Arc::clone(&self.recorder),
            began_ns: self.recorder.now_ns().saturating_sub(earlier_ns),
            is_last,
        })
    }
}

impl Drop for WaitTrace {
    fn drop(&mut self) {
        self.close();
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
        let end = WaitEnd {
            cause: arrived.map_or(Cause::Nothing, |_| Cause::Message),
            own: own.map(in_trace),
            peer: arrived.map(|(source, _)| in_trace(source)),
            bytes: arrived.map_or(0, |(_, bytes)| bytes as u64),
        };
        self.end(arrived.is_some(), end);
    }

    /// Ends a wait for room. `ends` are the sender and the target, if there is a single one.
    #[cold]
    pub(crate) fn end_send(
        self,
        (own, to): (Option<Address>, Option<Address>),
        bytes: usize,
        has_begun: bool,
    ) {
        let end = WaitEnd {
            cause: Cause::Room,
            own: own.map(in_trace),
            peer: to.map(in_trace),
            bytes: bytes as u64,
        };
        self.end(has_begun, end);
    }

    /// Ends a wait for a target: for its process, or once that `was_open`, for earlier operations.
    #[cold]
    pub(crate) fn end_target(self, to: Address, was_open: bool, has_succeeded: bool) {
        let end = WaitEnd {
            cause: match was_open {
                true => Cause::Room,
                false => Cause::Target,
            },
            own: None,
            peer: Some(in_trace(to)),
            bytes: 0,
        };
        self.end(has_succeeded, end);
    }

    /// Ends a wait for operations to be done, by `to` if that is known.
    #[cold]
    pub(crate) fn end_operation(self, to: Option<Address>, is_done: bool) {
        let end = WaitEnd {
            cause: match is_done {
                true => Cause::Completion,
                false => Cause::Nothing,
            },
            own: None,
            peer: to.map(in_trace),
            bytes: 0,
        };
        self.end(is_done, end);
    }

    /// Records the wait: later if it has failed, because its next part may continue it.
    fn end(self, has_succeeded: bool, end: WaitEnd) {
        let is_over = has_succeeded || self.is_last;
        let record = move || self.recorder.record(self.began_ns, end);
        if is_over {
            LongWait::set_record(None::<fn()>);
            record();
        } else {
            LongWait::set_record(Some(record));
        }
    }
}

fn in_trace(address: Address) -> EndpointAddress {
    EndpointAddress {
        node: address.node.0,
        endpoint: address.endpoint.0,
    }
}
