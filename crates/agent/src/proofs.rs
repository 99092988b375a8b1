//! Authentication of membership packets: only those of our cluster are accepted, each only once.
//!
//! ```text
//! PROVEN  0 kind(1) = 0x1e  1 body  then from(4) life(8) number(8) proof(16)
//! PLAIN   0 kind(1) = 0x1c  1 body
//! ```
//!
//! The MAC covers everything before it and the receiver's node number, which is not sent. The
//! numbers of a sender's incarnation grow, so that replays are recognised.

use std::collections::BTreeMap;

use dipole_node::{ClusterKey, MAC_BYTES, MacKey};

/// The key derivation context.
const PURPOSE: &str = "dipole 2026 membership";
const PLAIN: u8 = 0x1c;
const PROVEN: u8 = 0x1e;
const STAMP_BYTES: usize = 4 + 8 + 8;

/// Most bytes by which [`Proofs::seal`] makes a body longer.
pub(super) const EXTRA_BYTES: usize = 1 + STAMP_BYTES + MAC_BYTES;

/// True for membership packets, proven or not.
pub(super) fn is_membership(packet: &[u8]) -> bool {
    matches!(packet.first(), Some(&PLAIN | &PROVEN))
}

/// Packets that were not accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    /// From senders without our key, or with one where we have none.
    pub(super) strangers: u64,
    /// Received before, or overtaken by later ones of their sender.
    pub(super) repeated: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Proofs {
    prover: Option<MacKey>,
    node: u32,
    life: u64,
    number: u64,
    /// By node: its latest incarnation, and the highest number of that.
    highest: BTreeMap<u32, (u64, u64)>,
    dropped: Dropped,
}

impl Proofs {
    /// For this incarnation of a node.
    pub(super) fn new(key: Option<&ClusterKey>, node: u32, life: u64) -> Proofs {
        Proofs {
            prover: key.map(|key| key.mac_key(PURPOSE)),
            node,
            life,
            number: 0,
            highest: BTreeMap::new(),
            dropped: Dropped::default(),
        }
    }

    pub(super) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The packet for a node.
    pub(super) fn seal(&mut self, to: u32, body: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(body.len() + EXTRA_BYTES);
        let Some(prover) = &self.prover else {
            packet.push(PLAIN);
            packet.extend_from_slice(body);
            return packet;
        };
        self.number += 1;
        packet.push(PROVEN);
        packet.extend_from_slice(body);
        packet.extend_from_slice(&self.node.to_le_bytes());
        packet.extend_from_slice(&self.life.to_le_bytes());
        packet.extend_from_slice(&self.number.to_le_bytes());
        let proof = prover.mac(&[&packet[..], &to.to_le_bytes()].concat());
        packet.extend_from_slice(&proof);
        packet
    }

    /// The body, if the packet is for us, of our cluster, and new.
    pub(super) fn open<'a>(&mut self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let (kind, rest) = packet.split_first()?;
        let Some(prover) = &self.prover else {
            if *kind == PLAIN {
                return Some(rest);
            }
            self.dropped.strangers += 1;
            return None;
        };
        let (covered, proof) = packet.split_at(packet.len().saturating_sub(MAC_BYTES));
        let whole = *kind == PROVEN && covered.len() > STAMP_BYTES;
        if !whole || !prover.verify(&[covered, &self.node.to_le_bytes()].concat(), proof) {
            self.dropped.strangers += 1;
            return None;
        }
        let (front, stamp) = covered.split_at(covered.len() - STAMP_BYTES);
        let (from, stamp) = stamp.split_first_chunk()?;
        let (life, number) = stamp.split_first_chunk()?;
        let this = (
            u64::from_le_bytes(*life),
            u64::from_le_bytes(number.try_into().ok()?),
        );
        let highest = self.highest.entry(u32::from_le_bytes(*from)).or_default();
        if this <= *highest {
            self.dropped.repeated += 1;
            return None;
        }
        *highest = this;
        Some(&front[1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::KEY_BYTES;

    fn of(byte: Option<u8>, node: u32) -> Proofs {
        let key = byte.map(|byte| ClusterKey::new([byte; KEY_BYTES]));
        Proofs::new(key.as_ref(), node, 5)
    }

    #[test]
    fn only_the_node_meant_takes_a_packet_and_only_once() {
        let mut sender = of(Some(1), 1);
        let packet = sender.seal(2, b"news");
        assert!(is_membership(&packet));
        let mut receiver = of(Some(1), 2);
        assert_eq!(receiver.open(&packet), Some(&b"news"[..]));
        assert_eq!(receiver.open(&packet), None);
        assert_eq!(of(Some(1), 3).open(&packet), None);
        let later = sender.seal(2, b"");
        assert_eq!(receiver.open(&later), Some(&b""[..]));
        // Another life of the sender begins anew, and the earlier one is over.
        let mut again = Proofs {
            life: 6,
            ..of(Some(1), 1)
        };
        assert_eq!(receiver.open(&again.seal(2, b"back")), Some(&b"back"[..]));
        assert_eq!(receiver.open(&sender.seal(2, b"old")), None);
        let dropped = Dropped {
            strangers: 0,
            repeated: 2,
        };
        assert_eq!(receiver.dropped(), dropped);
    }

    #[test]
    fn strangers_are_counted_and_every_single_changed_bit_is_one() {
        for (ours, theirs) in [(Some(1), Some(2)), (Some(1), None), (None, Some(1))] {
            let packet = of(theirs, 1).seal(2, b"news");
            let mut receiver = of(ours, 2);
            assert_eq!(receiver.open(&packet), None);
            assert_eq!(receiver.dropped().strangers, 1);
        }
        let packet = of(None, 1).seal(2, b"news");
        assert_eq!(of(None, 2).open(&packet), Some(&b"news"[..]));
        let packet = of(Some(1), 1).seal(2, b"news");
        let mut receiver = of(Some(1), 2);
        for bit in 0..packet.len() * 8 {
            let mut bad = packet.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(receiver.open(&bad), None, "bit {bit}");
        }
        for length in 0..packet.len() {
            assert_eq!(receiver.open(&packet[..length]), None, "{length}");
        }
        assert_eq!(receiver.dropped().repeated, 0);
        assert!(receiver.open(&packet).is_some());
    }
}
