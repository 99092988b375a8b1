//! Files of recordings: any bytes as a file, and as the inputs of a block whose checksum is correct.

#![cfg_attr(fuzzing, no_main)]

use dipole_fuzz::fuzz_target;
use dipole_record::{Input, SegmentReader};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut reader) = SegmentReader::new(bytes, bytes.len() as u64) {
        let _ = reader.state();
        while let Ok(Some(block)) = reader.block() {
            decode(&block);
        }
    }
    decode(bytes);
});

/// Decodes inputs until one is invalid. Images of packets never exceed what their length says.
fn decode(mut block: &[u8]) {
    while let Some((input, rest)) = Input::decode(block) {
        assert!(rest.len() < block.len(), "an input has bytes");
        block = rest;
        if let Input::Packet { packet, .. } | Input::Train { packet, .. } = &input
            && let Some(restored) = packet.restore(20)
        {
            assert_eq!(restored.len(), packet.length() + 20);
        }
    }
}
