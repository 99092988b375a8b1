//! All parsers of `wire` on arbitrary, truncated and damaged input. Spec §2 to §4.

use crate::samples::Sample;
use dipole_proto::wire::{
    self, Address, Bye, CHALLENGE_BYTES, CONTROL_LANE, CRC_BYTES, Challenge, CreditRequest,
    EdgeKey, FRAGMENT_BYTES, Flags, HEADER_BYTES, HELLO_FIXED_BYTES, Header, Hello, Kind,
    LaneAddress, MAX_LANES, MAX_RANGES, Malformed, OPERATION_BYTES, Packet, Part, RESET_BYTES,
    Range, Record, RefusedReason, Reset, ResetReason, Trailer, Trailers,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Failing cases are printed; nothing is written next to the sources.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

// ---- generators -----------------------------------------------------------

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Hello,
        Kind::Challenge,
        Kind::Welcome,
        Kind::Data,
        Kind::Ack,
        Kind::AckRequest,
        Kind::Reset,
        Kind::Lookup,
        Kind::Found,
        Kind::Bye,
    ])
}

fn lane() -> impl Strategy<Value = u8> {
    prop_oneof![0..MAX_LANES as u8, Just(CONTROL_LANE)]
}

prop_compose! {
    fn header()(
        kind in kind(),
        flags in 0_u8..64,
        (length, settled) in any::<(u16, u16)>(),
        (connection, number, unit) in any::<(u32, u32, u32)>(),
        (unit_next, lane_next, lane_end) in any::<(u32, u32, u32)>(),
        (lane, ack_lane) in (lane(), lane()),
        (index, more) in (0_u8..8, 0_u8..8),
    ) -> Header {
        let cut = kind == Kind::Data && Flags(flags).has(Flags::UNIT);
        let last = index + more;
        Header {
            part: if cut { Part { index, last } } else { Part::WHOLE },
            kind,
            flags: Flags(flags),
            length,
            connection,
            number,
            unit,
            unit_next,
            lane_next,
            lane_end,
            lane,
            ack_lane,
            settled,
        }
    }
}

prop_compose! {
    fn lane_address()(
        lane in 0..MAX_LANES as u8,
        bulk in any::<bool>(),
        ip in any::<[u8; 16]>(),
        port in any::<u16>(),
    ) -> LaneAddress {
        LaneAddress { lane, bulk, address: Address { ip, port } }
    }
}

prop_compose! {
    fn hello()(
        lanes in vec(lane_address(), 1..=MAX_LANES),
        versions in any::<(u8, u8)>(),
        max_packet_bytes in 256_u16..,
        (connection, window_packets) in (1_u32.., 1_u32..),
        (incarnation, cookie, echo, salt) in any::<(u64, u64, u64, u64)>(),
        share in any::<[u8; 32]>(),
        (node, initial_credit_bytes, trailers) in any::<(u32, u32, u8)>(),
        trailer in prop::sample::select(vec![
            Trailer::Kernel,
            Trailer::Crc32c,
            Trailer::Auth,
            Trailer::Encrypt,
        ]),
    ) -> Hello {
        let mut hello = Hello::new(&lanes);
        hello.versions = versions;
        hello.max_packet_bytes = max_packet_bytes;
        hello.connection = connection;
        hello.incarnation = incarnation;
        hello.cookie = cookie;
        hello.node = node;
        hello.window_packets = window_packets;
        hello.initial_credit_bytes = initial_credit_bytes;
        hello.echo = echo;
        hello.trailers = Trailers(trailers);
        hello.salt = salt;
        hello.share = share;
        hello.trailer = trailer;
        hello
    }
}

/// An edge in its first life.
const FIRST: EdgeKey = EdgeKey {
    source: 1,
    target: 7,
    life: 0,
};

fn sample() -> impl Strategy<Value = Sample> {
    let pair = any::<(u32, u32)>;
    let edge = || {
        let ends = (any::<(u32, u32)>(), 0..EdgeKey::LIVES);
        ends.prop_map(|((source, target), life)| EdgeKey {
            source,
            target,
            life,
        })
    };
    let data = || vec(any::<u8>(), 0..40);
    let reason = prop::sample::select(vec![
        RefusedReason::NoEndpoint,
        RefusedReason::Closed,
        RefusedReason::TooLong,
        RefusedReason::TooManyEdges,
        RefusedReason::OverCredit,
    ]);
    let piece = (vec(any::<u8>(), 1..40), any::<u32>(), any::<u32>()).prop_map(|(data, a, b)| {
        let total = u64::from(a) + u64::from(b) + data.len() as u64;
        ((u64::from(a), total), data)
    });
    prop_oneof![
        (edge(), any::<u32>(), data(), any::<bool>())
            .prop_map(|(edge, sequence, data, a)| Sample::Message(edge, sequence, data, a, false)),
        (edge(), any::<u32>(), piece.clone(), any::<bool>()).prop_map(
            |(edge, sequence, (place, data), a)| {
                Sample::Fragment(edge, sequence, place, data, a, false)
            }
        ),
        (edge(), any::<u32>(), vec(any::<u8>(), OPERATION_BYTES..80))
            .prop_map(|(edge, sequence, data)| Sample::Message(edge, sequence, data, false, true)),
        (edge(), any::<u32>(), piece).prop_map(|(edge, sequence, (place, mut data))| {
            data.extend([7; OPERATION_BYTES]);
            Sample::Fragment(edge, sequence, place, data, false, true)
        }),
        (edge(), any::<(u32, u32)>())
            .prop_map(|(edge, (sequence, control))| Sample::EdgeEnd(edge, sequence, control)),
        edge().prop_map(Sample::EdgeForgotten),
        (pair(), any::<u32>(), reason)
            .prop_map(|(edge, sequence, reason)| Sample::Refused(edge, sequence, reason)),
        (
            0..MAX_LANES as u8,
            pair(),
            vec(any::<(u32, u16)>(), 0..=MAX_RANGES)
        )
            .prop_map(|(lane, numbers, ranges)| Sample::LaneAck(lane, numbers, ranges)),
        (edge(), any::<u64>()).prop_map(|(edge, limit)| Sample::Credit(edge, limit)),
        (edge(), any::<(u64, u32)>()).prop_map(|(edge, (need, message))| {
            Sample::CreditRequest(edge, CreditRequest { need, message })
        }),
        any::<u32>().prop_map(Sample::Window),
        any::<u32>().prop_map(Sample::Backlog),
        (any::<u32>(), vec(lane_address(), 1..=MAX_LANES))
            .prop_map(|(serial, lanes)| Sample::Lanes(serial, lanes)),
        (any::<u8>(), any::<u64>(), 12_usize..200)
            .prop_map(|(lane, token, length)| Sample::Probe(lane, token, length)),
        any::<(u8, u64, u16)>().prop_map(|(lane, token, length)| Sample::Echo(lane, token, length)),
    ]
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

/// The records of a packet, and how their iteration ends.
fn read(bytes: &[u8]) -> (Vec<Sample>, Option<Malformed>) {
    let mut samples = Vec::new();
    for record in Packet::parse(bytes, CRC_BYTES)
        .expect("a sound packet")
        .records()
    {
        match record {
            Ok(record) => samples.push(Sample::of(record, bytes)),
            Err(error) => return (samples, Some(error)),
        }
    }
    (samples, None)
}

// ---- parsers ----------------------------------------------------------------

#[test]
fn a_session_uses_the_trailer_of_the_stricter_side_or_none_is_opened() {
    let (off, auth, encrypt) = (Trailers::CRC32C, Trailers::AUTH, Trailers::ENCRYPT);
    let kernel = Trailers::KERNEL;
    for (one, two, agreed) in [
        (off, off, Some(Trailer::Crc32c)),
        (auth, auth, Some(Trailer::Auth)),
        (auth, encrypt, Some(Trailer::Encrypt)),
        (encrypt, encrypt, Some(Trailer::Encrypt)),
        (kernel, kernel, Some(Trailer::Kernel)),
        (kernel, off, Some(Trailer::Crc32c)),
        (kernel, auth, None),
        (off, auth, None),
        (off, encrypt, None),
    ] {
        assert_eq!((one.agree(two), two.agree(one)), (agreed, agreed));
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn arbitrary_bytes_are_parsed_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Header::parse(&bytes).map(|header| header.to_string());
        let _ = (Hello::parse(&bytes), Challenge::parse(&bytes));
        let _ = (Reset::parse(&bytes), Bye::parse(&bytes));
        for trailer_bytes in [CRC_BYTES, 16] {
            if let Ok(packet) = Packet::parse(&bytes, trailer_bytes) {
                prop_assert!(packet.covered().len() + trailer_bytes <= bytes.len());
                for record in packet.records() {
                    match record {
                        Ok(record) => drop(Sample::of(record, packet.covered())),
                        Err(error) => prop_assert!(!error.to_string().is_empty()),
                    }
                }
            }
        }
    }

    #[test]
    fn arbitrary_records_end_within_their_packet(records in vec(any::<u8>(), 0..300)) {
        let bytes = packet_of(&records);
        let covered = bytes.len() - CRC_BYTES;
        let packet = Packet::parse(&bytes, CRC_BYTES).expect("sound");
        for record in packet.records().flatten() {
            if let Record::Message { payload, .. } = record {
                prop_assert!(payload.start <= payload.end && payload.end <= covered);
            }
        }
        prop_assert!(packet.records().filter(Result::is_err).count() <= 1);
    }

    #[test]
    fn headers_are_parsed_as_emitted(header in header()) {
        let mut bytes = [0xAA; HEADER_BYTES];
        header.emit(&mut bytes);
        prop_assert_eq!(Header::parse(&bytes), Ok(header));
        for length in 0..HEADER_BYTES {
            let refused = matches!(Header::parse(&bytes[..length]), Err(Malformed::Truncated { .. }));
            prop_assert!(refused, "{length} bytes");
        }
    }

    #[test]
    fn a_changed_bit_of_a_header_is_refused_or_visible(header in header(), bit in 0..HEADER_BYTES * 8) {
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = Header::parse(&bytes) {
            prop_assert_ne!(other, header);
            let mut again = [0; HEADER_BYTES];
            other.emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_packet_has_exactly_the_length_in_its_header(
        records in vec(any::<u8>(), 0..100),
        behind in 0_usize..20,
        length in 0_u16..200,
    ) {
        let sound = packet_of(&records);
        let mut bytes = sound.clone();
        bytes.extend(vec![0xFF; behind]);
        let packet = Packet::parse(&bytes, CRC_BYTES).expect("further bytes belong to another packet");
        prop_assert_eq!(packet.body(), &records[..]);
        for keep in 0..sound.len() {
            prop_assert!(Packet::parse(&sound[..keep], CRC_BYTES).is_err());
        }
        bytes[2..4].copy_from_slice(&length.to_le_bytes());
        let fits = (HEADER_BYTES + CRC_BYTES..=bytes.len()).contains(&usize::from(length));
        prop_assert_eq!(Packet::parse(&bytes, CRC_BYTES).is_ok(), fits);
    }

    #[test]
    fn consecutive_packets_are_split(
        contents in vec(vec(any::<u8>(), 0..100), 1..5),
    ) {
        let packets: Vec<Vec<u8>> = contents.iter().map(|records| packet_of(records)).collect();
        let joined = packets.concat();
        let (mut rest, mut found) = (&joined[..], Vec::new());
        while !rest.is_empty() {
            let (first, behind) = Packet::split_first(rest);
            found.push(first.to_vec());
            rest = behind;
        }
        prop_assert_eq!(found, packets);
    }

    #[test]
    fn bytes_without_a_packet_are_not_split(bytes in vec(any::<u8>(), 0..100)) {
        let (first, behind) = Packet::split_first(&bytes);
        prop_assert_eq!(first.len() + behind.len(), bytes.len());
        prop_assert!(bytes.is_empty() || first.len() >= bytes.len().min(HEADER_BYTES));
    }

    #[test]
    fn hellos_are_parsed_as_emitted(hello in hello()) {
        let mut bytes = vec![0xAA; hello.bytes()];
        prop_assert_eq!(hello.emit(&mut bytes), bytes.len());
        prop_assert_eq!(Hello::parse(&bytes), Ok(hello));
        for length in 0..bytes.len() {
            prop_assert!(Hello::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_changed_bit_of_a_hello_is_refused_or_visible(hello in hello(), bit in any::<prop::sample::Index>()) {
        let mut bytes = vec![0; hello.bytes()];
        hello.emit(&mut bytes);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Version 1 ignores the unused bits of the class.
        let class = |at: usize| at >= HELLO_FIXED_BYTES && (at - HELLO_FIXED_BYTES) % 20 == 1;
        let ignored = bit / 8 == 47 || class(bit / 8) && bit % 8 != 0;
        match Hello::parse(&bytes) {
            Ok(other) => prop_assert_eq!(other == hello, ignored, "bit {}", bit),
            Err(_) => prop_assert!(!ignored, "bit {}", bit),
        }
    }

    #[test]
    fn invalid_fields_of_a_hello_are_refused(hello in hello()) {
        let mut sound = vec![0; hello.bytes()];
        hello.emit(&mut sound);
        let excluded: [(usize, &[u8]); 6] = [
            (2, &255_u16.to_le_bytes()),
            (4, &[0; 4]),
            (28, &[0; 4]),
            (45, &[4]),
            (46, &[0]),
            (HELLO_FIXED_BYTES, &[8]),
        ];
        for (at, value) in excluded {
            let mut bytes = sound.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            prop_assert!(Hello::parse(&bytes).is_err(), "byte {at}");
        }
        let mut bytes = sound.clone();
        bytes[46] = 9;
        bytes.resize(HELLO_FIXED_BYTES + 9 * 20, 0);
        prop_assert!(Hello::parse(&bytes).is_err());
    }

    #[test]
    fn small_handshake_bodies_are_parsed_as_emitted(
        (cookie, echo, incarnation) in any::<(u64, u64, u64)>(),
        connection in any::<u32>(),
        bit in any::<prop::sample::Index>(),
    ) {
        let challenge = Challenge { cookie, echo };
        let bye = Bye { incarnation };
        let mut bytes = [0; CHALLENGE_BYTES];
        prop_assert_eq!(challenge.emit(&mut bytes), CHALLENGE_BYTES);
        prop_assert_eq!(Challenge::parse(&bytes), Ok(challenge));
        prop_assert!(all_cuts_refused(&bytes, |cut| Challenge::parse(cut).is_err()));
        let flipped = flip(&bytes, bit.index(bytes.len() * 8));
        prop_assert_ne!(Challenge::parse(&flipped), Ok(challenge));

        let length = bye.emit(&mut bytes);
        prop_assert_eq!(Bye::parse(&bytes[..length]), Ok(bye));
        prop_assert!(all_cuts_refused(&bytes[..length], |cut| Bye::parse(cut).is_err()));

        for reason in [
            ResetReason::UnknownConnection,
            ResetReason::Version,
            ResetReason::TooManyPeers,
            ResetReason::Key,
            ResetReason::Security,
        ] {
            for echo in [None, Some(echo)] {
                let reset = Reset { connection, reason, echo };
                let length = reset.emit(&mut bytes);
                prop_assert_eq!(Reset::parse(&bytes[..length]), Ok(reset));
                prop_assert!(all_cuts_refused(&bytes[..RESET_BYTES], |cut| Reset::parse(cut).is_err()));
                let flipped = flip(&bytes[..length], bit.index(length * 8));
                prop_assert_ne!(Reset::parse(&flipped), Ok(reset));
            }
        }
    }

    #[test]
    fn records_are_parsed_as_emitted_and_in_order(samples in vec(sample(), 0..12)) {
        let records: Vec<u8> = samples.iter().flat_map(Sample::emit).collect();
        let expected: Vec<Sample> = samples.into_iter().map(Sample::normal).collect();
        prop_assert_eq!(read(&packet_of(&records)), (expected, None));
    }

    #[test]
    fn a_record_that_ends_outside_its_packet_is_refused(
        before in vec(sample(), 0..3),
        last in sample(),
    ) {
        let sound: Vec<u8> = before.iter().flat_map(Sample::emit).collect();
        let record = last.emit();
        for keep in 1..record.len() {
            let mut records = sound.clone();
            records.extend(&record[..keep]);
            let (samples, error) = read(&packet_of(&records));
            prop_assert_eq!(samples.len(), before.len());
            let refused = matches!(
                error,
                Some(Malformed::BadRecord { at, .. }) if at == HEADER_BYTES + sound.len()
            );
            prop_assert!(refused, "{keep} bytes: {error:?}");
        }
    }

    #[test]
    fn a_changed_bit_of_a_record_is_refused_or_stays_in_bounds(
        samples in vec(sample(), 1..4),
        bit in any::<prop::sample::Index>(),
    ) {
        let records: Vec<u8> = samples.iter().flat_map(Sample::emit).collect();
        let flipped = flip(&records, bit.index(records.len() * 8));
        let bytes = packet_of(&flipped);
        let (found, _) = read(&bytes);
        // Whatever is parsed now refers only to bytes that exist.
        let emitted: usize = found.iter().map(|sample| sample.emit().len()).sum();
        prop_assert!(emitted <= flipped.len());
    }

    #[test]
    fn unknown_optional_records_are_skipped(
        before in sample(),
        kind in 0x80_u8..,
        body in vec(any::<u8>(), 0..50),
        after in sample(),
    ) {
        prop_assume!(kind != 0x89);
        let mut records = before.emit();
        records.extend([kind, 0xFF]);
        records.extend((body.len() as u16).to_le_bytes());
        records.extend(&body);
        records.extend(after.emit());
        let expected = vec![before.normal(), after.normal()];
        prop_assert_eq!(read(&packet_of(&records)), (expected, None));
    }

    #[test]
    fn unknown_mandatory_records_are_refused(kind in 0_u8..0x80, before in sample()) {
        prop_assume!(!(0x01..=0x07).contains(&kind) && !(0x10..=0x15).contains(&kind));
        let mut records = before.emit();
        let at = HEADER_BYTES + records.len();
        records.extend([kind, 0, 0, 0]);
        let error = Some(Malformed::BadRecord { kind, at });
        prop_assert_eq!(read(&packet_of(&records)), (vec![before.normal()], error));
    }

    #[test]
    fn a_piece_outside_its_message_is_refused(
        offset in any::<u64>(),
        total in any::<u64>(),
        length in 0_usize..40,
    ) {
        let mut record = vec![0; FRAGMENT_BYTES + length];
        wire::emit_fragment(&mut record, wire::FragmentHead { key: FIRST, sequence: 0, offset, total, unreliable: false, operation: false }, length);
        let inside = length > 0
            && offset.checked_add(length as u64).is_some_and(|end| end <= total);
        let (samples, error) = read(&packet_of(&record));
        prop_assert_eq!((samples.len() == 1, error.is_none()), (inside, inside));
    }

    #[test]
    fn a_truncated_lane_acknowledgement_reports_nothing_beyond_its_end(
        ranges in vec(any::<(u32, u16)>(), 0..=MAX_RANGES + 10),
        space in 0_usize..500,
    ) {
        let ranges: Vec<Range> =
            ranges.into_iter().map(|(start, count)| Range { start, count }).collect();
        let mut bytes = vec![0; space];
        let length = wire::emit_lane_ack(&mut bytes, 1, (5, 9), &ranges);
        prop_assert!(length <= space);
        prop_assert_eq!(length == 0, space < 12);
        if length > 0 {
            let listed = (length - 12) / 6;
            let top = ranges.get(listed).map_or(9, |cut| cut.start);
            let kept = ranges[..listed].iter().map(|range| (range.start, range.count)).collect();
            let expected = vec![Sample::LaneAck(1, (5, top), kept)];
            prop_assert_eq!(read(&packet_of(&bytes[..length])), (expected, None));
        }
    }
}

fn all_cuts_refused(bytes: &[u8], refused: impl Fn(&[u8]) -> bool) -> bool {
    (0..bytes.len()).all(|keep| refused(&bytes[..keep]))
}

fn flip(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[bit / 8] ^= 1 << (bit % 8);
    flipped
}
