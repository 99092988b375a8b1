//! How a node's agent announces itself: one packet that says all about the node. Spec §3.10.
//!
//! ```text
//! ANNOUNCE 0 header(32)   32 life(8)    40 node(4)     44 age(8)      52 taken(8)
//!          60 port(2)     62 cards(1)   63 control(1)  64 slots(4)
//!          68 cluster(1)  69 name(1)    70 version(1)  71 zero(1)
//!          72 cards x 16, control x 16, cluster, name, version; zeros up to 96; crc(4)
//! ```
//!
//! The bytes at 62, 63 and 68 to 70 are counts of what follows. With a cluster key the
//! packet carries a proof as those of directories do (§3.8).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::directory_wire::{CRC_BYTES, PACKET_BYTES, WireError, array, check, crc, zero};
use crate::address::NodeId;
use crate::hosts::{MAX_CARDS, MAX_SLOTS};

/// Longest name of a cluster or a node, in bytes.
pub const MAX_NAME_BYTES: usize = 63;
const ANNOUNCE: u8 = 0x1f;
const IP_BYTES: usize = 16;
const TEXTS_AT: usize = 72;
const MAX_BYTES: usize = TEXTS_AT + (MAX_CARDS + 1) * IP_BYTES + 3 * MAX_NAME_BYTES + CRC_BYTES;

/// What a node's agent says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The cluster it belongs to; whoever is of another ignores it.
    pub cluster: String,
    /// The node.
    pub node: NodeId,
    /// Which life of its agent this is.
    pub life: u64,
    /// How long that life has lasted, in milliseconds by its own clock.
    pub age_ms: u64,
    /// If not 0, a word to the life of this number that says it is the same node: the number
    /// is taken.
    pub taken: u64,
    /// The directory's port.
    pub port: u16,
    /// How many ranks the launcher places there.
    pub slots: u32,
    /// The addresses of its cards, best first; 1 to [`MAX_CARDS`].
    pub addresses: Vec<IpAddr>,
    /// Where it wants to be asked, if not on its cards.
    pub control: Option<IpAddr>,
    /// A name for people, may be empty.
    pub name: String,
    /// The agent's version.
    pub version: String,
}

impl Announcement {
    /// Where the node is asked, best first.
    #[must_use]
    pub fn directories(&self) -> Vec<SocketAddr> {
        let all = self.control.iter().chain(&self.addresses);
        all.map(|ip| SocketAddr::new(*ip, self.port)).collect()
    }
}

/// True if a text may name a cluster or a node: printable, without white space or `#`, so
/// that it can stand in a hosts file.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    text.len() <= MAX_NAME_BYTES && text.bytes().all(fits)
}

/// True if a packet says that it is an announcement.
#[must_use]
pub fn is_announcement(packet: &[u8]) -> bool {
    packet.first() == Some(&ANNOUNCE)
}

/// Writes an announcement; more addresses and longer texts than there is room for are cut.
#[must_use]
pub fn encode_announcement(said: &Announcement) -> Vec<u8> {
    let addresses = &said.addresses[..said.addresses.len().min(MAX_CARDS)];
    let texts = [&said.cluster, &said.name, &said.version];
    let texts = texts.map(|text| &text.as_bytes()[..text.len().min(MAX_NAME_BYTES)]);
    let mut bytes = vec![0; TEXTS_AT];
    bytes[0] = ANNOUNCE;
    bytes[32..40].copy_from_slice(&said.life.to_le_bytes());
    bytes[40..44].copy_from_slice(&said.node.0.to_le_bytes());
    bytes[44..52].copy_from_slice(&said.age_ms.to_le_bytes());
    bytes[52..60].copy_from_slice(&said.taken.to_le_bytes());
    bytes[60..62].copy_from_slice(&said.port.to_le_bytes());
    bytes[62] = u8::try_from(addresses.len()).unwrap_or(0);
    bytes[63] = u8::from(said.control.is_some());
    bytes[64..68].copy_from_slice(&said.slots.to_le_bytes());
    for (at, text) in (68..).zip(texts) {
        bytes[at] = u8::try_from(text.len()).unwrap_or(0);
    }
    for ip in addresses.iter().chain(&said.control) {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => *ip,
        };
        bytes.extend(ip.octets());
    }
    for text in texts {
        bytes.extend(text);
    }
    let length = (bytes.len() + CRC_BYTES).max(PACKET_BYTES);
    bytes.resize(length - CRC_BYTES, 0);
    let whole = u16::try_from(length).unwrap_or(u16::MAX);
    bytes[2..4].copy_from_slice(&whole.to_le_bytes());
    let sum = crc(&bytes);
    bytes.extend(sum);
    bytes
}

/// Reads an announcement.
///
/// # Errors
/// The packet is no well-formed ANNOUNCE.
pub fn decode_announcement(bytes: &[u8]) -> Result<Announcement, WireError> {
    if !(PACKET_BYTES..=MAX_BYTES).contains(&bytes.len()) {
        return Err(WireError::Length {
            found_bytes: bytes.len(),
        });
    }
    check(bytes, ANNOUNCE)?;
    zero(bytes, 71, TEXTS_AT)?;
    let wrong = |offset_bytes| WireError::Field { offset_bytes };
    let demand = |holds: bool, at| if holds { Ok(()) } else { Err(wrong(at)) };
    let (cards, controls) = (usize::from(bytes[62]), usize::from(bytes[63]));
    demand((1..=MAX_CARDS).contains(&cards), 62)?;
    demand(controls <= 1, 63)?;
    let lengths = [68, 69, 70].map(|at| usize::from(bytes[at]));
    for (at, length) in (68..).zip(lengths) {
        demand(length <= MAX_NAME_BYTES, at)?;
    }
    let texts_at = TEXTS_AT + (cards + controls) * IP_BYTES;
    let end = texts_at + lengths.iter().sum::<usize>();
    demand((end + CRC_BYTES).max(PACKET_BYTES) == bytes.len(), 2)?;
    zero(bytes, end, bytes.len() - CRC_BYTES)?;
    let mut ips = Vec::new();
    for at in (TEXTS_AT..texts_at).step_by(IP_BYTES) {
        let ip = Ipv6Addr::from(array::<IP_BYTES>(bytes, at));
        demand(!ip.is_unspecified() && !ip.is_multicast(), at)?;
        let ip = ip.to_canonical();
        demand(!ip.is_unspecified() && !ip.is_multicast(), at)?;
        ips.push(ip);
    }
    let mut texts = Vec::new();
    let mut at = texts_at;
    for length in lengths {
        let text = std::str::from_utf8(&bytes[at..at + length]).ok();
        let text = text.filter(|text| is_name(text)).ok_or(wrong(at))?;
        texts.push(text.to_owned());
        at += length;
    }
    let [cluster, name, version] = <[String; 3]>::try_from(texts).map_err(|_| wrong(68))?;
    let said = Announcement {
        cluster,
        node: NodeId(u32::from_le_bytes(array(bytes, 40))),
        life: u64::from_le_bytes(array(bytes, 32)),
        age_ms: u64::from_le_bytes(array(bytes, 44)),
        taken: u64::from_le_bytes(array(bytes, 52)),
        port: u16::from_le_bytes(array(bytes, 60)),
        slots: u32::from_le_bytes(array(bytes, 64)),
        control: (controls == 1).then(|| ips.remove(cards)),
        addresses: ips,
        name,
        version,
    };
    demand(said.node.0 != 0, 40)?;
    demand(said.life != 0, 32)?;
    demand(said.port != 0, 60)?;
    demand((1..=MAX_SLOTS).contains(&said.slots), 64)?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said() -> Announcement {
        Announcement {
            cluster: "dipole".to_owned(),
            node: NodeId(3),
            life: 0x0102_0304_0506_0708,
            age_ms: 9,
            taken: 0,
            port: 7411,
            slots: 4,
            addresses: vec!["10.0.0.3".parse().unwrap(), "fd00::3".parse().unwrap()],
            control: Some("10.9.0.3".parse().unwrap()),
            name: "third".to_owned(),
            version: "0.1.0".to_owned(),
        }
    }

    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.truncate(bytes.len() - CRC_BYTES);
        let sum = crc(&bytes);
        bytes.extend(sum);
        bytes
    }

    #[test]
    fn announcements_read_back_what_was_written() {
        let bare = Announcement {
            cluster: String::new(),
            name: String::new(),
            version: String::new(),
            control: None,
            addresses: vec!["::1".parse().unwrap()],
            taken: u64::MAX,
            ..said()
        };
        assert_eq!(encode_announcement(&bare).len(), PACKET_BYTES);
        let longest = Announcement {
            cluster: "c".repeat(MAX_NAME_BYTES),
            name: "n".repeat(MAX_NAME_BYTES),
            version: "v".repeat(MAX_NAME_BYTES),
            addresses: vec!["1.2.3.4".parse().unwrap(); MAX_CARDS],
            ..said()
        };
        assert_eq!(encode_announcement(&longest).len(), MAX_BYTES);
        for said in [said(), bare, longest] {
            assert_eq!(decode_announcement(&encode_announcement(&said)), Ok(said));
        }
        let asked: Vec<String> = said()
            .directories()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(asked, ["10.9.0.3:7411", "10.0.0.3:7411", "[fd00::3]:7411"]);
    }

    #[test]
    fn every_single_changed_bit_and_every_other_length_is_refused() {
        let good = encode_announcement(&said());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_announcement(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(decode_announcement(&good[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn undefined_values_are_refused_even_with_a_right_checksum() {
        let good = encode_announcement(&said());
        for (at, value) in [
            (1, 1),
            (2, 99),
            (62, 0),
            (62, 5),
            (63, 2),
            (68, 64),
            (70, 4),
            (71, 1),
            (72 + 48, b' '),
            (72 + 48, b'#'),
            (72 + 48, 0xff),
        ] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(decode_announcement(&resealed(bytes)).is_err(), "byte {at}");
        }
        // No life, no node, no port, no slots, no address, "any", and a group.
        for (from, to) in [(32, 40), (40, 44), (60, 62), (64, 68), (72, 88), (84, 88)] {
            let mut bytes = good.clone();
            bytes[from..to].fill(0);
            assert!(
                decode_announcement(&resealed(bytes)).is_err(),
                "byte {from}"
            );
        }
        let mut bytes = good;
        bytes[84] = 239;
        assert!(decode_announcement(&resealed(bytes)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back_the_same(
            changes in prop::collection::vec((0..160_usize, any::<u8>()), 0..12),
            length in 0..300_usize,
            whole in any::<bool>(),
        ) {
            let mut bytes = encode_announcement(&said());
            if !whole {
                bytes.resize(length.max(CRC_BYTES), 0);
            }
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            let bytes = resealed(bytes);
            if let Ok(said) = decode_announcement(&bytes) {
                prop_assert_eq!(encode_announcement(&said), bytes);
            }
        }
    }
}
