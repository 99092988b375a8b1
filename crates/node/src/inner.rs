//! What the handles of one node share: its engine, its place in the registry, and
//! the way to other processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipole_link::fork::ForkMark;
use dipole_link::shm::ShmError;
use dipole_proto::wire::ResetReason;
use dipole_proto::{EdgeError, EdgeId, PeerId};

use crate::address::{Address, EndpointId};
use crate::config::{Config, Links};
use crate::control::Control;
use crate::driver::{Driver, Until, WaitError, WaitKey};
use crate::engine::{Blocked, Destination, Engine};
use crate::error::{CloseError, GoneReason, TargetError};
use crate::key::ClusterKey;
use crate::progress::ProgressThread;
use crate::registry::{Directory, Ports, Registration, ResolveError, resolve};

/// What a process says that has as many peers as it may.
const FULL: GoneReason = GoneReason::Reset(ResetReason::TooManyPeers);
/// Without a hosts file packets prove the node's own key, with one the cluster's.
const OTHER_VIEW: &str = "of its process and this one only one has a hosts file, so they do not \
                          talk by packets; set DIPOLE_HOSTS in both or in none, or let them share \
                          memory (DIPOLE_LINK=auto)";

#[derive(Debug)]
pub(crate) struct Inner {
    /// Shared with the progress and the control thread.
    pub(crate) driver: Arc<Driver<Engine>>,
    pub(crate) config: Config,
    pub(crate) registration: Registration,
    /// Answers other nodes where endpoints of this one are.
    pub(crate) _directory: Option<Directory>,
    pub(crate) fork: ForkMark,
    pub(crate) progress: ProgressThread,
    pub(crate) control: Control,
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
        let keys = [WaitKey::Frame, WaitKey::AnyPeer, WaitKey::RingSpace];
        let waited = self
            .driver
            .wait(Until::For(timeout), &keys, &what, |engine, _| {
                engine.is_acknowledged().then_some(())
            });
        match waited {
            Ok(()) => Ok(()),
            Err(WaitError::TimedOut { waited }) => Err(CloseError::Unacknowledged { waited }),
            Err(WaitError::Broken(cause)) => Err(CloseError::Broken(cause)),
        }
    }

    /// Finds the process that owns an endpoint, waits until the way to it is open, and
    /// makes the edge from `source`.
    pub(crate) fn reach(&self, source: EndpointId, target: Address) -> Result<EdgeId, TargetError> {
        let deadline = Deadline::new(self.config.connect_timeout);
        loop {
            let ports = resolve(
                self.registration.registry(),
                &self.config.hosts,
                target,
                deadline.left(),
            )
            .map_err(|cause| match cause {
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
                    cause: other.to_string(),
                },
            })?;
            let reached = match self.socket_of(target, ports.incarnation) {
                Some(socket) => self.reach_locally(source, target, &socket, ports, &deadline)?,
                None if self.config.links == Links::Shm => {
                    return Err(TargetError::NoSharedMemory {
                        target,
                        cause: "its process is on another node, or offers none".into(),
                    });
                }
                None => self.reach_by_packets(source, target, ports, &deadline)?,
            };
            if let Some(edge) = reached {
                return Ok(edge);
            }
            // Another process took its place since: ask the registry again.
        }
    }

    /// Where to meet the owner of an endpoint in shared memory, if it is of this node
    /// and offers it.
    fn socket_of(&self, target: Address, incarnation: u64) -> Option<PathBuf> {
        if target.node != self.config.node || !self.config.may_share_memory() {
            return None;
        }
        let socket = self.registration.registry().socket(incarnation);
        socket.exists().then_some(socket)
    }

    /// None if the process has gone meanwhile.
    fn reach_locally(
        &self,
        source: EndpointId,
        target: Address,
        socket: &Path,
        ports: Ports,
        deadline: &Deadline,
    ) -> Result<Option<EdgeId>, TargetError> {
        let begun = self
            .driver
            .with(|engine, _| engine.connect_memory(socket, ports.incarnation));
        let conn = match begun {
            Some(Ok(conn)) => conn,
            Some(Err(cause @ ShmError::Foreign { .. })) => {
                return Err(TargetError::OtherUser {
                    target,
                    cause: cause.to_string(),
                });
            }
            Some(Err(ShmError::TooMany { limit })) => {
                let limit = u32::try_from(limit).unwrap_or(u32::MAX);
                return Err(TargetError::TooManyPeers { limit });
            }
            Some(Err(_)) if !socket.exists() && !deadline.is_over() => return Ok(None),
            Some(Err(cause)) if self.config.links == Links::Shm => {
                return Err(TargetError::NoSharedMemory {
                    target,
                    cause: cause.to_string(),
                });
            }
            Some(Err(cause)) => {
                tracing::warn!("endpoint {target} is reached by packets: {cause}");
                return self.reach_by_packets(source, target, ports, deadline);
            }
            None => return self.reach_by_packets(source, target, ports, deadline),
        };
        let open = |engine: &mut Engine| engine.memory_peer(conn);
        let peer = match self.wait_open(target, deadline, WaitKey::AnyPeer, open)? {
            Ok(peer) => peer,
            Err(Some(FULL)) => return Err(TargetError::PeerFull { target }),
            Err(_) if !deadline.is_over() => return Ok(None),
            Err(reason) => return Err(TargetError::PeerGone { target, reason }),
        };
        self.open_edge(peer, source, target)
    }

    /// None if the process has gone meanwhile.
    fn reach_by_packets(
        &self,
        source: EndpointId,
        target: Address,
        ports: Ports,
        deadline: &Deadline,
    ) -> Result<Option<EdgeId>, TargetError> {
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
        let own_key = self.config.key.is_none();
        match self.wait_open(target, deadline, WaitKey::Peer(peer), |engine| {
            Ok(engine.is_open(peer)?.then_some(peer))
        })? {
            Ok(_) => {}
            Err(Some(FULL)) => return Err(TargetError::PeerFull { target }),
            // One of our node has another view of where the others are.
            Err(Some(GoneReason::Key(_))) if target.node == self.config.node && own_key => {
                return Err(TargetError::Unresolved {
                    target,
                    cause: OTHER_VIEW.to_owned(),
                });
            }
            // No other process will come that is of our cluster.
            Err(Some(GoneReason::Key(mismatch))) => {
                return Err(TargetError::OtherCluster {
                    target,
                    mismatch,
                    fingerprint: self.config.key.as_ref().map(ClusterKey::fingerprint),
                });
            }
            Err(_) if !deadline.is_over() => return Ok(None),
            Err(reason) => return Err(TargetError::PeerGone { target, reason }),
        }
        self.open_edge(peer, source, target)
    }

    /// None if the process has gone meanwhile.
    fn open_edge(
        &self,
        peer: PeerId,
        source: EndpointId,
        target: Address,
    ) -> Result<Option<EdgeId>, TargetError> {
        let edge = self
            .driver
            .with(|engine, _| engine.edge(peer, source.0, target.endpoint.0));
        match edge {
            Ok(edge) => Ok(Some(edge)),
            Err(EdgeError::TooMany { limit }) => Err(TargetError::TooManyEdges { target, limit }),
            Err(EdgeError::Gone) => Ok(None),
        }
    }

    /// Waits until `is_open`; the inner error says why it never will be.
    fn wait_open(
        &self,
        target: Address,
        deadline: &Deadline,
        key: WaitKey,
        mut is_open: impl FnMut(&mut Engine) -> Result<Option<PeerId>, Blocked>,
    ) -> Result<Result<PeerId, Option<GoneReason>>, TargetError> {
        let what = |_: &Engine| format!("the process of endpoint {target} to answer");
        let until = Until::For(deadline.left());
        let opened = self
            .driver
            .wait(until, &[key], &what, |engine, _| match is_open(engine) {
                Ok(open) => open.map(Ok),
                Err(Blocked::Gone(reason)) => Some(Err(reason)),
                Err(_) => Some(Err(None)),
            });
        opened.map_err(|error| match error {
            WaitError::TimedOut { .. } => TargetError::TimedOut {
                target,
                waited: deadline.begun.elapsed(),
            },
            WaitError::Broken(cause) => TargetError::Broken(cause),
        })
    }
}

/// Until when a target is looked for.
struct Deadline {
    begun: Instant,
    timeout: Duration,
}

impl Deadline {
    fn new(timeout: Duration) -> Deadline {
        Deadline {
            begun: Instant::now(),
            timeout,
        }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.begun.elapsed())
    }

    fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.progress.stop(&self.driver);
        if !std::thread::panicking()
            && let Err(error) = self.drain(self.config.linger)
        {
            tracing::warn!("{error}");
        }
        self.control.stop();
        self.driver.with(|engine, now| {
            engine.say_goodbye();
            if let Err(cause) = engine.transmit(now) {
                tracing::warn!("no goodbye was said: {cause}");
            }
        });
    }
}
