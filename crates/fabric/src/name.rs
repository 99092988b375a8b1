//! Names of endpoints, which programs exchange as bytes: what a process needs to know to reach one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dipole_link::crc32c::crc32c;
use dipole_node::registry::Ports;
use dipole_node::{Address, EndpointId, NodeId};

/// Bytes of a name.
pub(crate) const NAME_BYTES: usize = COVERED_BYTES + size_of::<u32>();
/// What the checksum behind it covers: a name that was spoiled on the way leads to nobody, and
/// who sends there would learn it late.
const COVERED_BYTES: usize = 48;
/// Begins every name; the last byte is the version of the format and of what endpoints say.
const MAGIC: [u8; 4] = *b"dpl\x03";

/// Where an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The endpoint of messages.
    pub(crate) messages: Address,
    /// The endpoint of the same process that its memory regions belong to.
    pub(crate) regions: Address,
    /// The port of that process which does atomic operations on them.
    pub(crate) atomics: Address,
    /// Its process.
    pub(crate) ports: Ports,
}

/// An address in one number, as the matching of messages has it.
#[inline]
pub(crate) fn number(address: Address) -> u64 {
    u64::from(address.node.0) << 32 | u64::from(address.endpoint.0)
}

impl Name {
    pub(crate) fn encode(&self) -> [u8; NAME_BYTES] {
        let ip = match self.ports.small.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = [0; NAME_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&self.messages.node.0.to_be_bytes());
        put(&self.messages.endpoint.0.to_be_bytes());
        put(&self.regions.endpoint.0.to_be_bytes());
        put(&self.ports.incarnation.to_be_bytes());
        put(&ip.octets());
        put(&self.ports.small.port().to_be_bytes());
        put(&self.ports.bulk.port().to_be_bytes());
        put(&self.atomics.endpoint.0.to_be_bytes());
        let sum = sum(&bytes);
        bytes[COVERED_BYTES..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// `None`: these bytes are no name of this version, or not as they were made.
    pub(crate) fn decode(bytes: &[u8; NAME_BYTES]) -> Option<Name> {
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| bytes[at + index]));
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..4] != MAGIC || word(COVERED_BYTES) != sum(bytes) || word(4) == 0 {
            return None;
        }
        let octets: [u8; 16] = bytes[24..40].try_into().ok()?;
        let ip = Ipv6Addr::from(octets).to_canonical();
        let address = |at| Address {
            node: NodeId(word(4)),
            endpoint: EndpointId(word(at)),
        };
        Some(Name {
            messages: address(8),
            regions: address(12),
            atomics: address(44),
            ports: Ports {
                small: SocketAddr::new(ip, port(40)),
                bulk: SocketAddr::new(ip, port(42)),
                incarnation: u64::from(word(16)) << 32 | u64::from(word(20)),
            },
        })
    }
}

/// The CRC32C of what it covers.
fn sum(name: &[u8; NAME_BYTES]) -> u32 {
    crc32c(&name[..COVERED_BYTES])
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dipole://{} at {}", self.messages, self.ports.small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn whatever_is_taken_for_a_name_is_one(
            mut bytes: [[u8; 13]; 4], is_ours: bool, is_whole: bool,
        ) {
            if is_ours {
                bytes[0][..4].copy_from_slice(&MAGIC);
            }
            let mut bytes: [u8; NAME_BYTES] = bytes.concat().try_into().expect("four times 13");
            if is_whole {
                let sum = sum(&bytes);
                bytes[COVERED_BYTES..].copy_from_slice(&sum.to_be_bytes());
            }
            let name = Name::decode(&bytes);
            let has_node = bytes[4..8] != [0; 4];
            proptest::prop_assert_eq!(name.is_some(), is_ours && is_whole && has_node);
            if let Some(name) = name {
                proptest::prop_assert_eq!(Name::decode(&name.encode()), Some(name));
                proptest::prop_assert!(name.to_string().is_ascii());
            }
        }
    }

    #[test]
    fn a_name_survives_being_bytes_and_other_bytes_are_none() {
        for ip in ["10.1.2.3", "fd00::7"] {
            let ip: IpAddr = ip.parse().unwrap();
            let name = Name {
                messages: Address::new(0x0a01_0203, 0x8000_0001),
                regions: Address::new(0x0a01_0203, 0x8000_0002),
                atomics: Address::new(0x0a01_0203, 0x8000_0003),
                ports: Ports {
                    small: SocketAddr::new(ip, 4000),
                    bulk: SocketAddr::new(ip, 65535),
                    incarnation: 0x0123_4567_89ab_cdef,
                },
            };
            let bytes = name.encode();
            assert_eq!(Name::decode(&bytes), Some(name));
            for bit in 0..8 * NAME_BYTES {
                let mut spoiled = bytes;
                spoiled[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Name::decode(&spoiled), None, "bit {bit}");
            }
        }
        assert_eq!(Name::decode(&[0; NAME_BYTES]), None);
    }
}
