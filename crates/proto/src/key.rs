//! How packets are sealed in a cluster with a key: masks of checksums, and what packet keys are
//! derived from. Spec §2.6, §2.7.
//!
//! The caller creates and verifies proofs and tags; this crate only decides which packets have them.

use core::hash::Hasher;
use serde::{Deserialize, Serialize};

use siphasher::sip::SipHasher24;

use crate::wire::{CRC_BYTES, PROOF_BYTES, SHARE_BYTES, Trailer};

/// One side of a session: its incarnation, connection id and salt.
pub(crate) type Side = (u64, u32, u64);

/// The mask of the checksums of one session in one direction. A sender that has not seen the
/// handshake cannot know it.
pub(crate) fn mask(sender: Side, receiver: Side) -> u32 {
    let mut hasher = SipHasher24::new_with_keys(sender.2, receiver.2);
    for (incarnation, connection, _) in [sender, receiver] {
        hasher.write(&incarnation.to_le_bytes());
        hasher.write(&connection.to_le_bytes());
    }
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// How a packet is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Seal {
    /// A number of the session in this direction. The kernel has checked the bytes.
    Kernel {
        /// Computed like a mask.
        token: u32,
    },
    /// A CRC32C of all bytes before it, XORed with the mask.
    Crc32c {
        /// Zero in clusters without a key.
        mask: u32,
    },
    /// A counter, a tag computed with the session's keys, and a sum.
    Session {
        /// Identifies the session: see [`Agreement::serial`].
        serial: u64,
        /// Position of its keys: [`Agreement::index`].
        index: u32,
        /// The records are encrypted, too.
        encrypts: bool,
    },
    /// A proof over header and body that the sender has the cluster key, and then a CRC32C of
    /// everything before it.
    Proof,
}

impl Seal {
    /// A CRC32C without a mask.
    pub const OPEN: Seal = Seal::Crc32c { mask: 0 };

    /// Length of the trailer.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Seal::Kernel { .. } | Seal::Crc32c { .. } => CRC_BYTES,
            Seal::Session { .. } => Trailer::Auth.bytes(),
            Seal::Proof => PROOF_BYTES + CRC_BYTES,
        }
    }

    /// The kind of trailer.
    #[must_use]
    pub fn trailer(self) -> Trailer {
        match self {
            Seal::Kernel { .. } => Trailer::Kernel,
            Seal::Crc32c { .. } | Seal::Proof => Trailer::Crc32c,
            Seal::Session { encrypts, .. } => match encrypts {
                true => Trailer::Encrypt,
                false => Trailer::Auth,
            },
        }
    }
}

/// Parameters exchanged by both sides of a session. With the cluster key they determine the
/// packet keys. Spec §2.7.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agreement {
    /// Number of the session; unique in this machine.
    pub serial: u64,
    /// A number below the limit of peers; unique among sessions that exist at the same time.
    pub index: u32,
    /// Identity of this process.
    pub own: Party,
    /// Identity of the peer.
    pub remote: Party,
}

/// One side of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Party {
    /// Incarnation of its process.
    pub incarnation: u64,
    /// Connection id in packets to it.
    pub connection: u32,
    /// Random number for this session.
    pub salt: u64,
    /// Share of its process: see [`Config::share`](crate::Config::share).
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
    fn the_mask_matches_the_specification() {
        let mask = std::format!("the mask is `{:#010x}`", mask(ONE, TWO));
        let specification = include_str!("../../../docs/design/protocol.md");
        assert!(specification.contains(&mask), "{mask}");
    }
}
