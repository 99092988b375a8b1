//! Machines on a hostile wire: forged, damaged and repeated packets. Spec §7.

use crate::hostile::{Action, Conversation, Forgery, decode, play, play_honest};
use dipole_proto::wire::{
    self, Address, CRC_BYTES, EdgeKey, FRAGMENT_BYTES, HEADER_BYTES, Header, Hello, Kind,
    LaneAddress,
};
use dipole_proto::{DropReason, Instant};
use proptest::collection::vec;
use proptest::prelude::*;

/// Failing cases are printed; nothing is written next to the sources.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

/// An edge in its first life.
const FIRST: EdgeKey = EdgeKey {
    source: 1,
    target: 7,
    life: 0,
};

proptest! {
    #![proptest_config(cases(30_000))]

    #[test]
    fn forged_packets_neither_stop_a_machine_nor_leak_a_slot(
        script in vec(any::<u8>(), 0..600).prop_map(|bytes| decode(&bytes))
    ) {
        play(&script);
    }

    #[test]
    fn losses_duplicates_and_damage_do_not_change_what_is_delivered(
        script in vec(any::<u8>(), 0..600).prop_map(|bytes| decode(&bytes))
    ) {
        play_honest(&script);
    }
}

/// A data packet with these records and a zero trailer.
fn packet_of(records: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes.extend(records);
    bytes.extend([0; CRC_BYTES]);
    let mut header = Header::handshake(Kind::Data, 1);
    header.length = u16::try_from(bytes.len()).expect("short");
    header.emit(&mut bytes);
    bytes
}

/// How often the second host counted this reason while `act` ran.
fn counted(reason: DropReason, act: impl FnOnce(&mut Conversation)) -> u64 {
    let mut conversation = Conversation::open();
    let now = conversation.now;
    conversation.hosts[0].send(now, 100);
    conversation.collect();
    let before = conversation.hosts[1].machine.stats().dropped(reason);
    act(&mut conversation);
    let after = conversation.hosts[1].machine.stats().dropped(reason);
    conversation.end();
    after - before
}

#[test]
fn every_bad_packet_is_counted_under_its_reason() {
    let change = |act: fn(&mut Vec<u8>)| {
        move |conversation: &mut Conversation| {
            assert!(conversation.pass(|packet| act(&mut packet.bytes)));
        }
    };
    assert_eq!(
        counted(DropReason::Malformed, change(|bytes| bytes.truncate(31))),
        1
    );
    assert_eq!(
        counted(DropReason::Malformed, change(|bytes| bytes.truncate(60))),
        1
    );
    assert_eq!(
        counted(DropReason::Malformed, change(|bytes| bytes[0] |= 15)),
        1
    );
    assert_eq!(
        counted(
            DropReason::Malformed,
            change(|bytes| bytes[HEADER_BYTES] = 0x7F)
        ),
        1
    );
    assert_eq!(
        counted(DropReason::Version, change(|bytes| bytes[0] ^= 0x30)),
        1
    );
    assert_eq!(
        counted(
            DropReason::UnknownConnection,
            change(|bytes| bytes[4] ^= 0x80)
        ),
        1
    );
    assert_eq!(
        counted(DropReason::Untracked, change(|bytes| bytes[28] = 7)),
        1
    );
    // A reliable message in a packet without a unit.
    assert_eq!(
        counted(DropReason::Violation, change(|bytes| bytes[1] &= !1)),
        1
    );
}

#[test]
fn a_repeated_packet_is_a_duplicate() {
    let mut conversation = Conversation::open();
    let now = conversation.now;
    conversation.hosts[0].send(now, 100);
    conversation.collect();
    let mut packet = None;
    assert!(conversation.pass(|passing| packet = Some(passing.clone())));
    let packet = packet.expect("one was in flight");
    for count in 1..5 {
        conversation.arrive(&packet);
        let stats = conversation.hosts[1].machine.stats();
        assert_eq!(stats.dropped(DropReason::Duplicate), count);
        assert_eq!(stats.messages_delivered, 1);
    }
}

#[test]
fn a_message_longer_than_all_credit_is_a_violation() {
    let mut conversation = Conversation::open();
    let now = conversation.now;
    conversation.hosts[0].send(now, 100);
    conversation.collect();
    assert!(conversation.pass(|_| {}));
    let is_data = |packet: &crate::hostile::Packet| packet.to == 1 && packet.bytes[0] == 0x13;
    let which = (0..u8::MAX)
        .find(|which| {
            conversation
                .remembered(*which)
                .as_ref()
                .is_some_and(is_data)
        })
        .expect("a message was sent");
    for total in [u64::MAX, u64::MAX - 64, 1 << 63, 1 << 31] {
        let mut records = vec![0; FRAGMENT_BYTES + 1];
        wire::emit_fragment(
            &mut records,
            wire::FragmentHead {
                key: FIRST,
                sequence: 1,
                offset: 0,
                total,
                unreliable: false,
                operation: false,
            },
            1,
        );
        let continued = Action::Forge {
            which,
            forgery: Forgery::Continue { records },
        };
        let used = conversation.hosts[1].machine.pool_used();
        continued.apply(&mut conversation);
        assert_eq!(conversation.hosts[1].machine.pool_used(), used);
        assert_eq!(conversation.hosts[1].machine.stats().messages_delivered, 1);
    }
    let stats = conversation.hosts[1].machine.stats();
    assert_eq!(stats.dropped(DropReason::Violation), 4, "{stats:?}");
    conversation.end();
}

#[test]
fn a_hello_with_a_wrong_cookie_opens_no_session() {
    let mut conversation = Conversation::open();
    let mut hello = Hello::new(&[LaneAddress::default()]);
    hello.connection = 5;
    hello.incarnation = 99;
    hello.window_packets = 10;
    hello.max_packet_bytes = 1472;
    hello.cookie = 0xBAD;
    let mut bytes = vec![0; HEADER_BYTES + hello.bytes() + CRC_BYTES];
    let mut header = Header::handshake(Kind::Hello, 0);
    header.length = bytes.len() as u16;
    header.emit(&mut bytes);
    hello.emit(&mut bytes[HEADER_BYTES..]);
    let unknown = Address {
        ip: [9; 16],
        port: 9,
    };
    conversation.hosts[1].take(Instant(2_000_000_000), unknown, &bytes, true);
    let machine = &conversation.hosts[1].machine;
    assert_eq!(machine.stats().dropped(DropReason::WrongCookie), 1);
    assert_eq!(machine.peers().count(), 1);
    conversation.end();
}

#[test]
fn answers_to_unknown_senders_are_limited() {
    let mut conversation = Conversation::open();
    let unknown = Address {
        ip: [9; 16],
        port: 9,
    };
    let now = conversation.now;
    for number in 0..2000_u32 {
        let mut bytes = packet_of(&[]);
        bytes[4..8].copy_from_slice(&(1 << 20 | number << 2).to_le_bytes());
        conversation.hosts[1].take(now, unknown, &bytes, true);
    }
    let stats = conversation.hosts[1].machine.stats();
    assert_eq!(stats.dropped(DropReason::UnknownConnection), 2000);
    assert!(stats.dropped(DropReason::Throttled) >= 1000);
    let answers = conversation.hosts[1].transmit(now).len();
    assert!((1..=1000).contains(&answers), "{answers}");
}

#[test]
fn waits_beyond_the_peer_time_out_end_the_session() {
    let mut script = vec![Action::Send {
        host: 0,
        length: 100,
    }];
    script.extend((0..60).map(|_| Action::Wait {
        microseconds: u16::MAX,
    }));
    play_honest(&script);
}
