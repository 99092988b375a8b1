//! What closes packets: made when they leave, checked when they come. Spec §2.5 to §2.7.

mod session;

use dipole_link::crc32c::crc32c;
use dipole_proto::wire::{CRC_BYTES, PROOF_BYTES, Trailers as Offer};
use dipole_proto::{Addressed, Agreement, Config, DropReason, Seal};

use crate::key::{ClusterKey, MacKey, Security};
use session::SessionKeys;

/// What proofs in handshakes are for.
const HANDSHAKE: &str = "dipole 2026 handshake";

/// Makes and checks trailers of all kinds.
#[derive(Debug)]
pub(super) struct Trailers {
    keys: Option<Keys>,
}

/// What comes of the cluster key.
#[derive(Debug)]
struct Keys {
    handshakes: MacKey,
    sessions: SessionKeys,
}

impl Trailers {
    /// `random` is known to nobody else. Tells the protocol what it needs of the key.
    pub(super) fn new(key: Option<&ClusterKey>, random: [u64; 2], config: &mut Config) -> Trailers {
        let keys = key.map(|key| {
            let sessions = SessionKeys::new(random);
            config.keyed = true;
            config.share = sessions.share();
            config.trailers = match key.security() {
                Security::Off => Offer::CRC32C,
                Security::Auth => Offer::AUTH,
                Security::Encrypt => Offer::ENCRYPT,
            };
            Keys {
                handshakes: key.mac_key(HANDSHAKE),
                sessions,
            }
        });
        Trailers { keys }
    }

    /// Makes the keys of a session that has opened.
    pub(super) fn agree(&mut self, agreement: &Agreement) {
        if let Some(keys) = &mut self.keys {
            keys.sessions.agree(agreement);
        }
    }

    /// Wipes the keys of a session that is over.
    pub(super) fn forget(&mut self, index: u32, serial: u64) {
        if let Some(keys) = &mut self.keys {
            keys.sessions.forget(index, serial);
        }
    }

    /// Appends what the seal says to the first `length` bytes of a frame, and encrypts them if
    /// it says so. False if that cannot be done any more: the packet belongs to a session that
    /// is over.
    #[inline]
    pub(super) fn append(&mut self, frame: &mut [u8], length: usize, seal: Seal) -> bool {
        match seal {
            Seal::Crc32c { mask } => put_checksum(frame, length, mask),
            Seal::Proof => self.prove(frame, length),
            Seal::Session {
                serial,
                index,
                encrypts,
            } => {
                let keys = self.keys.as_mut();
                return keys.is_some_and(|keys| {
                    (keys.sessions).seal((index, serial), frame, length, encrypts)
                });
            }
        }
        true
    }

    #[cold]
    fn prove(&self, frame: &mut [u8], length: usize) {
        let Some(keys) = &self.keys else {
            debug_assert!(false, "proofs are only asked of who has a key");
            return;
        };
        let proof = keys.handshakes.mac(&frame[..length]);
        let end = length + PROOF_BYTES;
        frame[length..end].copy_from_slice(&proof);
        put_checksum(frame, end, 0);
    }

    /// Checks what closes a packet, and its proof if that matters. The packet whose records
    /// were encrypted lies in `plain` afterwards.
    #[inline]
    pub(super) fn check(
        &mut self,
        addressed: &mut Addressed<'_>,
        frame: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), DropReason> {
        let end = addressed.packet.covered().len();
        let whole = match addressed.seal {
            Seal::Crc32c { mask } => checksum_is_right(frame, end, mask),
            Seal::Proof => {
                let whole = checksum_is_right(frame, end + PROOF_BYTES, 0);
                if whole && addressed.requests_proof {
                    addressed.proven = self.is_proven(frame, end);
                }
                whole
            }
            Seal::Session {
                serial,
                index,
                encrypts,
            } => {
                let keys = self.keys.as_mut().ok_or(DropReason::WrongKey)?;
                let plain = encrypts.then_some(plain);
                return keys.sessions.open((index, serial), frame, end, plain);
            }
        };
        whole.then_some(()).ok_or(DropReason::Damaged)
    }

    #[cold]
    fn is_proven(&self, frame: &[u8], end: usize) -> bool {
        let proof = &frame[end..end + PROOF_BYTES];
        let keys = self.keys.as_ref();
        keys.is_some_and(|keys| keys.handshakes.verify(&frame[..end], proof))
    }
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
