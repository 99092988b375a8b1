//! Recovery of a session: dead lanes, lost tails, and the cost of retransmissions.

use crate::pair::{Wire, close};
use dipole_proto::wire::{Address, CONTROL_LANE, HEADER_BYTES, Header, Kind};
use dipole_proto::{Config, EdgeId, Frame, GoneReason, Instant, LaneState, LaneStatus, Seal};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Two hosts with this many interfaces each, whose lanes all answer, and an edge from the first to
/// the second.
fn connected(seed: u64, interfaces: u8, config: &Config) -> (Wire, EdgeId) {
    connected_by(Wire::with_interfaces(seed, 2, interfaces, config))
}

fn connected_by(mut wire: Wire) -> (Wire, EdgeId) {
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    wire.run(SECOND, |_| false);
    let answers = |lane: LaneStatus| lane.state == LaneState::Answers;
    assert!(wire.hosts[0].machine.lanes(peer).all(answers));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    (wire, edge)
}

/// Unlimited credit, because these tests are not about it.
fn generous() -> Config {
    Config {
        initial_credit_bytes: 4 << 20,
        frames: 4096,
        ..Config::default()
    }
}

/// An `AckRequest` to the first host.
fn ack_request(edge: EdgeId, number: u32) -> Vec<u8> {
    let mut header = Header::handshake(Kind::AckRequest, edge.peer.connection());
    header.lane = CONTROL_LANE;
    header.number = number;
    header.length = HEADER_BYTES as u16 + 4;
    let mut bytes = vec![0; HEADER_BYTES];
    header.emit(&mut bytes);
    close(&mut bytes, Seal::Crc32c { mask: 0 }, None);
    bytes
}

/// Returns the packets that a host sends now: destinations, and whether each has a unit. None arrives.
fn transmit_and_drop(wire: &mut Wire, now: Instant) -> Vec<(Address, bool)> {
    let host = &mut wire.hosts[0];
    let transmits = std::iter::from_fn(|| host.machine.poll_transmit(now, &mut host.pool));
    let sent = transmits.map(|transmit| (transmit.to, matches!(transmit.frame, Frame::Unit(_))));
    sent.collect()
}

#[test]
fn a_dead_lane_is_given_up_even_if_an_ack_request_precedes_each_tail_time_out() {
    let (mut wire, edge) = connected(3, 2, &Config::default());
    let now = wire.now;
    let from = wire.hosts[1].home;
    wire.hosts[0].send(now, edge, b"lost").expect("credit");
    let first = transmit_and_drop(&mut wire, now);
    let dead = first[0].0.ip[14];
    for number in 0..10 {
        let now = wire.hosts[0].machine.next_deadline().expect("a tail");
        wire.hosts[0].take(now, from, &ack_request(edge, 1000 + number));
        wire.hosts[0].machine.on_timers(now);
        let sent = transmit_and_drop(&mut wire, now);
        if sent.iter().any(|(to, unit)| *unit && to.ip[14] != dead) {
            return;
        }
    }
    panic!("the unit never left through the other interface");
}

#[test]
fn units_in_flight_on_a_dead_lane_arrive_on_another_before_their_own_time_outs() {
    let (mut wire, edge) = connected(5, 2, &generous());
    let message = vec![7; 64 << 10];
    // The pace must have grown, so that a whole window is in flight.
    for _ in 0..40 {
        let now = wire.now;
        wire.hosts[0].send(now, edge, &message).expect("credit");
        let acknowledged = |wire: &mut Wire| {
            let now = wire.now;
            while wire.hosts[1].read(now).is_some() {}
            wire.hosts[0].machine.is_acknowledged(edge.peer)
        };
        assert!(wire.run(SECOND, acknowledged));
    }
    let arrived = |wire: &Wire| wire.hosts[1].machine.stats().units_received;
    let before = arrived(&wire);
    wire.dead_networks = vec![1];
    for _ in 0..4 {
        let now = wire.now;
        wire.hosts[0].send(now, edge, &message).expect("credit");
    }
    let queued = wire.hosts[0].machine.queued(edge.peer) as u64;
    assert!(queued > 170, "{queued} units");
    // They need 15 ms, and 46 ms if each waits for its own time-out.
    assert!(
        wire.run(30 * MILLISECOND, |wire| wire.hosts[0]
            .machine
            .is_acknowledged(edge.peer)),
        "{} of {queued} units arrived",
        arrived(&wire) - before
    );
    assert_eq!(wire.hosts[0].machine.stats().lanes_lost, 1);
}

#[test]
fn nothing_is_retransmitted_on_a_lossless_path() {
    // Round trips from far below the shortest time-out to far above it.
    for latency_ns in [5_000, 300_000, 20 * MILLISECOND] {
        let mut wire = Wire::new(7, 2, &generous());
        wire.latency_ns = latency_ns;
        let (mut wire, edge) = connected_by(wire);
        let peer = wire.hosts[1].connected[0];
        let now = wire.now;
        // The receiver requests acknowledgements as often as it may.
        wire.hosts[1].machine.expect(now, peer, true);
        for _ in 0..50 {
            let now = wire.now;
            wire.hosts[0].send(now, edge, &[1; 3000]).expect("credit");
            wire.run(latency_ns, |_| false);
            while wire.hosts[1].read(wire.now).is_some() {}
        }
        wire.run(SECOND, |_| false);
        let stats = *wire.hosts[0].machine.stats();
        assert_eq!(stats.repeats, 0, "{latency_ns} ns: {stats:?}");
    }
}

#[test]
fn a_bye_acknowledges_what_has_arrived() {
    let (mut wire, edge) = connected(6, 1, &Config::default());
    let now = wire.now;
    wire.hosts[0].send(now, edge, b"read").expect("credit");
    assert!(wire.run(SECOND, |wire| {
        let now = wire.now;
        wire.hosts[1].read(now).is_some()
    }));
    assert!(!wire.hosts[0].machine.is_acknowledged(edge.peer));
    let peer = wire.hosts[1].connected[0];
    wire.hosts[1].machine.disconnect(peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    assert!(wire.hosts[0].left_unacknowledged.is_empty());

    let (mut wire, edge) = connected(6, 1, &Config::default());
    let now = wire.now;
    wire.hosts[0].send(now, edge, b"dropped").expect("credit");
    transmit_and_drop(&mut wire, now);
    let peer = wire.hosts[1].connected[0];
    wire.hosts[1].machine.disconnect(peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    assert_eq!(wire.hosts[0].left_unacknowledged, [edge.peer]);
}

#[test]
fn tail_retransmissions_back_off_while_the_peer_is_silent() {
    let config = Config {
        peer_timeout_ns: 1000 * SECOND,
        suspect_after_ns: 1000 * SECOND,
        max_timeout_ns: 100 * SECOND,
        ..Config::default()
    };
    let (mut wire, edge) = connected(9, 1, &config);
    wire.loss = 1.0;
    let now = wire.now;
    for _ in 0..20 {
        wire.hosts[0].send(now, edge, b"lost").expect("credit");
    }
    wire.run(SECOND, |_| false);
    let after_a_second = wire.hosts[0].machine.stats().repeats;
    wire.run(63 * SECOND, |_| false);
    let after_64 = wire.hosts[0].machine.stats().repeats;
    // Two retransmissions per time-out, and each time-out is twice as long as the one before.
    assert!(after_a_second <= 2 * 11, "{after_a_second}");
    assert!(after_64 <= after_a_second + 2 * 7, "{after_64}");
    assert!(after_64 >= after_a_second + 2 * 5, "{after_64}");
}

#[test]
fn a_lost_packet_costs_one_retransmission_whatever_follows_it() {
    // The numbers of later packets may exceed 32 bits.
    for first_number in [0, u32::MAX] {
        let config = Config {
            first_number,
            ..Config::default()
        };
        let (mut wire, edge) = connected(11, 1, &config);
        let now = wire.now;
        // One packet in flight is lost, and then 30 others arrive.
        wire.loss = 1.0;
        wire.hosts[0].send(now, edge, b"lost").expect("credit");
        assert!(!wire.run(1, |_| false));
        wire.loss = 0.0;
        for _ in 0..30 {
            wire.hosts[0].send(now, edge, b"found").expect("credit");
        }
        let begun = wire.now;
        let all = |wire: &mut Wire| wire.hosts[1].received.len() == 31;
        assert!(
            wire.run(MILLISECOND, all),
            "{:?}",
            wire.hosts[1].received.len()
        );
        assert!(wire.now.since(begun) <= 4 * wire.latency_ns);
        assert_eq!(wire.hosts[0].machine.stats().repeats, 1);
    }
}

#[test]
fn a_watched_peer_gets_keepalives_and_its_death_is_detected_soon() {
    for watched in [true, false] {
        let (mut wire, edge) = connected(13, 1, &Config::default());
        let now = wire.now;
        wire.hosts[0].machine.watch(now, edge.peer, watched);
        wire.run(20 * SECOND, |_| false);
        assert!(wire.hosts[0].gone.is_empty(), "it answers");
        wire.loss = 1.0;
        let gone = wire.run(5 * SECOND, |wire| !wire.hosts[0].gone.is_empty());
        assert_eq!(gone, watched);
        if watched {
            assert_eq!(wire.hosts[0].gone, [(edge.peer, GoneReason::Silent)]);
        }
    }
}

#[test]
fn a_process_does_not_blame_its_own_absence_on_the_peer() {
    let (mut wire, edge) = connected(15, 1, &Config::default());
    for _ in 0..5 {
        let now = wire.now;
        wire.hosts[0]
            .send(now, edge, b"on its way")
            .expect("credit");
        assert!(!wire.run(0, |_| false), "it has left");
        // No host was stepped, so the acknowledgement was not seen.
        wire.now = now.after(20 * SECOND);
        let done = |wire: &mut Wire| wire.hosts[0].machine.is_acknowledged(edge.peer);
        assert!(wire.run(SECOND, done));
    }
    assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
}

#[test]
fn repairs_do_not_count_as_round_trips() {
    let (mut wire, edge) = connected(7, 1, &generous());
    let fastest = wire.hosts[0].machine.round_trip_ns(edge.peer).expect("one");
    wire.loss = 0.2;
    let mut longest = 0;
    for _ in 0..300 {
        let message = vec![7; 16 << 10];
        let credit = |wire: &mut Wire| wire.hosts[0].send(wire.now, edge, &message).is_ok();
        assert!(wire.run(10 * SECOND, credit));
        let acknowledged = |wire: &mut Wire| {
            let now = wire.now;
            while wire.hosts[1].read(now).is_some() {}
            wire.hosts[0].machine.is_acknowledged(edge.peer)
        };
        assert!(wire.run(10 * SECOND, acknowledged));
        let smoothed = wire.hosts[0].machine.round_trip_ns(edge.peer);
        longest = longest.max(smoothed.expect("one"));
    }
    // Time-outs last at least a millisecond, acknowledgements are delayed by half of one.
    assert!(
        longest < MILLISECOND,
        "{longest} ns, {fastest} ns without loss"
    );
}
