//! A process's node: its links, its registry entry, and its endpoints.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipole_link::fork::ForkMark;
use dipole_link::{Class, Link};

use crate::Message;
use crate::address::{Address, EndpointId, NodeId};
use crate::completion::{CompletionCounter, CompletionQueue};
use crate::config::{Config, Links};
use crate::control::Control;
use crate::edges::{Connector, EdgeTable, Policy};
use crate::endpoint::Endpoint;
use crate::error::{CloseError, OpenError, out_of_descriptors};
use crate::inner::Inner;
use crate::landed::Landed;
use crate::layer::LayerCounter;
use crate::limits::{LIMITS_FILE, UserLimits};
use crate::links::{AddressFollower, AddressPublisher, open_link};
use crate::port::{ActivePort, PortContext};
use crate::process::ProcessState;
use crate::profiles::Profiles;
use crate::progress::ProgressThread;
use crate::registry::{ClaimError, Directory, Ports, Registry, RegistryError};
use crate::slots::Slots;
use crate::stats::Stats;
use crate::trace::WaitTrace;
use dipole_driver::Clock;
use dipole_driver::Driver;
use dipole_engine::{Departure, Engine, Paths};
use dipole_model::Choices;

/// Attempts to find a free ephemeral endpoint number; most numbers are free.
const EPHEMERAL_ATTEMPTS: u32 = 64;

/// A process attached to Dipole. Clones are handles to the same node. When the last handle and
/// endpoint is dropped, it waits up to [`Config::linger`] for acknowledgements and disconnects.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

impl Node {
    /// Opens the node: binds two UDP ports and registers the process.
    ///
    /// # Errors
    /// [`OpenError`]: the registry or the sockets are not available, or the user has reached the
    /// limit of processes on this node.
    pub fn open(config: Config) -> Result<Node, OpenError> {
        let failed = |cause| registry_error(&config, cause);
        let registry = Registry::open(&config.runtime_dir, config.node)
            .map_err(failed)?
            .with_key(config.key.as_ref())
            .with_limits(config.max_endpoints, user_limits(&config)?);
        let key = match &config.key {
            // Only processes of this user on this node may connect.
            None if config.hosts.is_local_only() => Some(registry.own_key().map_err(failed)?),
            known => known.clone(),
        };
        let clock = Clock::new();
        let (link, mut choice) = open_link(&config, clock)?;
        let caps = link.caps();
        let incarnation = rand::random::<u64>().max(1);
        let ports = Ports {
            small: link.local(Class::Small),
            bulk: link.local(Class::Bulk),
            incarnation,
        };
        let mut protocol = config.protocol.clone();
        protocol.node = config.node.0;
        protocol.packet_bytes = caps.max_frame_bytes;
        let packets = if link.bpf_stats().is_some() {
            "bpf"
        } else {
            "udp"
        };
        let mut engine = Engine::new(link, protocol, incarnation, rand::random(), key.as_ref());
        crate::record::start(&mut engine, clock);
        let mut edges = EdgeTable::new(Connector::new(Policy::new(&config, &registry)));
        if let Some(plan) = &config.fault {
            engine.inject(plan);
            edges.inject(plan);
        }
        let registration = registry.register(ports).map_err(failed)?;
        if config.may_share_memory() {
            choice.memory = share_memory(&mut engine, &config, &registry, incarnation)?;
        }
        let profiles = Profiles::open(config.profile_dir.as_deref(), packets);
        engine.apply_profile(profiles.choices(true), profiles.choices(false));
        engine.allow_exports().map_err(OpenError::Sleep)?;
        let state = ProcessState::new(engine, edges).map_err(OpenError::Sleep)?;
        let driver = Driver::new(state, clock, config.spin).map_err(OpenError::Sleep)?;
        let driver = Arc::new(driver);
        settle_answers(&driver);
        let directory = match config.hosts.get(config.node) {
            Some(host) if !config.hosts.is_local_only() => Some(Arc::new(
                Directory::start(&registry, host.directories()).map_err(failed)?,
            )),
            _ => None,
        };
        let progress = Arc::new(ProgressThread::default());
        let control = Control::start(&registry, &config, incarnation, choice, &driver, &progress)
            .map_err(OpenError::Sleep)?;
        let ports = Arc::new(Mutex::new(ports));
        let publisher = AddressPublisher {
            registration: registration.clone(),
            directory: directory.clone(),
            ports: Arc::clone(&ports),
        };
        let follower = AddressFollower::start_if_needed(&driver, &config, publisher)
            .map_err(OpenError::Sleep)?;
        let fork = ForkMark::new().map_err(OpenError::Sleep)?;
        Ok(Node {
            inner: Arc::new(Inner {
                driver,
                trace: WaitTrace::open(&config),
                config,
                registration,
                ports,
                _directory: directory,
                fork,
                progress,
                control,
                follower,
                profiles,
            }),
        })
    }

    /// Returns the settings for messages to processes of this node (`is_local`), or of other nodes,
    /// that `dipole calibrate` has found; the defaults if it has not run.
    #[must_use]
    pub fn choices(&self, is_local: bool) -> Choices {
        self.inner.profiles.choices(is_local)
    }

    /// Returns the node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.config.node
    }

    /// This process's ports, for peers that do not use a directory: [`Endpoint::edge_at`].
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.inner.ports()
    }

    /// True if waits of this process are recorded: [`Recordings::trace_dir`](crate::Recordings).
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.inner.trace.is_some()
    }

    /// A counter of the layer above, which tools show under this name.
    #[must_use]
    pub fn layer_counter(&self, name: &'static str) -> LayerCounter {
        self.inner
            .driver
            .with_last(|state, _| state.layer.named(name))
    }

    /// Opens an endpoint of this node.
    ///
    /// # Errors
    /// [`OpenError::Taken`] names the process that owns it. [`OpenError::Limit`]: this process or
    /// its user has reached its limit.
    pub fn endpoint(&self, id: EndpointId) -> Result<Endpoint, OpenError> {
        if id == EndpointId::ANY {
            return self.ephemeral_endpoint();
        }
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        // A peer that finds it in the registry may send at once.
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
        if let Some(trace) = &self.inner.trace {
            trace.add_endpoint(Address {
                node: self.id(),
                endpoint: id,
            });
        }
        Ok(Endpoint::new(Arc::clone(&self.inner), claim))
    }

    /// Opens an endpoint whose messages are passed to `handler`: see [`ActivePort`].
    ///
    /// # Errors
    /// The errors of [`endpoint`](Self::endpoint); [`OpenError::Sleep`] if no thread can start.
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

    /// Opens an endpoint whose messages land in `slots` and are then passed to `handler`.
    ///
    /// A message is stored in a free slot as it arrives; the handler runs once for it. A slot is
    /// free again when its [`SlotMessage`](crate::SlotMessage) is dropped. While none is free,
    /// messages wait in the endpoint's token buffer pool and the credit of their senders is used
    /// up, so senders wait; none is lost. A message that is longer than a slot is passed to the
    /// handler outside the slots.
    ///
    /// # Errors
    /// The errors of [`open_port`](Self::open_port).
    ///
    /// # Source
    /// The active ports of GAMMA §2, whose receiver names a handler and a destination buffer.
    pub fn open_port_into(
        &self,
        id: EndpointId,
        slots: Slots,
        handler: impl FnMut(&PortContext, Landed) + Send + 'static,
    ) -> Result<ActivePort, OpenError> {
        let endpoint = self.endpoint(id)?;
        let started = self.inner.progress.start_both(&self.inner.driver);
        started.map_err(OpenError::Sleep)?;
        Ok(ActivePort::with_slots(
            &self.inner,
            endpoint,
            slots,
            handler,
        ))
    }

    /// Opens an endpoint with a free number from [`EndpointId::EPHEMERAL`].
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

    /// Starts the thread that answers peers while no thread of the program makes calls. Edges,
    /// regions, ports and exported endpoints start it, too.
    ///
    /// # Errors
    /// [`OpenError::Sleep`] if no thread can start; [`OpenError::Forked`].
    pub fn start_progress(&self) -> Result<(), OpenError> {
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        self.inner.ensure_progress().map_err(OpenError::Sleep)
    }

    /// Creates a completion queue for endpoints and edges of this node.
    #[must_use]
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue::new(&self.inner)
    }

    /// Creates a completion counter for edges of this node.
    #[must_use]
    pub fn completion_counter(&self) -> CompletionCounter {
        CompletionCounter::new(&self.inner)
    }

    /// Returns the current counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.driver.with(|state, _| state.stats())
    }

    /// The paths to each peer on the network: which address pairs carry small packets and bulk
    /// traffic, and which are not used (`docs/design/protocol.md` §5.3).
    #[must_use]
    pub fn paths(&self) -> Vec<Paths> {
        self.inner.driver.with(|state, _| state.engine.paths())
    }

    /// Returns the peers that have gone since the last call, oldest first, and why. At most the
    /// latest [`MAX_DEPARTURES`](dipole_engine::MAX_DEPARTURES) are remembered.
    #[must_use]
    pub fn take_departures(&self) -> Vec<Departure> {
        self.inner
            .driver
            .with(|state, _| state.engine.take_departures())
    }

    /// Disconnects from all peers without waiting, for a process that is about to exit without
    /// dropping its node, for example on a signal. Unacknowledged messages may be lost, and later
    /// ones need not arrive.
    pub fn send_goodbye(&self) {
        if !self.inner.is_forked() {
            self.inner.send_goodbye();
        }
    }

    /// Waits until all peers have acknowledged everything, then leaves. Messages in memory shared
    /// with a process of this node stay there for it; call [`drain`](crate::Endpoint::drain) first
    /// to wait until they have been read. Remaining endpoints keep working.
    ///
    /// # Errors
    /// [`CloseError::Unacknowledged`] after `linger`.
    pub fn close(self, linger: Duration) -> Result<(), CloseError> {
        if self.inner.is_forked() {
            return Err(CloseError::Forked);
        }
        let drained = self.inner.drain(linger);
        if let Some(trace) = &self.inner.trace {
            trace.close();
        }
        drained
    }
}

/// Passes the connector's results to the edges that wait for them.
fn settle_answers(driver: &Arc<Driver<ProcessState>>) {
    let answered = Arc::downgrade(driver);
    driver.with_last(|state, _| {
        state.edges.set_callback(move |id, answer| {
            if let Some(driver) = answered.upgrade() {
                driver.with(|state, now| {
                    let (engine, edges, _) = state.parts();
                    edges.on_resolved(engine, id, answer, now);
                });
            }
        });
    });
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

/// This user's limits on this node, from the administrator's file and the environment.
fn user_limits(config: &Config) -> Result<UserLimits, OpenError> {
    let uid = rustix::process::geteuid().as_raw();
    let file = UserLimits::load(LIMITS_FILE.as_ref(), uid);
    let file =
        file.map_err(|cause| out_of_descriptors(&cause).unwrap_or(OpenError::UserLimits(cause)))?;
    Ok(file.and(config.user_limits.clone()))
}

/// Sets up shared memory with processes of this node. If that fails, packets are used instead,
/// unless shared memory was requested explicitly.
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
            tracing::warn!("same-node traffic uses packets: {cause}");
            Ok(Some(cause.to_string()))
        }
    }
}
