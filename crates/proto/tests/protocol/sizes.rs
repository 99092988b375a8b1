//! Paths whose longest packet gets shorter or longer.

use crate::pair::{Wire, close, connected, payload};
use dipole_proto::wire::{CONTROL_LANE, HEADER_BYTES, Header, Kind, Trailers, emit_echo};
use dipole_proto::{BeginError, Config, DropReason, EdgeId, PathChange, Seal};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

fn jumbo() -> Config {
    Config {
        packet_bytes: 8972,
        frames: 2048,
        ..Config::default()
    }
}

/// A stream of messages that are verified on arrival.
struct Stream {
    edge: EdgeId,
    sent: u64,
    received: u64,
    length: fn(u64) -> usize,
}

impl Stream {
    fn new(edge: EdgeId, length: fn(u64) -> usize) -> Stream {
        Stream {
            edge,
            sent: 0,
            received: 0,
            length,
        }
    }

    fn step(&mut self, wire: &mut Wire, most: u64) {
        let now = wire.now;
        while self.sent < most {
            let message = payload(self.sent, (self.length)(self.sent));
            match wire.hosts[0].send(now, self.edge, &message) {
                Ok(_) => self.sent += 1,
                Err(BeginError::NoCredit { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        while let Some(message) = wire.hosts[1].read(now) {
            let expected = payload(self.received, (self.length)(self.received));
            assert!(message == expected, "message {}", self.received);
            self.received += 1;
        }
    }

    /// Sends `count` more messages. Returns how long it took until all had arrived.
    fn more(&mut self, wire: &mut Wire, count: u64) -> u64 {
        let begun = wire.now;
        let end = self.sent + count;
        let finished = wire.run(60 * SECOND, |wire| {
            self.step(wire, end);
            self.received == end && wire.hosts[0].machine.is_acknowledged(self.edge.peer)
        });
        assert!(finished, "sent {}, received {}", self.sent, self.received);
        assert_eq!(wire.hosts[1].machine.pool_used(), 0);
        assert_eq!(
            wire.hosts[1].machine.stats().dropped(DropReason::Violation),
            0
        );
        wire.now.since(begun)
    }

    /// Sends part of `count` more messages and leaves them in flight.
    fn begin(&mut self, wire: &mut Wire, count: u64, ns: u64) {
        let end = self.sent + count;
        wire.run(ns, |wire| {
            self.step(wire, end);
            false
        });
        assert!(!wire.hosts[0].machine.is_acknowledged(self.edge.peer));
    }
}

/// Length of the longest packet, with its trailer.
fn packet_bytes(wire: &Wire, edge: EdgeId) -> usize {
    wire.hosts[0].machine.packet_space(edge.peer) + 4
}

const LENGTHS: [fn(u64) -> usize; 4] = [
    |_| 100_000,
    |_| 8_900,
    |index| [40, 3_000][index as usize % 2],
    |index| (index * 7_919 % 30_000) as usize,
];

#[test]
fn a_path_that_starts_to_drop_long_packets_is_detected_at_once() {
    for length in LENGTHS {
        for longest in [4000, 1500, 1400, 1200, 1000, 650] {
            let (mut wire, edge) = connected(1, &jumbo());
            let mut stream = Stream::new(edge, length);
            stream.more(&mut wire, 40);
            assert_eq!(packet_bytes(&wire, edge), 8972);
            stream.begin(&mut wire, 60, 12_000);
            wire.longest_on = Some((0, longest));
            let took_ns = stream.more(&mut wire, 10);
            assert!(took_ns < 50 * MILLISECOND, "{longest}: {took_ns} ns");
            let bytes = packet_bytes(&wire, edge);
            if length(1) == 3_000 && longest == 4000 {
                assert_eq!(bytes, 8972, "nothing longer was tried");
                continue;
            }
            assert!(
                bytes <= longest && bytes >= longest - 108,
                "{longest}: {bytes}"
            );
            let before = *wire.hosts[0].machine.stats();
            stream.more(&mut wire, 100);
            let after = *wire.hosts[0].machine.stats();
            assert_eq!(after.repeats, before.repeats, "nothing else is lost");
            let reported = PathChange::PacketBytes { bytes };
            assert_eq!(wire.hosts[0].changes.last(), Some(&reported));
        }
    }
}

#[test]
fn a_path_without_long_packets_costs_the_first_messages_some_time_outs() {
    let mut wire = Wire::new(2, 2, &jumbo());
    wire.longest_on = Some((0, 1472));
    wire.hosts[1].machine.open_endpoint(7);
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    let mut stream = Stream::new(edge, |_| 20_000);
    let took_ns = stream.more(&mut wire, 20);
    assert!(took_ns < 50 * MILLISECOND, "{took_ns} ns");
    assert_eq!(packet_bytes(&wire, edge), 1472);
}

#[test]
fn paths_with_the_smallest_mtu_of_ipv4_work() {
    // The longest unit is in flight when the path is found to carry less, and has at most 16 parts.
    for (packet_bytes, longest) in [(1472, 548), (1472, 700), (8972, 620), (8972, 1000)] {
        for trailers in [Trailers::CRC32C, Trailers::ENCRYPT] {
            let config = Config {
                packet_bytes,
                trailers,
                keyed: trailers == Trailers::ENCRYPT,
                ..jumbo()
            };
            let (mut wire, edge) = connected(8, &config);
            wire.longest_on = Some((0, longest));
            let mut stream = Stream::new(edge, |index| (index * 7_919 % 30_000) as usize);
            let took_ns = stream.more(&mut wire, 50);
            assert!(took_ns < 100 * MILLISECOND, "{longest}: {took_ns} ns");
            (wire.loss, wire.duplicate, wire.reorder) = (0.1, 0.05, 0.1);
            stream.more(&mut wire, 100);
            let bytes = wire.hosts[0].machine.packet_space(edge.peer);
            assert!(bytes < longest, "{longest}: {bytes}");
        }
    }
}

#[test]
fn a_path_that_carries_less_than_ipv4_promises_is_reported_and_used_again_later() {
    let (mut wire, edge) = connected(9, &jumbo());
    let mut stream = Stream::new(edge, |_| 20_000);
    stream.more(&mut wire, 10);
    wire.longest_on = Some((0, 400));
    stream.begin(&mut wire, 5, 2 * SECOND);
    let reports = wire.hosts[0].changes.iter();
    let reports = reports.filter(|change| matches!(change, PathChange::TooNarrow { .. }));
    assert_eq!(reports.count(), 1, "{:?}", wire.hosts[0].changes);
    assert!(
        wire.hosts[0].machine.is_open(edge.peer),
        "short packets arrive"
    );
    wire.longest_on = None;
    stream.more(&mut wire, 10);
}

#[test]
fn packets_that_the_link_refuses_are_sent_again_in_parts_at_once() {
    for length in LENGTHS {
        let (mut wire, edge) = connected(3, &jumbo());
        let mut stream = Stream::new(edge, length);
        stream.more(&mut wire, 40);
        stream.begin(&mut wire, 60, 12_000);
        wire.refused_above = Some(1472);
        let took_ns = stream.more(&mut wire, 10);
        assert!(took_ns < 20 * MILLISECOND, "{took_ns} ns");
        stream.more(&mut wire, 10);
        assert_eq!(packet_bytes(&wire, edge), 1472);
    }
}

#[test]
fn a_path_that_carries_long_packets_again_is_detected_during_traffic() {
    let (mut wire, edge) = connected(4, &jumbo());
    let mut stream = Stream::new(edge, |_| 30_000);
    wire.longest_on = Some((0, 1300));
    stream.more(&mut wire, 20);
    assert_eq!(packet_bytes(&wire, edge), 1200);
    for (longest, expected) in [(1300, 1200), (4500, 4000), (9000, 8972)] {
        wire.longest_on = Some((0, longest));
        // An idle session does not probe.
        let sent = wire.sent;
        wire.run(700 * SECOND, |_| false);
        assert!(wire.sent - sent < 100, "{}", wire.sent - sent);
        for _ in 0..20 {
            stream.more(&mut wire, 1);
            wire.run(MILLISECOND, |_| false);
        }
        assert_eq!(packet_bytes(&wire, edge), expected);
    }
}

#[test]
fn losses_of_packets_of_any_length_do_not_change_the_size() {
    for seed in 0..10 {
        let (mut wire, edge) = connected(seed, &jumbo());
        let mut stream = Stream::new(edge, LENGTHS[seed as usize % 4]);
        wire.loss = 0.1;
        stream.more(&mut wire, 200);
        assert_eq!(packet_bytes(&wire, edge), 8972, "seed {seed}");
    }
}

#[test]
fn messages_arrive_once_and_in_order_while_the_path_changes() {
    for seed in 0..24 {
        let (mut wire, edge) = connected(seed, &jumbo());
        let mut stream = Stream::new(edge, LENGTHS[seed as usize % 4]);
        (wire.loss, wire.duplicate, wire.reorder) = (0.05, 0.05, 0.1);
        for round in 0..6 {
            let longest = [9000, 1500, 620, 1200, 1400, 9000][(seed as usize + round) % 6];
            if seed % 3 == 0 {
                wire.refused_above = Some(longest);
            } else {
                wire.longest_on = Some((0, longest));
            }
            // Long enough for longer packets to be tried again.
            wire.run(11 * SECOND, |_| false);
            stream.more(&mut wire, 30);
        }
    }
}

#[test]
fn a_forged_echo_does_not_change_the_size() {
    let (mut wire, edge) = connected(6, &jumbo());
    let mut stream = Stream::new(edge, |_| 8_900);
    stream.more(&mut wire, 10);
    // All long packets are lost, including probes; a forged echo reports that 1200 bytes arrive.
    wire.dead_networks = vec![0];
    stream.begin(&mut wire, 40, 0);
    let from = wire.hosts[1].home;
    let mut number = 1000;
    wire.run(200 * MILLISECOND, |wire| {
        for lane in 0..2 {
            let mut bytes = vec![0; 64];
            let mut header = Header::handshake(Kind::Ack, edge.peer.connection());
            (header.lane, header.number) = (CONTROL_LANE, number);
            number += 1;
            let end = HEADER_BYTES + emit_echo(&mut bytes[HEADER_BYTES..], lane, 7, 1200);
            header.length = end as u16 + 4;
            header.emit(&mut bytes);
            bytes.truncate(end);
            close(&mut bytes, Seal::Crc32c { mask: 0 }, None);
            wire.hosts[0].take(wire.now, from, &bytes);
        }
        false
    });
    assert_eq!(packet_bytes(&wire, edge), 8972);
    wire.dead_networks = vec![];
    stream.more(&mut wire, 1);
    assert_eq!(packet_bytes(&wire, edge), 8972);
}
