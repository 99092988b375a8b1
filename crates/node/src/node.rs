//! A process's node: its link, its place in the registry, its endpoints.

use std::sync::Arc;
use std::time::Duration;

use dipole_link::fork::ForkMark;
use dipole_link::{Class, Link};

use crate::Message;
use crate::address::{EndpointId, NodeId};
use crate::completion::{CompletionCounter, CompletionQueue};
use crate::config::{Config, Links};
use crate::control::Control;
use crate::edges::{Connector, EdgeTable, Policy};
use crate::endpoint::Endpoint;
use crate::error::{CloseError, OpenError, out_of_descriptors};
use crate::inner::Inner;
use crate::limits::{LIMITS_FILE, UserLimits};
use crate::links::open_link;
use crate::port::{ActivePort, PortContext};
use crate::process::ProcessState;
use crate::profile::Choices;
use crate::progress::ProgressThread;
use crate::registry::{ClaimError, Directory, Ports, Registry, RegistryError};
use crate::stats::Stats;
use dipole_driver::Clock;
use dipole_driver::Driver;
use dipole_engine::{Departure, Engine, Paths};

/// Numbers tried for an ephemeral endpoint; most of them are free on any node.
const EPHEMERAL_ATTEMPTS: u32 = 64;

/// A process attached to Dipole. Clones are handles to the same node; when the
/// last handle and endpoint is dropped, it waits up to
/// [`Config::linger`] for acknowledgements and says goodbye.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

impl Node {
    /// Opens the node: binds two UDP ports and enters the registry.
    ///
    /// # Errors
    /// [`OpenError`]: the registry or the sockets cannot be had, or the user has as many
    /// processes on this node as they may.
    pub fn open(config: Config) -> Result<Node, OpenError> {
        let failed = |cause| registry_error(&config, cause);
        let registry = Registry::open(&config.runtime_dir, config.node)
            .map_err(failed)?
            .with_key(config.key.as_ref())
            .with_limits(config.max_endpoints, user_limits(&config)?);
        let key = match &config.key {
            // Nobody but this user's processes on this node is to be talked to.
            None if config.hosts.is_local_only() => Some(registry.own_key().map_err(failed)?),
            known => known.clone(),
        };
        let clock = Clock::new();
        let (link, mut choice) = open_link(&config, clock)?;
        let caps = link.caps();
        let ports = |incarnation| Ports {
            small: link.local(Class::Small),
            bulk: link.local(Class::Bulk),
            incarnation,
        };
        let incarnation = rand::random::<u64>().max(1);
        let ports = ports(incarnation);
        let mut protocol = config.protocol.clone();
        protocol.node = config.node.0;
        protocol.packet_bytes = caps.max_frame_bytes;
        let packets = if link.bpf_stats().is_some() {
            "bpf"
        } else {
            "udp"
        };
        let mut engine = Engine::new(link, protocol, incarnation, rand::random(), key.as_ref());
        let registration = registry.register(ports).map_err(failed)?;
        if config.may_share_memory() {
            choice.memory = share_memory(&mut engine, &config, &registry, incarnation)?;
        }
        engine.choose(choices(&config, "shm"), choices(&config, packets));
        engine.allow_exports().map_err(OpenError::Sleep)?;
        let edges = EdgeTable::new(Connector::new(Policy::new(&config, &registry)));
        let state = ProcessState::new(engine, edges);
        let driver = Driver::new(state, clock, config.spin).map_err(OpenError::Sleep)?;
        let driver = Arc::new(driver);
        settle_answers(&driver);
        let directory = match config.hosts.get(config.node) {
            Some(host) if !config.hosts.is_local_only() => {
                Some(Directory::start(&registry, host.directories()).map_err(failed)?)
            }
            _ => None,
        };
        let progress = Arc::new(ProgressThread::default());
        let control = Control::start(&registry, &config, incarnation, choice, &driver, &progress)
            .map_err(OpenError::Sleep)?;
        let fork = ForkMark::new().map_err(OpenError::Sleep)?;
        Ok(Node {
            inner: Arc::new(Inner {
                driver,
                config,
                registration,
                ports,
                _directory: directory,
                fork,
                progress,
                control,
            }),
        })
    }

    /// This node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.config.node
    }

    /// Where this process is reached, for those who ask no directory:
    /// [`Endpoint::edge_at`].
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.inner.ports
    }

    /// Opens an endpoint of this node.
    ///
    /// # Errors
    /// [`OpenError::Taken`] names the process that has it; [`OpenError::Limit`]: this process
    /// or its user has as many as they may.
    pub fn endpoint(&self, id: EndpointId) -> Result<Endpoint, OpenError> {
        if id == EndpointId::ANY {
            return self.ephemeral_endpoint();
        }
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        // Who finds it in the registry may send at once.
        let driver = &self.inner.driver;
        let mut is_open = false;
        let claim = self.inner.registration.claim_and_open(id, || {
            driver.with(|state, _| state.engine.open_endpoint(id.0));
            is_open = true;
        });
        if claim.is_err() && is_open {
            driver.with(|state, _| state.engine.close_endpoint(id.0));
        }
        let claim = claim.map_err(|error| match error {
            ClaimError::Taken {
                address,
                pid,
                command,
            } => OpenError::Taken {
                address,
                pid,
                command,
            },
            ClaimError::Forked { .. } => OpenError::Forked,
            ClaimError::Registry(cause) => registry_error(&self.inner.config, cause),
        })?;
        Ok(Endpoint::new(Arc::clone(&self.inner), claim))
    }

    /// Opens an endpoint whose messages run `handler` instead of waiting to be read: see
    /// [`ActivePort`].
    ///
    /// # Errors
    /// Those of [`endpoint`](Self::endpoint); [`OpenError::Sleep`]: no threads are left.
    ///
    /// # Source
    /// The active ports of GAMMA.
    pub fn open_port(
        &self,
        id: EndpointId,
        handler: impl FnMut(&PortContext, Message) + Send + 'static,
    ) -> Result<ActivePort, OpenError> {
        let endpoint = self.endpoint(id)?;
        let started = self.inner.progress.start_both(&self.inner.driver);
        started.map_err(OpenError::Sleep)?;
        Ok(ActivePort::new(&self.inner, endpoint, handler))
    }

    /// Opens an endpoint with a free number out of [`EndpointId::EPHEMERAL`].
    fn ephemeral_endpoint(&self) -> Result<Endpoint, OpenError> {
        let mut attempts = 1;
        loop {
            let id = EndpointId(rand::random_range(EndpointId::EPHEMERAL));
            match self.endpoint(id) {
                Err(OpenError::Taken { .. }) if attempts < EPHEMERAL_ATTEMPTS => attempts += 1,
                opened => return opened,
            }
        }
    }

    /// A queue of completions for endpoints and edges of this node.
    #[must_use]
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue::new(&self.inner)
    }

    /// A counter of completions for edges of this node.
    #[must_use]
    pub fn completion_counter(&self) -> CompletionCounter {
        CompletionCounter::new(&self.inner)
    }

    /// Counters at this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.driver.with(|state, _| state.stats())
    }

    /// The ways to every process that is reached by packets: which pairs of addresses
    /// carry small packets and bulk, and which are left out (`docs/design/protocol.md` §5.3).
    #[must_use]
    pub fn paths(&self) -> Vec<Paths> {
        self.inner.driver.with(|state, _| state.engine.paths())
    }

    /// Peers that have gone since the last call, and why, oldest first. The latest
    /// [`MAX_DEPARTURES`](dipole_engine::MAX_DEPARTURES) are remembered.
    #[must_use]
    pub fn departed(&self) -> Vec<Departure> {
        self.inner
            .driver
            .with(|state, _| state.engine.take_departures())
    }

    /// Tells all peers that this process ends, and waits for nothing: for one that is about to exit
    /// without dropping its node, as on a signal. What was not acknowledged may not arrive, and
    /// what is sent afterwards need not.
    pub fn say_goodbye(&self) {
        if !self.inner.is_forked() {
            self.inner.say_goodbye();
        }
    }

    /// Waits until every peer has acknowledged everything sent, and leaves. What lies in
    /// memory shared with a process of this node waits there for its reader; to know that it
    /// was read, [`drain`](crate::Endpoint::drain) before. Endpoints that still exist keep
    /// working.
    ///
    /// # Errors
    /// [`CloseError::Unacknowledged`] after `linger`.
    pub fn close(self, linger: Duration) -> Result<(), CloseError> {
        if self.inner.is_forked() {
            return Err(CloseError::Forked);
        }
        self.inner.drain(linger)
    }
}

/// Has the answers of the connector go to the edges that wait for them.
fn settle_answers(driver: &Arc<Driver<ProcessState>>) {
    let answered = Arc::downgrade(driver);
    driver.with_last(|state, _| {
        state.edges.on_answer(move |id, answer| {
            if let Some(driver) = answered.upgrade() {
                driver.with(|state, now| {
                    let (engine, edges, _) = state.parts();
                    edges.settle(engine, id, answer, now);
                });
            }
        });
    });
}

/// What was measured of a link lets the engine choose. A file that cannot be read makes nothing worse
/// than it is built.
fn choices(config: &Config, link: &str) -> Choices {
    let loaded = match &config.profile_dir {
        Some(directory) => Choices::load(directory, link),
        None => Ok(Choices::default()),
    };
    loaded.unwrap_or_else(|error| {
        tracing::warn!("{error}; messages go as if nothing had been measured");
        Choices::default()
    })
}

fn registry_error(config: &Config, cause: RegistryError) -> OpenError {
    match cause {
        RegistryError::Limit(reached) => OpenError::Limit(reached),
        cause => {
            let lacking = match &cause {
                RegistryError::Io { cause, .. } => out_of_descriptors(cause),
                other => out_of_descriptors(other),
            };
            lacking.unwrap_or_else(|| OpenError::Registry {
                directory: config.runtime_dir.clone(),
                cause: cause.to_string(),
            })
        }
    }
}

/// What the administrator and the environment let this user have on this node.
fn user_limits(config: &Config) -> Result<UserLimits, OpenError> {
    let uid = rustix::process::geteuid().as_raw();
    let file = UserLimits::load(LIMITS_FILE.as_ref(), uid);
    let file =
        file.map_err(|cause| out_of_descriptors(&cause).unwrap_or(OpenError::UserLimits(cause)))?;
    Ok(file.and(config.user_limits.clone()))
}

/// Meets processes of this node in shared memory; without it packets do, unless it
/// was asked for.
fn share_memory(
    engine: &mut Engine,
    config: &Config,
    registry: &Registry,
    incarnation: u64,
) -> Result<Option<String>, OpenError> {
    let socket = registry.socket(incarnation);
    match engine.open_memory(&socket) {
        Ok(()) => Ok(None),
        Err(cause) if config.links == Links::Shm => Err(OpenError::SharedMemory {
            socket,
            cause: cause.to_string(),
        }),
        Err(cause) => {
            tracing::warn!("same-node traffic goes by packets: {cause}");
            Ok(Some(cause.to_string()))
        }
    }
}
