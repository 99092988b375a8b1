//! Ethernet, IP and UDP headers, written before a payload.
//!
//! A [`Template`] holds the headers of one route and the sums over the constant parts; for each
//! frame only lengths, IPv4 identification and checksums are filled in. Nothing is allocated.
//! Frames have no VLAN tag: a VLAN device adds it itself.
//! Sources: RFC 791, 768, 8200, 1071.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Maximum length of all headers: Ethernet, IPv6, UDP.
pub const MAX_HEADER_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;

/// Length of the IP and UDP headers for an address of this version.
#[must_use]
pub const fn ip_udp_bytes(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => IPV4_BYTES + UDP_BYTES,
        IpAddr::V6(_) => IPV6_BYTES + UDP_BYTES,
    }
}

/// Ethernet addresses of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// The next hop's hardware address.
    pub destination: [u8; 6],
    /// The sending interface's hardware address.
    pub source: [u8; 6],
}

/// The headers of all frames on one route.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: [u8; MAX_HEADER_BYTES],
    /// Offsets of the UDP header and of the payload.
    udp: usize,
    end: usize,
    /// Sum over the IPv4 header without length and identification.
    ip_sum: u64,
    /// Sum over addresses, protocol and ports.
    udp_sum: u64,
}

impl Template {
    /// Headers from one socket address to another; `None` if they have different IP versions.
    /// `hops` is the time to live.
    #[must_use]
    pub fn new(
        ethernet: &Ethernet,
        from: SocketAddr,
        to: SocketAddr,
        hops: u8,
    ) -> Option<Template> {
        let mut writer = Writer {
            bytes: [0; MAX_HEADER_BYTES],
            at: 0,
        };
        writer.put(&ethernet.destination);
        writer.put(&ethernet.source);
        let ip = ETHERNET_BYTES;
        let mut udp_sum = 0;
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                writer.put(&TYPE_IPV4.to_be_bytes());
                // Version and header length, type of service; length and identification are set
                // later; "don't fragment"; the checksum is set later.
                writer.put(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, hops, PROTOCOL_UDP, 0, 0]);
                writer.put(&from.octets());
                writer.put(&to.octets());
                udp_sum += sum(&writer.bytes[ip + 12..ip + 20]);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                writer.put(&TYPE_IPV6.to_be_bytes());
                writer.put(&[0x60, 0, 0, 0, 0, 0, PROTOCOL_UDP, hops]);
                writer.put(&source.octets());
                writer.put(&destination.octets());
                udp_sum += sum(&writer.bytes[ip + 8..ip + 40]);
            }
            _ => return None,
        }
        let udp = writer.at;
        writer.put(&from.port().to_be_bytes());
        writer.put(&to.port().to_be_bytes());
        writer.put(&[0; 4]);
        udp_sum += sum(&writer.bytes[udp..udp + 4]) + sum(&[0, PROTOCOL_UDP]);
        Some(Template {
            ip_sum: sum(&writer.bytes[ip..ip + IPV4_BYTES]),
            udp_sum,
            udp,
            end: writer.at,
            bytes: writer.bytes,
        })
    }

    /// Length of all headers.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// The finished headers for a payload, of which the first [`bytes`](Self::bytes) are used.
    /// `identification` is used only for IPv4.
    ///
    /// # Panics
    /// If the payload does not fit into an IP packet (65,507 bytes).
    #[must_use]
    #[inline]
    pub fn finish(&self, identification: u16, payload: &[u8]) -> [u8; MAX_HEADER_BYTES] {
        let mut bytes = self.bytes;
        let udp_bytes = self.end - self.udp + payload.len();
        let ip = ETHERNET_BYTES;
        let packet_bytes = u16::try_from(self.end - ip + payload.len());
        let packet_bytes = packet_bytes.expect("a payload that fits an IP packet");
        // The UDP length is less than the length of the packet.
        let udp_length = u16::try_from(udp_bytes).unwrap_or(u16::MAX).to_be_bytes();
        if self.udp - ip == IPV4_BYTES {
            let (length, identification) =
                (packet_bytes.to_be_bytes(), identification.to_be_bytes());
            bytes[ip + 2..ip + 4].copy_from_slice(&length);
            bytes[ip + 4..ip + 6].copy_from_slice(&identification);
            let sum = self.ip_sum + word(length) + word(identification);
            bytes[ip + 10..ip + 12].copy_from_slice(&(!fold(sum)).to_ne_bytes());
        } else {
            bytes[ip + 4..ip + 6].copy_from_slice(&udp_length);
        }
        bytes[self.udp + 4..self.udp + 6].copy_from_slice(&udp_length);
        // The length occurs twice: in the pseudo header and in the header.
        let sum = self.udp_sum + 2 * word(udp_length) + sum(payload);
        let checksum = match !fold(sum) {
            // Zero would mean that there is no checksum.
            0 => u16::MAX,
            checksum => checksum,
        };
        bytes[self.udp + 6..self.udp + 8].copy_from_slice(&checksum.to_ne_bytes());
        bytes
    }
}

struct Writer {
    bytes: [u8; MAX_HEADER_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Two bytes as they enter a sum.
#[inline]
fn word(bytes: [u8; 2]) -> u64 {
    u64::from(u16::from_ne_bytes(bytes))
}

/// The sum of 16-bit words of RFC 1071, not yet folded, in native byte order (any order works, as
/// long as the result is stored in the same order).
///
/// Words of 32 bits are added to 64 bits: no carry is lost below 16 GiB, and the compiler can
/// vectorise the loop.
#[must_use]
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; 8];
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (lane, four) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let mut fours = blocks.remainder().chunks_exact(4);
    for four in &mut fours {
        total += u64::from(u32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
    }
    let mut last = [0; 4];
    let rest = fours.remainder();
    last[..rest.len()].copy_from_slice(rest);
    total + u64::from(u32::from_ne_bytes(last))
}

/// Folds a sum to 16 bits, adding the carries.
#[must_use]
#[inline]
pub fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the carries have been added back: 16 bits are left"
    )]
    {
        sum as u16
    }
}

/// The sender of the UDP datagram in a frame, and the range of its payload. `None` unless the frame
/// is complete, untagged, unfragmented and without IP options. Checksums are not verified.
#[must_use]
pub fn read_udp(frame: &[u8]) -> Option<(SocketAddr, Range<usize>)> {
    let half = |at: usize| {
        let bytes = frame.get(at..)?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    };
    let ip = ETHERNET_BYTES;
    let (source, udp, ip_end) = match half(ip - 2)? {
        TYPE_IPV4 => {
            let fragment = half(ip + 6)? & 0x3fff;
            if frame.get(ip) != Some(&0x45)
                || fragment != 0
                || frame.get(ip + 9) != Some(&PROTOCOL_UDP)
            {
                return None;
            }
            let source: &[u8; 4] = frame.get(ip + 12..)?.first_chunk()?;
            let end = ip + usize::from(half(ip + 2)?);
            (IpAddr::from(*source), ip + IPV4_BYTES, end)
        }
        TYPE_IPV6 => {
            if frame.get(ip)? >> 4 != 6 || frame.get(ip + 6) != Some(&PROTOCOL_UDP) {
                return None;
            }
            let source: &[u8; 16] = frame.get(ip + 8..)?.first_chunk()?;
            let end = ip + IPV6_BYTES + usize::from(half(ip + 4)?);
            (IpAddr::from(*source), ip + IPV6_BYTES, end)
        }
        _ => return None,
    };
    let from = SocketAddr::new(source, half(udp)?);
    let end = udp + usize::from(half(udp + 4)?);
    let payload = udp + UDP_BYTES..end;
    let whole = payload.start <= end && end <= ip_end && ip_end <= frame.len();
    whole.then_some((from, payload))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use etherparse::checksum::Sum16BitWords;
    use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder};
    use proptest::prelude::*;

    use super::*;

    const MAC: Ethernet = Ethernet {
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 7],
    };

    fn frame(template: &Template, identification: u16, payload: &[u8]) -> Vec<u8> {
        let headers = template.finish(identification, payload);
        [&headers[..template.bytes()], payload].concat()
    }

    /// Source and destination of the same version.
    fn ends() -> impl Strategy<Value = [IpAddr; 2]> {
        let four = any::<[Ipv4Addr; 2]>().prop_map(|ends| ends.map(IpAddr::from));
        let six = any::<[Ipv6Addr; 2]>().prop_map(|ends| ends.map(IpAddr::from));
        prop_oneof![four, six]
    }

    proptest! {
        #[test]
        fn frames_are_as_others_write_them(
            [source, destination] in ends(),
            ports: [u16; 2],
            identification: u16,
            hops in 1_u8..,
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let from = SocketAddr::new(source, ports[0]);
            let to = SocketAddr::new(destination, ports[1]);
            let template = Template::new(&MAC, from, to, hops).expect("one version");
            let bytes = frame(&template, identification, &payload);
            let (sender, range) = read_udp(&bytes).expect("a whole packet");
            prop_assert_eq!((sender, &bytes[range]), (from, &payload[..]));
            prop_assert_eq!(read_udp(&bytes[..bytes.len() - 1]), None);
            let ip = match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    let header = Ipv4Header {
                        identification,
                        dont_fragment: true,
                        time_to_live: hops,
                        protocol: IpNumber::UDP,
                        source: source.octets(),
                        destination: destination.octets(),
                        ..Ipv4Header::default()
                    };
                    IpHeaders::Ipv4(header, Default::default())
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    let header = Ipv6Header {
                        next_header: IpNumber::UDP,
                        hop_limit: hops,
                        source: source.octets(),
                        destination: destination.octets(),
                        ..Ipv6Header::default()
                    };
                    IpHeaders::Ipv6(header, Default::default())
                }
                _ => unreachable!("one version"),
            };
            let theirs = PacketBuilder::ethernet2(MAC.source, MAC.destination).ip(ip);
            let mut wanted = Vec::new();
            theirs.udp(ports[0], ports[1]).write(&mut wanted, &payload).expect("short");
            prop_assert_eq!(bytes, wanted);
        }

        #[test]
        fn whatever_comes_a_payload_lies_in_its_frame(
            mut frame in proptest::collection::vec(any::<u8>(), 0..100),
            start in prop_oneof![
                Just(vec![8, 0, 0x45]),
                Just(vec![0x86, 0xdd, 0x60]),
                Just(vec![0x81, 0, 0, 1, 8, 0, 0x45]),
            ],
            udp: bool,
        ) {
            let known = start.len().min(frame.len().saturating_sub(12));
            if known > 0 {
                frame[12..12 + known].copy_from_slice(&start[..known]);
            }
            for at in [20, 23, 27] {
                if udp && let Some(byte) = frame.get_mut(at) {
                    *byte = PROTOCOL_UDP;
                }
            }
            if let Some((_, range)) = read_udp(&frame) {
                prop_assert!(range.start <= range.end && range.end <= frame.len());
            }
        }

        #[test]
        fn the_sum_is_that_of_the_rfc(
            bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..2000),
        ) {
            let theirs = Sum16BitWords::new().add_slice(&bytes);
            prop_assert_eq!(!fold(sum(&bytes)), theirs.ones_complement());
        }
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_ones() {
        let from: SocketAddr = "10.0.0.1:7".parse().expect("an address");
        let template = Template::new(&MAC, from, from, 64).expect("one version");
        // Chosen so that the sum is all ones.
        let without = frame(&template, 0, &[0, 0]);
        let at = template.bytes() - 2;
        let missing = [without[at], without[at + 1]];
        let bytes = frame(&template, 0, &missing);
        assert_eq!(bytes[at..at + 2], [0xff, 0xff]);
        let one_more = [missing[0], missing[1].wrapping_add(1)];
        let bytes = frame(&template, 0, &one_more);
        assert_ne!(bytes[at..at + 2], [0xff, 0xff]);
    }

    #[test]
    fn addresses_of_two_versions_make_no_frame() {
        let (four, six) = ("10.0.0.1:7".parse(), "[fd00::1]:7".parse());
        let (four, six) = (four.expect("an address"), six.expect("an address"));
        assert!(Template::new(&MAC, four, six, 64).is_none());
        assert!(Template::new(&MAC, six, four, 64).is_none());
    }

    #[test]
    #[should_panic(expected = "fits an IP packet")]
    fn a_payload_longer_than_a_packet_is_refused() {
        let from = "10.0.0.1:7".parse().expect("an address");
        let template = Template::new(&MAC, from, from, 64).expect("one version");
        let _never = template.finish(0, &[0; 65_508]);
    }
}
