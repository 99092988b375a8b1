//! The handshake of processes with and without the cluster key, and forged packets.

use crate::pair::{Wire, address, close};
use dipole_proto::wire::{
    self, Flags, HEADER_BYTES, Header, Hello, Kind, Reset, ResetReason, Trailer,
};
use dipole_proto::{Config, DropReason, EdgeId, GoneReason, KeyMismatch, PeerId, RENEWAL_NS, Seal};

const SECOND: u64 = 1_000_000_000;
const KEY: Option<u8> = Some(7);
const OTHER: Option<u8> = Some(8);

fn with(key: Option<u8>) -> Config {
    Config {
        keyed: key.is_some(),
        share: [key.unwrap_or(0); 32],
        ..Config::default()
    }
}

/// Two hosts with these keys, and a record of all packets.
fn wire(first: Option<u8>, second: Option<u8>) -> Wire {
    let mut wire = Wire::new(1, 2, &with(first));
    wire.hosts[1] = wire.host(1, &with(second));
    wire.seen = Some(Vec::new());
    for host in &mut wire.hosts {
        host.machine.open_endpoint(7);
    }
    wire
}

/// Two hosts of one cluster after the first has connected.
fn joined() -> (Wire, PeerId, EdgeId) {
    let mut wire = wire(KEY, KEY);
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| {
        wire.hosts.iter().all(|host| host.connected.len() == 1)
    }));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    (wire, peer, edge)
}

/// Sends a message from the first host to the second and checks that nothing else arrives.
fn exchange(wire: &mut Wire, edge: EdgeId, text: &[u8]) {
    let now = wire.now;
    wire.hosts[0]
        .send(now, edge, text)
        .expect("credit and frames");
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].received.is_empty()));
    let now = wire.now;
    assert_eq!(wire.hosts[1].read(now).expect("it arrived"), text);
    assert_eq!(wire.hosts[1].read(now), None);
}

fn kind(packet: &[u8]) -> Kind {
    Header::parse(packet)
        .expect("machines emit what parses")
        .kind
}

/// The packets of one kind sent so far.
fn seen(wire: &Wire, wanted: Kind) -> Vec<(wire::Address, wire::Address, Vec<u8>)> {
    let all = wire.seen.as_ref().expect("remembered").iter();
    all.filter(|(.., bytes)| kind(bytes) == wanted)
        .cloned()
        .collect()
}

/// A handshake packet with a correct checksum, sent without the key.
fn packet(
    kind: Kind,
    connection: u32,
    seal: Seal,
    emit: impl FnOnce(&mut [u8]) -> usize,
) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    let end = HEADER_BYTES + emit(&mut bytes[HEADER_BYTES..]);
    bytes.truncate(end);
    let mut header = Header::handshake(kind, connection);
    header.length = (end + seal.bytes()) as u16;
    if seal == Seal::Proof {
        header.flags.set(Flags::PROVEN);
    }
    header.emit(&mut bytes);
    close(&mut bytes, seal, None);
    bytes
}

fn reset(reason: ResetReason, connection: u32, echo: Option<u64>, seal: Seal) -> Vec<u8> {
    let reset = Reset {
        connection,
        reason,
        echo,
    };
    packet(Kind::Reset, 0, seal, |body| reset.emit(body))
}

#[test]
fn sessions_of_members_have_masked_checksums() {
    let (mut wire, _, edge) = joined();
    exchange(&mut wire, edge, b"among us");
    let data = seen(&wire, Kind::Data);
    let (_, _, bytes) = &data[0];
    let mut plain = bytes[..bytes.len() - wire::CRC_BYTES].to_vec();
    close(&mut plain, Seal::OPEN, None);
    assert_ne!(&plain, bytes);
    // The packet of a forger who knows everything but the key.
    let damaged = |wire: &Wire| wire.hosts[1].machine.stats().dropped(DropReason::Damaged);
    let before = damaged(&wire);
    wire.hosts[1].take(wire.now, data[0].0, &plain);
    assert_eq!(damaged(&wire), before + 1);
}

#[test]
fn crossing_hellos_of_members_make_one_session() {
    let mut wire = wire(KEY, KEY);
    wire.connect(0, 1);
    wire.connect(1, 0);
    assert!(wire.run(SECOND, |wire| {
        wire.hosts.iter().all(|host| host.connected.len() == 1)
    }));
    wire.run(SECOND, |_| false);
    for host in &wire.hosts {
        assert_eq!((host.machine.peers().count(), host.gone.len()), (1, 0));
    }
}

#[test]
fn members_open_sessions_in_spite_of_loss_duplication_and_reordering() {
    for seed in 0..50 {
        let mut wire = Wire::new(seed, 2, &with(KEY));
        (wire.loss, wire.duplicate, wire.reorder) = (0.3, 0.3, 0.5);
        wire.connect(0, 1);
        if seed % 2 == 0 {
            wire.connect(1, 0);
        }
        let open = |wire: &mut Wire| wire.hosts.iter().all(|host| !host.connected.is_empty());
        assert!(wire.run(20 * SECOND, open), "seed {seed}");
        wire.run(SECOND, |_| false);
        let gone = wire.hosts.iter().map(|host| host.gone.len()).sum::<usize>();
        assert_eq!(gone, 0, "seed {seed}");
    }
}

#[test]
fn a_process_with_another_key_or_none_is_refused_at_once() {
    for (first, second, mismatch) in [
        (KEY, OTHER, KeyMismatch::Different),
        (KEY, None, KeyMismatch::OnlyOurs),
        (None, KEY, KeyMismatch::OnlyTheirs),
    ] {
        let mut wire = wire(first, second);
        let peer = wire.connect(0, 1);
        assert!(wire.run(SECOND / 100, |wire| !wire.hosts[0].gone.is_empty()));
        assert_eq!(wire.hosts[0].gone, [(peer, GoneReason::Key(mismatch))]);
        assert!(wire.hosts[1].connected.is_empty() && wire.hosts[1].gone.is_empty());
        assert_eq!(wire.hosts[1].machine.peers().count(), 0);
        let stats = wire.hosts[1].machine.stats();
        assert_eq!(stats.dropped(DropReason::WrongKey), 1, "{mismatch:?}");
    }
}

#[test]
fn a_damaged_hello_does_not_count_as_a_wrong_key() {
    let mut wire = wire(KEY, KEY);
    wire.connect(0, 1);
    wire.run(SECOND / 10, |_| false);
    let hellos = seen(&wire, Kind::Hello);
    let (from, _, hello) = hellos.last().expect("a hello with its cookie");
    for bit in 8..hello.len() * 8 {
        let mut damaged = hello.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        wire.hosts[1].take(wire.now, *from, &damaged);
    }
    assert_eq!(
        wire.hosts[1].machine.stats().dropped(DropReason::WrongKey),
        0
    );
}

#[test]
fn a_valid_cookie_without_a_proof_opens_no_session() {
    for seal in [Seal::OPEN, Seal::Proof] {
        let (mut wire, _, edge) = joined();
        let from = address(9, 1);
        let mut hello = Hello::new(&[wire::LaneAddress::default()]);
        (hello.connection, hello.incarnation) = (5, 6);
        (hello.max_packet_bytes, hello.window_packets) = (1472, 64);
        let say = |hello: &Hello| packet(Kind::Hello, 0, seal, |body| hello.emit(body));
        wire.hosts[1].take(wire.now, from, &say(&hello));
        wire.run(SECOND / 100, |_| false);
        let challenges = seen(&wire, Kind::Challenge);
        let (_, to, challenge) = challenges
            .last()
            .expect("hellos of any sender are challenged");
        assert_eq!(*to, from);
        hello.cookie = wire::Challenge::parse(&challenge[HEADER_BYTES..])
            .expect("sound")
            .cookie;
        wire.hosts[1].take(wire.now, from, &say(&hello));
        wire.run(SECOND / 100, |_| false);
        assert_eq!(wire.hosts[1].connected.len(), 1, "only the member");
        assert_eq!(wire.hosts[1].machine.peers().count(), 1);
        let resets = seen(&wire, Kind::Reset);
        assert_eq!(resets.len(), 1);
        let reset = Reset::parse(&resets[0].2[HEADER_BYTES..]).expect("sound");
        assert_eq!((reset.reason, reset.echo), (ResetReason::Key, Some(6)));
        exchange(&mut wire, edge, b"undisturbed");
    }
}

#[test]
fn a_replayed_hello_neither_opens_nor_ends_a_session() {
    let (mut wire, peer, _) = joined();
    let old = seen(&wire, Kind::Hello);
    wire.hosts[0].machine.disconnect(peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].gone.is_empty()));
    // Replay them from the same address after the session has ended, and from another address.
    for (from, _, bytes) in &old {
        wire.hosts[1].take(wire.now, *from, bytes);
        wire.hosts[1].take(wire.now, address(9, 1), bytes);
    }
    wire.run(SECOND, |_| false);
    assert_eq!(wire.hosts[1].connected.len(), 1, "only the first time");
    assert_eq!(wire.hosts[1].machine.peers().count(), 0);

    wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[1].connected.len() == 2));
    let gone = wire.hosts[1].gone.len();
    for (from, _, bytes) in &old {
        wire.hosts[1].take(wire.now, *from, bytes);
    }
    wire.run(SECOND, |_| false);
    assert_eq!(wire.hosts[1].gone.len(), gone, "the new session continues");
    assert_eq!(wire.hosts[1].connected.len(), 2);
    // Much later its cookie is too old, as well.
    wire.run(60 * SECOND, |_| false);
    for (from, _, bytes) in &old {
        wire.hosts[1].take(wire.now, *from, bytes);
    }
    assert_eq!(wire.hosts[1].connected.len(), 2);
}

#[test]
fn packets_of_an_earlier_session_do_not_affect_a_later_one() {
    let (mut wire, peer, edge) = joined();
    exchange(&mut wire, edge, b"earlier");
    wire.hosts[0].machine.disconnect(peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].gone.is_empty()));
    let old = wire.seen.clone().expect("remembered");
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[1].connected.len() == 2));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    let gone = wire
        .hosts
        .iter()
        .map(|host| host.gone.len())
        .collect::<Vec<_>>();
    for _ in 0..3 {
        for (from, to, bytes) in &old {
            let host = usize::from(to.ip[15]) - 1;
            wire.hosts[host].take(wire.now, *from, bytes);
        }
        wire.run(SECOND / 10, |_| false);
    }
    let after = wire
        .hosts
        .iter()
        .map(|host| host.gone.len())
        .collect::<Vec<_>>();
    assert_eq!(gone, after);
    assert!(wire.hosts[1].received.is_empty());
    exchange(&mut wire, edge, b"later");
}

#[test]
fn forged_resets_and_byes_end_no_session_of_members() {
    let (mut wire, peer, edge) = joined();
    exchange(&mut wire, edge, b"before");
    // A forger guesses what only the two members know.
    let data = seen(&wire, Kind::Data);
    let (from, to, bytes) = data[0].clone();
    let theirs = Header::parse(&bytes).expect("sound").connection;
    let incarnation = wire.hosts[1].machine.incarnation();
    for reason in [
        ResetReason::UnknownConnection,
        ResetReason::Version,
        ResetReason::TooManyPeers,
        ResetReason::Key,
    ] {
        for echo in [None, Some(wire.hosts[0].machine.incarnation())] {
            for connection in [theirs, peer.connection()] {
                for seal in [Seal::OPEN, Seal::Proof] {
                    let forged = reset(reason, connection, echo, seal);
                    wire.hosts[0].take(wire.now, to, &forged);
                }
            }
        }
    }
    let bye = wire::Bye { incarnation };
    let bye = packet(Kind::Bye, peer.connection(), Seal::OPEN, |body| {
        bye.emit(body)
    });
    wire.hosts[0].take(wire.now, to, &bye);
    assert!(wire.hosts[0].gone.is_empty());
    exchange(&mut wire, edge, b"after");

    // A member that does not know the session is believed, but not from another port.
    let config = with(KEY);
    wire.hosts[1] = wire.host(1, &config);
    wire.hosts[1].take(wire.now, from, &bytes);
    wire.run(SECOND / 1000, |wire| !seen(wire, Kind::Reset).is_empty());
    let resets = seen(&wire, Kind::Reset);
    let (_, _, genuine) = resets.last().expect("the connection is unknown");
    wire.hosts[0].take(wire.now, wire::Address { port: 99, ..to }, genuine);
    assert!(wire.hosts[0].gone.is_empty());
    wire.hosts[0].take(wire.now, to, genuine);
    let reason = GoneReason::Reset(ResetReason::UnknownConnection);
    assert_eq!(wire.hosts[0].gone, [(peer, reason)]);
}

#[test]
fn a_provoked_reset_ends_no_session_of_others() {
    let (mut wire, peer, edge) = joined();
    exchange(&mut wire, edge, b"before");
    let theirs = Header::parse(&seen(&wire, Kind::Data)[0].2)
        .expect("sound")
        .connection;
    // A member's hello, intended for a process that is gone, contains the connection id in use.
    let from = address(0, 1);
    let mut hello = Hello::new(&[wire::LaneAddress::default()]);
    (hello.connection, hello.incarnation, hello.echo) = (theirs, 6, 1);
    (hello.max_packet_bytes, hello.window_packets) = (1472, 64);
    let secret = wire.hosts[1].secret();
    let say = |hello: &Hello| {
        let mut bytes = packet(Kind::Hello, 0, Seal::Proof, |body| hello.emit(body));
        bytes.truncate(bytes.len() - Seal::Proof.bytes());
        close(&mut bytes, Seal::Proof, secret);
        bytes
    };
    wire.hosts[1].take(wire.now, from, &say(&hello));
    wire.run(SECOND / 100, |_| false);
    let challenge = seen(&wire, Kind::Challenge).pop().expect("answered").2;
    hello.cookie = wire::Challenge::parse(&challenge[HEADER_BYTES..])
        .expect("sound")
        .cookie;
    wire.hosts[1].take(wire.now, from, &say(&hello));
    wire.run(SECOND / 100, |_| false);
    assert_eq!(seen(&wire, Kind::Reset).len(), 1);
    assert!(
        wire.hosts[0].machine.is_open(peer),
        "{:?}",
        wire.hosts[0].gone
    );
    exchange(&mut wire, edge, b"after");
}

#[test]
fn a_forged_or_replayed_welcome_opens_no_session() {
    let mut wire = wire(KEY, KEY);
    let peer = wire.connect(0, 1);
    // The hello is sent and lost.
    wire.dead_ports = vec![1];
    wire.run(SECOND / 1000, |_| false);
    let mut welcome = Hello::new(&[wire::LaneAddress::default()]);
    (welcome.connection, welcome.incarnation) = (5, 6);
    (welcome.max_packet_bytes, welcome.window_packets) = (1472, 64);
    welcome.echo = wire.hosts[0].machine.incarnation();
    let from = address(1, 1);
    let to = peer.connection();
    for seal in [Seal::OPEN, Seal::Proof] {
        let forged = packet(Kind::Welcome, to, seal, |body| welcome.emit(body));
        wire.hosts[0].take(wire.now, from, &forged);
    }
    assert_eq!(
        wire.hosts[0].machine.stats().dropped(DropReason::WrongKey),
        2
    );
    // It was created by a member, but for another cookie.
    welcome.cookie = 77;
    let mut earlier = packet(Kind::Welcome, to, Seal::Proof, |body| welcome.emit(body));
    earlier.truncate(earlier.len() - Seal::Proof.bytes());
    close(&mut earlier, Seal::Proof, wire.hosts[0].secret());
    wire.hosts[0].take(wire.now, from, &earlier);
    assert_eq!(
        wire.hosts[0]
            .machine
            .stats()
            .dropped(DropReason::WrongCookie),
        1
    );
    assert!(wire.hosts[0].connected.is_empty());
    wire.dead_ports.clear();
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
}

#[test]
fn a_hello_with_a_proof_fits_the_shortest_packet() {
    let config = Config {
        packet_bytes: 256,
        ..with(KEY)
    };
    let mut wire = Wire::with_interfaces(1, 2, 4, &config);
    wire.seen = Some(Vec::new());
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    assert!(
        seen(&wire, Kind::Hello)
            .iter()
            .all(|(.., bytes)| bytes.len() <= 256)
    );
}

#[test]
fn a_member_connects_during_a_flood_of_unproven_hellos() {
    let mut wire = wire(KEY, KEY);
    let mut hello = Hello::new(&[wire::LaneAddress::default()]);
    (hello.max_packet_bytes, hello.window_packets) = (1472, 64);
    let peer = wire.connect(0, 1);
    let opened = wire.run(SECOND, |wire| {
        for unknown in 1..400 {
            (hello.connection, hello.incarnation) = (unknown, 6);
            let forged = packet(Kind::Hello, 0, Seal::Proof, |body| hello.emit(body));
            wire.hosts[1].take(wire.now, address(9, 1), &forged);
        }
        wire.hosts[0].machine.is_open(peer)
    });
    assert!(opened);
    assert!(wire.hosts[1].machine.stats().dropped(DropReason::Throttled) > 0);
    let hellos = seen(&wire, Kind::Hello).len();
    assert_eq!(hellos, 2, "no hello was repeated");
}

/// Both sides of a session change to another key, and the first does not accept the old one any
/// more.
fn rotated(wire: &mut Wire, sides: &[usize]) {
    for side in sides {
        wire.hosts[*side].other_secret = Some([9; 32]);
    }
    let now = wire.now;
    wire.hosts[0].machine.renew_proofs(now);
}

#[test]
fn sessions_continue_after_their_key_is_withdrawn() {
    for loss in [0.0, 0.3] {
        let (mut wire, peer, edge) = joined();
        (wire.loss, wire.duplicate, wire.reorder) = (loss, loss, loss);
        rotated(&mut wire, &[0, 1]);
        assert!(wire.hosts[0].machine.is_unproven(peer));
        // Both sides read their key files, at different times.
        let now = wire.now;
        wire.hosts[1].machine.renew_proofs(now);
        let is_proven = |wire: &mut Wire| {
            let mut hosts = wire.hosts.iter();
            hosts.all(|host| !host.machine.is_unproven(host.connected[0]))
        };
        assert!(wire.run(RENEWAL_NS, is_proven));
        (wire.loss, wire.duplicate, wire.reorder) = (0.0, 0.0, 0.0);
        wire.run(2 * RENEWAL_NS, |_| false);
        for host in &wire.hosts {
            assert_eq!((host.connected.len(), host.gone.len()), (1, 0));
        }
        exchange(&mut wire, edge, b"still among us");
    }
}

#[test]
fn a_peer_with_only_a_withdrawn_key_is_removed_and_notified() {
    let (mut wire, peer, _) = joined();
    rotated(&mut wire, &[0]);
    wire.run(RENEWAL_NS - SECOND, |_| false);
    assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
    wire.run(2 * SECOND, |_| false);
    let reason = GoneReason::Key(KeyMismatch::Different);
    assert_eq!(wire.hosts[0].gone, [(peer, reason)]);
    let [(_, GoneReason::Closed)] = wire.hosts[1].gone[..] else {
        panic!("{:?}", wire.hosts[1].gone);
    };
}

#[test]
fn a_man_in_the_middle_with_a_withdrawn_key_cannot_impersonate_a_member() {
    let (mut wire, peer, _) = joined();
    let welcome = seen(&wire, Kind::Welcome).remove(0);
    rotated(&mut wire, &[0]);
    // A welcome of the member behind the man in the middle. It repeats the cookie, but contains the
    // share of another session.
    let mut between = Hello::parse(&welcome.2[HEADER_BYTES..]).expect("sound");
    wire.run(SECOND, |_| false);
    let hellos = seen(&wire, Kind::Hello);
    let last = &hellos.last().expect("a hello with the renewed request").2;
    between.cookie = Hello::parse(&last[HEADER_BYTES..]).expect("sound").cookie;
    assert_ne!(between.cookie, 0, "it was challenged");
    let say = |wire: &mut Wire, welcome: &Hello| {
        let to = peer.connection();
        let mut bytes = packet(Kind::Welcome, to, Seal::Proof, |body| welcome.emit(body));
        bytes.truncate(bytes.len() - Seal::Proof.bytes());
        close(&mut bytes, Seal::Proof, wire.hosts[0].secret());
        let now = wire.now;
        wire.hosts[0].take(now, address(1, 1), &bytes);
        wire.hosts[0].machine.is_unproven(peer)
    };
    let share = between.share;
    between.share[0] ^= 1;
    assert!(say(&mut wire, &between), "another share");
    between.share = share;
    between.salt ^= 1;
    assert!(say(&mut wire, &between), "another session");
    between.salt ^= 1;
    between.cookie ^= 1;
    assert!(say(&mut wire, &between), "an answer to an earlier question");
    between.cookie ^= 1;
    assert!(!say(&mut wire, &between), "this is the peer itself");
    // A peer that opens another session meanwhile sends the same, which is allowed.
    let dropped = |reason| wire.hosts[0].machine.stats().dropped(reason);
    assert_eq!(dropped(DropReason::Violation), 0);
    assert_eq!(dropped(DropReason::UnknownConnection), 2);
}

#[test]
fn packets_without_a_checksum_carry_the_number_of_their_session() {
    for (first, second, agreed) in [
        (
            wire::Trailers::KERNEL,
            wire::Trailers::KERNEL,
            Trailer::Kernel,
        ),
        (
            wire::Trailers::KERNEL,
            wire::Trailers::CRC32C,
            Trailer::Crc32c,
        ),
    ] {
        let config = Config {
            trailers: first,
            ..Config::default()
        };
        let mut wire = Wire::new(1, 2, &config);
        wire.hosts[1] = wire.host(
            1,
            &Config {
                trailers: second,
                ..config
            },
        );
        wire.hosts[1].machine.open_endpoint(7);
        let peer = wire.connect(0, 1);
        assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
        assert_eq!(wire.hosts[0].machine.trailer(peer), agreed);
        let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
        let now = wire.now;
        wire.hosts[0].send(now, edge, b"text").expect("room");
        assert!(wire.run(SECOND, |wire| wire.hosts[1].read(wire.now).is_some()));
        assert_eq!(
            wire.hosts[1].machine.stats().dropped(DropReason::Damaged),
            0
        );
        // Another session's number, or none.
        let mut stray = packet(Kind::Data, peer.connection(), Seal::OPEN, |_| 0);
        for changed in [0, 1, 128] {
            *stray.last_mut().expect("a trailer") ^= changed;
            let home = wire.hosts[1].home;
            let now = wire.now;
            wire.hosts[0].take(now, home, &stray);
        }
        let damaged = wire.hosts[0].machine.stats().dropped(DropReason::Damaged);
        assert!(damaged >= 2, "{damaged}");
    }
}

#[test]
fn keys_of_an_ended_session_are_kept_until_its_bye_was_sent() {
    let config = Config {
        trailers: wire::Trailers::AUTH,
        ..with(KEY)
    };
    let mut wire = Wire::new(1, 2, &config);
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| {
        wire.hosts.iter().all(|host| host.connected.len() == 1)
    }));
    let agreed = wire.hosts[0].machine.take_agreement().expect("it is open");
    assert_eq!(wire.hosts[0].machine.take_ended_session(), None);
    wire.hosts[0].machine.disconnect(peer);
    assert_eq!(
        wire.hosts[0].machine.take_ended_session(),
        None,
        "the bye waits"
    );
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].gone.is_empty()));
    let ended = Some((agreed.index, agreed.serial));
    assert_eq!(wire.hosts[0].machine.take_ended_session(), ended);
    assert_eq!(wire.hosts[0].machine.take_ended_session(), None);
    assert!(wire.hosts[1].machine.take_ended_session().is_some());
}
