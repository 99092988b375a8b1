//! Membership packets: sealed as control packets, accepted from our cluster only, each only once.
//!
//! The numbers of a sender's incarnation grow, so that replays are recognised. That takes a
//! cluster key: without one anybody could use up a sender's numbers, so replays are not checked.

use std::collections::BTreeMap;

use dipole_naming::address::NodeId;
use dipole_naming::envelope::{
    Authenticator, EnvelopeError, Header, MAX_OVERHEAD_BYTES, Message, kind_of,
};
use dipole_naming::key::ClusterKey;
use serde::{Deserialize, Serialize};

use super::sync::Digests;
use crate::member::Member;

/// Most bytes of a packet besides the data in its [`Body`].
pub(crate) const EXTRA_BYTES: usize = MAX_OVERHEAD_BYTES + MAX_LIFE_BYTES + MAX_FRONT_BYTES;
/// A number of 64 bits.
const MAX_LIFE_BYTES: usize = 10;
/// The kind of a body, and how much data follows.
const MAX_FRONT_BYTES: usize = 4;

/// What a membership packet carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// A packet of the SWIM protocol, as foca encodes it.
    Swim(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Digests of what the sender knows: a request for what differs.
    SyncRequest(Digests),
    /// Members of the buckets that differ.
    SyncResponse(Vec<foca::Member<Member>>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Packet {
    /// The sender's incarnation.
    life: u64,
    body: Body,
}

impl Message for Packet {
    const KIND: u8 = 16;
}

/// True for membership packets.
pub(crate) fn is_membership(packet: &[u8]) -> bool {
    kind_of(packet) == Some(Packet::KIND)
}

/// Packets that were not accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// From senders without our key, or with one where we have none.
    pub(crate) strangers: u64,
    /// Received before, or overtaken by later ones of their sender.
    pub(crate) repeated: u64,
}

#[derive(Debug)]
pub(crate) struct PacketAuth {
    authenticator: Authenticator,
    node: u32,
    life: u64,
    number: u64,
    /// By node: its latest incarnation, and the highest number of that. `None` without a key.
    highest: Option<BTreeMap<u32, (u64, u64)>>,
    dropped: Dropped,
}

impl PacketAuth {
    /// For this incarnation of a node.
    pub(crate) fn new(key: Option<&ClusterKey>, node: u32, life: u64) -> PacketAuth {
        PacketAuth {
            authenticator: Authenticator::new(key),
            node,
            life,
            number: 0,
            highest: key.map(|_| BTreeMap::new()),
            dropped: Dropped::default(),
        }
    }

    pub(crate) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The packet for a node.
    pub(crate) fn seal(&mut self, to: u32, body: Body) -> Vec<u8> {
        self.number += 1;
        let header = Header {
            from: NodeId(self.node),
            to: NodeId(to),
            nonce: self.number,
        };
        let life = self.life;
        self.authenticator.seal(header, &Packet { life, body })
    }

    /// The sender and the body, if the packet is for us, of our cluster, and new.
    pub(crate) fn open(&mut self, packet: &[u8]) -> Option<(u32, Body)> {
        let opened = match self.authenticator.open(packet) {
            Ok(opened) => opened,
            Err(error) => {
                self.dropped.strangers += u64::from(error == EnvelopeError::Stranger);
                return None;
            }
        };
        let Header { from, to, nonce } = opened.header;
        if to.0 != self.node {
            return None;
        }
        let Packet { life, body } = opened.read().ok()?;
        if let Some(highest) = &mut self.highest {
            let highest = highest.entry(from.0).or_default();
            if (life, nonce) <= *highest {
                self.dropped.repeated += 1;
                return None;
            }
            *highest = (life, nonce);
        }
        Some((from.0, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_naming::key::KEY_BYTES;

    fn of(byte: Option<u8>, node: u32) -> PacketAuth {
        let key = byte.map(|byte| ClusterKey::new([byte; KEY_BYTES]));
        PacketAuth::new(key.as_ref(), node, 5)
    }

    fn swim(text: &str) -> Body {
        Body::Swim(text.as_bytes().to_vec())
    }

    #[test]
    fn only_the_addressed_node_accepts_a_packet_and_only_once() {
        let mut sender = of(Some(1), 1);
        let packet = sender.seal(2, swim("news"));
        assert!(is_membership(&packet));
        let mut receiver = of(Some(1), 2);
        assert_eq!(receiver.open(&packet), Some((1, swim("news"))));
        assert_eq!(receiver.open(&packet), None);
        assert_eq!(of(Some(1), 3).open(&packet), None);
        let later = sender.seal(2, swim(""));
        assert_eq!(receiver.open(&later), Some((1, swim(""))));
        // Another incarnation of the sender begins anew, and the earlier one is over.
        let mut again = PacketAuth {
            life: 6,
            ..of(Some(1), 1)
        };
        let back = again.seal(2, swim("back"));
        assert_eq!(receiver.open(&back), Some((1, swim("back"))));
        assert_eq!(receiver.open(&sender.seal(2, swim("old"))), None);
        let dropped = Dropped {
            strangers: 0,
            repeated: 2,
        };
        assert_eq!(receiver.dropped(), dropped);
    }

    #[test]
    fn packets_of_another_cluster_are_counted_and_damaged_ones_ignored() {
        for (ours, theirs) in [(Some(1), Some(2)), (Some(1), None), (None, Some(1))] {
            let packet = of(theirs, 1).seal(2, swim("news"));
            let mut receiver = of(ours, 2);
            assert_eq!(receiver.open(&packet), None);
            assert_eq!(receiver.dropped().strangers, 1);
        }
        let packet = of(None, 1).seal(2, swim("news"));
        assert_eq!(of(None, 2).open(&packet), Some((1, swim("news"))));
        let packet = of(Some(1), 1).seal(2, swim("news"));
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

    #[test]
    fn a_packet_is_longer_than_its_data_by_no_more_than_is_reserved() {
        let mut sender = of(Some(1), u32::MAX);
        (sender.life, sender.number) = (u64::MAX, u64::MAX - 1);
        let packet = sender.seal(u32::MAX, Body::Swim(vec![0; 1000]));
        assert!(packet.len() <= 1000 + EXTRA_BYTES, "{}", packet.len());
    }
}
