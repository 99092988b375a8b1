//! The table of loads, exchanged as packets of the membership.

use super::*;
use crate::load::{Figures, Timing};

const NODES: usize = 60;

/// Nodes that exchange tables every 10 to 20 s and have a load of their own.
fn cluster(key: Option<ClusterKey>) -> Cluster {
    let mut cluster = Cluster::with_key(NODES, key);
    for (load, one) in (0..).zip(cluster.nodes.iter_mut().flatten()) {
        let load = Figures {
            load,
            cores: 4,
            speed: 2000,
            ..Figures::default()
        };
        one.load_mut().set_own(cluster.now, load);
        one.load_mut().set_timing(Timing {
            min: Duration::from_secs(10),
            max: Duration::from_secs(20),
            peers: 3,
        });
    }
    cluster.until_agreed(NODES, Duration::from_secs(60));
    cluster
}

/// Number of rows in the smallest and the largest table.
fn rows(cluster: &Cluster) -> (usize, usize) {
    let nodes = cluster.nodes.iter().flatten();
    let counts = nodes.map(|one| one.load().rows(cluster.now).len());
    counts.fold((usize::MAX, 0), |(min, max), count| {
        (min.min(count), max.max(count))
    })
}

#[test]
fn members_with_a_key_soon_know_the_load_of_all_and_forget_the_dead() {
    let mut cluster = cluster(Some(ClusterKey::new([1; dipole_node::KEY_BYTES])));
    cluster.run(Duration::from_secs(100));
    assert_eq!(rows(&cluster), (NODES, NODES));
    for row in cluster.nodes[7]
        .as_ref()
        .expect("up")
        .load()
        .rows(cluster.now)
    {
        let load = f64::from(row.node.0 - 1) / 100.0;
        assert!((row.load - load).abs() < 1e-9, "{row:?}");
    }
    cluster.nodes[3] = None;
    cluster.until_agreed(NODES - 1, Duration::from_secs(60));
    // Packets that name the dead node do not bring its row back.
    cluster.run(Duration::from_secs(60));
    assert_eq!(rows(&cluster), (NODES - 1, NODES - 1));
}

#[test]
fn without_a_key_rows_spread_in_direct_exchanges_only() {
    let mut cluster = cluster(None);
    cluster.run(Duration::from_secs(20));
    let (_, most) = rows(&cluster);
    // A node has exchanged rows with a few others so far, and these pass nothing on.
    assert!(most < NODES, "{most} rows");
    cluster.run(Duration::from_secs(1200));
    assert_eq!(rows(&cluster), (NODES, NODES));
}
