//! Addresses that appear and disappear while sessions are open: the lists of lanes that peers send
//! each other. Spec §5.3.

use crate::pair::{Random, Wire};
use dipole_proto::{BeginError, Config, EdgeId, LaneState, PathChange};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// The virtual network has no limit of bandwidth, so the streams have.
const PAUSE_NS: u64 = 200_000;

/// Two hosts on three networks, of whose interfaces only these are there, and an edge.
fn connected(seed: u64, interfaces: [&[usize]; 2]) -> (Wire, EdgeId) {
    let config = Config {
        frames: 4096,
        ..Config::default()
    };
    let networks: [&[u8]; 2] = [&[0, 1, 2], &[0, 1, 2]];
    let mut wire = Wire::with_networks(seed, &networks, &config);
    for (host, interfaces) in interfaces.iter().enumerate() {
        wire.listen_on(host, interfaces);
    }
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect_by(0, 1, interfaces[1][0]);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    (wire, edge)
}

/// A stream of numbered messages, checked at the receiver.
struct Stream {
    edge: EdgeId,
    sent: u32,
    received: u32,
}

impl Stream {
    fn over(edge: EdgeId) -> Stream {
        Stream {
            edge,
            sent: 0,
            received: 0,
        }
    }

    fn message(number: u32) -> Vec<u8> {
        let length = 1 + (number as usize * 7919) % 40_000;
        let mut message = vec![number as u8; length.max(4)];
        message[..4].copy_from_slice(&number.to_le_bytes());
        message
    }

    /// Sends as many messages as there is credit for, and reads all that have arrived.
    fn step(&mut self, wire: &mut Wire, most: u32) {
        let now = wire.now;
        while self.sent < most {
            match wire.hosts[0].send(now, self.edge, &Self::message(self.sent)) {
                Ok(_) => self.sent += 1,
                Err(BeginError::NoCredit { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        while let Some(message) = wire.hosts[1].read(now) {
            assert!(
                message == Self::message(self.received),
                "message {}",
                self.received
            );
            self.received += 1;
        }
    }

    /// Streams for a while: a message every [`PAUSE_NS`].
    fn run(&mut self, wire: &mut Wire, for_ns: u64) {
        for _ in 0..for_ns / PAUSE_NS {
            let most = self.sent + 1;
            wire.run(PAUSE_NS, |wire| {
                self.step(wire, most);
                false
            });
        }
    }

    /// Waits until everything has arrived; returns the time that took.
    fn finish(&mut self, wire: &mut Wire) -> u64 {
        let (begun, sent) = (wire.now, self.sent);
        let done = wire.run(60 * SECOND, |wire| {
            self.step(wire, sent);
            self.received == sent && wire.hosts[0].machine.is_acknowledged(self.edge.peer)
        });
        assert!(done, "{} of {sent} arrived", self.received);
        wire.now.since(begun)
    }
}

fn states(wire: &Wire, host: usize) -> Vec<(u8, LaneState)> {
    let peer = wire.hosts[host].machine.peers().next().expect("a peer");
    let lanes = wire.hosts[host].machine.lanes(peer);
    lanes.map(|lane| (lane.lane, lane.state)).collect()
}

fn all_answer(lanes: &[u8]) -> Vec<(u8, LaneState)> {
    lanes
        .iter()
        .map(|lane| (*lane, LaneState::Answers))
        .collect()
}

#[test]
fn a_new_address_is_announced_and_carries_data() {
    let (mut wire, edge) = connected(3, [&[0, 1], &[0]]);
    let mut stream = Stream::over(edge);
    stream.run(&mut wire, 20 * MILLISECOND);
    assert_eq!(wire.arrived[1][1], 0);
    wire.listen_on(1, &[0, 1]);
    stream.run(&mut wire, 20 * MILLISECOND);
    let (first, second) = (wire.arrived[1][0], wire.arrived[1][1]);
    stream.run(&mut wire, 20 * MILLISECOND);
    assert_eq!(states(&wire, 0), all_answer(&[0, 1, 2, 3]));
    assert!(wire.arrived[1][0] > first + 50, "{:?}", wire.arrived);
    assert!(wire.arrived[1][1] > second + 50, "{:?}", wire.arrived);
    assert!(wire.hosts[0].changes.contains(&PathChange::Moved));
    stream.finish(&mut wire);
    // Nothing was given up, and nothing had to be repeated.
    let stats = wire.hosts[0].machine.stats();
    assert_eq!((stats.lanes_lost, stats.repeats), (0, 0));
}

#[test]
fn idle_peers_get_new_addresses_and_test_them() {
    let (mut wire, _) = connected(4, [&[0], &[0]]);
    wire.run(SECOND, |_| false);
    wire.listen_on(0, &[0, 2]);
    wire.listen_on(1, &[0, 2]);
    wire.run(2 * SECOND, |_| false);
    for host in 0..2 {
        assert_eq!(
            states(&wire, host),
            all_answer(&[0, 1, 4, 5]),
            "host {host}"
        );
    }
    // Then they are silent again.
    let sent = wire.sent;
    wire.run(600 * SECOND, |_| false);
    assert!(wire.sent - sent <= 8, "{} packets", wire.sent - sent);
}

#[test]
fn a_lost_address_costs_no_time_out() {
    for loser in 0..2 {
        let (mut wire, edge) = connected(5, [&[0, 1], &[0, 1]]);
        let mut stream = Stream::over(edge);
        stream.run(&mut wire, 50 * MILLISECOND);
        assert!(wire.arrived[1][1] > 50, "{:?}", wire.arrived);
        // Either side may lose it; the first address is the one of the handshake.
        for (lost, left) in [(1, 0), (0, 1)] {
            let timeouts = wire.hosts[0].machine.stats().tail_repeats;
            wire.listen_on(loser, &[left]);
            let took_ns = stream.finish(&mut wire);
            assert!(took_ns < 20 * MILLISECOND, "{took_ns} ns without {lost}");
            let after = wire.hosts[0].machine.stats().tail_repeats;
            assert!(after <= timeouts + 1, "{after}, before {timeouts}");
            let before = wire.arrived[1][left];
            stream.run(&mut wire, 50 * MILLISECOND);
            assert!(wire.arrived[1][left] > before + 100, "{:?}", wire.arrived);
            wire.listen_on(loser, &[0, 1]);
            stream.run(&mut wire, 100 * MILLISECOND);
            let again = wire.arrived[1][lost];
            stream.run(&mut wire, 50 * MILLISECOND);
            assert!(wire.arrived[1][lost] > again + 100, "{:?}", wire.arrived);
        }
        assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
    }
}

#[test]
fn changes_during_the_handshake_arrive() {
    for steps in 0..6 {
        let (mut wire, _) = connected(6, [&[0], &[0]]);
        wire.restart(0);
        let peer = wire.connect(0, 1);
        wire.run(steps * wire.latency_ns, |_| false);
        wire.listen_on(0, &[0, 1]);
        wire.listen_on(1, &[0, 1]);
        assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
        let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
        let mut stream = Stream::over(edge);
        stream.run(&mut wire, 20 * MILLISECOND);
        stream.finish(&mut wire);
        assert_eq!(states(&wire, 0), all_answer(&[0, 1, 2, 3]), "after {steps}");
    }
}

#[test]
fn streams_survive_interfaces_that_come_and_go_on_a_lossy_network() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let (mut wire, edge) = connected(seed, [&[0, 1, 2], &[0, 1, 2]]);
        (wire.loss, wire.duplicate, wire.reorder) = (0.01, 0.01, 0.05);
        let mut stream = Stream::over(edge);
        let mut listening = [vec![0, 1, 2], vec![0, 1, 2]];
        for _ in 0..12 {
            stream.run(&mut wire, random.below(30 * MILLISECOND));
            let host = random.below(2) as usize;
            let all: Vec<usize> = (0..3).filter(|_| random.chance(0.6)).collect();
            // The hosts keep a network in common.
            if all.iter().any(|one| listening[1 - host].contains(one)) {
                listening[host].clone_from(&all);
                wire.listen_on(host, &all);
            }
        }
        for host in 0..2 {
            wire.listen_on(host, &[0, 1, 2]);
        }
        stream.finish(&mut wire);
        assert!(stream.received > 0);
        let gone = wire.hosts.iter().all(|host| host.gone.is_empty());
        assert!(gone, "seed {seed}");
    }
}

/// Streams until a host has been reached at its new address.
fn renumber(wire: &mut Wire, stream: &mut Stream, host: usize) {
    wire.renumber(host);
    let received = stream.received;
    let begun = wire.now;
    let most = stream.sent + 10;
    let goes_on = wire.run(60 * SECOND, |wire| {
        stream.step(wire, most);
        let other = &wire.hosts[1 - host].machine;
        let lanes = other.peers().flat_map(|peer| other.lanes(peer));
        let home = wire.hosts[host].home;
        let mut lanes = lanes.filter(|lane| lane.to.ip == home.ip);
        stream.received == most && lanes.all(|lane| lane.state == LaneState::Answers)
    });
    assert!(goes_on, "{} of {most} arrived", stream.received);
    assert!(stream.received > received);
    let took_ns = wire.now.since(begun);
    assert!(took_ns < 2 * SECOND, "{took_ns} ns");
}

#[test]
fn a_stream_follows_hosts_whose_only_address_changes() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let (mut wire, edge) = connected(seed, [&[0], &[0]]);
        (wire.loss, wire.duplicate, wire.reorder) = (0.01, 0.01, 0.05);
        let mut stream = Stream::over(edge);
        for _ in 0..8 {
            stream.run(&mut wire, random.below(30 * MILLISECOND));
            renumber(&mut wire, &mut stream, random.below(2) as usize);
        }
        stream.finish(&mut wire);
        let gone = wire.hosts.iter().all(|host| host.gone.is_empty());
        assert!(gone, "seed {seed}");
        // A further look-up finds the session at the present address.
        let known = wire.hosts[0].machine.peers().next();
        assert_eq!(Some(wire.connect(0, 1)), known, "seed {seed}");
    }
}

#[test]
fn an_idle_peer_follows_a_host_and_another_one_may_take_its_former_address() {
    let networks: [&[u8]; 3] = [&[0], &[0], &[0]];
    let mut wire = Wire::with_networks(8, &networks, &Config::default());
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    wire.run(SECOND, |_| false);
    let former = wire.hosts[1].home;
    wire.renumber(1);
    wire.run(SECOND, |_| false);
    let now = wire.now;
    // The session is no longer the one with whatever process is there.
    let other = wire.hosts[0].machine.connect(now, former, 0);
    assert_ne!(other.expect("room for a peer"), peer);
    let mut stream = Stream::over(edge);
    stream.run(&mut wire, 10 * MILLISECOND);
    stream.finish(&mut wire);
    assert!(stream.received > 0 && wire.hosts[0].machine.is_open(peer));
}

#[test]
fn a_peer_that_claims_the_address_of_another_host_does_not_get_its_sessions() {
    let networks: [&[u8]; 3] = [&[0], &[0], &[0]];
    let mut wire = Wire::with_networks(9, &networks, &Config::default());
    let liar = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(liar)));
    let (now, claimed) = (wire.now, wire.lanes_on(2, &[0]));
    wire.hosts[1].machine.set_lanes(now, &claimed, &[]);
    wire.run(SECOND, |_| false);
    let victim = wire.connect(0, 2);
    assert_ne!(victim, liar);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(victim)));
    let now = wire.now;
    wire.hosts[2].machine.open_endpoint(7);
    let edge = wire.hosts[0].machine.edge(victim, 3, 7).expect("open");
    wire.hosts[0]
        .send(now, edge, b"for host 2")
        .expect("credit");
    assert!(wire.run(SECOND, |wire| wire.hosts[2].read(wire.now).is_some()));
}

#[test]
fn packets_to_a_peer_behind_nat_leave_from_the_port_that_it_has_sent_to() {
    let mut wire = Wire::with_networks(12, &[&[0], &[0]], &Config::default());
    // Its own addresses are on a network that only the NAT reaches.
    let mut private = wire.lanes_on(0, &[0]);
    private.iter_mut().for_each(|lane| lane.address.ip[14] = 9);
    let now = wire.now;
    wire.hosts[0].machine.set_lanes(now, &private, &[]);
    wire.watch_sent = Some(|host, _, transmit| {
        let is_behind_nat = host.machine.config().node == 1;
        assert!(is_behind_nat || !transmit.any_port, "{transmit:?}");
    });
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    let mut stream = Stream::over(edge);
    stream.run(&mut wire, 50 * MILLISECOND);
    let took_ns = stream.finish(&mut wire);
    assert!(stream.received > 100 && took_ns < SECOND, "{took_ns} ns");
}
