//! Hosts with an edge between them.

use dipole_proto::{Config, EdgeId};

use super::Wire;

/// Two hosts with a session, and an edge from endpoint 1 of the first to 7 of the second.
pub fn connected(seed: u64, config: &Config) -> (Wire, EdgeId) {
    connect(Wire::new(seed, 2, config))
}

/// Opens a session between the first two hosts, and an edge from endpoint 1 of the first to 7 of the
/// second.
pub fn connect(mut wire: Wire) -> (Wire, EdgeId) {
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect(0, 1);
    assert!(wire.run(1_000_000_000, |wire| wire.hosts[0].machine.is_open(peer)));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    (wire, edge)
}
