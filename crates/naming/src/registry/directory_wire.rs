//! The packets by which nodes ask each other where an endpoint lives, and whether a
//! process does.
//!
//! All are [`PACKET_BYTES`] long (those of `probe_wire` may be longer), so an answer is
//! never longer than what asked for it. The last four bytes are the CRC32C of all before
//! them. Where there is a cluster key a proof comes in between; see `badge`.
//!
//! ```text
//! LOOKUP  0 header(32)  32 nonce(8)  40 node(4)  44 endpoint(4)  48 zero          96 crc
//! FOUND   0 header(32)  32 nonce(8)  40 node(4)  44 endpoint(4)  48 status(1)
//!         49 zero(3)  52 small(18)  70 bulk(18)  88 incarnation(8)  96 crc
//! VOUCH   0 header(32)  32 nonce(8)  40 node(4)  44 zero            88 incarnation(8)  96 crc
//! VOUCHED 0 header(32)  32 nonce(8)  40 node(4)  44 zero(4)  48 testimony(1)
//!         49 zero       88 incarnation(8)  96 crc
//! YIELD   0 header(32)  32 nonce(8)  40 node(4)  44 zero                               96 crc
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crc_fast::{CrcAlgorithm, checksum};

use super::Ports;
use crate::address::{Address, EndpointId, NodeId};

/// Length of a look-up and of its answer.
pub const PACKET_BYTES: usize = 100;
const HEADER_BYTES: usize = 32;
const LENGTH: u16 = 100;
pub(super) const CRC_BYTES: usize = 4;
const CRC_AT: usize = PACKET_BYTES - CRC_BYTES;
/// Version 1 in the high half, kind 7 to 11 in the low one.
pub(super) const LOOKUP: u8 = 0x17;
pub(super) const FOUND: u8 = 0x18;
pub(super) const VOUCH: u8 = 0x19;
const VOUCHED: u8 = 0x1a;
pub(super) const YIELD: u8 = 0x1b;

/// A question: where is this endpoint?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Random; the answer repeats it.
    pub nonce: u64,
    /// Whom the asker looks for.
    pub address: Address,
}

/// The outcome of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundStatus {
    /// Here it is.
    Found(Ports),
    /// Nobody has that endpoint open now.
    NoSuchEndpoint,
    /// Another node answers at this address: the hosts file is wrong.
    WrongNode,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// That of the question.
    pub nonce: u64,
    /// With [`FoundStatus::WrongNode`] the node that answered, else the one asked for.
    pub address: Address,
    /// The outcome.
    pub status: FoundStatus,
}

/// A question: does the process with this incarnation live?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vouch {
    /// Random; the answer repeats it.
    pub nonce: u64,
    /// The node that is asked.
    pub node: NodeId,
    /// Which life of which process.
    pub incarnation: u64,
}

/// What a node knows of one of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Testimony {
    /// It lives, whether it steps or not.
    Lives,
    /// No living process has that incarnation.
    Ended,
    /// Another node answers at this address: the hosts file is wrong.
    WrongNode,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vouched {
    /// That of the question.
    pub nonce: u64,
    /// Who answers.
    pub node: NodeId,
    /// The process in question.
    pub incarnation: u64,
    /// What is known of it.
    pub testimony: Testimony,
}

/// Why a packet is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// It has another length.
    Length {
        /// Bytes that came.
        found_bytes: usize,
    },
    /// It is of another version or kind.
    Kind {
        /// The first byte.
        found: u8,
    },
    /// The checksum does not fit.
    Checksum,
    /// A field that must be zero is not, or a value is not one of those defined.
    Field {
        /// Where.
        offset_bytes: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Length { found_bytes } => {
                write!(f, "{found_bytes} bytes long, expected {PACKET_BYTES}")
            }
            WireError::Kind { found } => write!(f, "version and kind {found:#04x}"),
            WireError::Checksum => f.write_str("the checksum does not fit"),
            WireError::Field { offset_bytes } => {
                write!(f, "a value at byte {offset_bytes} that is not defined")
            }
        }
    }
}

impl std::error::Error for WireError {}

/// Writes a question.
#[must_use]
pub fn encode_lookup(lookup: &Lookup) -> [u8; PACKET_BYTES] {
    sealed(begin(LOOKUP, lookup.nonce, lookup.address))
}

/// Writes an answer.
#[must_use]
pub fn encode_found(found: &Found) -> [u8; PACKET_BYTES] {
    let mut bytes = begin(FOUND, found.nonce, found.address);
    match found.status {
        FoundStatus::Found(ports) => {
            put_socket(&mut bytes, 52, ports.small);
            put_socket(&mut bytes, 70, ports.bulk);
            bytes[88..96].copy_from_slice(&ports.incarnation.to_le_bytes());
        }
        FoundStatus::NoSuchEndpoint => bytes[48] = 1,
        FoundStatus::WrongNode => bytes[48] = 2,
    }
    sealed(bytes)
}

/// Reads a question.
///
/// # Errors
/// The packet is no well-formed LOOKUP.
pub fn decode_lookup(bytes: &[u8]) -> Result<Lookup, WireError> {
    let bytes = opened(bytes, LOOKUP)?;
    zero(bytes, 48, CRC_AT)?;
    Ok(Lookup {
        nonce: u64_at(bytes, 32),
        address: address_at(bytes),
    })
}

/// Reads an answer.
///
/// # Errors
/// The packet is no well-formed FOUND.
pub fn decode_found(bytes: &[u8]) -> Result<Found, WireError> {
    let bytes = opened(bytes, FOUND)?;
    zero(bytes, 49, 52)?;
    let status = match bytes[48] {
        0 => FoundStatus::Found(Ports {
            small: socket_at(bytes, 52)?,
            bulk: socket_at(bytes, 70)?,
            incarnation: u64_at(bytes, 88),
        }),
        other => {
            zero(bytes, 52, CRC_AT)?;
            match other {
                1 => FoundStatus::NoSuchEndpoint,
                2 => FoundStatus::WrongNode,
                _ => return Err(WireError::Field { offset_bytes: 48 }),
            }
        }
    };
    Ok(Found {
        nonce: u64_at(bytes, 32),
        address: address_at(bytes),
        status,
    })
}

/// Writes the question whether a process lives.
#[must_use]
pub fn encode_vouch(nonce: u64, node: NodeId, incarnation: u64) -> [u8; PACKET_BYTES] {
    let mut bytes = begin(VOUCH, nonce, Address::new(node.0, 0));
    bytes[88..96].copy_from_slice(&incarnation.to_le_bytes());
    sealed(bytes)
}

/// Writes what is known of a process.
#[must_use]
pub fn encode_vouched(answer: &Vouched) -> [u8; PACKET_BYTES] {
    let mut bytes = begin(VOUCHED, answer.nonce, Address::new(answer.node.0, 0));
    bytes[48] = match answer.testimony {
        Testimony::Lives => 0,
        Testimony::Ended => 1,
        Testimony::WrongNode => 2,
    };
    bytes[88..96].copy_from_slice(&answer.incarnation.to_le_bytes());
    sealed(bytes)
}

/// Writes a node's agent's wish to answer from now on.
#[must_use]
pub(super) fn encode_yield(nonce: u64, node: NodeId) -> [u8; PACKET_BYTES] {
    sealed(begin(YIELD, nonce, Address::new(node.0, 0)))
}

/// True for that wish.
pub(super) fn is_yield(bytes: &[u8], node: NodeId) -> bool {
    opened(bytes, YIELD)
        .is_ok_and(|bytes| u32_at(bytes, 40) == node.0 && zero(bytes, 44, CRC_AT).is_ok())
}

/// Reads the question whether a process lives.
///
/// # Errors
/// The packet is no well-formed VOUCH.
pub fn decode_vouch(bytes: &[u8]) -> Result<Vouch, WireError> {
    let bytes = opened(bytes, VOUCH)?;
    zero(bytes, 44, 88)?;
    Ok(Vouch {
        nonce: u64_at(bytes, 32),
        node: NodeId(u32_at(bytes, 40)),
        incarnation: u64_at(bytes, 88),
    })
}

/// Reads what is known of a process.
///
/// # Errors
/// The packet is no well-formed VOUCHED.
pub fn decode_vouched(bytes: &[u8]) -> Result<Vouched, WireError> {
    let bytes = opened(bytes, VOUCHED)?;
    zero(bytes, 44, 48)?;
    zero(bytes, 49, 88)?;
    Ok(Vouched {
        nonce: u64_at(bytes, 32),
        node: NodeId(u32_at(bytes, 40)),
        incarnation: u64_at(bytes, 88),
        testimony: match bytes[48] {
            0 => Testimony::Lives,
            1 => Testimony::Ended,
            2 => Testimony::WrongNode,
            _ => return Err(WireError::Field { offset_bytes: 48 }),
        },
    })
}

fn begin(kind: u8, nonce: u64, address: Address) -> [u8; PACKET_BYTES] {
    let mut bytes = [0; PACKET_BYTES];
    bytes[0] = kind;
    bytes[2..4].copy_from_slice(&LENGTH.to_le_bytes());
    bytes[32..40].copy_from_slice(&nonce.to_le_bytes());
    bytes[40..44].copy_from_slice(&address.node.0.to_le_bytes());
    bytes[44..48].copy_from_slice(&address.endpoint.0.to_le_bytes());
    bytes
}

pub(super) fn crc(bytes: &[u8]) -> [u8; 4] {
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, bytes).to_le_bytes();
    [sum[0], sum[1], sum[2], sum[3]]
}

fn sealed(mut bytes: [u8; PACKET_BYTES]) -> [u8; PACKET_BYTES] {
    let sum = crc(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&sum);
    bytes
}

fn opened(bytes: &[u8], kind: u8) -> Result<&[u8; PACKET_BYTES], WireError> {
    let whole: &[u8; PACKET_BYTES] = bytes.try_into().map_err(|_| WireError::Length {
        found_bytes: bytes.len(),
    })?;
    check(whole, kind)?;
    Ok(whole)
}

/// Header and checksum of a packet of any length from [`PACKET_BYTES`] on.
pub(super) fn check(bytes: &[u8], kind: u8) -> Result<(), WireError> {
    if bytes[0] != kind {
        return Err(WireError::Kind { found: bytes[0] });
    }
    let (covered, sum) = bytes.split_at(bytes.len() - CRC_BYTES);
    if crc(covered) != sum {
        return Err(WireError::Checksum);
    }
    zero(bytes, 1, 2)?;
    if usize::from(u16::from_le_bytes([bytes[2], bytes[3]])) != bytes.len() {
        return Err(WireError::Field { offset_bytes: 2 });
    }
    zero(bytes, 4, HEADER_BYTES)
}

pub(super) fn zero(bytes: &[u8], from: usize, to: usize) -> Result<(), WireError> {
    match bytes[from..to].iter().position(|byte| *byte != 0) {
        Some(index) => Err(WireError::Field {
            offset_bytes: from + index,
        }),
        None => Ok(()),
    }
}

/// `N` bytes of a packet that has them.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

fn u64_at(bytes: &[u8; PACKET_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8; PACKET_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn address_at(bytes: &[u8; PACKET_BYTES]) -> Address {
    Address {
        node: NodeId(u32_at(bytes, 40)),
        endpoint: EndpointId(u32_at(bytes, 44)),
    }
}

fn put_socket(bytes: &mut [u8; PACKET_BYTES], at: usize, socket: SocketAddr) {
    let ip = match socket.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[at..at + 16].copy_from_slice(&ip.octets());
    bytes[at + 16..at + 18].copy_from_slice(&socket.port().to_le_bytes());
}

fn socket_at(bytes: &[u8; PACKET_BYTES], at: usize) -> Result<SocketAddr, WireError> {
    let mut ip = [0; 16];
    ip.copy_from_slice(&bytes[at..at + 16]);
    let port = u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]);
    if port == 0 {
        return Err(WireError::Field {
            offset_bytes: at + 16,
        });
    }
    Ok(SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(small: &str, bulk: &str) -> Found {
        Found {
            nonce: 0x0102_0304_0506_0708,
            address: Address::new(3, 9),
            status: FoundStatus::Found(Ports {
                small: small.parse().unwrap(),
                bulk: bulk.parse().unwrap(),
                incarnation: u64::MAX,
            }),
        }
    }

    #[test]
    fn both_packets_read_back_what_was_written() {
        let lookup = Lookup {
            nonce: 77,
            address: Address::new(1, u32::MAX),
        };
        assert_eq!(decode_lookup(&encode_lookup(&lookup)), Ok(lookup));
        for answer in [
            found("10.0.0.1:5", "10.0.0.1:6"),
            found("[fd00::1]:65535", "[::1]:1"),
            found("0.0.0.0:5", "[::]:6"),
            Found {
                status: FoundStatus::NoSuchEndpoint,
                ..found("1.1.1.1:1", "1.1.1.1:1")
            },
            Found {
                status: FoundStatus::WrongNode,
                ..found("1.1.1.1:1", "1.1.1.1:1")
            },
        ] {
            assert_eq!(decode_found(&encode_found(&answer)), Ok(answer));
        }
    }

    #[test]
    fn what_is_known_of_a_process_reads_back_and_nothing_else_does() {
        let question = encode_vouch(5, NodeId(3), u64::MAX - 1);
        let vouch = Vouch {
            nonce: 5,
            node: NodeId(3),
            incarnation: u64::MAX - 1,
        };
        assert_eq!(decode_vouch(&question), Ok(vouch));
        assert!(decode_lookup(&question).is_err());
        for testimony in [Testimony::Lives, Testimony::Ended, Testimony::WrongNode] {
            let answer = Vouched {
                nonce: 5,
                node: NodeId(3),
                incarnation: 9,
                testimony,
            };
            let bytes = encode_vouched(&answer);
            assert_eq!(decode_vouched(&bytes), Ok(answer));
            assert!(decode_found(&bytes).is_err());
            for bit in 0..PACKET_BYTES * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(decode_vouched(&bad).is_err(), "bit {bit}");
            }
        }
        for (at, value) in [(44, 1), (48, 3), (60, 1)] {
            let mut bytes = encode_vouched(&Vouched {
                nonce: 5,
                node: NodeId(3),
                incarnation: 9,
                testimony: Testimony::Lives,
            });
            bytes[at] = value;
            assert!(decode_vouched(&sealed(bytes)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn the_bytes_of_an_answer_are_where_the_specification_says() {
        let bytes = encode_found(&found("10.0.0.1:258", "10.0.0.2:772"));
        assert_eq!(bytes[..4], [0x18, 0, 100, 0]);
        assert_eq!(bytes[32..40], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[40..52], [3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[62..70], [0xff, 0xff, 10, 0, 0, 1, 2, 1]);
        assert_eq!(bytes[80..88], [0xff, 0xff, 10, 0, 0, 2, 4, 3]);
    }

    #[test]
    fn every_single_changed_bit_and_every_other_length_is_refused() {
        let good = encode_found(&found("10.0.0.1:5", "10.0.0.1:6"));
        for bit in 0..PACKET_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_found(&bad).is_err(), "bit {bit}");
        }
        for length in 0..PACKET_BYTES {
            assert_eq!(
                decode_found(&good[..length]),
                Err(WireError::Length {
                    found_bytes: length
                })
            );
        }
        assert_eq!(decode_lookup(&good), Err(WireError::Kind { found: FOUND }));
    }

    #[test]
    fn undefined_values_are_refused_even_with_a_right_checksum() {
        for (at, value) in [(1, 1), (2, 67), (31, 1), (48, 3), (49, 1), (68, 0)] {
            let mut bytes = encode_found(&found("10.0.0.1:5", "10.0.0.1:6"));
            bytes[at] = value;
            if at == 48 {
                bytes[52..96].fill(0);
            }
            let field = WireError::Field { offset_bytes: at };
            assert_eq!(decode_found(&sealed(bytes)), Err(field), "byte {at}");
        }
        let mut lookup = encode_lookup(&Lookup {
            nonce: 1,
            address: Address::new(1, 1),
        });
        lookup[95] = 1;
        assert!(decode_lookup(&sealed(lookup)).is_err());
    }
}
