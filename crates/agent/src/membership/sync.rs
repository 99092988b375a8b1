//! Anti-entropy: two nodes synchronise their state, to recover lost changes and for new nodes.
//!
//! Members are divided into [`BUCKETS`] by number. A request has a digest of each bucket; the
//! response has members of the buckets that differ, as many as fit a packet. A node that got
//! something new requests again at once. Nodes that agree therefore exchange few bytes, and a new
//! node among a thousand knows them all after one round trip per packet.

use foca::{Member as Known, State};
use serde::{Deserialize, Serialize};

use super::Member;

pub(super) const BUCKETS: usize = 32;

/// Digests of a node's state, one per bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digests([u32; BUCKETS]);

fn bucket(node: u32) -> usize {
    node as usize % BUCKETS
}

impl Digests {
    /// Digests of the members that are up.
    pub(super) fn of<'a>(members: impl Iterator<Item = &'a Member>) -> Digests {
        let mut digests = Digests::default();
        for member in members {
            // The finalizer of SplitMix64: every bit of the node number and the incarnation
            // matters.
            let mut mixed = member.incarnation ^ u64::from(member.node).rotate_left(40);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            digests.0[bucket(member.node)] ^= (mixed & 0xffff_ffff) as u32;
        }
        digests
    }

    fn differs(&self, other: &Digests, node: u32) -> bool {
        self.0[bucket(node)] != other.0[bucket(node)]
    }
}

/// Members that the other node lacks or knows differently, up to `max_bytes`, starting with bucket
/// `first`; `None` if the digests are equal.
pub(super) fn differences<'a>(
    own: &Digests,
    other: &Digests,
    known: impl Iterator<Item = &'a Known<Member>>,
    first: usize,
    max_bytes: usize,
) -> Option<Vec<Known<Member>>> {
    if own == other {
        return None;
    }
    let order = |member: &&Known<Member>| {
        let distance = (bucket(member.id().node) + BUCKETS - first % BUCKETS) % BUCKETS;
        // Nodes that are up come first.
        (distance, member.state() == State::Down)
    };
    let mut wanted: Vec<&Known<Member>> = known
        .filter(|member| own.differs(other, member.id().node))
        .collect();
    wanted.sort_by_key(order);
    let mut free_bytes = max_bytes;
    let fitting = wanted.into_iter().map_while(|member| {
        let bytes = postcard::experimental::serialized_size(member).ok()?;
        free_bytes = free_bytes.checked_sub(bytes)?;
        Some(member.clone())
    });
    Some(fitting.collect())
}

#[cfg(test)]
mod tests {
    use dipole_node::registry::NodeFacts;

    use super::super::auth::{Body, PacketAuth};
    use super::super::{MAX_DATA_BYTES, MAX_PACKET_BYTES};
    use super::*;

    fn member(node: u32) -> Known<Member> {
        Known::alive(Member {
            node,
            incarnation: 1 << 50,
            facts: NodeFacts {
                addresses: vec!["10.0.0.1".parse().unwrap()],
                control: None,
                port: 7411,
                slots: 1,
                name: String::new(),
                version: "0.1.0".to_owned(),
            },
        })
    }

    #[test]
    fn a_newcomer_has_everything_after_a_packet_for_each_thirty_members() {
        let all: Vec<_> = (1..=1000).map(member).collect();
        let own = Digests::of(all.iter().map(Known::id));
        let mut has: Vec<Known<Member>> = Vec::new();
        let mut packets = 0;
        loop {
            let other = Digests::of(has.iter().map(Known::id));
            let Some(members) = differences(&own, &other, all.iter(), packets * 11, MAX_DATA_BYTES)
            else {
                break;
            };
            let body = Body::SyncResponse(members.clone());
            assert!(
                PacketAuth::new(None, 9, 1 << 50, 7411).seal(7, body).len() <= MAX_PACKET_BYTES
            );
            assert!(!members.is_empty());
            for member in members {
                if !has.contains(&member) {
                    has.push(member);
                }
            }
            packets += 1;
            assert!(packets < 64, "{} known", has.len());
        }
        assert_eq!(has.len(), 1000);
    }
}
