//! What the cluster key is for in sessions: masks over their checksums. Spec §2.6.
//!
//! Proofs are made and checked by the caller; here it is only known which packets carry one.

use core::fmt;
use core::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::wire::{CRC_BYTES, PROOF_BYTES, SHARE_BYTES, Trailer};

/// A subkey of the cluster key, for sessions only. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionKey(pub [u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// One side of a session: its incarnation, and the connection id that it chose.
pub(crate) type Side = (u64, u32);

impl SessionKey {
    /// What the checksums of one session and direction are masked with: nobody without the
    /// key knows it, and another session has another one.
    pub(crate) fn mask(&self, sender: Side, receiver: Side) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for (incarnation, connection) in [sender, receiver] {
            hasher.write(&incarnation.to_le_bytes());
            hasher.write(&connection.to_le_bytes());
        }
        let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// What closes a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seal {
    /// A CRC32C of all before it, XORed with the mask: zero but in sessions of a cluster
    /// with a key.
    Crc32c {
        /// See [`SessionKey`].
        mask: u32,
    },
    /// A counter, a tag and a CRC32C, made with the keys of a session.
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

    #[test]
    fn a_mask_is_bound_to_key_direction_incarnations_and_connections() {
        let key = SessionKey([7; 16]);
        let (one, two) = ((1, 2), (3, 4));
        let mask = key.mask(one, two);
        assert_eq!(mask, key.mask(one, two));
        let others = [
            key.mask(two, one),
            key.mask((9, 2), two),
            key.mask((1, 9), two),
            key.mask(one, (9, 4)),
            key.mask(one, (3, 9)),
            SessionKey([8; 16]).mask(one, two),
        ];
        assert!(!others.contains(&mask), "{others:?}");
    }

    #[test]
    fn a_mask_is_as_documented() {
        let subkey: [u8; 16] = core::array::from_fn(|at| at.to_le_bytes()[0]);
        let key = SessionKey(subkey);
        let sender = (0x1122_3344_5566_7788, 0x00A1_C003);
        let receiver = (0x99AA_BBCC_DDEE_FF00, 0x0123_4000);
        let mask = std::format!("the mask is `{:#010x}`", key.mask(sender, receiver));
        let specification = include_str!("../../../docs/protocol.md");
        assert!(specification.contains(&mask), "{mask}");
    }

    #[test]
    fn printing_a_subkey_does_not_give_it_away() {
        assert_eq!(std::format!("{:?}", SessionKey([7; 16])), "SessionKey");
    }
}
