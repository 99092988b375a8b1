//! A process's node: its link, its place in the registry, its endpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dipole_link::fault::Fault;
use dipole_link::fork::ForkMark;
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{AnyLink, Capture, Class, Link};

use crate::address::{Address, EndpointId, NodeId};
use crate::clock::Clock;
use crate::config::Config;
use crate::drive::{Driver, Until, WaitError};
use crate::endpoint::Endpoint;
use crate::engine::{Departure, Destination, Engine};
use crate::error::{CloseError, OpenError, TargetError};
use crate::registry::{ClaimError, Directory, Ports, Registration, Registry, resolve};
use crate::stats::Stats;

/// A process attached to Dipole. Clones are handles to the same node; when the
/// last handle and endpoint is dropped, it waits up to
/// [`Config::linger`] for acknowledgements and says goodbye.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) driver: Driver,
    pub(crate) config: Config,
    registration: Registration,
    /// Answers other nodes where endpoints of this one are.
    _directory: Option<Directory>,
    fork: ForkMark,
}

impl Node {
    /// Opens the node: binds two UDP ports and enters the registry.
    ///
    /// # Errors
    /// [`OpenError`]: the registry or the sockets cannot be had.
    pub fn open(config: Config) -> Result<Node, OpenError> {
        let registry_error = |cause: &dyn std::fmt::Display| OpenError::Registry {
            directory: config.runtime_dir.clone(),
            cause: cause.to_string(),
        };
        let registry = Registry::open(&config.runtime_dir, config.node)
            .map_err(|cause| registry_error(&cause))?;
        let clock = Clock::new();
        let link = open_link(&config, clock)?;
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
        let engine = Engine::new(link, protocol, incarnation, rand::random());
        let driver = Driver::new(engine, clock, config.spin).map_err(OpenError::Sleep)?;
        let registration = registry
            .register(ports)
            .map_err(|cause| registry_error(&cause))?;
        let directory = match config.hosts.get(config.node) {
            Some(host) if !config.hosts.is_local_only() => Some(
                Directory::start(&registry, host.directory())
                    .map_err(|cause| registry_error(&cause))?,
            ),
            _ => None,
        };
        let fork = ForkMark::new().map_err(OpenError::Sleep)?;
        Ok(Node {
            inner: Arc::new(Inner {
                driver,
                config,
                registration,
                _directory: directory,
                fork,
            }),
        })
    }

    /// This node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.config.node
    }

    /// Opens an endpoint of this node.
    ///
    /// # Errors
    /// [`OpenError::Taken`] names the process that has it.
    pub fn endpoint(&self, id: EndpointId) -> Result<Endpoint, OpenError> {
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        let claim = self
            .inner
            .registration
            .claim(id)
            .map_err(|error| match error {
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
                ClaimError::Registry(cause) => OpenError::Registry {
                    directory: self.inner.config.runtime_dir.clone(),
                    cause: cause.to_string(),
                },
            })?;
        self.inner
            .driver
            .with(|engine, _| engine.open_endpoint(id.0));
        Ok(Endpoint::new(Arc::clone(&self.inner), claim))
    }

    /// Counters at this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.driver.with(|engine, _| Stats {
            traffic: *engine.traffic(),
            protocol: *engine.machine().stats(),
            peers: engine.machine().peers().count(),
            pool_used_bytes: engine.machine().pool_used(),
            free_frames: engine.free_frames(),
            faults: fault_stats(engine.link()),
        })
    }

    /// Peers that have gone since the last call, and why.
    #[must_use]
    pub fn departed(&self) -> Vec<Departure> {
        self.inner.driver.with(|engine, _| engine.take_departures())
    }

    /// Waits until every peer has acknowledged everything sent, and leaves.
    /// Endpoints that still exist keep working.
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

impl Inner {
    /// True in a process that was forked after the node was opened: nothing here
    /// may be used then.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Waits until everything sent has been acknowledged.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), CloseError> {
        let what = |_: &Engine| "acknowledgements before closing".to_string();
        let waited = self.driver.wait(Until::For(timeout), &what, |engine, _| {
            engine.is_acknowledged().then_some(())
        });
        match waited {
            Ok(()) => Ok(()),
            Err(WaitError::TimedOut { waited }) => Err(CloseError::Unacknowledged { waited }),
            Err(WaitError::Broken(cause)) => Err(CloseError::Broken(cause)),
        }
    }

    /// Finds the process that owns an endpoint, and waits until the session with
    /// it is open.
    pub(crate) fn reach(&self, target: Address) -> Result<dipole_proto::PeerId, TargetError> {
        let timeout = self.config.connect_timeout;
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let ports = resolve(
                self.registration.registry(),
                &self.config.hosts,
                target,
                left,
            )
            .map_err(|cause| TargetError::Unresolved {
                target,
                cause: cause.to_string(),
            })?;
            let to = Destination {
                small: ports.small,
                incarnation: ports.incarnation,
            };
            let peer = self
                .driver
                .with(|engine, now| {
                    let peer = engine.connect(now, to);
                    peer.map(|peer| engine.transmit(now).map(|()| peer))
                })
                .map_err(|dipole_proto::ConnectError::TooManyPeers { limit }| {
                    TargetError::TooManyPeers { limit }
                })?
                .map_err(TargetError::Broken)?;
            let left = timeout.saturating_sub(begun.elapsed());
            let what = |_: &Engine| format!("the process of endpoint {target} to answer");
            let opened = self.driver.wait(Until::For(left), &what, |engine, _| {
                match engine.is_open(peer) {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(blocked) => Some(Err(blocked)),
                }
            });
            match opened {
                Ok(Ok(())) => return Ok(peer),
                // Another process took its place since: ask the registry again.
                Ok(Err(_)) if begun.elapsed() < timeout => {}
                Ok(Err(blocked)) => {
                    let reason = match blocked {
                        crate::engine::Blocked::Gone(reason) => reason,
                        _ => None,
                    };
                    return Err(TargetError::PeerGone { target, reason });
                }
                Err(WaitError::TimedOut { .. }) => {
                    return Err(TargetError::TimedOut {
                        target,
                        waited: begun.elapsed(),
                    });
                }
                Err(WaitError::Broken(cause)) => return Err(TargetError::Broken(cause)),
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        if !std::thread::panicking()
            && let Err(error) = self.drain(self.config.linger)
        {
            tracing::warn!("{error}");
        }
        self.driver.with(|engine, now| {
            engine.say_goodbye();
            if let Err(cause) = engine.transmit(now) {
                tracing::warn!("no goodbye was said: {cause}");
            }
        });
    }
}

fn open_link(config: &Config, clock: Clock) -> Result<AnyLink, OpenError> {
    let udp = Udp::bind(config.bind, &UdpOptions::default()).map_err(|cause| OpenError::Link {
        bind: config.bind,
        cause: cause.to_string(),
    })?;
    let mut link = AnyLink::Udp(Box::new(udp));
    if let Some(file) = &config.capture {
        let capture = Capture::create(link, file, clock.since_1970_ns()).map_err(|cause| {
            OpenError::Capture {
                file: file.clone(),
                cause: cause.to_string(),
            }
        })?;
        link = AnyLink::Capture(Box::new(capture));
    }
    if let Some(plan) = &config.fault {
        link = AnyLink::Fault(Box::new(Fault::new(link, plan.clone())));
    }
    Ok(link)
}

fn fault_stats(link: &AnyLink) -> Option<dipole_link::fault::FaultStats> {
    match link {
        AnyLink::Fault(fault) => Some(fault.stats()),
        _ => None,
    }
}
