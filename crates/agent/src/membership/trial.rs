//! Packets of an attacker to a member, for fuzzing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use dipole_naming::key::{ClusterKey, KEY_BYTES};
use dipole_node::registry::NodeFacts;

use super::auth::{Body, PacketAuth};
use super::contacts::digest;
use super::sync::Digests;
use super::{MAX_PACKET_BYTES, Membership, Secrets};
use crate::load;
use crate::member::Member;

const PORT: u16 = 7411;

fn at(host: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, host), PORT).into()
}

fn member(host: u8) -> Member {
    Member {
        node: host.into(),
        incarnation: 1,
        facts: NodeFacts {
            addresses: vec![at(host).ip()],
            control: None,
            port: PORT,
            slots: 1,
            name: String::new(),
            version: String::new(),
        },
    }
}

/// Feeds packets to a member without a key, from an attacker who has responded to its challenge.
/// `bytes` is a list of a length (one byte, in units of four), a kind (one byte) and content.
///
/// # Panics
/// If other nodes get packets that are too long, or more bytes than the member received.
#[doc(hidden)]
pub fn receive_anything(bytes: &[u8]) {
    let secrets = Secrets {
        run: 1,
        seed: 1,
        tokens: ClusterKey::new([7; KEY_BYTES]).mac_key("trial"),
    };
    let mut one = Membership::new(member(1), vec![member(3)], secrets, None);
    let figures = load::Figures {
        cores: 1,
        speed: 1,
        ..load::Figures::default()
    };
    one.load_mut().set_own(Duration::from_secs(1), figures);
    let mut stranger = PacketAuth::new(None, 2, 9, PORT);
    let (mut now, mut came) = (Duration::from_secs(1), 0);
    let mut to_others = 0;
    let mut rest = bytes;
    // The first packet causes a challenge, to which the attacker responds.
    let mut packet = stranger.seal(1, Body::SyncRequest(Digests::default()));
    loop {
        came += packet.len();
        one.on_packet(now, at(2), &packet);
        for (to, sent) in one.take_outgoing(now, |to, _| to.facts.directories()) {
            assert!(sent.len() <= MAX_PACKET_BYTES, "{} bytes", sent.len());
            match stranger.open(&sent).map(|received| received.body) {
                Some(Body::Challenge { token, .. }) if to == at(2) => {
                    let answer = Body::Response {
                        token,
                        digest: digest(&member(2)),
                        min_incarnation: [0; 8],
                    };
                    one.on_packet(now, to, &stranger.seal(1, answer));
                }
                _ if to == at(2) => {}
                // The member contacts the node of the hosts file on its own.
                _ if to == at(3) => {}
                _ => to_others += sent.len(),
            }
        }
        assert!(to_others <= came, "{to_others} bytes for {came}");
        let [length, kind, content @ ..] = rest else {
            break;
        };
        let (content, after) = content.split_at(content.len().min(usize::from(*length) * 4));
        rest = after;
        packet = match kind % 4 {
            0 => content.to_vec(),
            1 => stranger.seal(1, Body::Swim(content.to_vec())),
            2 => match postcard::from_bytes(content) {
                Ok(body) => stranger.seal(1, body),
                Err(_) => continue,
            },
            _ => {
                now += Duration::from_millis(u64::from(*length) * 100);
                one.on_timers(now);
                continue;
            }
        };
    }
    let shown = one.members().map(Member::shown).collect::<String>();
    assert!(!shown.contains(['\n', '\u{1b}']));
    let nodes = one.members().count() + 1;
    assert!(one.load().rows(now).len() <= nodes);
    assert!(one.members().all(|member| member.facts.is_valid()));
}

#[cfg(test)]
mod tests {
    use foca::{Header, Message};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::super::swim::Swim;
    use super::*;
    use foca::{Codec, PostcardCodec};

    /// A row of the table of loads.
    fn row(node: u32, age_ms: u32) -> load::Row {
        let figures = load::Figures {
            cores: 2,
            speed: 9,
            ..load::Figures::default()
        };
        load::Row {
            node,
            age_ms,
            figures,
        }
    }

    /// A valid packet of another agent, in the format of [`receive_anything`].
    fn sound(random: &mut StdRng) -> Vec<u8> {
        let about = member(random.random_range(1..9));
        let message = match random.random_range(0..6) {
            0 => Message::Announce,
            1 => Message::Ping(random.random()),
            2 => Message::TurnUndead,
            3 => Message::Feed,
            4 => Message::PingReq {
                target: about.clone(),
                probe_number: 1,
            },
            _ => Message::Gossip,
        };
        let header = Header {
            src: member(2),
            src_incarnation: 0,
            dst: member(1),
            message,
        };
        let mut head = Vec::new();
        let written = PostcardCodec.encode_header(&header, &mut head);
        written.expect("a vector");
        let updates = [foca::Member::alive(about)];
        let (kind, content) = match random.random_range(0..4) {
            0 => (1, Swim::encode(&head, &updates)),
            1 => {
                let rows = vec![row(random.random_range(0..9), random.random())];
                let (first, last) = random.random();
                let message = match random.random() {
                    true => load::Message::Request { first, last, rows },
                    false => load::Message::Response { rows },
                };
                let bytes = postcard::to_extend(&Body::Load(message), Vec::new());
                (2, bytes.expect("a vector"))
            }
            _ => {
                let body = match random.random() {
                    true => Body::SyncResponse(updates.to_vec()),
                    false => Body::Swim(Swim::encode(&head, &updates)),
                };
                let bytes = postcard::to_extend(&body, Vec::new());
                (2, bytes.expect("a vector"))
            }
        };
        let mut piece = vec![0, kind];
        piece[0] = u8::try_from(content.len().div_ceil(4)).expect("short");
        piece.extend(&content);
        piece.resize(2 + usize::from(piece[0]) * 4, 0);
        piece
    }

    #[test]
    fn no_packet_of_a_stranger_harms_a_member_or_a_bystander() {
        let rounds =
            std::env::var("DIPOLE_ROUNDS").map_or(2000, |text| text.parse().expect("a number"));
        for seed in 0..rounds {
            let mut random = StdRng::seed_from_u64(seed);
            let mut bytes = Vec::new();
            for _ in 0..random.random_range(1..12) {
                match random.random_range(0..8) {
                    0 => bytes.extend([random.random(), 3]),
                    1 => bytes.extend((0..40).map(|_| random.random::<u8>())),
                    _ => bytes.extend(sound(&mut random)),
                }
            }
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
            let outcome = std::panic::catch_unwind(|| receive_anything(&bytes));
            assert!(outcome.is_ok(), "seed {seed}");
        }
    }
}
