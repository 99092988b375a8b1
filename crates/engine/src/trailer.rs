//! Packet trailers: added when a packet is sent, checked when it arrives. Spec §2.5 to §2.7.

mod session;

use dipole_link::crc32c::crc32c;
use dipole_proto::wire::{CRC_BYTES, PROOF_BYTES, Trailers as Offer};
use dipole_proto::{Addressed, Agreement, Config, DropReason, Seal};

use crate::key::{ClusterKey, MacKey, Security};
use session::SessionKeys;

/// Key derivation context for handshake proofs.
const HANDSHAKE: &str = "dipole 2026 handshake";

/// Key derivation context for the secret of the protocol core.
const CORE: &str = "dipole 2026 protocol core";

/// Adds and checks trailers of all kinds.
#[derive(Debug)]
pub(super) struct Trailers {
    keys: Option<Keys>,
}

/// Keys derived from the cluster key.
#[derive(Debug)]
struct Keys {
    handshakes: MacKey,
    sessions: SessionKeys,
}

impl Trailers {
    /// `random` must be secret. Sets the protocol's options that depend on the key.
    pub(super) fn new(key: Option<&ClusterKey>, random: [u64; 2], config: &mut Config) -> Trailers {
        let keys = key.map(|key| {
            let sessions = SessionKeys::new(random);
            config.keyed = true;
            config.share = sessions.share();
            config.trailers = match key.security() {
                Security::Off => config.trailers,
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

    /// The secret of the protocol core. A recording contains it, so in a cluster with a key it must
    /// not reveal the secret behind the keys of sessions.
    pub(super) fn secret_of_core(&self, random: [u64; 2]) -> [u64; 2] {
        if self.keys.is_none() {
            return random;
        }
        let [low, high] = random.map(u64::to_le_bytes);
        let derived = blake3::derive_key(CORE, &[low, high].concat());
        let (words, _) = derived.as_chunks::<8>();
        [0, 1].map(|index| u64::from_le_bytes(words[index]))
    }

    /// Derives the keys of a session that has opened.
    pub(super) fn agree(&mut self, agreement: &Agreement) {
        if let Some(keys) = &mut self.keys {
            keys.sessions.agree(agreement);
        }
    }

    /// Wipes the keys of a session that has ended.
    pub(super) fn forget(&mut self, index: u32, serial: u64) {
        if let Some(keys) = &mut self.keys {
            keys.sessions.forget(index, serial);
        }
    }

    /// Adds the trailer after the first `length` bytes of a frame, and encrypts them if the seal
    /// requires it. False if the session has already ended.
    #[inline]
    pub(super) fn append(&mut self, frame: &mut [u8], length: usize, seal: Seal) -> bool {
        match seal {
            Seal::Kernel { token } => put_number(frame, length, token),
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
            debug_assert!(false, "only processes with a key need proofs");
            return;
        };
        let proof = keys.handshakes.mac(&frame[..length]);
        let end = length + PROOF_BYTES;
        frame[length..end].copy_from_slice(&proof);
        put_checksum(frame, end, 0);
    }

    /// Checks a packet's trailer, and its proof if required. A decrypted packet is stored in
    /// `plain`.
    #[inline]
    pub(super) fn check(
        &mut self,
        addressed: &mut Addressed<'_>,
        frame: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), DropReason> {
        let end = addressed.packet.covered().len();
        let whole = match addressed.seal {
            Seal::Kernel { token } => has_number(frame, end, token),
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

    /// True if a packet of a session whose records are not encrypted has a valid trailer.
    #[inline]
    pub(super) fn is_intact(&mut self, packet: &[u8], seal: Seal) -> bool {
        let Some(end) = packet.len().checked_sub(seal.bytes()) else {
            return false;
        };
        match seal {
            Seal::Kernel { token } => has_number(packet, end, token),
            Seal::Crc32c { mask } => checksum_is_right(packet, end, mask),
            Seal::Session {
                serial,
                index,
                encrypts: false,
            } => self.keys.as_mut().is_some_and(|keys| {
                let opened = keys.sessions.open((index, serial), packet, end, None);
                opened.is_ok()
            }),
            Seal::Session { .. } | Seal::Proof => false,
        }
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
    put_number(frame, end, crc32c(&frame[..end]) ^ mask);
}

#[inline]
fn put_number(frame: &mut [u8], end: usize, number: u32) {
    frame[end..end + CRC_BYTES].copy_from_slice(&number.to_le_bytes());
}

#[inline]
fn checksum_is_right(frame: &[u8], end: usize, mask: u32) -> bool {
    frame.len() >= end + CRC_BYTES && has_number(frame, end, crc32c(&frame[..end]) ^ mask)
}

#[inline]
fn has_number(frame: &[u8], end: usize, number: u32) -> bool {
    let carried = frame.get(end..end + CRC_BYTES);
    carried.is_some_and(|carried| carried == number.to_le_bytes())
}
