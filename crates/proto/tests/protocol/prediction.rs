//! The fast paths for common packets must have the same effect as the general path.
//!
//! A copy of each receiver also gets each packet with one more record that all receivers skip, so
//! that the copy takes the general path. Another copy gets packets that arrive together one by one. For
//! a message that may be sent alone, a copy of the sender takes the general path.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pair::{Host, Random, Wire, connect, payload, payload_of};
use dipole_proto::wire::{Address, Flags, Header, Kind, Packet, Payloads};
use dipole_proto::{Config, EdgeId, Event, Frame, Instant, Machine, Transmit};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
/// A record without a body that unknown receivers skip.
const IGNORABLE_RECORD: [u8; 4] = [0x80, 0, 0, 0];

/// Compared packets with runs of one message, and of several.
static LONE: AtomicU64 = AtomicU64::new(0);
static PACKED: AtomicU64 = AtomicU64::new(0);

/// Packets handled as parts of trains, and trains of several.
static PIECES: AtomicU64 = AtomicU64::new(0);
static TRAINS: AtomicU64 = AtomicU64::new(0);
/// Trains that repeat the header of the packet before, and those of several packets.
static REPEATED: AtomicU64 = AtomicU64::new(0);
static LONGER: AtomicU64 = AtomicU64::new(0);
/// Messages sent by the fast path.
static ALONE: AtomicU64 = AtomicU64::new(0);

/// The visible state of a machine after a packet.
#[derive(Debug, PartialEq)]
struct Outcome {
    taken: String,
    messages: Vec<(EdgeId, u32, u32, Vec<u8>)>,
    others: Vec<String>,
    released: Vec<u32>,
    views: Vec<(String, u64)>,
    pool_used: u64,
    counters: String,
}

/// Events of a machine, with the bytes of pieces.
#[derive(Debug, Default, PartialEq)]
struct Log {
    /// Edge, message, length of the message, and consecutive bytes from an offset on.
    pieces: Vec<(EdgeId, u64, u64, u64, Vec<u8>)>,
    others: Vec<(String, Vec<u8>)>,
    released: Vec<u32>,
}

impl Log {
    fn add(&mut self, machine: &mut Machine, packet: &[u8]) {
        self.released
            .extend(std::iter::from_fn(|| machine.poll_released()));
        while let Some(event) = machine.poll_event() {
            let Event::Hold {
                edge,
                sequence,
                offset,
                total,
                operation: false,
                bytes,
                ..
            } = event
            else {
                let seen = match &event {
                    Event::Deliver { bytes, .. } => packet[bytes.clone()].to_vec(),
                    Event::DeliverRun { records, .. } => packet[records.clone()].to_vec(),
                    _ => Vec::new(),
                };
                self.others.push((format!("{event:?}"), seen));
                continue;
            };
            let bytes = &packet[bytes];
            if let Some((of, number, _, from, known)) = self.pieces.last_mut()
                && (*of, *number, *from + known.len() as u64) == (edge, sequence, offset)
            {
                known.extend(bytes);
            } else {
                let piece = (edge, sequence, total, offset, bytes.to_vec());
                self.pieces.push(piece);
            }
        }
    }
}

/// Compares the effects of packets that arrive together with those of the same packets one by one.
fn compare_trains(host: &Host, now: Instant, from: Address, packets: &[Vec<u8>]) {
    let (mut single, mut together) = (host.machine.clone(), host.machine.clone());
    let (mut one_by_one, mut at_once) = (Log::default(), Log::default());
    for packet in packets {
        compare(&single, now, from, packet);
        if let Ok(addressed) = single.address(now, from, packet) {
            let _counted = single.on_packet(now, from, &addressed);
        }
        one_by_one.add(&mut single, packet);
    }
    let mut left = packets.iter().peekable();
    while let Some(packet) = left.next() {
        let Ok(addressed) = together.address(now, from, packet) else {
            at_once.add(&mut together, packet);
            continue;
        };
        let Some(mut train) = together.begin_train(&addressed) else {
            let _counted = together.on_packet(now, from, &addressed);
            at_once.add(&mut together, packet);
            continue;
        };
        let mut payloads = payload_of(packet).to_vec();
        while let Some(next) = left.peek()
            && let Some(flags) = train.expects(next)
        {
            train.add(flags);
            payloads.extend(payload_of(next));
            left.next();
        }
        PIECES.fetch_add(train.count().into(), Ordering::Relaxed);
        TRAINS.fetch_add(u64::from(train.count() > 1), Ordering::Relaxed);
        together.on_train(now, from, train);
        at_once.add(&mut together, &payloads);
    }
    assert_eq!(one_by_one, at_once);
    assert_eq!(views(&single, now), views(&together, now));
    assert_eq!(single.stats(), together.stats());
    assert_eq!(single.pool_used(), together.pool_used());
    assert_eq!(single.next_deadline(), together.next_deadline());
    assert_eq!(single.has_transmit(), together.has_transmit());
}

/// The visible state of a machine's sessions.
fn views(machine: &Machine, now: Instant) -> Vec<(String, u64)> {
    let views = machine.peers().map(|peer| {
        let mut hasher = DefaultHasher::new();
        let view = machine.view(now, peer, &mut hasher);
        (format!("{view:?}"), hasher.finish())
    });
    views.collect()
}

fn outcome(mut machine: Machine, now: Instant, from: Address, packet: &[u8]) -> Option<Outcome> {
    let addressed = machine.address(now, from, packet).ok()?;
    let taken = format!("{:?}", machine.on_packet(now, from, &addressed));
    let (mut messages, mut others) = (Vec::new(), Vec::new());
    while let Some(event) = machine.poll_event() {
        match event {
            Event::Deliver {
                edge,
                source,
                target,
                bytes,
            } => messages.push((edge, source, target, packet[bytes].to_vec())),
            Event::DeliverRun {
                edge,
                source,
                target,
                records,
            } => {
                for message in Payloads::new(&packet[records]) {
                    messages.push((edge, source, target, message.to_vec()));
                }
            }
            other => others.push(format!("{other:?}")),
        }
    }
    Some(Outcome {
        taken,
        messages,
        others,
        views: views(&machine, now),
        released: std::iter::from_fn(|| machine.poll_released()).collect(),
        pool_used: machine.pool_used(),
        counters: format!("{:?}", machine.stats()),
    })
}

/// The packet with one more record. Trailers are ignored here.
fn lengthened(packet: &[u8], trailer_bytes: usize) -> Option<Vec<u8>> {
    let mut header = Header::parse(packet).ok()?;
    let end = usize::from(header.length) - trailer_bytes;
    let mut longer = packet[..end].to_vec();
    longer.extend(IGNORABLE_RECORD);
    longer.extend(vec![0; trailer_bytes]);
    header.length += IGNORABLE_RECORD.len() as u16;
    header.emit(&mut longer);
    Some(longer)
}

/// Compares the effects of both paths on the receiver of a packet.
fn compare(machine: &Machine, now: Instant, from: Address, packet: &[u8]) {
    let Ok(addressed) = machine.clone().address(now, from, packet).map(|addressed| {
        (
            addressed.seal.bytes(),
            addressed.packet.header(),
            addressed.packet.run(),
        )
    }) else {
        return;
    };
    let (trailer_bytes, header, run) = addressed;
    if header.kind != Kind::Data || !header.flags.has(Flags::UNIT) || !header.part.is_whole() {
        return;
    }
    let longer = lengthened(packet, trailer_bytes).expect("a packet");
    let longer_packet = Packet::parse(&longer, trailer_bytes).expect("a packet");
    assert!(longer_packet.run().is_none());
    if let Some(run) = run {
        let counter = if run.count == 1 { &LONE } else { &PACKED };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(
        outcome(machine.clone(), now, from, packet),
        outcome(machine.clone(), now, from, &longer)
    );
}

/// Compares what both paths send for a message.
fn compare_sending(host: &Host, now: Instant, edge: EdgeId, payload: &[u8]) {
    let (mut short, mut short_pool) = (host.machine.clone(), host.pool.clone());
    let Ok(begun) = short.begin(now, edge, payload.len() as u64) else {
        return;
    };
    let Some(slot) = short_pool.pack(&begun, payload) else {
        return;
    };
    let (mut long, mut long_pool) = (short.clone(), short_pool.clone());
    let Some(sent) = short.transmit_alone(now, edge.peer, slot, &mut short_pool) else {
        assert_eq!(views(&short, now), views(&long, now), "nothing has changed");
        return;
    };
    ALONE.fetch_add(1, Ordering::Relaxed);
    assert!(long.queue(edge.peer, &[slot], false));
    assert_eq!(long.poll_transmit(now, &mut long_pool), Some(sent));
    assert_eq!(short_pool.frames, long_pool.frames);
    assert_eq!(views(&short, now), views(&long, now));
    assert_eq!(short.next_deadline(), long.next_deadline());
    assert_eq!(short.stats(), long.stats());
}

/// Compares the packets that repeat the last header with those that are chosen without it.
fn compare_repeated(host: &Host, now: Instant, last: &Transmit) {
    for most in [1, 2, 64] {
        let (mut short, mut short_pool) = (host.machine.clone(), host.pool.clone());
        let mut slots = [0; 64];
        let slots = &mut slots[..most];
        let Some((first, count)) = short.transmit_train(now, last, &mut short_pool, slots) else {
            assert_eq!(
                views(&short, now),
                views(&host.machine, now),
                "nothing has changed"
            );
            return;
        };
        REPEATED.fetch_add(1, Ordering::Relaxed);
        LONGER.fetch_add(u64::from(count > 2), Ordering::Relaxed);
        let (mut long, mut long_pool) = (host.machine.clone(), host.pool.clone());
        for slot in &slots[..count] {
            let sent = Transmit {
                frame: Frame::Unit(*slot),
                ..first
            };
            assert_eq!(long.poll_transmit(now, &mut long_pool), Some(sent));
        }
        assert_eq!(short_pool.frames, long_pool.frames);
        assert_eq!(views(&short, now), views(&long, now));
        assert_eq!(short.next_deadline(), long.next_deadline());
        assert_eq!(short.has_transmit(), long.has_transmit());
        assert_eq!(short.stats(), long.stats());
    }
}

/// How many bytes and interfaces there are.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// Credit and pool run out now and then.
    Little,
    /// As little, and an edge begins with even less credit.
    Least,
    /// Bulk packets change the interface.
    TwoInterfaces,
    /// Enough for long trains between small messages.
    Plenty,
}

/// Both send until enough bytes have arrived that those of the additional record do not matter.
fn warm_up(wire: &mut Wire, edge: EdgeId) {
    wire.hosts[0].machine.open_endpoint(9);
    let back = wire.hosts[1].machine.peers().next().expect("the sender");
    let back = wire.hosts[1].machine.edge(back, 3, 9).expect("open");
    for (host, edge) in [(0, edge), (1, back)] {
        let mut begun = 0;
        let warm = wire.run(60 * SECOND, |wire: &mut Wire| {
            let now = wire.now;
            let sender = &mut wire.hosts[host];
            begun += usize::from(begun < 20 && sender.send(now, edge, &[0; 1000]).is_ok());
            let is_done = begun == 20 && sender.machine.is_acknowledged(edge.peer);
            while wire.hosts[1 - host].read(now).is_some() {}
            is_done
        });
        assert!(warm, "{begun} of 20 sent");
    }
}

fn converse(seed: u64, loss: f64, room: Room) {
    let config = Config {
        initial_credit_bytes: 10_000,
        edge_window_bytes: 20_000,
        pool_bytes: 30_000,
        pool_reserve_bytes: 8_000,
        ..Config::default()
    };
    let (mut wire, edge) = connect(match room {
        Room::Little => Wire::new(seed, 2, &config),
        Room::Least => {
            let initial_credit_bytes = 1500;
            let config = Config {
                initial_credit_bytes,
                ..config
            };
            Wire::new(seed, 2, &config)
        }
        Room::TwoInterfaces => Wire::with_interfaces(seed, 2, 2, &Config::default()),
        Room::Plenty => Wire::new(seed, 2, &Config::default()),
    });
    let long_lengths = match room {
        // Some are longer than the largest window.
        Room::Little | Room::Least => [3000, 6000, 25_000],
        Room::TwoInterfaces | Room::Plenty => [6000, 25_000, 60_000],
    };
    let peer = edge.peer;
    let mut other = wire.hosts[0].machine.edge(peer, 2, 7).expect("open");
    warm_up(&mut wire, edge);
    (wire.loss, wire.duplicate, wire.reorder) = (loss, loss / 2.0, loss);
    wire.watch = Some(compare_trains);
    wire.watch_sent = Some(compare_repeated);
    let mut random = Random(seed);
    let (mut sent, mut received, count) = (0, 0, 60);
    let finished = wire.run(60 * SECOND, |wire: &mut Wire| {
        let now = wire.now;
        while sent < count {
            if random.chance(0.05) {
                let machine = &mut wire.hosts[0].machine;
                machine.close_edge(other);
                other = machine.edge(peer, 2, 7).expect("open");
            }
            let edge = if random.chance(0.2) { other } else { edge };
            let wanted = 1 + random.below(6);
            let messages: Vec<(EdgeId, Vec<u8>)> = (sent..(sent + wanted).min(count))
                .map(|index| (edge, payload(index, random.below(200) as usize)))
                .collect();
            compare_sending(&wire.hosts[0], now, edge, &messages[0].1);
            let went = match random.chance(0.5) {
                true => {
                    let long = payload(sent, long_lengths[random.below(3) as usize]);
                    u64::from(wire.hosts[0].send(now, edge, &long).is_ok())
                }
                false => wire.hosts[0].send_packed(now, &messages) as u64,
            };
            sent += went;
            if went == 0 {
                break;
            }
        }
        // Consume some of them late, so that credit and pool run out now and then.
        while wire.hosts[1].read(now).is_some() {
            received += 1;
            if sent < count && random.chance(0.5) {
                break;
            }
        }
        received == count
    });
    assert!(finished, "{received} of {sent} sent");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn both_paths_have_the_same_effect(seed in any::<u64>(), loss in prop_oneof![Just(0.0), 0.0..0.03, 0.0..0.3], room in 0..4_usize) {
        converse(seed, loss, [Room::Little, Room::Least, Room::TwoInterfaces, Room::Plenty][room]);
    }
}

#[test]
fn the_comparison_covers_every_fast_path() {
    converse(1, 0.0, Room::Little);
    for counter in [&LONE, &PACKED, &PIECES, &TRAINS, &REPEATED, &LONGER, &ALONE] {
        assert!(counter.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn a_message_sent_alone_has_a_deadline_next_to_another_session() {
    let mut wire = Wire::new(1, 3, &Config::default());
    let peers = [1, 2].map(|host| {
        wire.hosts[host].machine.open_endpoint(7);
        wire.connect(0, host)
    });
    assert!(wire.run(SECOND, |wire| {
        peers
            .iter()
            .all(|peer| wire.hosts[0].machine.is_open(*peer))
    }));
    wire.run(SECOND, |_| false);
    let now = wire.now;
    // The time of the earlier event.
    for peer in peers {
        let Host { machine, pool, .. } = &wire.hosts[0];
        let (mut machine, mut pool) = (machine.clone(), pool.clone());
        let edge = machine.edge(peer, 1, 7).expect("open");
        let begun = machine.begin(now, edge, 5).expect("credit");
        let slot = pool.pack(&begun, b"alone").expect("free");
        let sent = machine.transmit_alone(now, peer, slot, &mut pool);
        assert!(sent.is_some());
        let deadline = machine.next_deadline().expect("a repeat");
        let repeat_ns = machine.config().max_timeout_ns;
        assert!(deadline <= now.after(repeat_ns), "{deadline:?} at {now:?}");
    }
}
