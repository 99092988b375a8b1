//! Proofs of membership on the packets between nodes' directories. Spec §3.8.
//!
//! With a cluster key each carries a proof before its checksum, and says so by a flag of
//! its header. A question of somebody else is answered with a refusal:
//!
//! ```text
//! REFUSED 0 header(32)  32 nonce(8)  40 node(4)  44 zero(4)  48 has a key(1)  49 zero  96 crc
//! ```

use std::borrow::Cow;

use super::directory_wire::{
    CRC_BYTES, LOOKUP, PACKET_BYTES, VOUCH, WireError, YIELD, check, crc, zero,
};
use crate::address::NodeId;
use crate::key::{ClusterKey, KeyMismatch, PROOF_BYTES, Prover};

/// What the proofs are for.
const PURPOSE: &str = "dipole 2026 directory";
/// The flag PROVEN of the header.
const PROVEN: u8 = 1 << 6;
const REFUSED: u8 = 0x1d;
const KEYED_AT: usize = 48;

/// What this process shows to directories of other nodes, and wants to see of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Badge {
    prover: Option<Prover>,
    fingerprint: Option<String>,
}

/// Why a packet is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// It is no packet of directories.
    Broken(WireError),
    /// Its sender is not of our cluster.
    Stranger,
}

impl Badge {
    pub(crate) fn new(key: Option<&ClusterKey>) -> Badge {
        Badge {
            prover: key.map(|key| key.prover(PURPOSE)),
            fingerprint: key.map(ClusterKey::fingerprint),
        }
    }

    /// The name of our key.
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Bytes by which [`seal`](Self::seal) makes a packet longer.
    pub(crate) fn extra_bytes(&self) -> usize {
        self.prover.as_ref().map_or(0, |_| PROOF_BYTES)
    }

    /// Adds the proof to a whole packet, if there is a key.
    pub(crate) fn seal(&self, packet: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let Some(prover) = &self.prover else {
            return packet;
        };
        packet.truncate(packet.len() - CRC_BYTES);
        packet[1] |= PROVEN;
        set_length(&mut packet, PROOF_BYTES + CRC_BYTES);
        packet.extend(prover.prove(&packet));
        packet.extend(crc(&packet));
        packet
    }

    /// The packet without its proof, which is right; as it came if there is no key on either
    /// side.
    pub(crate) fn open<'a>(&self, packet: &'a [u8]) -> Result<Cow<'a, [u8]>, Unopened> {
        let length = WireError::Length {
            found_bytes: packet.len(),
        };
        if packet.len() < PACKET_BYTES {
            return Err(Unopened::Broken(length));
        }
        let (covered, sum) = packet.split_at(packet.len() - CRC_BYTES);
        if crc(covered) != sum {
            return Err(Unopened::Broken(WireError::Checksum));
        }
        let carried = packet[1] & PROVEN != 0;
        let Some(prover) = &self.prover else {
            return match carried {
                true => Err(Unopened::Stranger),
                false => Ok(Cow::Borrowed(packet)),
            };
        };
        if !carried {
            return Err(Unopened::Stranger);
        }
        if packet.len() < PACKET_BYTES + PROOF_BYTES {
            return Err(Unopened::Broken(length));
        }
        let (inner, proof) = covered.split_at(covered.len() - PROOF_BYTES);
        if !prover.check(inner, proof) {
            return Err(Unopened::Stranger);
        }
        let whole = u16::from_le_bytes([packet[2], packet[3]]);
        if usize::from(whole) != packet.len() {
            return Err(Unopened::Broken(WireError::Field { offset_bytes: 2 }));
        }
        let mut plain = inner.to_vec();
        plain[1] &= !PROVEN;
        set_length(&mut plain, CRC_BYTES);
        plain.extend(crc(&plain));
        Ok(Cow::Owned(plain))
    }

    /// The answer to a question of a stranger; `None` if it was no question. It is no longer
    /// than any question and proves nothing: its receiver could not check that.
    pub(crate) fn refusal(&self, packet: &[u8], node: NodeId) -> Option<[u8; PACKET_BYTES]> {
        if packet.len() < PACKET_BYTES || !matches!(packet[0], LOOKUP | VOUCH | YIELD) {
            return None;
        }
        let mut bytes = [0; PACKET_BYTES];
        bytes[0] = REFUSED;
        set_length(&mut bytes, 0);
        bytes[32..40].copy_from_slice(&packet[32..40]);
        bytes[40..44].copy_from_slice(&node.0.to_le_bytes());
        bytes[KEYED_AT] = u8::from(self.prover.is_some());
        let end = PACKET_BYTES - CRC_BYTES;
        let sum = crc(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum);
        Some(bytes)
    }

    /// How the keys differ, if this refuses the question with that nonce.
    pub(crate) fn refused(&self, packet: &[u8], nonce: u64) -> Option<KeyMismatch> {
        if packet.len() != PACKET_BYTES || check(packet, REFUSED).is_err() {
            return None;
        }
        let sound = zero(packet, 44, KEYED_AT).is_ok()
            && zero(packet, KEYED_AT + 1, PACKET_BYTES - CRC_BYTES).is_ok()
            && packet[KEYED_AT] <= 1;
        if !sound || packet[32..40] != nonce.to_le_bytes() {
            return None;
        }
        let (ours, theirs) = (self.prover.is_some(), packet[KEYED_AT] == 1);
        // Two without a key have nothing to refuse.
        (ours || theirs).then(|| KeyMismatch::between(ours, theirs))
    }
}

/// Writes the length of what is there and `more` bytes to come.
fn set_length(packet: &mut [u8], more: usize) {
    let length = u16::try_from(packet.len() + more).expect("at most a jumbo frame and a proof");
    packet[2..4].copy_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::directory_wire::{Lookup, decode_lookup, encode_lookup};
    use super::*;
    use crate::address::{Address, EndpointId};
    use crate::key::{KEY_BYTES, KeyMismatch};

    const LOOKUP_7: Lookup = Lookup {
        nonce: 0x0102_0304_0506_0708,
        address: Address {
            node: NodeId(2),
            endpoint: EndpointId(7),
        },
    };

    fn badges() -> [Badge; 3] {
        let key = |byte| ClusterKey::new([byte; KEY_BYTES]);
        [
            Badge::new(None),
            Badge::new(Some(&key(1))),
            Badge::new(Some(&key(2))),
        ]
    }

    #[test]
    fn only_badges_of_one_cluster_open_what_one_of_them_sealed() {
        let packet = encode_lookup(&LOOKUP_7);
        for (from, sender) in badges().iter().enumerate() {
            let sealed = sender.seal(&packet);
            assert_eq!(sealed.len(), PACKET_BYTES + sender.extra_bytes());
            for (to, receiver) in badges().iter().enumerate() {
                match receiver.open(&sealed) {
                    Ok(plain) if from == to => assert_eq!(decode_lookup(&plain), Ok(LOOKUP_7)),
                    Err(Unopened::Stranger) if from != to => {}
                    other => panic!("{from} to {to}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn every_single_changed_bit_and_every_cut_is_refused() {
        let [_, badge, _] = badges();
        let sealed = badge.seal(&encode_lookup(&LOOKUP_7));
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(badge.open(&bad), Err(Unopened::Broken(WireError::Checksum)));
            // As somebody forges it.
            let end = bad.len() - CRC_BYTES;
            let sum = crc(&bad[..end]);
            bad[end..].copy_from_slice(&sum);
            if bit / 8 < end {
                assert_eq!(badge.open(&bad), Err(Unopened::Stranger), "bit {bit}");
            }
        }
        for length in 0..sealed.len() {
            assert!(badge.open(&sealed[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_refusal_is_no_longer_than_its_question_and_says_whose_key_is_missing() {
        let question = encode_lookup(&LOOKUP_7);
        let [none, one, two] = badges();
        for (asker, refuser, mismatch) in [
            (&none, &one, KeyMismatch::OnlyTheirs),
            (&one, &none, KeyMismatch::OnlyOurs),
            (&one, &two, KeyMismatch::Different),
        ] {
            let sealed = asker.seal(&question);
            let refusal = refuser.refusal(&sealed, NodeId(2)).unwrap();
            assert!(refusal.len() <= sealed.len());
            assert_eq!(asker.refused(&refusal, LOOKUP_7.nonce), Some(mismatch));
            assert_eq!(asker.refused(&refusal, 9), None);
            for bit in 0..PACKET_BYTES * 8 {
                let mut bad = refusal;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(asker.refused(&bad, LOOKUP_7.nonce), None, "bit {bit}");
            }
            // Refusals are not answered.
            assert!(refuser.refusal(&refusal, NodeId(2)).is_none());
        }
        let senseless = none.refusal(&question, NodeId(2)).unwrap();
        assert_eq!(none.refused(&senseless, LOOKUP_7.nonce), None);
    }
}
