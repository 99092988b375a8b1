//! How the process of an edge is met, and why it would not be.

use std::path::PathBuf;

use dipole_engine::{Destination, Engine, GoneReason};
use dipole_link::shm::{ConnId, ShmError};
use dipole_proto::wire;
use dipole_proto::{ConnectError, Instant, PeerId};

use super::connector::Policy;
use crate::address::Address;
use crate::config::Links;
use crate::error::TargetError;
use crate::registry::Ports;

/// What a process says that has as many peers as it may.
const FULL: GoneReason = GoneReason::Reset(wire::ResetReason::TooManyPeers);
/// What a process says that protects packets in another way.
const OTHER_SECURITY: GoneReason = GoneReason::Reset(wire::ResetReason::Security);
/// Without a hosts file packets prove the node's own key, with one the cluster's.
const OTHER_VIEW: &str = "of its process and this one only one has a hosts file, so they do not \
                          talk by packets; set DIPOLE_HOSTS in both or in none, or let them share \
                          memory (DIPOLE_LINK=auto)";

/// How a process is met.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attempt {
    Memory(ConnId),
    Packets(PeerId),
}

/// Begins to meet a process; `None` if it has gone meanwhile.
pub(super) fn begin(
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
            Some(Err(cause)) => tracing::warn!("endpoint {to} is reached by packets: {cause}"),
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

/// Why it is of no use to look for the process again.
pub(super) fn refusal(
    policy: &Policy,
    target: Address,
    reason: Option<GoneReason>,
    by_packets: bool,
) -> Option<TargetError> {
    match reason? {
        FULL => Some(TargetError::PeerFull { target }),
        OTHER_SECURITY => Some(TargetError::OtherSecurity { target }),
        // One of our node has another view of where the others are.
        GoneReason::Key(_) if by_packets && target.node == policy.node && policy.key.is_none() => {
            Some(TargetError::Unresolved {
                target,
                cause: OTHER_VIEW.to_owned(),
            })
        }
        // No other process will come that is of our cluster.
        GoneReason::Key(mismatch) => Some(TargetError::OtherCluster {
            target,
            mismatch,
            fingerprint: policy.fingerprint(),
        }),
        _ => None,
    }
}
