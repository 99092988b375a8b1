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
use crate::config::{Config, Links};
use crate::error::TargetError;
use crate::hosts::Hosts;
use crate::key::ClusterKey;
use crate::registry::{KnownBy, Ports, Registry, ResolveError, resolve};
use dipole_driver::nanoseconds;

/// Threads that ask at once.
const MAX_THREADS: usize = 16;
/// First pause between two questions about one target; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// How long one question to another node lasts at most.
const QUESTION: Duration = Duration::from_millis(500);

/// What decides how a process is met.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) node: NodeId,
    pub(crate) links: Links,
    pub(crate) key: Option<ClusterKey>,
    may_share_memory: bool,
    patience: Duration,
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
            patience: config.connect_timeout,
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
pub(crate) struct Job {
    edge: EdgeRef,
    to: Address,
    begun: Instant,
    due: Instant,
    pause: Duration,
}

impl Job {
    pub(crate) fn new(edge: EdgeRef, to: Address) -> Job {
        let now = Instant::now();
        Job {
            edge,
            to,
            begun: now,
            due: now,
            pause: FIRST_PAUSE,
        }
    }

    /// What was found is gone already.
    pub(crate) fn again(edge: EdgeRef, to: Address) -> Job {
        let job = Job::new(edge, to);
        Job {
            due: job.due + FIRST_PAUSE,
            ..job
        }
    }
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: Vec<Job>,
    threads: usize,
    idle: usize,
    stop: bool,
}

/// What takes answers.
type Tell = Box<dyn Fn(EdgeRef, Answer) + Send + Sync>;

struct Shared {
    jobs: Mutex<Jobs>,
    changed: Condvar,
    policy: Arc<Policy>,
    tell: OnceLock<Tell>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("jobs", &self.jobs)
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
                jobs: Mutex::default(),
                changed: Condvar::new(),
                policy: Arc::new(policy),
                tell: OnceLock::new(),
            }),
        }
    }

    /// What takes answers, called on the threads here; set once, before the first job.
    pub(crate) fn set_tell(&self, tell: impl Fn(EdgeRef, Answer) + Send + Sync + 'static) {
        let _first = self.shared.tell.set(Box::new(tell));
    }

    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.shared.policy
    }

    /// How long a target is looked for.
    pub(crate) fn patience_ns(&self) -> u64 {
        nanoseconds(self.shared.policy.patience)
    }

    /// Looks for a target; never blocks.
    pub(crate) fn resolve(&self, job: Job) {
        let mut jobs = self.shared.lock();
        jobs.waiting.push(job);
        if jobs.idle > 0 || jobs.threads >= MAX_THREADS {
            self.shared.changed.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new()
            .name("dipole-connect".into())
            .spawn(move || shared.run());
        match spawned {
            Ok(_) => jobs.threads += 1,
            Err(cause) if jobs.threads == 0 => {
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
    fn lock(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers questions until there are none.
    fn run(&self) {
        while let Some(job) = self.next() {
            match self.ask(&job) {
                Some(answer) => {
                    if let Some(tell) = self.tell.get() {
                        tell(job.edge, answer);
                    }
                }
                None => {
                    let pause = job.pause;
                    self.lock().waiting.push(Job {
                        due: Instant::now() + pause,
                        pause: (pause * 2).min(LAST_PAUSE),
                        ..job
                    });
                }
            }
        }
    }

    /// The next job when it is due; `None` ends the thread.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            let now = Instant::now();
            let first = (jobs.waiting.iter().enumerate()).min_by_key(|(_, job)| job.due);
            let first = first.map(|(at, job)| (at, job.due));
            match first {
                Some((at, due)) if due <= now && !jobs.stop => {
                    return Some(jobs.waiting.swap_remove(at));
                }
                Some((_, due)) if !jobs.stop => {
                    jobs.idle += 1;
                    let woken = self.changed.wait_timeout(jobs, due - now);
                    jobs = woken.unwrap_or_else(PoisonError::into_inner).0;
                    jobs.idle -= 1;
                }
                _ => {
                    jobs.threads -= 1;
                    return None;
                }
            }
        }
    }

    /// One question; `None`: ask again.
    fn ask(&self, job: &Job) -> Option<Answer> {
        let policy = &self.policy;
        let waited = job.begun.elapsed();
        let left = policy.patience.saturating_sub(waited);
        let here = job.to.node == policy.node;
        let question = if here { Duration::ZERO } else { QUESTION };
        let found = resolve(&policy.registry, &policy.hosts, job.to, question.min(left));
        let target = job.to;
        let cause = match found {
            Ok(ports) => {
                let socket = policy.socket_of(target, ports.incarnation);
                return Some(Answer::Found(ports, socket));
            }
            Err(cause) => cause,
        };
        let may_come = matches!(
            cause,
            ResolveError::NoSuchEndpoint { .. }
                | ResolveError::NoAnswer { .. }
                | ResolveError::UnknownNode {
                    hosts: KnownBy::Agent { .. },
                    ..
                }
        );
        if may_come && !left.is_zero() {
            return None;
        }
        Some(Answer::Failed(match cause {
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
                cause: waited_in_all(other, waited).to_string(),
            },
        }))
    }
}

/// What has become known of a target.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Where its process is, and where to meet it in shared memory.
    Found(Ports, Option<PathBuf>),
    /// It cannot be reached.
    Failed(TargetError),
}

/// Says how long all questions together lasted.
fn waited_in_all(mut error: ResolveError, in_all: Duration) -> ResolveError {
    match &mut error {
        ResolveError::NoSuchEndpoint { waited, .. } | ResolveError::NoAnswer { waited, .. } => {
            *waited = in_all;
        }
        _ => {}
    }
    error
}
