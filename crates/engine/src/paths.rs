//! Paths to peers: which pairs of addresses carry which traffic. Changes are logged.

use std::fmt;
use std::net::IpAddr;

use dipole_link::{Class, Link};
use dipole_proto::wire::{Address, Trailer};
use dipole_proto::{LaneState, PathChange, PeerId};

use super::Engine;
use crate::address::NodeId;
use crate::net::from_wire;

/// Bytes of the headers of IPv6 and UDP.
const LONGEST_IP_HEADERS: usize = 40 + 8;

/// State of one port of a pair of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// It answers and carries messages.
    Used,
    /// A probe was just sent.
    Asked,
    /// It has never answered and only gets probes.
    NoAnswer,
    /// It has stopped answering and only gets probes.
    Lost,
    /// The peer's address also belongs to this node, so packets would not leave it.
    OwnAddress,
}

/// A pair of addresses of this process and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The local address from which the kernel sends there.
    pub ours: IpAddr,
    /// Address of the peer's interface.
    pub theirs: IpAddr,
    /// State of its port for small packets.
    pub small: Option<PathState>,
    /// State of its port for bulk traffic.
    pub bulk: Option<PathState>,
}

/// All pairs of addresses of this process and one peer on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Node of the peer.
    pub node: NodeId,
    /// Incarnation of the peer.
    pub incarnation: u64,
    /// How packets to and from it are closed.
    pub trailer: Trailer,
    /// Paths in the order of the peer's interfaces.
    pub pairs: Vec<Path>,
}

impl PathState {
    fn of(state: LaneState, asked: bool) -> Option<PathState> {
        Some(match state {
            LaneState::Answers => PathState::Used,
            LaneState::Waiting if asked => PathState::NoAnswer,
            LaneState::Waiting => PathState::Asked,
            LaneState::Silent => PathState::Lost,
            LaneState::OwnAddress => PathState::OwnAddress,
            LaneState::Missing => return None,
        })
    }

    fn why_not(self) -> &'static str {
        match self {
            PathState::Used => "answers",
            PathState::Asked => "asked",
            PathState::NoAnswer => "no answer: not used",
            PathState::Lost => "answers no longer: not used",
            PathState::OwnAddress => "an address of this node too: not used",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <-> {} ", self.ours, self.theirs)?;
        let used = |port: Option<PathState>| port == Some(PathState::Used);
        match (used(self.small), used(self.bulk)) {
            (true, true) => f.write_str("small and bulk"),
            (true, false) => f.write_str("small"),
            (false, true) => f.write_str("bulk"),
            (false, false) => {
                let state = self.small.or(self.bulk).unwrap_or(PathState::Asked);
                f.write_str(state.why_not())
            }
        }
    }
}

impl fmt::Display for Paths {
    /// Formats one line for the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: ", self.node)?;
        for (index, pair) in self.pairs.iter().enumerate() {
            let used = |path: &Path| {
                path.small == Some(PathState::Used) || path.bulk == Some(PathState::Used)
            };
            let before = index.checked_sub(1).map(|before| used(&self.pairs[before]));
            // Unused pairs follow after a semicolon.
            f.write_str(match before {
                None => "",
                Some(before) if before == used(pair) => ", ",
                Some(_) => "; ",
            })?;
            pair.fmt(f)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Number of times that a peer connected or left, or a path changed.
    #[inline]
    pub fn link_changes(&self) -> u64 {
        self.core.peers.changes()
    }

    /// Node and incarnation of every peer in shared memory.
    pub fn sharing_memory(&self) -> Vec<(NodeId, u64)> {
        let machine = &self.core.machine;
        let peers = machine
            .peers()
            .filter(|peer| machine.is_open(*peer) && self.shares_memory(*peer));
        let peers = peers.map(|peer| {
            let known = &self.core.peers;
            (known.node(peer), known.incarnation(peer))
        });
        peers.collect()
    }

    /// The paths to every peer on the network whose session is open.
    #[must_use]
    pub fn paths(&self) -> Vec<Paths> {
        let machine = &self.core.machine;
        let open = machine.peers().filter(|peer| machine.is_open(*peer));
        let by_packets = open.filter(|peer| !self.shares_memory(*peer));
        by_packets.map(|peer| self.paths_to(peer)).collect()
    }

    fn paths_to(&self, id: PeerId) -> Paths {
        let mut pairs: Vec<Path> = Vec::new();
        for lane in self.core.machine.lanes(id) {
            let to = from_wire(lane.to);
            let known = pairs.iter().position(|pair| pair.theirs == to.ip());
            let index = known.unwrap_or_else(|| {
                pairs.push(Path {
                    ours: self.packets.link().source(Class::Small, to).ip(),
                    theirs: to.ip(),
                    small: None,
                    bulk: None,
                });
                pairs.len() - 1
            });
            let state = PathState::of(lane.state, lane.asked);
            let pair = &mut pairs[index];
            *(if lane.bulk {
                &mut pair.bulk
            } else {
                &mut pair.small
            }) = state;
        }
        Paths {
            node: self.core.peers.node(id),
            incarnation: self.core.peers.incarnation(id),
            trailer: self.core.machine.trailer(id),
            pairs,
        }
    }

    #[inline]
    pub(super) fn log_path_changes(&mut self) {
        let changes = self.core.peers.take_path_changes();
        if !changes.is_empty() {
            self.log_all_path_changes(&changes);
        }
    }

    #[cold]
    fn log_all_path_changes(&self, changes: &[(PeerId, PathChange)]) {
        for &(id, change) in changes {
            let paths = self.paths_to(id);
            let lane = match change {
                PathChange::Settled => {
                    tracing::info!("{paths}");
                    continue;
                }
                PathChange::Moved => {
                    tracing::info!(
                        "node {} has other addresses than before: {paths}",
                        paths.node
                    );
                    continue;
                }
                PathChange::PacketBytes { bytes } => {
                    tracing::warn!("packets to node {} now have {bytes} bytes", paths.node);
                    continue;
                }
                PathChange::TooNarrow { bytes } => {
                    tracing::warn!(
                        "packets of {bytes} bytes do not reach node {}, but shorter ones do, so \
                         messages wait; raise the MTU of the devices on the way to at least {} \
                         (`dipole doctor` finds out which length gets through)",
                        paths.node,
                        bytes + LONGEST_IP_HEADERS
                    );
                    continue;
                }
                PathChange::Lost { lane } | PathChange::Restored { lane } => lane,
            };
            let lane = self
                .core
                .machine
                .lanes(id)
                .find(|status| status.lane == lane);
            // The session may have ended since.
            let Some(lane) = lane else { continue };
            let (theirs, class) = (ip(lane.to), if lane.bulk { "bulk" } else { "small" });
            let pair = paths.pairs.iter().find(|pair| pair.theirs == theirs);
            let Some(ours) = pair.map(|pair| pair.ours) else {
                continue;
            };
            match change {
                PathChange::Lost { .. } => {
                    tracing::warn!("{ours} <-> {theirs} has stopped answering ({class}); {paths}")
                }
                _ => tracing::info!("{ours} <-> {theirs} now answers ({class}); {paths}"),
            }
        }
    }
}

fn ip(address: Address) -> IpAddr {
    from_wire(address).ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(network: u8, small: PathState, bulk: PathState) -> Path {
        Path {
            ours: IpAddr::from([10, network, 0, 1]),
            theirs: IpAddr::from([10, network, 0, 2]),
            small: Some(small),
            bulk: Some(bulk),
        }
    }

    #[test]
    fn a_log_line_lists_used_paths_and_why_others_are_not_used() {
        use PathState::{Lost, NoAnswer, OwnAddress, Used};
        let paths = Paths {
            node: NodeId(2),
            incarnation: 1,
            trailer: Trailer::Crc32c,
            pairs: vec![
                pair(0, Used, Used),
                pair(1, Lost, Used),
                pair(2, NoAnswer, NoAnswer),
                pair(3, OwnAddress, OwnAddress),
            ],
        };
        assert_eq!(
            paths.to_string(),
            "node 2: 10.0.0.1 <-> 10.0.0.2 small and bulk, 10.1.0.1 <-> 10.1.0.2 bulk; \
             10.2.0.1 <-> 10.2.0.2 no answer: not used, 10.3.0.1 <-> 10.3.0.2 an address of this \
             node too: not used"
        );
    }
}
