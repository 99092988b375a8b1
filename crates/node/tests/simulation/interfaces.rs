//! The interfaces of nodes, and pairs of addresses between which nothing ever passes.

use dipole_link::sim::{NetworkConfig, PathConfig};

use crate::draw::Draw;
use crate::scenario::{BULK_NETWORK, Place, interface_address};

/// The networks of each node's interfaces, one of which may be lost for good. All nodes are on
/// network 0, and on network 1 if one is lost, in any order.
pub fn interfaces(
    draw: &mut Draw,
    nodes: usize,
    calm_at_ns: u64,
) -> (Vec<Vec<u8>>, Option<(u64, u8)>) {
    match draw.below(10) {
        0..3 => return (vec![vec![0, BULK_NETWORK]; nodes], None),
        3..5 => return (vec![vec![0]; nodes], None),
        _ => {}
    }
    let lost = draw
        .chance(25)
        .then(|| (draw.below(calm_at_ns), u8::from(draw.chance(50))));
    let of_one = |draw: &mut Draw| {
        let mut interfaces = vec![0];
        for network in 1..3 {
            if draw.chance(60) || lost.is_some() && network == 1 {
                interfaces.push(network);
            }
        }
        let turns = draw.node(interfaces.len());
        interfaces.rotate_left(turns);
        interfaces
    };
    ((0..nodes).map(|_| of_one(draw)).collect(), lost)
}

/// Pairs of addresses between which nothing ever passes, some in one direction only. On network 0,
/// and on network 1 if one may be lost, all pairs work.
pub fn hopeless_pairs(
    draw: &mut Draw,
    places: &[Place],
    interfaces: &[Vec<u8>],
    second_too: bool,
    network: &mut NetworkConfig,
) {
    let sound = |one: u8| one == 0 || second_too && one == 1 || one == BULK_NETWORK;
    let share = [0, 0, 30, 100][draw.node(4)];
    let hopeless = PathConfig {
        loss: 1.0,
        ..network.path
    };
    for (from, own) in interfaces.iter().enumerate() {
        let (from, there) = (places[from].node, interfaces.iter().zip(places));
        for (theirs, to) in there.filter(|(_, to)| to.node != from) {
            for (one, other) in own
                .iter()
                .flat_map(|one| theirs.iter().map(move |it| (*one, *it)))
            {
                // Packets routed to a network that the sender is not on may or may not arrive.
                if !(sound(one) && sound(other)) && draw.chance(share) {
                    let pair = (
                        interface_address(from, one),
                        interface_address(to.node, other),
                    );
                    network.paths.insert(pair, hopeless);
                }
            }
        }
    }
}
