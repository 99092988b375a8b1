//! Trailers of packets, with weak hashes.

use dipole_proto::Seal;
use dipole_proto::wire;

/// Seals a packet as in production, but with weak hashes.
pub fn close(bytes: &mut Vec<u8>, seal: Seal, secret: Option<[u8; 32]>) {
    let mask = match seal {
        Seal::Kernel { token } => return bytes.extend(token.to_le_bytes()),
        Seal::Crc32c { mask } => mask,
        Seal::Proof => {
            bytes.extend(proof(bytes, secret));
            0
        }
        Seal::Session { .. } => {
            bytes.extend([0; wire::COUNTER_BYTES]);
            bytes.extend(proof(bytes, secret));
            0
        }
    };
    bytes.extend((sum(bytes) ^ mask).to_le_bytes());
}

/// True if the checksum of a packet is correct, in a session without a key.
pub fn is_intact(bytes: &[u8]) -> bool {
    let (covered, carried) = bytes.split_at(bytes.len().saturating_sub(wire::CRC_BYTES));
    carried == sum(covered).to_le_bytes()
}

/// Where the checksum of a packet with these bytes before its trailer is, and its mask.
pub fn checksum_of(seal: Seal, covered: &[u8]) -> (usize, u32) {
    let end = covered.len();
    match seal {
        // A number of the session is a checksum with this mask.
        Seal::Kernel { token } => (end, token ^ sum(covered)),
        Seal::Crc32c { mask } => (end, mask),
        Seal::Proof => (end + wire::PROOF_BYTES, 0),
        Seal::Session { .. } => (end + wire::COUNTER_BYTES + wire::TAG_BYTES, 0),
    }
}

/// The payload of a packet of a train.
pub fn payload_of(bytes: &[u8]) -> &[u8] {
    &bytes[wire::TRAIN_HEAD_BYTES..bytes.len() - wire::CRC_BYTES]
}

pub fn sum(bytes: &[u8]) -> u32 {
    let mut sum = 0x811C_9DC5_u32;
    for byte in bytes {
        sum = (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    sum
}

pub fn proof(bytes: &[u8], secret: Option<[u8; 32]>) -> [u8; wire::PROOF_BYTES] {
    let salted = [secret.unwrap_or_default().as_slice(), bytes].concat();
    [sum(&salted).to_le_bytes(); 4]
        .concat()
        .try_into()
        .expect("16 bytes")
}
