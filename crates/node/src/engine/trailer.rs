//! What closes packets: made when they leave, checked when they come. Spec §2.5, §2.6.

use dipole_link::crc32c::crc32c;
use dipole_proto::wire::{CRC_BYTES, PROOF_BYTES};
use dipole_proto::{Addressed, Seal, SessionKey};

use crate::key::{ClusterKey, MacKey};

/// What proofs in handshakes are for.
const HANDSHAKE: &str = "dipole 2026 handshake";
/// What masks of sessions come from.
const SESSION: &str = "dipole 2026 session";

/// Makes and checks trailers of all kinds.
#[derive(Debug)]
pub(super) struct Trailers {
    key: Option<MacKey>,
}

impl Trailers {
    pub(super) fn new(key: Option<&ClusterKey>) -> Trailers {
        Trailers {
            key: key.map(|key| key.mac_key(HANDSHAKE)),
        }
    }

    /// Appends what the seal says to the first `length` bytes of a frame.
    #[inline]
    pub(super) fn append(&self, frame: &mut [u8], length: usize, seal: Seal) {
        match seal {
            Seal::Crc32c { mask } => put_checksum(frame, length, mask),
            Seal::Proof => self.prove(frame, length),
            Seal::Tag(_) => debug_assert!(false, "no tags are offered"),
        }
    }

    #[cold]
    fn prove(&self, frame: &mut [u8], length: usize) {
        let Some(key) = &self.key else {
            debug_assert!(false, "proofs are only asked of who has a key");
            return;
        };
        let proof = key.mac(&frame[..length]);
        let end = length + PROOF_BYTES;
        frame[length..end].copy_from_slice(&proof);
        put_checksum(frame, end, 0);
    }

    /// Checks what closes a packet, and its proof if that matters. False if it is damaged.
    #[inline]
    pub(super) fn check(&self, addressed: &mut Addressed<'_>, frame: &[u8]) -> bool {
        let end = addressed.packet.covered().len();
        match addressed.seal {
            Seal::Crc32c { mask } => checksum_is_right(frame, end, mask),
            Seal::Proof => {
                let whole = checksum_is_right(frame, end + PROOF_BYTES, 0);
                if whole && addressed.wants_proof {
                    addressed.proven = self.is_proven(frame, end);
                }
                whole
            }
            Seal::Tag(_) => false,
        }
    }

    #[cold]
    fn is_proven(&self, frame: &[u8], end: usize) -> bool {
        let proof = &frame[end..end + PROOF_BYTES];
        (self.key.as_ref()).is_some_and(|key| key.verify(&frame[..end], proof))
    }
}

/// What the protocol needs of the cluster key.
pub(super) fn session_key(key: &ClusterKey) -> SessionKey {
    let mut subkey = [0; 16];
    subkey.copy_from_slice(&key.derive(SESSION)[..16]);
    SessionKey(subkey)
}

#[inline]
fn put_checksum(frame: &mut [u8], end: usize, mask: u32) {
    let sum = crc32c(&frame[..end]) ^ mask;
    frame[end..end + CRC_BYTES].copy_from_slice(&sum.to_le_bytes());
}

#[inline]
fn checksum_is_right(frame: &[u8], end: usize, mask: u32) -> bool {
    let carried = frame.get(end..end + CRC_BYTES);
    carried.is_some_and(|carried| carried == (crc32c(&frame[..end]) ^ mask).to_le_bytes())
}
