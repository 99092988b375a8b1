//! Connects an edge to its target's process, or explains why it cannot.

use std::path::PathBuf;

use dipole_engine::{Destination, Engine, GoneReason};
use dipole_link::shm::{ConnId, ShmError};
use dipole_proto::wire;
use dipole_proto::{ConnectError, Instant, PeerId};

use super::connector::{Lookup, Policy};
use super::{EdgeRef, EdgeTable, Stage};
use crate::address::Address;
use crate::config::Links;
use crate::error::TargetError;
use crate::registry::Ports;

/// The reset sent by a process that has reached its limit of peers.
const PEER_FULL: GoneReason = GoneReason::Reset(wire::ResetReason::TooManyPeers);
/// The reset sent by a process with another security setting.
const OTHER_SECURITY: GoneReason = GoneReason::Reset(wire::ResetReason::Security);
/// Without a hosts file packets use the node's own key, with one the cluster's.
const HOSTS_FILE_MISMATCH: &str = "only one of the two processes has a hosts file, so they do not \
                          exchange packets; set DIPOLE_HOSTS in both or in none, or let them share \
                          memory (DIPOLE_LINK=auto)";

/// An attempt to connect to a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attempt {
    Memory(ConnId),
    Packets(PeerId),
}

impl EdgeTable {
    /// The event that an edge to `to` waits for, for log messages.
    pub(crate) fn awaited(&self, id: EdgeRef, to: Address) -> String {
        let own = self.connector.policy().node;
        let edge = self.get(id);
        match edge.map(|edge| &edge.stage) {
            _ if edge.is_some_and(|edge| edge.shortages.count() > 0) => {
                format!("free descriptors for endpoint {to}; raise `ulimit -n`")
            }
            Some(Stage::Resolving) if to.node == own => {
                format!("a process to open endpoint {to}; none has it")
            }
            Some(Stage::Resolving) => {
                format!(
                    "node {} to report a process that has endpoint {to}",
                    to.node
                )
            }
            _ => format!("the process of endpoint {to} to answer"),
        }
    }

    /// Looks for the target's process again, because another one has taken its place, or memory cannot
    /// be shared for want of descriptors.
    pub(super) fn look_up_again(
        &mut self,
        (id, to): (EdgeRef, Address),
        reason: Option<GoneReason>,
        now: Instant,
    ) {
        let Some(edge) = self.get_mut(id) else {
            return;
        };
        edge.stage = Stage::Resolving;
        edge.shortages.add(to, reason);
        let lookup = Lookup::retry(id, to, edge.shortages.count());
        self.look_up(lookup, now);
    }
}

/// The latest attempts of an edge that could not share memory for want of descriptors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortages {
    last: Option<GoneReason>,
    count: u32,
}

impl Shortages {
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Counts an attempt that ended for this reason. Another reason than a shortage ends the count.
    fn add(&mut self, target: Address, reason: Option<GoneReason>) {
        let Some(cause) = reason.filter(is_shortage) else {
            *self = Shortages::default();
            return;
        };
        if self.count == 0 {
            tracing::warn!("cannot share memory with the process of endpoint {target}: {cause}");
        }
        self.last = Some(cause);
        self.count = self.count.saturating_add(1);
    }

    /// The error of an edge that still lacks descriptors when its time is over.
    pub(super) fn failure(&self, target: Address) -> Option<TargetError> {
        let cause = self.last?.to_string();
        Some(TargetError::NoSharedMemory { target, cause })
    }
}

fn is_shortage(reason: &GoneReason) -> bool {
    matches!(
        reason,
        GoneReason::NoDescriptors | GoneReason::NoDescriptorsAtPeer
    )
}

/// The error of an edge whose target's process was gone at the last attempt.
pub(super) fn last_failure(target: Address, reason: Option<GoneReason>) -> TargetError {
    match reason.filter(is_shortage) {
        Some(cause) => {
            let cause = cause.to_string();
            TargetError::NoSharedMemory { target, cause }
        }
        None => TargetError::PeerGone { target, reason },
    }
}

/// Starts connecting to a process; `None` if it has gone meanwhile.
pub(super) fn connect(
    engine: &mut Engine,
    policy: &Policy,
    to: Address,
    ports: Ports,
    socket: Option<PathBuf>,
    now: Instant,
) -> Result<Option<Attempt>, TargetError> {
    let no_memory = |cause: String| TargetError::NoSharedMemory { target: to, cause };
    if let Some(socket) = socket {
        match engine.connect_memory(&socket, ports.incarnation) {
            Some(Ok(connection)) => return Ok(Some(Attempt::Memory(connection))),
            Some(Err(cause @ ShmError::Foreign { .. })) => {
                return Err(TargetError::OtherUser {
                    target: to,
                    cause: cause.to_string(),
                });
            }
            Some(Err(ShmError::TooMany { limit })) => {
                let limit = u32::try_from(limit).unwrap_or(u32::MAX);
                return Err(TargetError::TooManyPeers { limit });
            }
            Some(Err(_)) if !socket.exists() => return Ok(None),
            Some(Err(cause)) if policy.links == Links::Shm => {
                return Err(no_memory(cause.to_string()));
            }
            Some(Err(cause)) => {
                tracing::warn!("messages to endpoint {to} use packets, not shared memory: {cause}")
            }
            None => {}
        }
    } else if policy.links == Links::Shm {
        let cause = "its process is on another node, or offers none";
        return Err(no_memory(cause.into()));
    }
    let destination = Destination {
        small: ports.small,
        incarnation: ports.incarnation,
    };
    let peer = engine
        .connect(now, destination)
        .map_err(|ConnectError::TooManyPeers { limit }| TargetError::TooManyPeers { limit })?;
    engine.transmit(now).map_err(TargetError::Broken)?;
    Ok(Some(Attempt::Packets(peer)))
}

/// Why another lookup would not help, if so.
pub(super) fn permanent_failure(
    policy: &Policy,
    target: Address,
    reason: Option<GoneReason>,
    by_packets: bool,
) -> Option<TargetError> {
    match reason? {
        PEER_FULL => Some(TargetError::PeerFull { target }),
        OTHER_SECURITY => Some(TargetError::OtherSecurity { target }),
        // A process of this node that has another hosts file than this one, or none.
        GoneReason::Key(_) if by_packets && target.node == policy.node && policy.key.is_none() => {
            Some(TargetError::Unresolved {
                target,
                cause: HOSTS_FILE_MISMATCH.to_owned(),
            })
        }
        // Another process at this address would not belong to our cluster either.
        GoneReason::Key(mismatch) => Some(TargetError::OtherCluster {
            target,
            mismatch,
            fingerprint: policy.fingerprint(),
        }),
        _ => None,
    }
}
