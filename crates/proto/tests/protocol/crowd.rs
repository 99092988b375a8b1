//! A full table of peers: which process is refused, which peer is found dead, which one stays.

use crate::pair::Wire;
use dipole_proto::wire::ResetReason;
use dipole_proto::{Config, DropReason, EdgeId, GoneReason, PeerId};

const SECOND: u64 = 1_000_000_000;

fn with_room_for(peers: u32) -> Config {
    Config {
        max_peers: peers,
        frames: 16,
        ..Config::default()
    }
}

/// Disconnects a host: it neither receives nor sends anything.
fn kill(wire: &mut Wire, host: usize) {
    let peers: Vec<PeerId> = wire.hosts[host].machine.peers().collect();
    for peer in peers {
        wire.hosts[host].machine.give_up(peer);
    }
    wire.hosts[host].home.ip[15] = 0;
}

/// The clients open sessions with the first host, one after the other.
fn join(wire: &mut Wire, clients: std::ops::RangeInclusive<usize>) -> Vec<EdgeId> {
    wire.hosts[0].machine.open_endpoint(7);
    let join = |client: usize| {
        let peer = wire.connect(client, 0);
        assert!(wire.run(SECOND, |wire| wire.hosts[client].machine.is_open(peer)));
        let edge = wire.hosts[client].machine.edge(peer, 1, 7);
        edge.expect("open")
    };
    clients.map(join).collect()
}

#[test]
fn dead_idle_peers_make_room_for_a_new_one() {
    let mut wire = Wire::new(1, 102, &with_room_for(100));
    join(&mut wire, 1..=100);
    for client in 1..=100 {
        kill(&mut wire, client);
    }
    wire.run(10 * SECOND, |_| false);
    assert_eq!(
        wire.hosts[0].machine.peers().count(),
        100,
        "no place was needed"
    );
    let begun = wire.now;
    let peer = wire.connect(101, 0);
    assert!(wire.run(3 * SECOND, |wire| wire.hosts[101].machine.is_open(peer)));
    assert!(wire.now.since(begun) < 2 * SECOND);
    assert!(wire.hosts[0].turned_away.is_empty());
    let gone = &wire.hosts[0].gone;
    assert!(gone.iter().all(|(_, reason)| *reason == GoneReason::Silent));
}

#[test]
fn a_connecting_process_finds_room_a_little_later() {
    let mut wire = Wire::new(2, 4, &with_room_for(2));
    join(&mut wire, 1..=2);
    kill(&mut wire, 1);
    wire.run(2 * SECOND, |_| false);
    let (home, now) = (wire.hosts[3].home, wire.now);
    assert!(wire.hosts[0].machine.connect(now, home, 0).is_err());
    wire.run(SECOND, |_| false);
    let now = wire.now;
    assert!(wire.hosts[0].machine.connect(now, home, 0).is_ok());
    let gone: Vec<GoneReason> = wire.hosts[0].gone.iter().map(|gone| gone.1).collect();
    assert_eq!(gone, [GoneReason::Silent], "the other lives");
}

#[test]
fn a_flood_of_new_processes_replaces_no_live_peer_and_is_refused() {
    let mut wire = Wire::new(3, 12, &with_room_for(4));
    let edges = join(&mut wire, 1..=4);
    for round in 0..20 {
        // The first two send now and then, the others are idle.
        for client in [1, 2] {
            let now = wire.now;
            let sent = wire.hosts[client].send(now, edges[client - 1], b"still here");
            sent.expect("credit");
        }
        for client in 5..12 {
            wire.connect(client, 0);
        }
        wire.run(SECOND / 2, |_| false);
        let now = wire.now;
        while wire.hosts[0].read(now).is_some() {}
        assert!(wire.hosts[0].gone.is_empty(), "round {round}");
    }
    assert!(!wire.hosts[0].turned_away.is_empty());
    let full = GoneReason::Reset(ResetReason::TooManyPeers);
    for client in 5..12 {
        let gone = &wire.hosts[client].gone;
        assert!(!gone.is_empty() && gone.iter().all(|(_, reason)| *reason == full));
    }
}

#[test]
fn a_dead_idle_peer_is_detected_and_a_live_one_costs_few_packets() {
    let mut wire = Wire::new(4, 3, &Config::default());
    join(&mut wire, 1..=2);
    kill(&mut wire, 1);
    let sent = wire.sent;
    wire.run(310 * SECOND, |_| false);
    let gone: Vec<GoneReason> = wire.hosts[0].gone.iter().map(|gone| gone.1).collect();
    assert_eq!(gone, [GoneReason::Silent]);
    wire.run(3000 * SECOND, |_| false);
    assert!(wire.hosts[2].gone.is_empty());
    let cost = wire.sent - sent;
    assert!(cost <= 50, "{cost} packets in an hour");
}

#[test]
fn an_idle_peer_survives_a_few_lost_packets() {
    let mut wire = Wire::new(5, 2, &Config::default());
    join(&mut wire, 1..=1);
    wire.loss = 0.2;
    wire.run(24 * 3600 * SECOND, |_| false);
    assert!(wire.lost > 30, "{} lost", wire.lost);
    assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
}

#[test]
fn edges_of_all_peers_are_limited_refused_and_released() {
    let config = Config {
        max_edges: 100,
        ..with_room_for(4)
    };
    let mut wire = Wire::new(6, 5, &config);
    let open = |wire: &mut Wire, client: usize, sources: std::ops::Range<u32>| {
        let peer = wire.hosts[client].machine.peers().next().expect("joined");
        for source in sources {
            let edge = wire.hosts[client].machine.edge(peer, source, 7);
            let edge = edge.expect("few on this side");
            let now = wire.now;
            let sent = wire.hosts[client].send(now, edge, b"one more edge");
            sent.expect("credit");
            wire.run(SECOND / 1000, |_| false);
        }
        wire.run(SECOND / 10, |_| false);
        // After everything is consumed, only the entry of an edge is left.
        let (now, mut read) = (wire.now, 0);
        while wire.hosts[0].read(now).is_some() {
            read += 1;
        }
        read
    };
    join(&mut wire, 1..=4);
    let came: Vec<_> = (1..=3)
        .map(|client| open(&mut wire, client, 10..50))
        .collect();
    assert_eq!(came, [40, 40, 20]);
    let full = wire.hosts[0].machine.stats().dropped(DropReason::EdgesFull);
    assert!(full >= 20, "{full}");
    assert_eq!(
        wire.hosts[3].refused.len(),
        20,
        "{:?}",
        wire.hosts[3].refused
    );
    // Peers that leave release what they used.
    let peer = wire.hosts[1].machine.peers().next().expect("joined");
    wire.hosts[1].machine.disconnect(peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    assert_eq!(open(&mut wire, 4, 10..60), 40);
}
