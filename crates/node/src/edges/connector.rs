//! Finds the processes of endpoints in the background. Files and other nodes' directories are read
//! on separate threads, never under the driver's lock.
//!
//! A lookup is repeated with growing pauses until the target is found or the connect time-out
//! expires. Each query is short, so that a node that does not answer does not delay other lookups;
//! at most [`MAX_THREADS`] run concurrently.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::id::EdgeRef;
use crate::address::{Address, NodeId};
use crate::config::{Config, Links};
use crate::error::TargetError;
use crate::hosts::Hosts;
use crate::key::ClusterKey;
use crate::registry::{KnownBy, Ports, Registry, ResolveError, resolve};
use dipole_driver::nanoseconds;

/// Limit of lookup threads.
const MAX_THREADS: usize = 16;
/// First pause between two queries for a target; it doubles up to the maximum.
const MIN_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// Time limit of one query to another node.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);

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
    pause: Duration,
}

impl Lookup {
    pub(crate) fn new(edge: EdgeRef, to: Address) -> Lookup {
        let now = Instant::now();
        Lookup {
            edge,
            to,
            started_at: now,
            due: now,
            pause: MIN_PAUSE,
        }
    }

    /// A new lookup because the process found earlier is gone.
    pub(crate) fn retry(edge: EdgeRef, to: Address) -> Lookup {
        let lookup = Lookup::new(edge, to);
        Lookup {
            due: lookup.due + MIN_PAUSE,
            ..lookup
        }
    }
}

#[derive(Debug, Default)]
struct Lookups {
    waiting: Vec<Lookup>,
    threads: usize,
    idle: usize,
    stop: bool,
}

/// Callback that receives the results.
type Callback = Box<dyn Fn(EdgeRef, Resolution) + Send + Sync>;

struct Shared {
    lookups: Mutex<Lookups>,
    changed: Condvar,
    policy: Arc<Policy>,
    callback: OnceLock<Callback>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("lookups", &self.lookups)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Runs lookups on its own threads, which end when it is dropped.
#[derive(Debug)]
pub(crate) struct Connector {
    shared: Arc<Shared>,
}

impl Connector {
    pub(crate) fn new(policy: Policy) -> Connector {
        Connector {
            shared: Arc::new(Shared {
                lookups: Mutex::default(),
                changed: Condvar::new(),
                policy: Arc::new(policy),
                callback: OnceLock::new(),
            }),
        }
    }

    /// Sets the callback for results, which runs on the lookup threads; once, before the first lookup.
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

    /// Starts a lookup; never blocks.
    pub(crate) fn resolve(&self, lookup: Lookup) {
        let mut lookups = self.shared.lock();
        lookups.waiting.push(lookup);
        if lookups.idle > 0 || lookups.threads >= MAX_THREADS {
            self.shared.changed.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new()
            .name("dipole-connect".into())
            .spawn(move || shared.run());
        match spawned {
            Ok(_) => lookups.threads += 1,
            Err(cause) if lookups.threads == 0 => {
                tracing::error!("cannot look up endpoints: {cause}");
            }
            Err(_) => {}
        }
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Lookups> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs lookups until the connector is dropped.
    fn run(&self) {
        while let Some(lookup) = self.next() {
            match self.resolve_once(&lookup) {
                Some(resolution) => {
                    if let Some(callback) = self.callback.get() {
                        callback(lookup.edge, resolution);
                    }
                }
                None => {
                    let pause = lookup.pause;
                    self.lock().waiting.push(Lookup {
                        due: Instant::now() + pause,
                        pause: (pause * 2).min(MAX_PAUSE),
                        ..lookup
                    });
                }
            }
        }
    }

    /// Waits for the next lookup that is due; `None` ends the thread.
    fn next(&self) -> Option<Lookup> {
        let mut lookups = self.lock();
        loop {
            let now = Instant::now();
            let first = (lookups.waiting.iter().enumerate()).min_by_key(|(_, lookup)| lookup.due);
            let first = first.map(|(at, lookup)| (at, lookup.due));
            match first {
                Some((at, due)) if due <= now && !lookups.stop => {
                    return Some(lookups.waiting.swap_remove(at));
                }
                Some((_, due)) if !lookups.stop => {
                    lookups.idle += 1;
                    let woken = self.changed.wait_timeout(lookups, due - now);
                    lookups = woken.unwrap_or_else(PoisonError::into_inner).0;
                    lookups.idle -= 1;
                }
                _ => {
                    lookups.threads -= 1;
                    return None;
                }
            }
        }
    }

    /// Makes one query; `None` means try again later.
    fn resolve_once(&self, lookup: &Lookup) -> Option<Resolution> {
        let policy = &self.policy;
        let waited = lookup.started_at.elapsed();
        let left = policy.connect_timeout.saturating_sub(waited);
        let here = lookup.to.node == policy.node;
        let timeout = if here { Duration::ZERO } else { QUERY_TIMEOUT };
        let found = resolve(
            &policy.registry,
            &policy.hosts,
            lookup.to,
            timeout.min(left),
        );
        let target = lookup.to;
        let cause = match found {
            Ok(ports) => {
                let socket = policy.socket_of(target, ports.incarnation);
                return Some(Resolution::Found(ports, socket));
            }
            Err(cause) => cause,
        };
        let may_appear = matches!(
            cause,
            ResolveError::NoSuchEndpoint { .. }
                | ResolveError::NoAnswer { .. }
                | ResolveError::UnknownNode {
                    hosts: KnownBy::Agent { .. },
                    ..
                }
        );
        if may_appear && !left.is_zero() {
            return None;
        }
        Some(Resolution::Failed(match cause {
            ResolveError::OtherCluster {
                mismatch,
                fingerprint,
                ..
            } => TargetError::OtherCluster {
                target,
                mismatch,
                fingerprint,
            },
            other => TargetError::Unresolved {
                target,
                cause: with_total_wait(other, waited).to_string(),
            },
        }))
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

/// Puts the total duration of all queries into the error.
fn with_total_wait(mut error: ResolveError, total: Duration) -> ResolveError {
    match &mut error {
        ResolveError::NoSuchEndpoint { waited, .. } | ResolveError::NoAnswer { waited, .. } => {
            *waited = total;
        }
        _ => {}
    }
    error
}
