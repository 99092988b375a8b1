//! Records of a valid packet stay within it, and are parsed as they were emitted.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use dipole_proto::wire::{CRC_BYTES, HEADER_BYTES, Header, Kind, Packet};
use samples::Sample;

#[path = "../../crates/proto/tests/protocol/samples/mod.rs"]
mod samples;

fn packet_of(records: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes.extend(records);
    bytes.extend([0; CRC_BYTES]);
    let mut header = Header::handshake(Kind::Data, 1);
    header.length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    header.emit(&mut bytes);
    bytes
}

fn parse(bytes: &[u8]) -> Vec<Sample> {
    let Ok(packet) = Packet::parse(bytes, CRC_BYTES) else {
        return Vec::new();
    };
    let records = packet.records().flatten();
    records
        .map(|record| Sample::of(record, packet.covered()).normal())
        .collect()
}

fuzz_target!(|bytes: &[u8]| {
    // A record is emitted into 512 bytes.
    let samples = parse(&packet_of(&bytes[..bytes.len().min(400)]));
    let emitted: Vec<u8> = samples.iter().flat_map(Sample::emit).collect();
    assert_eq!(parse(&packet_of(&emitted)), samples);
});
