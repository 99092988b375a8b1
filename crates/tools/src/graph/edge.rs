//! An edge between two endpoints of a graph.

use std::collections::BTreeMap;

use dipole_node::Address;

/// An edge from one endpoint to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: Address,
    pub(super) to: Address,
}

/// The process of each endpoint.
pub(super) type Owners = BTreeMap<Address, usize>;
