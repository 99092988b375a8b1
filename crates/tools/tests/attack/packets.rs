//! Packets of an attacker who has read the specification and lacks the key.

use std::net::SocketAddrV4;

use crc_fast::{CrcAlgorithm, checksum};
use dipole_naming::address::NodeId;
use dipole_naming::envelope::{Authenticator, Header, Message};
use dipole_naming::key::{ClusterKey, KEY_BYTES};
use dipole_naming::registry::QUERY_BYTES;
use serde::{Deserialize, Serialize};

pub(crate) const HELLO: u8 = 0x10;
pub(crate) const CHALLENGE: u8 = 0x11;
pub(crate) const DATA: u8 = 0x13;
pub(crate) const RESET: u8 = 0x16;
pub(crate) const BYE: u8 = 0x19;
pub(crate) const PROVEN: u8 = 1 << 6;

/// A packet between agents; an attacker need not get its body right.
#[derive(Serialize, Deserialize)]
pub(crate) struct Membership {
    pub(crate) life: u64,
    pub(crate) body: Vec<u8>,
}

impl Message for Membership {
    const KIND: u8 = 16;
}

/// A random generator that is good enough for this.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// Header fields of a packet.
struct Head {
    first: u8,
    flags: u8,
    connection: u32,
    /// Packet number and unit.
    numbers: [u32; 2],
    lanes: u8,
}

impl Head {
    /// A packet without a number on a lane.
    fn unnumbered(first: u8, flags: u8, connection: u32) -> Head {
        Head {
            first,
            flags,
            connection,
            numbers: [0, 0],
            lanes: 0xff,
        }
    }
}

/// A packet with its header and a valid checksum, and a proof or tag in between if there is one.
fn packet(head: &Head, body: &[u8], proof_or_tag: Option<&[u8]>) -> Vec<u8> {
    let Head {
        first,
        flags,
        connection,
        numbers,
        lanes,
    } = *head;
    let closing = proof_or_tag.unwrap_or_default();
    let length = u16::try_from(32 + body.len() + closing.len() + 4).expect("short");
    let mut bytes = vec![0; 32];
    bytes[0] = first;
    bytes[1] = flags;
    bytes[2..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..8].copy_from_slice(&connection.to_le_bytes());
    bytes[8..12].copy_from_slice(&numbers[0].to_le_bytes());
    bytes[12..16].copy_from_slice(&numbers[1].to_le_bytes());
    bytes[28] = lanes;
    bytes.extend(body);
    bytes.extend(closing);
    let tagged = proof_or_tag.is_some() && !matches!(first, HELLO | RESET);
    let sum = if tagged { sum(&bytes) } else { crc(&bytes) };
    bytes.extend(sum);
    bytes
}

fn crc(packet: &[u8]) -> [u8; 4] {
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, packet).to_le_bytes();
    [sum[0], sum[1], sum[2], sum[3]]
}

/// The end of a packet with a tag.
fn sum(packet: &[u8]) -> [u8; 4] {
    let sum = packet.chunks(4).fold(0, |sum: u32, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        sum.wrapping_add(u32::from_le_bytes(word))
    });
    sum.to_le_bytes()
}

/// A hello, with a cookie or requesting one.
pub(crate) fn hello(random: &mut Random, connection: u32, cookie: u64, proven: bool) -> Vec<u8> {
    let mut body = vec![1, 1];
    body.extend(1472_u16.to_le_bytes());
    body.extend(connection.to_le_bytes());
    body.extend(STRANGER.to_le_bytes());
    body.extend(cookie.to_le_bytes());
    body.extend(3_u32.to_le_bytes());
    body.extend(64_u32.to_le_bytes());
    body.extend(65_536_u32.to_le_bytes());
    body.extend(0_u64.to_le_bytes());
    // Any trailer, a salt and a key share.
    body.extend([7, 0, 1, 0]);
    body.extend(random.bytes(40));
    // One lane, at the source address.
    body.extend([0; 18]);
    body.extend(7777_u16.to_le_bytes());
    let proof = random.bytes(16);
    let (flags, proof) = match proven {
        true => (PROVEN, Some(&proof[..])),
        false => (0, None),
    };
    packet(&Head::unnumbered(HELLO, flags, 0), &body, proof)
}

/// The incarnation in the attacker's hellos.
pub(crate) const STRANGER: u64 = 0x5747_4e41_5254_5321;

/// The connection id and cookie of a challenge.
pub(crate) fn challenge(bytes: &[u8]) -> Option<(u32, u64)> {
    let connection = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
    let cookie = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
    (bytes[0] == CHALLENGE).then_some((connection, cookie))
}

/// An unused packet counter, and a guess at the tag.
fn tag(random: &mut Random) -> Vec<u8> {
    let counter = random.next() % (1 << 28);
    [&counter.to_le_bytes()[..], &random.bytes(16)].concat()
}

/// A packet with a tag in which one bit is flipped; optionally with a corrected checksum.
pub(crate) fn altered(packet: &[u8], bit: usize, fits: bool) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    if fits {
        let end = bytes.len() - 4;
        let sum = sum(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum);
    }
    bytes
}

/// A message for endpoint 7, with the next of every number.
pub(crate) fn data(random: &mut Random, connection: u32, tagged: bool) -> Vec<u8> {
    let number = u32::try_from(random.next() % 100_000).expect("small");
    let mut body = vec![1, 0];
    body.extend(28_u16.to_le_bytes());
    for word in [7_u32, 7, number] {
        body.extend(word.to_le_bytes());
    }
    body.extend([0xAA; 16]);
    let numbers = [number, number];
    let tag = tagged.then(|| tag(random));
    let head = Head {
        first: DATA,
        flags: 0x0b,
        connection,
        numbers,
        lanes: 0,
    };
    packet(&head, &body, tag.as_deref())
}

/// A goodbye on behalf of another node.
pub(crate) fn bye(random: &mut Random, connection: u32, tagged: bool) -> Vec<u8> {
    let body = random.next().to_le_bytes();
    let tag = tagged.then(|| tag(random));
    packet(&Head::unnumbered(BYE, 0, connection), &body, tag.as_deref())
}

/// A packet that reports an unknown connection.
pub(crate) fn reset(random: &mut Random, connection: u32, proven: bool) -> Vec<u8> {
    let mut body = connection.to_le_bytes().to_vec();
    body.extend(0_u32.to_le_bytes());
    let proof = random.bytes(16);
    let (flags, proof) = match proven {
        true => (PROVEN, Some(&proof[..])),
        false => (0, None),
    };
    packet(&Head::unnumbered(RESET, flags, 0), &body, proof)
}

/// A control packet as sent by a node without a key, or with a key of its own.
pub(crate) fn control(
    random: &mut Random,
    message: &impl Message,
    [from, to]: [u32; 2],
    with_key: bool,
) -> Vec<u8> {
    let key = ClusterKey::new([0xee; KEY_BYTES]);
    let header = Header {
        from: NodeId(from),
        to: NodeId(to),
        nonce: random.next(),
    };
    let authenticator = Authenticator::new(with_key.then_some(&key));
    authenticator.seal_to_length(header, message, QUERY_BYTES)
}

/// Prepends IP and UDP headers to a payload; the kernel fills in zero fields.
pub(crate) fn in_ip(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).expect("short").to_be_bytes();
    let mut bytes = vec![0x45, 0];
    bytes.extend(length(20 + 8 + payload.len()));
    bytes.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend(from.ip().octets());
    bytes.extend(to.ip().octets());
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(length(8 + payload.len()));
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}
