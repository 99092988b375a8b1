//! The list of members, and one member's edges to the others.

use std::sync::{Arc, Mutex, PoisonError};

use dipole_proto::wire::GroupEnding;

use super::shape::Placement;
use dipole_node::Address;
use dipole_node::Edge;
use dipole_node::SendError;

/// The list of members of a group; the same for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    /// Grows with each change; 0 for a group's first list.
    pub generation: u64,
    /// The members' ports, in rank order. The group opens them.
    pub addresses: Vec<Address>,
}

impl Members {
    /// The first list of a group.
    #[must_use]
    pub fn first(addresses: impl Into<Vec<Address>>) -> Members {
        Members {
            generation: 0,
            addresses: addresses.into(),
        }
    }

    /// The tree along which `root` broadcasts, as pairs of ranks: sender and receiver. Each node
    /// gets one copy, at the first of its members, which passes it on there. Empty if there is no
    /// such rank.
    #[must_use]
    pub fn tree(&self, root: usize) -> Vec<(usize, usize)> {
        if root >= self.addresses.len() {
            return Vec::new();
        }
        let placement = self.placement();
        let ranks = 0..self.addresses.len();
        let pairs = ranks.filter_map(|rank| Some((placement.parent(rank, root)?, rank)));
        pairs.collect()
    }

    fn placement(&self) -> Placement {
        Placement::new(self.addresses.iter().map(|address| address.node))
    }

    pub(super) fn to_ending(&self) -> GroupEnding {
        GroupEnding::Other {
            generation: self.generation,
            members: self.pairs(),
        }
    }

    /// Node and endpoint numbers.
    pub(super) fn pairs(&self) -> Vec<(u32, u32)> {
        let pairs = self.addresses.iter();
        pairs.map(|it| (it.node.0, it.endpoint.0)).collect()
    }

    pub(super) fn from_pairs(generation: u64, pairs: &[(u32, u32)]) -> Members {
        let addresses = pairs.iter().map(|(node, id)| Address::new(*node, *id));
        Members {
            generation,
            addresses: addresses.collect(),
        }
    }
}

/// The members as one of them sees them, and its edges to the others, which are opened on first
/// use.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) members: Members,
    /// Digest that identifies the list in messages.
    pub(super) list: u64,
    pub(super) rank: usize,
    pub(super) placement: Placement,
    edges: Mutex<Vec<Option<Arc<Edge>>>>,
}

impl Roster {
    pub(super) fn new(members: Members, rank: usize) -> Roster {
        let edges = vec![const { None }; members.addresses.len()];
        Roster {
            list: digest(&members.addresses),
            placement: members.placement(),
            members,
            rank,
            edges: Mutex::new(edges),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.members.addresses.len()
    }

    pub(super) fn own_rank(&self) -> u32 {
        u32::try_from(self.rank).expect("fewer members than endpoints")
    }

    pub(super) fn address(&self, rank: usize) -> Address {
        self.members.addresses[rank]
    }

    /// The rank with this address; `likely` is tried first.
    pub(super) fn rank_of(&self, address: Address, likely: u32) -> Option<usize> {
        let addresses = &self.members.addresses;
        if addresses.get(likely as usize) == Some(&address) {
            return Some(likely as usize);
        }
        addresses.iter().position(|member| *member == address)
    }

    /// The edge to a rank; `open` creates it if necessary.
    pub(super) fn edge(
        &self,
        rank: usize,
        open: impl FnOnce(Address) -> Result<Edge, SendError>,
    ) -> Result<Arc<Edge>, SendError> {
        let mut edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(edge) = &edges[rank] {
            return Ok(Arc::clone(edge));
        }
        let edge = Arc::new(open(self.address(rank))?);
        edges[rank] = Some(Arc::clone(&edge));
        Ok(edge)
    }

    /// Drops an edge, so that the next use opens a new one.
    pub(super) fn forget_edge(&self, rank: usize) {
        let mut edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        edges[rank] = None;
    }

    /// Returns all open edges.
    pub(super) fn edges(&self) -> Vec<Arc<Edge>> {
        let edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        edges.iter().flatten().cloned().collect()
    }
}

/// FNV-1a hash of the list, which is the same in every process.
fn digest(addresses: &[Address]) -> u64 {
    let numbers = addresses.iter().flat_map(|it| [it.node.0, it.endpoint.0]);
    let bytes = numbers.flat_map(u32::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_with_different_members_or_order_have_different_digests() {
        let list = |ids: &[u32]| {
            let addresses = ids.iter().map(|id| Address::new(1, *id));
            digest(&addresses.collect::<Vec<_>>())
        };
        let digests = [list(&[1, 2, 3]), list(&[1, 3, 2]), list(&[1, 2]), list(&[])];
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[at + 1..].contains(digest));
        }
    }
}
