//! Any bytes are refused, or form a header that emits exactly them. Consecutive packets are split
//! correctly.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use dipole_proto::wire::{HEADER_BYTES, Header, Packet};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = Header::parse(bytes) {
        let mut again = [0; HEADER_BYTES];
        header.emit(&mut again);
        assert_eq!(again, bytes[..HEADER_BYTES]);
        assert!(!header.to_string().is_empty());
    }
    let (mut rest, mut split) = (bytes, 0);
    while !rest.is_empty() {
        let (first, behind) = Packet::split_first(rest);
        assert!(!first.is_empty());
        split += first.len();
        rest = behind;
    }
    assert_eq!(split, bytes.len());
    for trailer_bytes in [4, 8, 12, 16] {
        if let Ok(packet) = Packet::parse(bytes, trailer_bytes) {
            let length = usize::from(packet.header().length);
            assert!(length <= bytes.len());
            assert_eq!(packet.covered().len() + trailer_bytes, length);
            assert_eq!(packet.body().len() + HEADER_BYTES, packet.covered().len());
        }
    }
});
