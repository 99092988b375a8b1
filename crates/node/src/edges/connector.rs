//! Finds the processes of endpoints in the background. Files and other nodes' directories are read
//! on a thread of its own, never under the driver's lock.
//!
//! The thread looks up all targets at once ([`Search`]), until each is found or its connect
//! time-out expires. It starts with the first look-up and ends a moment after the last.

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, eventfd};

use super::id::EdgeRef;
use crate::address::{Address, NodeId};
use crate::config::{Config, Links};
use crate::error::TargetError;
use crate::hosts::{Host, Hosts};
use crate::key::ClusterKey;
use crate::registry::{Found, KnownBy, Ports, Registry, ResolveError, Search, is_shortage};
use dipole_driver::nanoseconds;

/// Pause before a target is looked up again because the process found earlier is gone. It doubles, so
/// many times at most, while descriptors are short.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
const MOST_DOUBLINGS: u32 = 7;
/// The thread ends when there was nothing to look up for this long.
const IDLE: Duration = Duration::from_millis(500);
/// Longest sleep of the thread, with a descriptor that wakes it and without.
const LONG_SLEEP: Duration = Duration::from_secs(60);
const SHORT_SLEEP: Duration = Duration::from_millis(5);

/// The configuration that decides how to connect to a process.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) node: NodeId,
    pub(crate) links: Links,
    pub(crate) key: Option<ClusterKey>,
    may_share_memory: bool,
    connect_timeout: Duration,
    hosts: Hosts,
    registry: Registry,
}

impl Policy {
    pub(crate) fn new(config: &Config, registry: &Registry) -> Policy {
        Policy {
            node: config.node,
            links: config.links,
            key: config.key.clone(),
            may_share_memory: config.may_share_memory(),
            connect_timeout: config.connect_timeout,
            hosts: config.hosts.clone(),
            registry: registry.clone(),
        }
    }

    /// Time limit of a lookup.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Fingerprint of the cluster key, if there is one.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.key.as_ref().map(ClusterKey::fingerprint)
    }

    /// The shared-memory socket of an endpoint's process, if it is on this node and offers one.
    pub(crate) fn socket_of(&self, target: Address, incarnation: u64) -> Option<PathBuf> {
        if target.node != self.node || !self.may_share_memory {
            return None;
        }
        let socket = self.registry.socket(incarnation);
        socket.exists().then_some(socket)
    }
}

/// A lookup of an edge's target.
#[derive(Debug)]
pub(crate) struct Lookup {
    edge: EdgeRef,
    to: Address,
    started_at: Instant,
    due: Instant,
}

impl Lookup {
    pub(crate) fn new(edge: EdgeRef, to: Address) -> Lookup {
        let now = Instant::now();
        Lookup {
            edge,
            to,
            started_at: now,
            due: now,
        }
    }

    /// A new lookup because the process found earlier is gone, or could not share memory for want of
    /// descriptors so many times.
    pub(crate) fn retry(edge: EdgeRef, to: Address, shortages: u32) -> Lookup {
        let lookup = Lookup::new(edge, to);
        Lookup {
            due: lookup.due + RETRY_PAUSE * (1 << shortages.min(MOST_DOUBLINGS)),
            ..lookup
        }
    }
}

/// Lookups that the thread has not taken yet.
#[derive(Debug, Default)]
struct Queue {
    lookups: Vec<Lookup>,
    is_running: bool,
    stop: bool,
    /// Wakes the thread; `None` if there was no descriptor for it.
    wake: Option<Arc<OwnedFd>>,
    /// The nodes as the thread last read them.
    hosts: Option<Hosts>,
}

impl Queue {
    fn wake(&self, changed: &Condvar) {
        changed.notify_all();
        if let Some(wake) = &self.wake {
            // It can only fail if the thread is being woken already.
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Callback that receives the results.
type Callback = Box<dyn Fn(EdgeRef, Resolution) + Send + Sync>;

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    policy: Arc<Policy>,
    callback: OnceLock<Callback>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("queue", &self.queue)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Runs lookups on its own thread, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Connector {
    shared: Arc<Shared>,
}

impl Connector {
    pub(crate) fn new(policy: Policy) -> Connector {
        Connector {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                changed: Condvar::new(),
                policy: Arc::new(policy),
                callback: OnceLock::new(),
            }),
        }
    }

    /// Sets the callback for results, which runs on the lookup thread; once, before the first lookup.
    pub(crate) fn set_callback(
        &self,
        callback: impl Fn(EdgeRef, Resolution) + Send + Sync + 'static,
    ) {
        let _first = self.shared.callback.set(Box::new(callback));
    }

    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.shared.policy
    }

    /// Time limit of a lookup.
    pub(crate) fn timeout_ns(&self) -> u64 {
        nanoseconds(self.shared.policy.connect_timeout)
    }

    /// Adds a lookup; never blocks.
    ///
    /// # Errors
    /// The thread cannot be started: the lookup waits until [`start`](Self::start) succeeds.
    pub(crate) fn resolve(&self, lookup: Lookup) -> std::io::Result<()> {
        self.shared.lock().lookups.push(lookup);
        self.start()
    }

    /// Starts the thread if there are lookups and it is not running.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut queue = self.shared.lock();
        if queue.is_running {
            queue.wake(&self.shared.changed);
        } else if !queue.lookups.is_empty() {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new()
                .name("dipole-connect".into())
                .spawn(move || shared.run())?;
            queue.is_running = true;
        }
        Ok(())
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.stop = true;
        queue.wake(&self.shared.changed);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs lookups until the connector is dropped or has been idle for a while.
    fn run(&self) {
        let policy = &self.policy;
        let hosts = self.lock().hosts.take();
        let hosts = hosts.unwrap_or_else(|| policy.hosts.clone());
        let mut search = Search::new(policy.registry.clone(), hosts);
        let mut waiting: FxHashMap<Address, Vec<Lookup>> = FxHashMap::default();
        let mut later: Vec<Lookup> = Vec::new();
        loop {
            let is_idle = search.is_idle() && later.is_empty();
            let Some((lookups, wake)) = self.take_lookups(is_idle) else {
                self.lock().hosts = Some(search.hosts().clone());
                return;
            };
            later.extend(lookups);
            let now = Instant::now();
            for lookup in later.extract_if(.., |lookup| lookup.due <= now) {
                if let Some(cause) = family_mismatch(search.hosts(), policy.node, lookup.to.node) {
                    let target = lookup.to;
                    let failed = TargetError::Unresolved { target, cause };
                    self.call_back(lookup.edge, Resolution::Failed(failed));
                    continue;
                }
                search.add(lookup.to, lookup.started_at + policy.connect_timeout);
                waiting.entry(lookup.to).or_default().push(lookup);
            }
            for found in search.step() {
                self.report(found, &mut search, &mut waiting);
            }
            let mut limit = match wake {
                Some(_) => LONG_SLEEP,
                None => SHORT_SLEEP,
            };
            for lookup in &later {
                limit = limit.min(lookup.due.saturating_duration_since(now));
            }
            if search.is_idle() && later.is_empty() {
                continue;
            }
            if let Err(cause) = search.wait(wake.as_ref().map(|wake| wake.as_fd()), limit) {
                tracing::warn!("cannot wait for look-ups: {cause}");
                std::thread::sleep(SHORT_SLEEP);
            }
            if let Some(wake) = &wake {
                let _ = rustix::io::read(wake, &mut [0; 8]);
            }
        }
    }

    /// New lookups, and the descriptor that wakes the thread; waits for some if it `is_idle`.
    /// `None` ends the thread.
    fn take_lookups(&self, is_idle: bool) -> Option<(Vec<Lookup>, Option<Arc<OwnedFd>>)> {
        let mut queue = self.lock();
        if is_idle && queue.lookups.is_empty() && !queue.stop {
            let woken = self.changed.wait_timeout(queue, IDLE);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.stop || (is_idle && queue.lookups.is_empty()) {
            queue.is_running = false;
            queue.wake = None;
            return None;
        }
        if queue.wake.is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            queue.wake = made.ok().map(Arc::new);
        }
        Some((std::mem::take(&mut queue.lookups), queue.wake.clone()))
    }

    /// Reports a result to the edges that wait for it. Edges whose time is not over yet go on
    /// waiting for an endpoint that may appear.
    fn report(
        &self,
        (to, mut found): Found,
        search: &mut Search,
        waiting: &mut FxHashMap<Address, Vec<Lookup>>,
    ) {
        let Entry::Occupied(mut lookups) = waiting.entry(to) else {
            return;
        };
        let now = Instant::now();
        let timeout = self.policy.connect_timeout;
        let is_over = |lookup: &Lookup| now >= lookup.started_at + timeout;
        let may_appear = matches!(&found, Err(cause) if may_appear(cause));
        let done: Vec<Lookup> = (lookups.get_mut())
            .extract_if(.., |lookup| !may_appear || is_over(lookup))
            .collect();
        if lookups.get().is_empty() {
            lookups.remove();
        } else {
            for lookup in lookups.get() {
                search.add(to, lookup.started_at + timeout);
            }
        }
        for lookup in done {
            let resolution = match &mut found {
                Ok(ports) => {
                    Resolution::Found(*ports, self.policy.socket_of(to, ports.incarnation))
                }
                Err(cause) => Resolution::Failed(failure(to, cause, lookup.started_at.elapsed())),
            };
            self.call_back(lookup.edge, resolution);
        }
    }

    fn call_back(&self, edge: EdgeRef, resolution: Resolution) {
        if let Some(callback) = self.callback.get() {
            callback(edge, resolution);
        }
    }
}

/// Why no packets can pass between two nodes, if one has only IPv4 addresses and the other only
/// IPv6.
fn family_mismatch(hosts: &Hosts, own: NodeId, other: NodeId) -> Option<String> {
    let (own, other) = (hosts.get(own)?, hosts.get(other)?);
    let families = |host: &Host| {
        let addresses = || std::iter::once(&host.address).chain(&host.interfaces);
        [
            addresses().any(IpAddr::is_ipv4),
            addresses().any(IpAddr::is_ipv6),
        ]
    };
    let (ours, theirs) = (families(own), families(other));
    let is_shared = (0..2).any(|family| ours[family] && theirs[family]);
    (!is_shared).then(|| {
        format!(
            "{own} and {other} have no addresses of the same family, IPv4 or IPv6; give one of \
             them another address or interface in the hosts file"
        )
    })
}

/// True if a later look-up may succeed.
fn may_appear(cause: &ResolveError) -> bool {
    match cause {
        ResolveError::NoSuchEndpoint { .. } | ResolveError::NoAnswer { .. } => true,
        ResolveError::UnknownNode { hosts, .. } => matches!(hosts, KnownBy::Agent { .. }),
        ResolveError::Registry(cause) => cause.is_shortage(),
        ResolveError::WrongNode { .. } | ResolveError::OtherCluster { .. } => false,
    }
}

/// The error of an edge that has waited for this long.
fn failure(target: Address, cause: &mut ResolveError, total: Duration) -> TargetError {
    if let ResolveError::NoSuchEndpoint { waited, .. } | ResolveError::NoAnswer { waited, .. } =
        cause
    {
        *waited = total;
    }
    match cause {
        ResolveError::OtherCluster {
            mismatch,
            fingerprint,
            ..
        } => TargetError::OtherCluster {
            target,
            mismatch: *mismatch,
            fingerprint: fingerprint.clone(),
        },
        other => match other.io_error().filter(|cause| is_shortage(cause)) {
            Some(cause) => TargetError::Shortage {
                target,
                waited: total,
                cause: copied(cause),
            },
            None => TargetError::Unresolved {
                target,
                cause: other.to_string(),
            },
        },
    }
}

fn copied(cause: &std::io::Error) -> std::io::Error {
    match cause.raw_os_error() {
        Some(number) => std::io::Error::from_raw_os_error(number),
        None => cause.kind().into(),
    }
}

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// The process's ports, and its shared-memory socket if it has one.
    Found(Ports, Option<PathBuf>),
    /// The target cannot be reached.
    Failed(TargetError),
}
