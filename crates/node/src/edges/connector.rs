//! Finds the processes of endpoints behind the callers: files and other nodes' directories
//! are read on threads of their own, never under the driver's lock.
//!
//! A target is asked for again and again, with growing pauses, until it is found or the
//! node's patience is over. Each question is short, so that one node that does not answer
//! keeps nobody else waiting for long; at most [`MAX_THREADS`] run at once.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::id::EdgeRef;
use crate::address::{Address, NodeId};
use crate::clock::nanoseconds;
use crate::config::{Config, Links};
use crate::error::TargetError;
use crate::hosts::Hosts;
use crate::key::ClusterKey;
use crate::registry::{KnownBy, Ports, Registry, ResolveError, resolve};

/// Threads that ask at once.
const MAX_THREADS: usize = 16;
/// First pause between two questions about one target; it doubles up to the last.
const MIN_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// How long one question to another node lasts at most.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);

/// What decides how a process is met.
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

    /// Of the cluster key, if there is one.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.key.as_ref().map(ClusterKey::fingerprint)
    }

    /// Where to meet the owner of an endpoint in shared memory, if it is of this node
    /// and offers it.
    pub(crate) fn socket_of(&self, target: Address, incarnation: u64) -> Option<PathBuf> {
        if target.node != self.node || !self.may_share_memory {
            return None;
        }
        let socket = self.registry.socket(incarnation);
        socket.exists().then_some(socket)
    }
}

/// An edge whose target is to be found.
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

    /// What was found is gone already.
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

/// What takes answers.
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

/// See the module. Dropping it ends its threads.
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

    /// What takes answers, called on the threads here; set once, before the first job.
    pub(crate) fn set_callback(
        &self,
        callback: impl Fn(EdgeRef, Resolution) + Send + Sync + 'static,
    ) {
        let _first = self.shared.callback.set(Box::new(callback));
    }

    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.shared.policy
    }

    /// How long a target is looked for.
    pub(crate) fn timeout_ns(&self) -> u64 {
        nanoseconds(self.shared.policy.connect_timeout)
    }

    /// Looks for a target; never blocks.
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
                tracing::error!("endpoints cannot be looked for: {cause}");
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

    /// Answers questions until there are none.
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

    /// The next job when it is due; `None` ends the thread.
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

    /// One question; `None`: ask again.
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

/// What has become known of a target.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// Where its process is, and where to meet it in shared memory.
    Found(Ports, Option<PathBuf>),
    /// It cannot be reached.
    Failed(TargetError),
}

/// Says how long all questions together lasted.
fn with_total_wait(mut error: ResolveError, total: Duration) -> ResolveError {
    match &mut error {
        ResolveError::NoSuchEndpoint { waited, .. } | ResolveError::NoAnswer { waited, .. } => {
            *waited = total;
        }
        _ => {}
    }
    error
}
