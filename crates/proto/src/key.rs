//! What closes packets of a cluster with a key: masks over checksums, and what keys of packets
//! are made of. Spec §2.6, §2.7.
//!
//! Proofs are made and checked by the caller; here it is only known which packets carry one.

use core::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::wire::{CRC_BYTES, PROOF_BYTES, SHARE_BYTES, Trailer};

/// One side of a session: its incarnation, the connection id that it chose, and its salt.
pub(crate) type Side = (u64, u32, u64);

/// What the checksums of one session and direction are masked with: nobody knows it who has not
/// seen the handshake, and another session has another one.
pub(crate) fn mask(sender: Side, receiver: Side) -> u32 {
    let mut hasher = SipHasher24::new_with_keys(sender.2, receiver.2);
    for (incarnation, connection, _) in [sender, receiver] {
        hasher.write(&incarnation.to_le_bytes());
        hasher.write(&connection.to_le_bytes());
    }
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// What closes a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seal {
    /// A CRC32C of all before it, XORed with the mask.
    Crc32c {
        /// Zero but in clusters with a key.
        mask: u32,
    },
    /// A counter and a tag, made with the keys of a session, and a sum.
    Session {
        /// Which one: see [`Agreement::serial`].
        serial: u64,
        /// Where its keys lie: [`Agreement::index`].
        index: u32,
        /// The records are encrypted.
        encrypts: bool,
    },
    /// A proof that the sender holds the cluster key, over header and body; then a CRC32C
    /// of all before it, the proof included.
    Proof,
}

impl Seal {
    /// A CRC32C that anybody can make.
    pub const OPEN: Seal = Seal::Crc32c { mask: 0 };

    /// Bytes on the wire.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Seal::Crc32c { .. } => CRC_BYTES,
            Seal::Session { .. } => Trailer::Auth.bytes(),
            Seal::Proof => PROOF_BYTES + CRC_BYTES,
        }
    }
}

/// What both sides of a session have told each other of themselves: with the cluster key,
/// what the keys of its packets are made of. Spec §2.7.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agreement {
    /// Number of the session in this machine; no two have the same.
    pub serial: u64,
    /// Sessions that exist at the same time have different ones, below the bound on peers.
    pub index: u32,
    /// This side.
    pub own: Party,
    /// The peer.
    pub remote: Party,
}

/// One side of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Party {
    /// Of its process.
    pub incarnation: u64,
    /// The id that packets to it carry.
    pub connection: u32,
    /// Random number that it drew for this session.
    pub salt: u64,
    /// Its process's share: see [`Config::share`](crate::Config::share).
    pub share: [u8; SHARE_BYTES],
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Side = (0x1122_3344_5566_7788, 0x00A1_C003, 0x0102_0304_0506_0708);
    const TWO: Side = (0x99AA_BBCC_DDEE_FF00, 0x0123_4000, 0x1112_1314_1516_1718);

    #[test]
    fn a_mask_is_bound_to_direction_incarnations_connections_and_salts() {
        let ours = mask(ONE, TWO);
        let others = |side: Side| {
            let (incarnation, connection, salt) = side;
            [
                (1, connection, salt),
                (incarnation, 1, salt),
                (incarnation, connection, 1),
            ]
        };
        assert_ne!(ours, mask(TWO, ONE));
        for other in others(ONE) {
            assert_ne!(ours, mask(other, TWO), "{other:?}");
        }
        for other in others(TWO) {
            assert_ne!(ours, mask(ONE, other), "{other:?}");
        }
    }

    #[test]
    fn a_mask_is_as_documented() {
        let mask = std::format!("the mask is `{:#010x}`", mask(ONE, TWO));
        let specification = include_str!("../../../docs/design/protocol.md");
        assert!(specification.contains(&mask), "{mask}");
    }
}
