//! Compares the test vectors of `docs/design/protocol.md` with what the code emits and parses.

use dipole_proto::wire::{
    Address, Challenge, EdgeKey, Flags, HEADER_BYTES, Header, Hello, Kind, LaneAddress,
    MESSAGE_BYTES, OPERATION_BYTES, Operation, OperationKind, Packet, Range, Record, Reset,
    ResetReason, emit_echo, emit_lane_ack, emit_lanes, emit_message, emit_probe,
};

/// The fenced block "vector NAME" of the specification; `CRC` stands for four bytes.
fn documented(name: &str) -> Vec<u8> {
    let specification = include_str!("../../../../docs/design/protocol.md");
    let begin = format!("```vector {name}\n");
    let at = specification
        .find(&begin)
        .expect("the vector is documented")
        + begin.len();
    let block = specification[at..]
        .split("```")
        .next()
        .expect("the block ends");
    block
        .split_whitespace()
        .filter(|word| *word != "CRC")
        .map(|word| u8::from_str_radix(word, 16).expect("hexadecimal"))
        .collect()
}

fn finish(mut header: Header, mut bytes: Vec<u8>) -> Vec<u8> {
    header.length = u16::try_from(bytes.len() + 4).expect("short");
    header.emit(&mut bytes);
    bytes
}

#[test]
fn the_put_matches_the_specification() {
    let operation = Operation {
        kind: OperationKind::Put,
        wants_answer: false,
        gives_notice: true,
        id: 0,
        key: 0x0102_0304_0506_0708,
        offset: 16,
        value: 9,
    };
    let key = EdgeKey {
        source: 1,
        target: 7,
        life: 0,
    };
    let mut bytes = vec![0; HEADER_BYTES + MESSAGE_BYTES];
    let payload = OPERATION_BYTES + 3;
    emit_message(&mut bytes[HEADER_BYTES..], key, 5, payload, false, true);
    bytes.extend(operation.to_bytes());
    bytes.extend(b"abc");
    let mut header = Header::handshake(Kind::Data, 0x00A1_C003);
    header.flags = Flags(Flags::UNIT.0 | Flags::ACK.0 | Flags::LAST.0);
    (header.number, header.unit, header.settled) = (9, 12, 2);
    (header.lane, header.ack_lane) = (0, 0);
    assert_eq!(finish(header, bytes), documented("put"));
}

#[test]
fn the_message_matches_the_specification() {
    let mut bytes = vec![0; HEADER_BYTES + MESSAGE_BYTES];
    let key = EdgeKey {
        source: 1,
        target: 7,
        life: 0,
    };
    emit_message(&mut bytes[HEADER_BYTES..], key, 5, 3, false, false);
    bytes.extend(b"abc");
    let mut header = Header::handshake(Kind::Data, 0x00A1_C003);
    header.flags = Flags(Flags::UNIT.0 | Flags::ACK.0 | Flags::LAST.0);
    (header.number, header.unit, header.settled) = (9, 12, 2);
    (header.lane, header.ack_lane) = (0, 0);
    let bytes = finish(header, bytes);
    assert_eq!(bytes, documented("message"));

    let mut packet = bytes.clone();
    packet.extend([0; 4]);
    let packet = Packet::parse(&packet, 4).expect("sound");
    let records: Vec<_> = packet.records().collect();
    assert!(matches!(
        &records[..],
        [Ok(Record::Message { key: EdgeKey { source: 1, target: 7, life: 0 }, sequence: 5, total: 3, payload, .. })]
            if bytes[payload.clone()] == *b"abc"
    ));
}

#[test]
fn the_handshake_matches_the_specification() {
    let lane = |lane: u8, port: u16| LaneAddress {
        lane,
        bulk: lane == 1,
        address: Address {
            ip: std::net::Ipv4Addr::new(10, 0, 0, 1)
                .to_ipv6_mapped()
                .octets(),
            port,
        },
    };
    let mut hello = Hello::new(&[lane(0, 12345), lane(1, 12346)]);
    hello.max_packet_bytes = 1472;
    hello.connection = 0x00A1_C003;
    hello.incarnation = 0x1122_3344_5566_7788;
    hello.node = 2;
    hello.window_packets = 1024;
    hello.initial_credit_bytes = 32768;
    hello.salt = 0x0102_0304_0506_0708;
    hello.share = std::array::from_fn(|at| 0x20 + u8::try_from(at).unwrap());
    let mut bytes = vec![0; HEADER_BYTES + hello.bytes()];
    hello.emit(&mut bytes[HEADER_BYTES..]);
    let bytes = finish(Header::handshake(Kind::Hello, 0), bytes);
    assert_eq!(bytes, documented("hello"));
    assert_eq!(Hello::parse(&bytes[HEADER_BYTES..]), Ok(hello));

    let challenge = Challenge {
        cookie: 0x0102_0304_0506_0708,
        echo: hello.incarnation,
    };
    let mut bytes = vec![0; HEADER_BYTES + 16];
    challenge.emit(&mut bytes[HEADER_BYTES..]);
    let header = Header::handshake(Kind::Challenge, hello.connection);
    assert_eq!(finish(header, bytes), documented("challenge"));

    let reset = Reset {
        connection: hello.connection,
        reason: ResetReason::UnknownConnection,
        echo: None,
    };
    let mut bytes = vec![0; HEADER_BYTES + 8];
    reset.emit(&mut bytes[HEADER_BYTES..]);
    let header = Header::handshake(Kind::Reset, 0);
    assert_eq!(finish(header, bytes), documented("reset"));
}

#[test]
fn the_lane_acknowledgement_matches_the_specification() {
    let holes = [Range { start: 2, count: 2 }, Range { start: 7, count: 2 }];
    let mut bytes = [0; 64];
    let length = emit_lane_ack(&mut bytes, 1, (2, 10), &holes);
    assert_eq!(bytes[..length], documented("lane-ack"));
}

#[test]
fn the_list_of_lanes_matches_the_specification() {
    let lanes = [LaneAddress {
        lane: 0,
        bulk: false,
        address: Address {
            ip: std::net::Ipv4Addr::new(10, 0, 0, 1)
                .to_ipv6_mapped()
                .octets(),
            port: 12345,
        },
    }];
    let mut bytes = [0; 256];
    let length = emit_lanes(&mut bytes, 2, &lanes);
    assert_eq!(bytes[..length], documented("lanes"));
}

#[test]
fn probe_and_echo_match_the_specification() {
    let mut bytes = [0xFF; 64];
    let token = 0x1122_3344_5566_7788;
    assert_eq!(emit_probe(&mut bytes[..16], 3, token), 16);
    assert_eq!(bytes[..16], documented("probe"));
    let length = emit_echo(&mut bytes, 3, token, 1472);
    assert_eq!(bytes[..length], documented("echo"));
}
