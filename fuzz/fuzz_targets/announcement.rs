//! Any announcement of a node is refused or comes back the same after it is written.

#![no_main]

use dipole_node::registry::{decode_announcement, encode_announcement};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // As it came, and with the checksum made right, which no fuzzer guesses.
    let mut right = bytes.to_vec();
    if let Some(end) = right.len().checked_sub(4) {
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &right[..end]);
        right[end..].copy_from_slice(&sum.to_le_bytes()[..4]);
    }
    for bytes in [bytes, &right] {
        if let Ok(said) = decode_announcement(bytes) {
            assert_eq!(encode_announcement(&said), bytes);
        }
    }
});
