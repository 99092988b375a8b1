//! Anti-entropy: two nodes synchronise what they know, for lost news and for newcomers.
//!
//! ```text
//! REQUEST   from(4) digests(32 x 4)
//! RESPONSE  from(4) members, as foca encodes them
//! ```
//!
//! Members are sorted into [`BUCKETS`] by their number. A request carries a digest of each bucket,
//! the response members of the buckets that differ, as many as a packet holds. A node that learns
//! something requests again at once. So nodes that agree exchange a few bytes, and a newcomer among
//! a thousand nodes knows them all after a round trip per packet.

use foca::{Codec, Member as Known, PostcardCodec, State};

use super::{MAX_PACKET_BYTES, Member};
use crate::proofs::EXTRA_BYTES;

pub(super) const BUCKETS: usize = 32;
const NODE_BYTES: usize = 4;
/// More than any member takes: none is begun unless the packet can hold it.
const MEMBER_BYTES: usize = 256;
/// One byte is the kind of the body.
const MAX_BODY_BYTES: usize = MAX_PACKET_BYTES - EXTRA_BYTES - 1;

/// A summary of what a node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digests([u32; BUCKETS]);

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

/// The request of a node with these digests.
pub(super) fn encode_request(from: u32, own: &Digests) -> Vec<u8> {
    let mut body = from.to_le_bytes().to_vec();
    for digest in own.0 {
        body.extend(digest.to_le_bytes());
    }
    body
}

/// The requesting node and its digests; `None` if the body is malformed.
pub(super) fn decode_request(body: &[u8]) -> Option<(u32, Digests)> {
    let (from, rest) = body.split_first_chunk::<NODE_BYTES>()?;
    if rest.len() != BUCKETS * 4 {
        return None;
    }
    let mut digests = Digests::default();
    for (digest, bytes) in digests.0.iter_mut().zip(rest.chunks_exact(4)) {
        *digest = u32::from_le_bytes(bytes.try_into().ok()?);
    }
    Some((u32::from_le_bytes(*from), digests))
}

/// What the other node lacks or knows differently, as far as a packet holds it, beginning with
/// bucket `first`; `None` if it knows the same.
pub(super) fn encode_response<'a>(
    from: u32,
    own: &Digests,
    other: &Digests,
    known: impl Iterator<Item = &'a Known<Member>>,
    first: usize,
) -> Option<Vec<u8>> {
    let order = |member: &Known<Member>| {
        let distance = (bucket(member.id().node) + BUCKETS - first % BUCKETS) % BUCKETS;
        // Nodes that are up go first.
        (distance, member.state() == State::Down)
    };
    let mut wanted: Vec<&Known<Member>> = known
        .filter(|member| own.differs(other, member.id().node))
        .collect();
    if own == other {
        return None;
    }
    wanted.sort_by_key(|member| order(member));
    let mut body = from.to_le_bytes().to_vec();
    for member in wanted {
        let before = body.len();
        if before + MEMBER_BYTES > MAX_BODY_BYTES
            || PostcardCodec.encode_member(member, &mut body).is_err()
        {
            body.truncate(before);
            break;
        }
    }
    Some(body)
}

/// The responding node and its members; the list ends at the first malformed one.
pub(super) fn decode_response(body: &[u8]) -> Option<(u32, Vec<Known<Member>>)> {
    let (from, mut rest) = body.split_first_chunk::<NODE_BYTES>()?;
    let mut members = Vec::new();
    while !rest.is_empty() {
        let Ok(member) = PostcardCodec.decode_member(&mut rest) else {
            break;
        };
        members.push(member);
    }
    Some((u32::from_le_bytes(*from), members))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u32) -> Known<Member> {
        Known::alive(Member {
            node,
            life: 1 << 50,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            control: None,
            port: 7411,
            slots: 1,
            name: String::new(),
            version: "0.1.0".to_owned(),
        })
    }

    #[test]
    fn a_newcomer_has_everything_after_a_packet_for_each_thirty_members() {
        let all: Vec<_> = (1..=1000).map(member).collect();
        let own = Digests::of(all.iter().map(Known::id));
        let mut has: Vec<Known<Member>> = Vec::new();
        let mut packets = 0;
        loop {
            let request = encode_request(7, &Digests::of(has.iter().map(Known::id)));
            let (from, other) = decode_request(&request).unwrap();
            assert_eq!(from, 7);
            let Some(packet) = encode_response(9, &own, &other, all.iter(), packets * 11) else {
                break;
            };
            assert!(packet.len() <= MAX_BODY_BYTES);
            let (from, members) = decode_response(&packet).unwrap();
            assert_eq!(from, 9);
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

    #[test]
    fn malformed_bytes_are_no_request_and_end_a_response() {
        for length in 0..200 {
            let bytes = vec![0xff; length];
            assert_eq!(
                decode_request(&bytes).is_some(),
                length == NODE_BYTES + BUCKETS * 4
            );
            assert!(decode_response(&bytes).is_none_or(|(_, members)| members.is_empty()));
        }
        let all = [member(1), member(2)];
        let own = Digests::of(all.iter().map(Known::id));
        let whole = encode_response(1, &own, &Digests::default(), all.iter(), 0).unwrap();
        for length in NODE_BYTES..whole.len() {
            assert!(decode_response(&whole[..length]).unwrap().1.len() < 2);
        }
    }
}
