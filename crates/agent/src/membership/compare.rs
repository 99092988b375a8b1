//! Two nodes compare what they know: news that were lost, and all that a newcomer lacks.
//!
//! ```text
//! ASK   from(4) digests(32 x 4)
//! TELL  from(4) members, as foca writes them
//! ```
//!
//! Members are sorted into [`BUCKETS`] by their number; a digest of each bucket goes out, and
//! back come members of buckets that differ, as many as one packet holds. Who learns something
//! asks on at once. So nodes that agree exchange some bytes, and a newcomer of a thousand nodes
//! has them all after a round trip for each packet full of them.

use foca::{Codec, Member as Known, PostcardCodec, State};

use super::{MAX_PACKET_BYTES, Member};
use crate::proofs::EXTRA_BYTES;

pub(super) const BUCKETS: usize = 32;
const NODE_BYTES: usize = 4;
/// More than any member takes, so that none is begun that the packet cannot hold.
const MEMBER_BYTES: usize = 256;
/// One byte says that a body is none of foca's.
const MOST_BYTES: usize = MAX_PACKET_BYTES - EXTRA_BYTES - 1;

/// What a node knows, in short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digests([u32; BUCKETS]);

fn bucket(node: u32) -> usize {
    node as usize % BUCKETS
}

impl Digests {
    /// Those of the members that are there.
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

/// The question of a node that knows so much.
pub(super) fn ask(from: u32, own: &Digests) -> Vec<u8> {
    let mut body = from.to_le_bytes().to_vec();
    for digest in own.0 {
        body.extend(digest.to_le_bytes());
    }
    body
}

/// Who asks, and what that node knows; `None` if it is no question.
pub(super) fn asked(body: &[u8]) -> Option<(u32, Digests)> {
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

/// What the other lacks or has otherwise, as far as a packet holds it, beginning with some
/// bucket; `None` if it knows the same.
pub(super) fn tell<'a>(
    from: u32,
    own: &Digests,
    other: &Digests,
    known: impl Iterator<Item = &'a Known<Member>>,
    first: usize,
) -> Option<Vec<u8>> {
    let order = |member: &Known<Member>| {
        let place = (bucket(member.id().node) + BUCKETS - first % BUCKETS) % BUCKETS;
        // Who is there goes before who is not.
        (place, member.state() == State::Down)
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
        if before + MEMBER_BYTES > MOST_BYTES
            || PostcardCodec.encode_member(member, &mut body).is_err()
        {
            body.truncate(before);
            break;
        }
    }
    Some(body)
}

/// Who tells, and what; members that cannot be read end the list.
pub(super) fn told(body: &[u8]) -> Option<(u32, Vec<Known<Member>>)> {
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
            let asks = ask(7, &Digests::of(has.iter().map(Known::id)));
            let (from, other) = asked(&asks).unwrap();
            assert_eq!(from, 7);
            let Some(packet) = tell(9, &own, &other, all.iter(), packets * 11) else {
                break;
            };
            assert!(packet.len() <= MOST_BYTES);
            let (from, members) = told(&packet).unwrap();
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
    fn nonsense_is_no_question_and_ends_an_answer() {
        for length in 0..200 {
            let bytes = vec![0xff; length];
            assert_eq!(asked(&bytes).is_some(), length == NODE_BYTES + BUCKETS * 4);
            assert!(told(&bytes).is_none_or(|(_, members)| members.is_empty()));
        }
        let all = [member(1), member(2)];
        let own = Digests::of(all.iter().map(Known::id));
        let whole = tell(1, &own, &Digests::default(), all.iter(), 0).unwrap();
        for length in NODE_BYTES..whole.len() {
            assert!(told(&whole[..length]).unwrap().1.len() < 2);
        }
    }
}
