//! Anti-entropy: two nodes synchronise what they know, for lost news and for newcomers.
//!
//! Members are sorted into [`BUCKETS`] by their number. A request carries a digest of each bucket,
//! the response members of the buckets that differ, as many as a packet holds. A node that learns
//! something requests again at once. So nodes that agree exchange a few bytes, and a newcomer among
//! a thousand nodes knows them all after a round trip per packet.

use foca::{Member as Known, State};
use serde::{Deserialize, Serialize};

use super::Member;

pub(super) const BUCKETS: usize = 32;

/// A summary of what a node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digests([u32; BUCKETS]);

fn bucket(node: u32) -> usize {
    node as usize % BUCKETS
}

impl Digests {
    /// Of the members that are up.
    pub(super) fn of<'a>(there: impl Iterator<Item = &'a Member>) -> Digests {
        let mut digests = Digests::default();
        for member in there {
            // The finalizer of SplitMix64: every bit of number and life counts.
            let mut mixed = member.life ^ u64::from(member.node).rotate_left(40);
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

/// What the other node lacks or knows differently, as far as `max_bytes` hold it, beginning with
/// bucket `first`; `None` if it knows the same.
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
        // Nodes that are up go first.
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
            life: 1 << 50,
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
