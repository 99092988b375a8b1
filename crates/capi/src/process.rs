//! The one node of this process: opened by the first endpoint, closed at exit.
//!
//! A forked child inherits the memory but not the node: it begins anew, and keeps the
//! parent's things untouched, since dropping them could wait for a lock that a thread
//! of the parent held. Locks are per generation for the same reason.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use dipole_node::job::Job;
use dipole_node::{Address, Config, Node};
use dipole_trace::waits::{EndpointAddress, WaitRecorder};

use crate::counter::COUNTERS;
use crate::edge::EDGES;
use crate::failure::Failure;
use crate::group::GROUPS;
use crate::handle::{FileId, Handle};
use crate::numbers::Numbers;
use crate::port::PORTS;
use crate::queue::OpenQueue;
use crate::region::REGIONS;
use crate::stream::{INTERFACES, STREAMS};

/// Counts forks: what was made in another generation belongs to the parent.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static CURRENT: ArcSwapOption<Process> = ArcSwapOption::const_empty();
static HOOKED: AtomicBool = AtomicBool::new(false);
static JOB: OnceLock<Job> = OnceLock::new();

/// What one process has.
#[derive(Debug)]
pub(crate) struct Process {
    generation: u32,
    node: Mutex<Option<Open>>,
    /// Endpoints by what their descriptors stand for.
    pub(crate) endpoints: Mutex<Endpoints>,
    pub(crate) edges: Mutex<Numbers>,
    pub(crate) counters: Mutex<Numbers>,
    pub(crate) regions: Mutex<Numbers>,
    pub(crate) ports: Mutex<Numbers>,
    pub(crate) groups: Mutex<Numbers>,
    pub(crate) interfaces: Mutex<Numbers>,
    pub(crate) streams: Mutex<Numbers>,
    /// Completion queues by the numbers of their descriptors.
    pub(crate) queues: Mutex<HashMap<c_int, Arc<OpenQueue>>>,
    /// Who keeps what calls wait for, once the node is open.
    recorder: OnceLock<Option<Arc<WaitRecorder>>>,
    /// What the process had before it was forked, never used and never dropped.
    pub(crate) parent: Option<Arc<Process>>,
}

#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    pub(crate) by_file: HashMap<FileId, Arc<Handle>>,
    /// How many there may be before those that were closed by `close` are swept.
    pub(crate) sweep_at: usize,
}

#[derive(Debug)]
struct Open {
    node: Node,
    linger: Duration,
    spin: Duration,
}

/// The generation that things made now belong to.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process.
pub(crate) fn current() -> Arc<Process> {
    install_hooks();
    let generation = generation();
    loop {
        let known = CURRENT.load_full();
        if let Some(process) = &known
            && process.generation == generation
        {
            return Arc::clone(process);
        }
        let fresh = Arc::new(Process {
            generation,
            node: Mutex::new(None),
            endpoints: Mutex::default(),
            edges: Mutex::default(),
            counters: Mutex::default(),
            regions: Mutex::default(),
            ports: Mutex::default(),
            groups: Mutex::default(),
            interfaces: Mutex::default(),
            streams: Mutex::default(),
            queues: Mutex::default(),
            recorder: OnceLock::new(),
            parent: known.clone(),
        });
        CURRENT.compare_and_swap(&known, Some(fresh));
    }
}

impl Process {
    /// The node, opened from the environment if it is not open yet.
    pub(crate) fn node(&self) -> Result<Node, Failure> {
        let mut open = lock(&self.node);
        if open.is_none() {
            *open = Some(Open::new(Config::from_env()?)?);
        }
        match &*open {
            Some(open) => Ok(open.node.clone()),
            None => Err(Failure::NotOpen),
        }
    }

    /// The node if it is open.
    pub(crate) fn open_node(&self) -> Result<Node, Failure> {
        match &*lock(&self.node) {
            Some(open) => Ok(open.node.clone()),
            None => Err(Failure::NotOpen),
        }
    }

    /// Who keeps what calls wait for, if that is asked for and there can be a file.
    pub(crate) fn recorder(&self) -> Option<Arc<WaitRecorder>> {
        let open = || {
            let directory = dipole_node::trace_dir()?;
            let rank = job().ok().map(|job| (job.rank, job.size));
            match WaitRecorder::create(&directory, rank) {
                Ok(recorder) => Some(Arc::new(recorder)),
                Err(cause) => {
                    let directory = directory.display();
                    eprintln!(
                        "libdipole: this process is not traced: cannot make a file in {directory} \
                         (DIPOLE_TRACE): {cause}"
                    );
                    None
                }
            }
        };
        self.recorder.get_or_init(open).clone()
    }

    /// How long waiters of the open node spin.
    pub(crate) fn spin(&self) -> Duration {
        let open = lock(&self.node);
        open.as_ref().map_or(Duration::ZERO, |open| open.spin)
    }

    /// Opens the node as the program says.
    pub(crate) fn init(&self, config: Config) -> Result<(), Failure> {
        let mut open = lock(&self.node);
        if open.is_some() {
            return Err(Failure::AlreadyOpen);
        }
        *open = Some(Open::new(config)?);
        Ok(())
    }

    /// Waits until everything sent is acknowledged, ends all endpoints, edges, queues
    /// and counters and closes the node; the next endpoint opens a new one.
    pub(crate) fn finish(&self, timeout: Option<Duration>) -> Result<(), Failure> {
        let Some(open) = lock(&self.node).take() else {
            return Ok(());
        };
        GROUPS.close_all(self);
        STREAMS.close_all(self);
        INTERFACES.close_all(self);
        let closed = open.node.close(timeout.unwrap_or(open.linger));
        if let Some(Some(recorder)) = self.recorder.get() {
            recorder.close();
        }
        let endpoints = std::mem::take(&mut *lock(&self.endpoints));
        for handle in endpoints.by_file.into_values() {
            handle.end();
        }
        PORTS.close_all(self);
        EDGES.close_all(self);
        REGIONS.close_all(self);
        COUNTERS.close_all(self);
        let queues = std::mem::take(&mut *lock(&self.queues));
        drop(queues);
        Ok(closed?)
    }
}

impl Open {
    fn new(config: Config) -> Result<Open, Failure> {
        let (linger, spin) = (config.linger, config.spin);
        let node = Node::open(config)?;
        Ok(Open { node, linger, spin })
    }
}

/// The job this process belongs to.
pub(crate) fn job() -> Result<&'static Job, Failure> {
    match JOB.get() {
        Some(job) => Ok(job),
        None => {
            let job = Job::from_env()?;
            Ok(JOB.get_or_init(|| job))
        }
    }
}

/// An endpoint as traces have it.
pub(crate) fn place(address: Address) -> EndpointAddress {
    EndpointAddress {
        node: address.node.0,
        endpoint: address.endpoint.0,
    }
}

/// A lock that forgives a panic of another thread: what lies behind is whole between
/// any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn install_hooks() {
    if HOOKED.load(Ordering::Relaxed) || HOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    dipole_node::log::of_library("libdipole");
    // SAFETY: the child's handler adds to an atomic, which is async-signal-safe; it
    // stays loaded because the library cannot be unloaded (build.rs).
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    // SAFETY: as above; `leave` lets no panic out.
    unsafe { libc::atexit(leave) };
}

unsafe extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// At exit: what was sent shall arrive.
extern "C" fn leave() {
    let left = std::panic::catch_unwind(|| match &*CURRENT.load() {
        Some(process) if process.generation == generation() => process.finish(None),
        _ => Ok(()),
    });
    if let Ok(Err(failure)) = left {
        // Nobody can ask for the error any more.
        eprintln!("libdipole: at exit: {failure}");
    }
}
