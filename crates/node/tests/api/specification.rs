//! Checks the captured packets in `docs/design/protocol.md` §10: every packet parses, has a valid
//! CRC32C, and matches its description.

use dipole_node::{ClusterKey, KEY_BYTES};
use dipole_proto::wire::{
    Bye, CRC_BYTES, Challenge, EdgeKey, Flags, Hello, Kind, PROOF_BYTES, Packet, Record, Reset,
    ResetReason,
};

fn documented(name: &str) -> Vec<u8> {
    block(&format!("packet {name}"))
}

fn block(name: &str) -> Vec<u8> {
    let specification = include_str!("../../../../docs/design/protocol.md");
    let begin = format!("```{name}\n");
    let at = specification.find(&begin).expect("it is documented") + begin.len();
    let block = specification[at..].split("```").next().expect("it ends");
    block
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect()
}

fn with_packet(name: &str, check: impl FnOnce(&Packet<'_>)) {
    let bytes = documented(name);
    let packet = Packet::parse(&bytes, 4).expect("sound");
    let covered = packet.covered();
    assert_eq!(covered.len() + 4, bytes.len(), "{name} has no padding");
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, covered);
    let carried = u32::from_le_bytes(bytes[covered.len()..].try_into().expect("four bytes"));
    assert_eq!(u64::from(carried), sum, "{name}");
    check(&packet);
}

#[test]
fn the_captured_handshake_matches_its_description() {
    with_packet("hello", |packet| {
        let hello = Hello::parse(packet.body()).expect("sound");
        assert_eq!(packet.header().kind, Kind::Hello);
        assert_eq!((hello.connection, hello.node), (0x082c_8000, 1));
        assert_eq!(hello.incarnation, 0x28e6_4500_c10d_5c86);
        assert_eq!(
            (hello.window_packets, hello.initial_credit_bytes),
            (256, 32768)
        );
        assert_eq!(hello.lanes()[1].address.to_string(), "127.0.0.1:51784");
    });
    with_packet("challenge", |packet| {
        let challenge = Challenge::parse(packet.body()).expect("sound");
        assert_eq!(challenge.cookie, 0x1160_84b6_1faa_fb07);
        assert_eq!(challenge.echo, 0x28e6_4500_c10d_5c86);
    });
    with_packet("welcome", |packet| {
        let welcome = Hello::parse(packet.body()).expect("sound");
        assert_eq!(packet.header().kind, Kind::Welcome);
        assert_eq!(welcome.connection, 0xc095_4000);
        assert_eq!(welcome.echo, 0x28e6_4500_c10d_5c86);
    });
    with_packet("bye", |packet| {
        assert_eq!(packet.header().kind, Kind::Bye);
        let bye = Bye::parse(packet.body()).expect("sound");
        assert_eq!(bye.incarnation, 0xcb41_c71a_c5a5_7259);
    });
}

#[test]
fn the_captured_messages_match_their_description() {
    for (name, number, length) in [("text", 0, 28), ("end", 1, 21)] {
        with_packet(name, |packet| {
            assert_eq!(
                (packet.header().number, packet.header().unit),
                (number, number)
            );
            let records: Vec<_> = packet
                .records()
                .map(|record| record.expect("sound"))
                .collect();
            assert!(matches!(
                &records[..],
                [Record::Message { key: EdgeKey { source: 8, target: 7, .. }, sequence, total, .. }]
                    if *sequence == number && *total == length
            ));
        });
    }
    with_packet("ack", |packet| {
        let header = packet.header();
        assert_eq!(header.kind, Kind::Ack);
        assert_eq!(
            (header.unit_next, header.lane_next, header.lane_end),
            (2, 2, 2)
        );
        assert_eq!((header.lane, header.ack_lane), (15, 0));
    });
}

#[test]
fn the_proven_reset_and_the_fingerprint_match_the_documentation() {
    let secret: [u8; KEY_BYTES] = std::array::from_fn(|at| u8::try_from(at).expect("few"));
    let key = ClusterKey::new(secret);
    let named = format!("the fingerprint is `{}`", key.fingerprint());
    assert!(
        include_str!("../../../../docs/design/protocol.md").contains(&named),
        "{named}"
    );

    let bytes = block("vector proven-reset");
    let packet = Packet::parse(&bytes, PROOF_BYTES + CRC_BYTES).expect("sound");
    assert!(packet.header().flags.has(Flags::PROVEN));
    let reset = Reset {
        connection: 0x00A1_C003,
        reason: ResetReason::Key,
        echo: Some(0x1122_3344_5566_7788),
    };
    assert_eq!(Reset::parse(packet.body()), Ok(reset));
    let (covered, sum) = bytes.split_at(bytes.len() - CRC_BYTES);
    let proof = &covered[packet.covered().len()..];
    let mac_key = key.mac_key("dipole 2026 handshake");
    assert!(mac_key.verify(packet.covered(), proof));
    let right = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, covered);
    assert_eq!(right.to_le_bytes()[..CRC_BYTES], *sum);
}
