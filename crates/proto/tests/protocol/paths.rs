//! Hosts with several interfaces: data uses all addresses that answer, and no others.

use crate::pair::{BRIDGE, Random, Wire};
use dipole_proto::wire::{Address, Header, Hello, Kind, LaneAddress, Record};
use dipole_proto::{
    BeginError, Config, DropReason, EdgeId, Frame, LaneState, LaneStatus, PathChange, PeerId, Seal,
};

const SECOND: u64 = 1_000_000_000;
const MEGABYTE: usize = 1 << 20;

fn open_by(wire: &mut Wire, interface: usize) -> EdgeId {
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect_by(0, 1, interface);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    wire.hosts[0].machine.edge(peer, 1, 7).expect("open")
}

/// Hosts with an interface on each of these networks, and an edge from the first to the second.
fn connected(networks: [&[u8]; 2]) -> (Wire, EdgeId) {
    let config = Config {
        frames: 4096,
        ..Config::default()
    };
    let mut wire = Wire::with_networks(41, &networks, &config);
    let edge = open_by(&mut wire, 0);
    (wire, edge)
}

/// Sends messages of 1 MB. Returns the virtual time until the last one has arrived.
fn send_megabytes(wire: &mut Wire, edge: EdgeId, count: usize) -> u64 {
    send_megabytes_from(wire, 0, edge, count)
}

fn send_megabytes_from(wire: &mut Wire, from: usize, edge: EdgeId, count: usize) -> u64 {
    let begun = wire.now;
    let (mut sent, mut received) = (0, 0);
    let finished = wire.run(60 * SECOND, |wire| {
        let now = wire.now;
        while sent < count {
            match wire.hosts[from].send(now, edge, &vec![sent as u8; MEGABYTE]) {
                Ok(_) => sent += 1,
                Err(BeginError::NoCredit { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        while let Some(message) = wire.hosts[1 - from].read(now) {
            assert_eq!(message, vec![received as u8; MEGABYTE]);
            received += 1;
        }
        received == count && wire.hosts[from].machine.is_acknowledged(edge.peer)
    });
    assert!(finished, "{received} of {count} received");
    wire.now.since(begun)
}

fn lanes(wire: &Wire, host: usize, peer: PeerId) -> Vec<LaneStatus> {
    wire.hosts[host].machine.lanes(peer).collect()
}

fn states(wire: &Wire, host: usize, peer: PeerId) -> Vec<LaneState> {
    let lanes = lanes(wire, host, peer);
    lanes.iter().map(|lane| lane.state).collect()
}

fn nothing_was_repeated(wire: &Wire) {
    for host in &wire.hosts {
        let stats = host.machine.stats();
        assert_eq!((stats.repeats, stats.lanes_lost), (0, 0), "{stats:?}");
        assert_eq!(stats.dropped(DropReason::Untracked), 0);
    }
}

#[test]
fn an_unreachable_interface_does_not_delay_the_first_long_message() {
    let (mut alone, edge) = connected([&[0], &[0]]);
    let alone_ns = send_megabytes(&mut alone, edge, 1);
    for nowhere in [5, BRIDGE] {
        let (mut wire, edge) = connected([&[0, nowhere], &[0, nowhere]]);
        wire.dead_networks = vec![5];
        let took_ns = send_megabytes(&mut wire, edge, 1);
        nothing_was_repeated(&wire);
        assert!(took_ns <= alone_ns + alone_ns / 20, "{took_ns}, {alone_ns}");
    }
}

#[test]
fn bulk_uses_exactly_the_addresses_that_answer() {
    use LaneState::{Answers, OwnAddress, Waiting};
    let (mut wire, edge) = connected([&[0, 1, BRIDGE, 5], &[0, 1, BRIDGE, 5]]);
    wire.dead_networks = vec![5];
    assert_eq!(
        states(&wire, 0, edge.peer)[..4],
        [Answers, Answers, Waiting, Waiting]
    );
    send_megabytes(&mut wire, edge, 4);
    nothing_was_repeated(&wire);
    let expected = [
        Answers, Answers, Answers, Answers, OwnAddress, OwnAddress, Waiting, Waiting,
    ];
    assert_eq!(states(&wire, 0, edge.peer), expected);
    wire.run(SECOND, |_| false);
    assert!(lanes(&wire, 0, edge.peer).iter().all(|lane| lane.asked));
    assert_eq!(wire.hosts[0].changes, [PathChange::Settled]);
    // The receiver probes for itself.
    let back = wire.hosts[1].connected[0];
    assert_eq!(states(&wire, 1, back), expected);
    let used: Vec<bool> = (0..4)
        .map(|interface| wire.arrived[1][interface] > 100)
        .collect();
    assert_eq!(used, [true, true, false, false], "{:?}", wire.arrived);
}

#[test]
fn the_sides_may_list_different_interfaces_in_different_order() {
    let cases: [[&[u8]; 2]; 5] = [
        [&[0, 1], &[0]],
        [&[0], &[0, 1]],
        [&[0, 1], &[1]],
        [&[0, 1], &[1, 0]],
        [&[2, 0, 1], &[1, 2]],
    ];
    for networks in cases {
        let (mut wire, edge) = connected(networks);
        send_megabytes(&mut wire, edge, 2);
        let back = wire.hosts[1].connected[0];
        wire.hosts[0].machine.open_endpoint(8);
        let back = wire.hosts[1].machine.edge(back, 7, 8).expect("open");
        send_megabytes_from(&mut wire, 1, back, 2);
        nothing_was_repeated(&wire);
    }
}

#[test]
fn replies_use_the_network_of_the_request() {
    let (mut wire, edge) = connected([&[0, 1], &[1, 0]]);
    send_megabytes(&mut wire, edge, 1);
    for dead in [vec![0], vec![], vec![1], vec![]] {
        wire.dead_networks = dead;
        let took_ns = send_megabytes(&mut wire, edge, 2);
        assert!(took_ns < SECOND, "{took_ns} with {:?}", wire.dead_networks);
        wire.run(2 * SECOND, |_| false);
    }
    assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
}

#[test]
fn a_lost_interface_is_reported_probed_during_traffic_and_used_again() {
    let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
    send_megabytes(&mut wire, edge, 1);
    wire.dead_networks = vec![1];
    while !states(&wire, 0, edge.peer).contains(&LaneState::Silent) {
        send_megabytes(&mut wire, edge, 1);
    }
    let changes = wire.hosts[0].changes.clone();
    assert!(
        changes.contains(&PathChange::Lost { lane: 3 }),
        "{changes:?}"
    );
    // An idle session does not probe.
    wire.run(3 * SECOND, |_| false);
    let (sent, probes) = (wire.sent, wire.hosts[0].machine.stats().probes);
    wire.run(600 * SECOND, |_| false);
    assert_eq!(wire.hosts[0].machine.stats().probes, probes);
    let asked = wire.sent - sent;
    assert!(asked <= 8, "{asked} packets of an idle session in 600 s");
    wire.dead_networks = vec![];
    while states(&wire, 0, edge.peer).contains(&LaneState::Silent) {
        send_megabytes(&mut wire, edge, 1);
    }
    let changes = wire.hosts[0].changes.clone();
    assert!(
        changes.contains(&PathChange::Restored { lane: 3 }),
        "{changes:?}"
    );
    let before = wire.arrived[1][1];
    send_megabytes(&mut wire, edge, 1);
    assert!(wire.arrived[1][1] > before + 100);
}

#[test]
fn a_lane_that_dies_is_given_up_although_the_peer_repeats_what_arrived_before() {
    for seed in 0..12 {
        let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
        send_megabytes(&mut wire, edge, 1);
        // Losses leave holes. Each acknowledgement names them until they are filled.
        wire.random = Random(seed);
        wire.loss = 0.3;
        let now = wire.now;
        let sent = wire.hosts[0].send(now, edge, &[0; MEGABYTE]);
        sent.expect("credit");
        wire.run(30_000 + 40_000 * seed, |_| false);
        wire.loss = 0.0;
        wire.dead_networks = vec![1];
        let is_given_up = wire.run(SECOND, |wire| {
            let now = wire.now;
            let _has_credit = wire.hosts[0].send(now, edge, &[0; 20_000]);
            while wire.hosts[1].read(now).is_some() {}
            states(wire, 0, edge.peer).contains(&LaneState::Silent)
        });
        assert!(is_given_up, "seed {seed}");
    }
}

#[test]
fn an_absent_process_does_not_lose_a_lane() {
    let mut alarms = Vec::new();
    // When it runs again, it handles one port's packets after the other.
    for (networks, bulk_later_us) in [(&[0][..], 0), (&[0], 500), (&[0], 4000), (&[0, 1], 1500)] {
        for stopped_us in [2000, 4000, 8000, 15_500, 24_000, 35_000, 60_000, 150_000] {
            let (mut wire, edge) = connected([networks, networks]);
            send_megabytes(&mut wire, edge, 2);
            let now = wire.now;
            for _ in 0..2 {
                let sent = wire.hosts[0].send(now, edge, &[1; MEGABYTE]);
                sent.expect("credit");
            }
            wire.run(20_000, |_| false);
            wire.stopped = Some((1, wire.now.after(stopped_us * 1000)));
            wire.bulk_later_ns = bulk_later_us * 1000;
            let arrived = |wire: &mut Wire| wire.hosts[0].machine.is_acknowledged(edge.peer);
            assert!(wire.run(SECOND, arrived));
            let stats = wire.hosts[0].machine.stats();
            assert_eq!(wire.lost, 0);
            if stats.lanes_lost > 0 {
                alarms.push((networks.len(), bulk_later_us, stopped_us));
            }
        }
    }
    assert!(alarms.is_empty(), "{alarms:?}");
}

#[test]
fn a_late_arrival_proves_its_lane_although_it_was_retransmitted_elsewhere() {
    let mut alarms = Vec::new();
    for stopped_us in [8000, 15_500, 24_000, 35_000, 60_000] {
        let (mut wire, edge) = connected([&[0], &[0]]);
        send_megabytes(&mut wire, edge, 1);
        wire.bulk_later_ns = 500_000;
        // First comes a long absence, in which the retransmissions on the other lane win; then a short one.
        for stopped_us in [stopped_us, 1200, 1200] {
            let now = wire.now;
            let sent = wire.hosts[0].send(now, edge, &[1; 20_000]);
            sent.expect("credit");
            wire.stopped = Some((1, now.after(stopped_us * 1000)));
            let arrived = |wire: &mut Wire| wire.hosts[0].machine.is_acknowledged(edge.peer);
            assert!(wire.run(SECOND, arrived));
            wire.run(SECOND / 10, |_| false);
        }
        if wire.hosts[0].machine.stats().lanes_lost > 0 {
            alarms.push(stopped_us);
        }
    }
    assert!(alarms.is_empty(), "{alarms:?}");
}

#[test]
fn the_first_message_is_sent_before_any_probe() {
    let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
    let now = wire.now;
    wire.hosts[0].send(now, edge, b"first").expect("credit");
    let host = &mut wire.hosts[0];
    let first = host.machine.poll_transmit(now, &mut host.pool);
    assert!(matches!(first.expect("a packet").frame, Frame::Unit(_)));
    let second = host.machine.poll_transmit(now, &mut host.pool);
    assert!(matches!(second.expect("a packet").frame, Frame::Scratch(_)));
    assert_eq!(host.machine.stats().probes, 1);
}

#[test]
fn a_path_for_short_packets_only_is_not_used() {
    let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
    wire.longest_on = Some((1, 1000));
    send_megabytes(&mut wire, edge, 2);
    nothing_was_repeated(&wire);
    let states = states(&wire, 0, edge.peer);
    assert_eq!(states[2..], [LaneState::Waiting; 2]);
}

#[test]
fn a_bye_uses_a_lane_that_answers() {
    let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
    wire.dead_networks = vec![0];
    while states(&wire, 0, edge.peer)[0] != LaneState::Silent {
        let now = wire.now;
        let sent = wire.hosts[0].send(now, edge, b"by which interface?");
        sent.expect("credit");
        let peer = edge.peer;
        wire.run(SECOND, |wire| wire.hosts[0].machine.is_acknowledged(peer));
    }
    wire.hosts[0].machine.disconnect(edge.peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].gone.is_empty()));
}

#[test]
fn a_message_tries_all_lanes_while_none_answers() {
    for outage_ms in [800, 1200] {
        let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
        send_megabytes(&mut wire, edge, 2);
        wire.dead_networks = vec![0, 1];
        let now = wire.now;
        let sent = wire.hosts[0].send(now, edge, b"by which interface?");
        sent.expect("credit");
        wire.run(outage_ms * 1_000_000, |_| false);
        // All lanes have time-outs. The pauses between attempts are about half a second.
        wire.dead_networks = vec![0];
        let begun = wire.now;
        let arrived = |wire: &mut Wire| wire.hosts[0].machine.is_acknowledged(edge.peer);
        assert!(wire.run(10 * SECOND, arrived));
        let took_ns = wire.now.since(begun);
        assert!(took_ns < SECOND, "{took_ns} ns after {outage_ms} ms");
    }
}

#[test]
fn an_unsolicited_echo_proves_nothing() {
    let (mut wire, edge) = connected([&[0, 5], &[0, 5]]);
    wire.dead_networks = vec![5];
    send_megabytes(&mut wire, edge, 1);
    // Echoes that the second host never sends: tokens it has not seen, and a lane it does not have.
    let connection = edge.peer.connection();
    let from = wire.hosts[1].home;
    for (number, lane, token) in [(1000, 2, 1), (1001, 9, 0), (1002, 2, u64::MAX)] {
        let mut bytes = vec![0; 64];
        let mut header = Header::handshake(dipole_proto::wire::Kind::Ack, connection);
        header.lane = dipole_proto::wire::CONTROL_LANE;
        header.number = number;
        let length = 32 + dipole_proto::wire::emit_echo(&mut bytes[32..], lane, token, 1472);
        header.length = (length + 4) as u16;
        header.emit(&mut bytes);
        let machine = &mut wire.hosts[0].machine;
        let addressed = machine.address(wire.now, from, &bytes[..length + 4]);
        let addressed = addressed.expect("for us");
        assert!(matches!(
            addressed.packet.records().next(),
            Some(Ok(Record::Echo { .. }))
        ));
        machine
            .on_packet(wire.now, from, &addressed)
            .expect("a new number");
    }
    let states = states(&wire, 0, edge.peer);
    assert_eq!(states[2..], [LaneState::Waiting; 2]);
}

#[test]
fn a_process_is_recognized_through_another_interface() {
    let (mut wire, edge) = connected([&[0, 1], &[0, 1]]);
    let incarnation = wire.hosts[1].machine.incarnation();
    let now = wire.now;
    let mut second = wire.hosts[1].home;
    (second.ip[14], second.port) = (1, 3);
    let again = wire.hosts[0].machine.connect(now, second, incarnation);
    assert_eq!(again, Ok(edge.peer));
}

#[test]
fn unproven_addresses_get_few_bytes_however_much_is_sent() {
    // Interfaces 5 to 7 belong to another host.
    let config = Config {
        packet_bytes: 8972,
        frames: 4096,
        ..Config::default()
    };
    let mut wire = Wire::with_networks(43, &[&[0], &[0, 5, 6, 7]], &config);
    wire.dead_networks = vec![5, 6, 7];
    wire.seen = Some(Vec::new());
    let edge = open_by(&mut wire, 0);
    let check = |wire: &Wire| {
        let seen = wire.seen.as_ref().expect("kept");
        let bytes = |chosen: &dyn Fn(&Address, &Address) -> bool| {
            let packets = seen.iter().filter(|(from, to, _)| chosen(from, to));
            packets.map(|(.., bytes)| bytes.len()).sum::<usize>()
        };
        let received = bytes(&|_, to| to.ip[15] == 1);
        let astray = bytes(&|_, to| to.ip[14] >= 5);
        assert!(astray <= 3 * received, "{astray} bytes for {received}");
        let mut packets = seen.iter().filter(|(_, to, _)| to.ip[14] >= 5);
        assert!(
            packets.all(|(.., bytes)| bytes.len() < 100),
            "short probes only"
        );
        astray
    };
    check(&wire);
    wire.run(2 * SECOND, |_| false);
    assert!(check(&wire) > 0, "they are probed");
    send_megabytes(&mut wire, edge, 8);
    assert!(check(&wire) < 10_000);
}

#[test]
fn a_peer_behind_address_translation_gets_replies_at_its_source_address() {
    // The second host's hello comes from a translated address and lists another host's addresses.
    let mut wire = Wire::with_networks(44, &[&[0], &[5]], &Config::default());
    let lanes = [(0, false), (1, true)].map(|(lane, bulk)| LaneAddress {
        lane,
        bulk,
        address: Address {
            port: 1 + u16::from(lane),
            ..wire.hosts[1].home
        },
    });
    let mut from = wire.hosts[1].home;
    from.ip[14] = 0;
    let mut hello = Hello::new(&lanes);
    (hello.connection, hello.incarnation) = (77, 88);
    (hello.max_packet_bytes, hello.window_packets) = (1472, 64);
    let packet = |hello: &Hello| {
        let mut bytes = vec![0; 300];
        let length = 32 + hello.emit(&mut bytes[32..]);
        let mut header = Header::handshake(Kind::Hello, 0);
        header.length = length as u16 + 4;
        header.emit(&mut bytes);
        bytes.truncate(length);
        crate::pair::close(&mut bytes, Seal::OPEN, None);
        bytes
    };
    let now = wire.now;
    let host = &mut wire.hosts[0];
    host.take(now, from, &packet(&hello));
    let challenge = host.machine.poll_transmit(now, &mut host.pool);
    assert_eq!(challenge.expect("an answer").to, from);
    hello.cookie = host.scratch_u64(32);
    host.take(now, from, &packet(&hello));
    let peer = host.connected[0];
    let states: Vec<_> = host
        .machine
        .lanes(peer)
        .map(|lane| (lane.to, lane.state))
        .collect();
    assert_eq!(states[0], (from, LaneState::Answers));
    assert_eq!(states[1].1, LaneState::Waiting);
}
