//! Names of endpoints: the bytes that programs exchange so that they can reach each other.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dipole_link::crc32c::crc32c;
use dipole_node::registry::Ports;
use dipole_node::{Address, EndpointId, NodeId};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const NAME_BYTES: usize = size_of::<RawName>();
/// Bytes that the checksum covers. Without it a damaged name would lead to no process, and the
/// sender would notice that only after a timeout.
const COVERED_BYTES: usize = NAME_BYTES - size_of::<U32>();
/// Begins every name; the last byte is the version of names and of the messages in `wire.rs`.
const MAGIC: [u8; 4] = *b"dpl\x04";

/// The addresses that another process needs to reach an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The endpoint of messages.
    pub(crate) messages: Address,
    /// The endpoint of the same process that its memory regions belong to.
    pub(crate) regions: Address,
    /// The port of the same process that performs atomic operations on its regions.
    pub(crate) atomics: Address,
    /// Addresses and incarnation of the process.
    pub(crate) ports: Ports,
}

/// An endpoint to send to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: Address,
    /// The ports of its process; `None` if it has sent messages here, so that they are known.
    pub(crate) ports: Option<Ports>,
}

impl Destination {
    /// An endpoint that has sent messages here.
    pub(crate) fn known(address: Address) -> Destination {
        let ports = None;
        Destination { address, ports }
    }
}

/// The bytes of a name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RawName {
    magic: [u8; 4],
    node: U32,
    messages: U32,
    regions: U32,
    incarnation: U64,
    /// An IPv4 address is mapped to IPv6.
    ip: [u8; 16],
    small_port: U16,
    bulk_port: U16,
    atomics: U32,
    checksum: U32,
}

/// An address as one number, the form in which messages are matched.
#[inline]
pub(crate) fn number(address: Address) -> u64 {
    u64::from(address.node.0) << 32 | u64::from(address.endpoint.0)
}

impl Name {
    pub(crate) fn message_endpoint(&self) -> Destination {
        self.destination(self.messages)
    }

    pub(crate) fn region_endpoint(&self) -> Destination {
        self.destination(self.regions)
    }

    pub(crate) fn atomic_port(&self) -> Destination {
        self.destination(self.atomics)
    }

    fn destination(&self, address: Address) -> Destination {
        let ports = Some(self.ports);
        Destination { address, ports }
    }

    pub(crate) fn encode(&self) -> [u8; NAME_BYTES] {
        let ip = match self.ports.small.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut raw = RawName {
            magic: MAGIC,
            node: self.messages.node.0.into(),
            messages: self.messages.endpoint.0.into(),
            regions: self.regions.endpoint.0.into(),
            incarnation: self.ports.incarnation.into(),
            ip: ip.octets(),
            small_port: self.ports.small.port().into(),
            bulk_port: self.ports.bulk.port().into(),
            atomics: self.atomics.endpoint.0.into(),
            checksum: 0.into(),
        };
        raw.checksum = checksum_of(raw.as_bytes()).into();
        zerocopy::transmute!(raw)
    }

    /// `None`: the bytes are not a name of this version, or were damaged.
    pub(crate) fn decode(bytes: &[u8; NAME_BYTES]) -> Option<Name> {
        let raw = RawName::read_from_bytes(bytes).ok()?;
        let is_valid = raw.magic == MAGIC && raw.checksum.get() == checksum_of(bytes);
        if !is_valid || raw.node.get() == 0 {
            return None;
        }
        let ip = Ipv6Addr::from(raw.ip).to_canonical();
        let address = |endpoint: U32| Address {
            node: NodeId(raw.node.get()),
            endpoint: EndpointId(endpoint.get()),
        };
        Some(Name {
            messages: address(raw.messages),
            regions: address(raw.regions),
            atomics: address(raw.atomics),
            ports: Ports {
                small: SocketAddr::new(ip, raw.small_port.get()),
                bulk: SocketAddr::new(ip, raw.bulk_port.get()),
                incarnation: raw.incarnation.get(),
            },
        })
    }
}

/// The CRC32C of the bytes before the checksum.
fn checksum_of(name: &[u8]) -> u32 {
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
        fn bytes_are_accepted_as_a_name_only_if_magic_checksum_and_node_are_valid(
            mut bytes: [[u8; 13]; 4], is_ours: bool, has_checksum: bool,
        ) {
            if is_ours {
                bytes[0][..4].copy_from_slice(&MAGIC);
            }
            let mut bytes: [u8; NAME_BYTES] = bytes.concat().try_into().expect("four times 13");
            if has_checksum {
                let sum = checksum_of(&bytes);
                bytes[COVERED_BYTES..].copy_from_slice(&sum.to_be_bytes());
            }
            let name = Name::decode(&bytes);
            let has_node = bytes[4..8] != [0; 4];
            proptest::prop_assert_eq!(name.is_some(), is_ours && has_checksum && has_node);
            if let Some(name) = name {
                proptest::prop_assert_eq!(Name::decode(&name.encode()), Some(name));
                proptest::prop_assert!(name.to_string().is_ascii());
            }
        }
    }

    #[test]
    fn an_encoded_name_is_decoded_and_a_damaged_one_is_rejected() {
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
                let mut damaged = bytes;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Name::decode(&damaged), None, "bit {bit}");
            }
        }
        assert_eq!(Name::decode(&[0; NAME_BYTES]), None);
    }
}
