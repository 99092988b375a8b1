//! The node of this process: opened by the first endpoint, closed by `dp_finalize` or at exit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dipole_node::job::Job;
use dipole_node::{Config, Node};

use crate::failure::Failure;
use crate::per_process::{Instance, PerProcess, lock};

static PROCESS: PerProcess<Process> = PerProcess::new();
static EXIT_HOOKED: AtomicBool = AtomicBool::new(false);
static JOB: OnceLock<Job> = OnceLock::new();

/// The node, and the objects that have to be closed with it.
#[derive(Default)]
pub(crate) struct Process {
    node: Mutex<Option<OpenNode>>,
    objects: Mutex<BTreeMap<CloseOrder, &'static dyn OpenObjects>>,
}

/// All objects of one kind that C programs hold open.
pub(crate) trait OpenObjects: Sync {
    /// Closes those of this process.
    fn close_all(&self);
}

/// The order in which objects are closed with the node. Kinds before [`Endpoints`](Self::Endpoints)
/// need the node to close; the others go after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CloseOrder {
    Groups,
    Streams,
    Interfaces,
    Endpoints,
    Ports,
    Edges,
    Regions,
    Counters,
    Queues,
}

#[derive(Debug)]
struct OpenNode {
    node: Node,
    linger: Duration,
    spin: Duration,
}

/// The state of this process.
pub(crate) fn current() -> Arc<Instance<Process>> {
    install_exit_hook();
    PROCESS.get()
}

impl Process {
    /// The node, opened from the environment if it is not open yet.
    pub(crate) fn node(&self) -> Result<Node, Failure> {
        let mut open = lock(&self.node);
        if open.is_none() {
            *open = Some(OpenNode::new(Config::from_env()?)?);
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

    /// How long waiting calls spin before they sleep.
    pub(crate) fn spin(&self) -> Duration {
        let open = lock(&self.node);
        open.as_ref().map_or(Duration::ZERO, |open| open.spin)
    }

    /// How long closing waits for messages that were sent.
    pub(crate) fn linger(&self) -> Duration {
        let open = lock(&self.node);
        open.as_ref().map_or(Duration::ZERO, |open| open.linger)
    }

    /// Opens the node with the program's configuration.
    pub(crate) fn init(&self, config: Config) -> Result<(), Failure> {
        let mut open = lock(&self.node);
        if open.is_some() {
            return Err(Failure::AlreadyOpen);
        }
        *open = Some(OpenNode::new(config)?);
        Ok(())
    }

    /// Has objects closed together with the node.
    pub(crate) fn register(&self, order: CloseOrder, objects: &'static dyn OpenObjects) {
        lock(&self.objects).insert(order, objects);
    }

    /// Waits until everything sent is acknowledged, closes all objects and the node. The next
    /// endpoint opens a new node.
    pub(crate) fn finalize(&self, timeout: Option<Duration>) -> Result<(), Failure> {
        let Some(open) = lock(&self.node).take() else {
            return Ok(());
        };
        let objects = lock(&self.objects).clone();
        for objects in objects.range(..CloseOrder::Endpoints).map(|(_, it)| it) {
            objects.close_all();
        }
        let closed = open.node.close(timeout.unwrap_or(open.linger));
        for objects in objects.range(CloseOrder::Endpoints..).map(|(_, it)| it) {
            objects.close_all();
        }
        Ok(closed?)
    }
}

impl OpenNode {
    fn new(config: Config) -> Result<OpenNode, Failure> {
        let (linger, spin) = (config.linger, config.spin);
        let node = Node::open(config)?;
        Ok(OpenNode { node, linger, spin })
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

fn install_exit_hook() {
    if EXIT_HOOKED.load(Ordering::Relaxed) || EXIT_HOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    dipole_node::log::init_library("libdipole");
    // SAFETY: `on_exit` lets no panic out, and stays loaded because the library cannot be
    // unloaded (build.rs).
    unsafe { libc::atexit(on_exit) };
}

/// Waits at exit until everything sent is acknowledged.
extern "C" fn on_exit() {
    let finalized = std::panic::catch_unwind(|| match PROCESS.existing() {
        Some(process) => process.finalize(None),
        None => Ok(()),
    });
    if let Ok(Err(failure)) = finalized {
        // It is too late for `dp_error`.
        eprintln!("libdipole: at exit: {failure}");
    }
}
