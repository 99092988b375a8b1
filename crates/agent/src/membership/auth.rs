//! Membership packets: sealed as control packets, accepted only from our cluster and only once.
//!
//! The packet numbers of an agent's run increase, so that replays are detected. The answer to a
//! challenge identifies the current run, so no clock and no persistent state is needed. Replays are
//! checked only with a cluster key: without one an attacker could use up a sender's numbers.

use std::collections::BTreeMap;

use dipole_naming::address::NodeId;
use dipole_naming::envelope::{
    Authenticator, EnvelopeError, Header, MAX_OVERHEAD_BYTES, Message, kind_of,
};
use dipole_naming::key::ClusterKey;
use serde::{Deserialize, Serialize};

use super::sync::Digests;
use crate::load;
use crate::member::Member;

/// Maximum size of a packet without the data in its [`Body`].
pub(crate) const EXTRA_BYTES: usize = MAX_OVERHEAD_BYTES + RUN_BYTES + PORT_BYTES + MAX_FRONT_BYTES;
const RUN_BYTES: usize = 8;
const PORT_BYTES: usize = 2;
pub(super) const TOKEN_BYTES: usize = 8;
/// The kind of a body, and the length of its data.
const MAX_FRONT_BYTES: usize = 4;

/// Content of a membership packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// A SWIM packet, as foca encodes it.
    Swim(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Digests of the sender's state: requests what differs.
    SyncRequest(Digests),
    /// Members of the buckets that differ.
    SyncResponse(Vec<foca::Member<Member>>),
    /// Requests a response with this token. Padded to the length of the response.
    Challenge {
        token: [u8; TOKEN_BYTES],
        zeros: [[u8; 8]; 2],
    },
    /// Response to a challenge.
    Response {
        token: [u8; TOKEN_BYTES],
        /// Digest of the sender's description of itself.
        digest: [u8; 8],
        /// The sender rejects earlier incarnations of the receiver; 0 if it knows none.
        min_incarnation: [u8; 8],
    },
    /// Rows of the table of loads.
    Load(load::Message),
}

/// A packet of our cluster that is addressed to this node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Received {
    pub(crate) from: u32,
    /// Random number of the sending agent's run.
    pub(crate) run: u64,
    /// Port of the sender's directory. The packet comes from another port.
    pub(crate) port: u16,
    number: u64,
    pub(crate) body: Body,
}

#[derive(Debug, Serialize, Deserialize)]
struct Packet {
    /// Drawn by the sender when it started.
    run: [u8; RUN_BYTES],
    /// Port of the sender's directory.
    port: [u8; PORT_BYTES],
    body: Body,
}

impl Message for Packet {
    const KIND: u8 = 16;
}

/// True for membership packets.
pub(crate) fn is_membership(packet: &[u8]) -> bool {
    kind_of(packet) == Some(Packet::KIND)
}

/// Counters of dropped packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// From senders without our key, or with a key where we have none.
    pub(crate) strangers: u64,
    /// Duplicates, packets overtaken by later ones, and packets of a run that has not responded to
    /// a challenge.
    pub(crate) repeated: u64,
}

#[derive(Debug)]
pub(crate) struct PacketAuth {
    authenticator: Authenticator,
    node: u32,
    run: u64,
    port: u16,
    number: u64,
    /// By node: the run that has responded, and its highest number. `None` without a key.
    highest: Option<BTreeMap<u32, (u64, u64)>>,
    dropped: Dropped,
}

impl PacketAuth {
    /// Creates the keys for one run of a node's agent.
    pub(crate) fn new(key: Option<&ClusterKey>, node: u32, run: u64, port: u16) -> PacketAuth {
        PacketAuth {
            authenticator: Authenticator::new(key),
            node,
            run,
            port,
            number: 0,
            highest: key.map(|_| BTreeMap::new()),
            dropped: Dropped::default(),
        }
    }

    pub(crate) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// True if members have proven that they hold the key, and so are trusted.
    pub(crate) fn has_key(&self) -> bool {
        self.highest.is_some()
    }

    /// Encodes a packet for a node.
    pub(crate) fn seal(&mut self, to: u32, body: Body) -> Vec<u8> {
        self.number += 1;
        let header = Header {
            from: NodeId(self.node),
            to: NodeId(to),
            nonce: self.number,
        };
        let (run, port) = (self.run.to_le_bytes(), self.port.to_le_bytes());
        self.authenticator.seal(header, &Packet { run, port, body })
    }

    /// Decodes a packet, if it is addressed to this node and belongs to our cluster.
    pub(crate) fn open(&mut self, packet: &[u8]) -> Option<Received> {
        let opened = match self.authenticator.open(packet) {
            Ok(opened) => opened,
            Err(error) => {
                self.dropped.strangers += u64::from(error == EnvelopeError::Stranger);
                return None;
            }
        };
        let Header { from, to, nonce } = opened.header;
        if to.0 != self.node || from.0 == self.node {
            return None;
        }
        let Packet { run, port, body } = opened.read().ok()?;
        Some(Received {
            from: from.0,
            run: u64::from_le_bytes(run),
            port: u16::from_le_bytes(port),
            number: nonce,
            body,
        })
    }

    /// Accepts the run of a sender that has responded to a challenge, from this packet on.
    pub(crate) fn accept_run(&mut self, answer: &Received) {
        if let Some(highest) = &mut self.highest {
            let last = highest.entry(answer.from).or_default();
            *last = match *last {
                (run, number) if run == answer.run => (run, number.max(answer.number)),
                _ => (answer.run, answer.number),
            };
        }
    }

    /// True once for each packet of an accepted run.
    pub(crate) fn is_new(&mut self, packet: &Received) -> bool {
        let Some(highest) = &mut self.highest else {
            return true;
        };
        let last = highest.get_mut(&packet.from);
        match last.filter(|(run, number)| *run == packet.run && packet.number > *number) {
            Some(last) => last.1 = packet.number,
            None => {
                self.dropped.repeated += 1;
                return false;
            }
        }
        true
    }

    /// Counts a packet of a run that is not accepted.
    pub(crate) fn count_unproven(&mut self) {
        self.dropped.repeated += u64::from(self.has_key());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_naming::key::KEY_BYTES;

    fn of(byte: Option<u8>, node: u32) -> PacketAuth {
        let key = byte.map(|byte| ClusterKey::new([byte; KEY_BYTES]));
        PacketAuth::new(key.as_ref(), node, 5, 7411)
    }

    fn swim(text: &str) -> Body {
        Body::Swim(text.as_bytes().to_vec())
    }

    fn opened(receiver: &mut PacketAuth, packet: &[u8]) -> Option<Body> {
        receiver.open(packet).map(|received| received.body)
    }

    #[test]
    fn only_the_addressed_node_accepts_a_packet_and_each_only_once() {
        let mut sender = of(Some(1), 1);
        let packet = sender.seal(2, swim("news"));
        assert!(is_membership(&packet));
        assert_eq!(opened(&mut of(Some(1), 3), &packet), None);
        let mut receiver = of(Some(1), 2);
        let first = receiver.open(&packet).unwrap();
        assert_eq!((first.from, &first.body), (1, &swim("news")));
        assert!(!receiver.is_new(&first), "the run has not responded");
        let answer = receiver.open(&sender.seal(2, swim("answer"))).unwrap();
        receiver.accept_run(&answer);
        assert!(!receiver.is_new(&first), "from before the answer");
        let later = receiver.open(&sender.seal(2, swim(""))).unwrap();
        assert!(receiver.is_new(&later) && !receiver.is_new(&later));
        // A new run of the sender starts with its own numbers, and ends the previous run.
        let mut again = PacketAuth::new(Some(&ClusterKey::new([1; KEY_BYTES])), 1, 4, 7411);
        let back = receiver.open(&again.seal(2, swim("back"))).unwrap();
        assert!(!receiver.is_new(&back));
        receiver.accept_run(&back);
        let next = receiver.open(&again.seal(2, swim("next"))).unwrap();
        assert!(receiver.is_new(&next));
        let old = receiver.open(&sender.seal(2, swim("old"))).unwrap();
        assert!(!receiver.is_new(&old));
        assert_eq!(receiver.dropped().repeated, 5);
        assert_eq!(receiver.dropped().strangers, 0);
    }

    #[test]
    fn packets_of_another_cluster_are_counted_and_damaged_ones_ignored() {
        for (ours, theirs) in [(Some(1), Some(2)), (Some(1), None), (None, Some(1))] {
            let packet = of(theirs, 1).seal(2, swim("news"));
            let mut receiver = of(ours, 2);
            assert_eq!(opened(&mut receiver, &packet), None);
            assert_eq!(receiver.dropped().strangers, 1);
        }
        let packet = of(None, 1).seal(2, swim("news"));
        assert_eq!(opened(&mut of(None, 2), &packet), Some(swim("news")));
        let packet = of(Some(1), 1).seal(2, swim("news"));
        let mut receiver = of(Some(1), 2);
        for bit in 0..packet.len() * 8 {
            let mut bad = packet.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&mut receiver, &bad), None, "bit {bit}");
        }
        for length in 0..packet.len() {
            assert_eq!(opened(&mut receiver, &packet[..length]), None, "{length}");
        }
        assert_eq!(receiver.dropped().repeated, 0);
        assert!(receiver.open(&packet).is_some());
    }

    #[test]
    fn a_packet_is_longer_than_its_data_by_no_more_than_is_reserved() {
        let mut sender = of(Some(1), u32::MAX);
        (sender.run, sender.number) = (u64::MAX, u64::MAX - 1);
        let packet = sender.seal(u32::MAX, Body::Swim(vec![0; 1000]));
        assert!(packet.len() <= 1000 + EXTRA_BYTES, "{}", packet.len());
    }

    #[test]
    fn an_answer_is_as_long_as_the_challenge() {
        let mut sender = of(Some(1), 1);
        let challenge = Body::Challenge {
            token: [7; 8],
            zeros: [[0; 8]; 2],
        };
        let answer = Body::Response {
            token: [255; 8],
            digest: [255; 8],
            min_incarnation: [255; 8],
        };
        let challenge = sender.seal(2, challenge);
        assert_eq!(sender.seal(2, answer).len(), challenge.len());
    }
}
