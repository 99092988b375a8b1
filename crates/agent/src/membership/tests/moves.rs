//! Nodes that come back at other addresses, and nodes with the number of another.

use super::*;

impl Cluster {
    /// The address at which each live node knows another, if they agree.
    fn known_at(&self, node: u32) -> Option<SocketAddr> {
        let others = self.nodes.iter().flatten();
        let others = others.filter(|other| other.own().node != node);
        let known: BTreeSet<_> = others
            .map(|other| Some(other.member(node)?.facts.directories()[0]))
            .collect();
        match known.len() {
            1 => known.first().copied().flatten(),
            _ => None,
        }
    }
}

/// Time in which a node that has moved must be known to all of so many nodes.
fn soon(nodes: usize) -> Duration {
    // Few agents respond to an announcement; the others get the news from them.
    Duration::from_millis(if nodes <= 4 { 1000 } else { 2000 })
}

#[test]
fn a_node_that_comes_back_at_another_address_is_found_soon() {
    for nodes in [3, 12] {
        let mut cluster = Cluster::that_find_each_other(nodes);
        cluster.until_agreed(nodes, Duration::from_secs(60));
        cluster.nodes.push(None);
        cluster.announcers.push(None);
        cluster.sent.push(0);
        cluster.run(Duration::from_secs(100));
        (cluster.nodes[1], cluster.announcers[1]) = (None, None);
        cluster.appear_as(2, nodes, 2);
        cluster.run(soon(nodes));
        assert_eq!(cluster.known_at(2), Some(address(nodes)), "{nodes} nodes");
        cluster.run(Duration::from_secs(30));
        assert_eq!(cluster.known_at(2), Some(address(nodes)), "{nodes} nodes");
        cluster.until_agreed(nodes, Duration::from_secs(1));
    }
}

#[test]
fn nodes_that_swap_addresses_are_found_soon() {
    for nodes in [3, 12] {
        let mut cluster = Cluster::that_find_each_other(nodes);
        cluster.until_agreed(nodes, Duration::from_secs(60));
        cluster.run(Duration::from_secs(100));
        for slot in [0, 1] {
            (cluster.nodes[slot], cluster.announcers[slot]) = (None, None);
        }
        cluster.appear_as(2, 0, 2);
        cluster.appear_as(1, 1, 2);
        cluster.run(soon(nodes));
        for (node, slot) in [(2, 0), (1, 1)] {
            assert_eq!(cluster.known_at(node), Some(address(slot)), "{nodes} nodes");
        }
        cluster.run(Duration::from_secs(30));
        cluster.until_agreed(nodes, Duration::from_secs(1));
    }
}

#[test]
fn a_node_with_the_number_of_one_that_runs_does_not_replace_it() {
    for junk in [0, 50] {
        let mut cluster = Cluster::that_find_each_other(5);
        cluster.until_agreed(5, Duration::from_secs(60));
        cluster.nodes.push(None);
        cluster.announcers.push(None);
        cluster.sent.push(0);
        // Some packets to the well-known ports are lost.
        cluster.junk = junk;
        for round in 0..10 {
            cluster.appear_as(2, 5, 2 + round);
            for _ in 0..40 {
                cluster.run(Duration::from_millis(100));
                assert_eq!(cluster.known_at(2), Some(address(1)), "round {round}");
            }
        }
        assert!(cluster.nodes[5].is_none(), "it must stop");
        let restarted = |event: &MembershipEvent| matches!(event, MembershipEvent::Restarted(_));
        for node in cluster.nodes.iter_mut().flatten() {
            assert!(!node.take_events().iter().any(restarted));
        }
    }
}
