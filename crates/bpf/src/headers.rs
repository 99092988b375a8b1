//! Ethernet, VLAN, IP and UDP headers, written in place before a payload.
//!
//! A [`Template`] holds the headers of one route and the sums over the parts of them that never
//! change; for a frame only the lengths, the IPv4 identification and the checksums are
//! filled in. Nothing is allocated. Sources: RFC 791, 768, 8200, 1071; IEEE 802.1Q.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Longest headers: Ethernet, VLAN tag, IPv6, UDP.
pub const MAX_HEADER_BYTES: usize = ETHERNET_BYTES + VLAN_BYTES + IPV6_BYTES + UDP_BYTES;

pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const VLAN_BYTES: usize = 4;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;

pub(super) const TYPE_VLAN: u16 = 0x8100;
pub(super) const TYPE_IPV4: u16 = 0x0800;
pub(super) const TYPE_IPV6: u16 = 0x86dd;
pub(super) const PROTOCOL_UDP: u8 = 17;

/// Bytes of IP and UDP headers before a payload to an address of this version.
#[must_use]
pub const fn ip_udp_bytes(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => IPV4_BYTES + UDP_BYTES,
        IpAddr::V6(_) => IPV6_BYTES + UDP_BYTES,
    }
}

/// What stands around the IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// The next hop's hardware address.
    pub destination: [u8; 6],
    /// The sending interface's.
    pub source: [u8; 6],
    /// The VLAN and its priority (the tag's last 16 bits), where the frame itself must
    /// say so; a VLAN device adds the tag by itself.
    pub vlan: Option<u16>,
}

/// The headers of all frames on one route.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: [u8; MAX_HEADER_BYTES],
    /// Where the IP header begins, where the UDP header begins, where the payload begins.
    ip: usize,
    udp: usize,
    end: usize,
    /// Sum over the IPv4 header without length and identification.
    ip_sum: u64,
    /// Sum over addresses, protocol and ports.
    udp_sum: u64,
}

impl Template {
    /// Headers from one socket address to another; `None` when they are of different IP
    /// versions. `hops` is the time to live.
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
        if let Some(tag) = ethernet.vlan {
            writer.put(&TYPE_VLAN.to_be_bytes());
            writer.put(&tag.to_be_bytes());
        }
        let ip = writer.at + 2;
        let mut udp_sum = 0;
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                writer.put(&TYPE_IPV4.to_be_bytes());
                // Version and header length, service; length and identification come later;
                // "don't fragment"; the checksum comes later.
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
            ip,
            udp,
            end: writer.at,
            bytes: writer.bytes,
        })
    }

    /// Bytes of all headers.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// The finished headers before a payload: the first [`bytes`](Self::bytes) of what is
    /// returned count. `identification` matters to IPv4 alone.
    ///
    /// # Panics
    /// When the payload does not fit an IP packet (65,507 bytes).
    #[must_use]
    #[inline]
    pub fn finish(&self, identification: u16, payload: &[u8]) -> [u8; MAX_HEADER_BYTES] {
        let mut bytes = self.bytes;
        let udp_bytes = self.end - self.udp + payload.len();
        let packet_bytes = u16::try_from(self.end - self.ip + payload.len());
        let packet_bytes = packet_bytes.expect("a payload that fits an IP packet");
        // Below the length of the packet.
        let udp_length = u16::try_from(udp_bytes).unwrap_or(u16::MAX).to_be_bytes();
        if self.udp - self.ip == IPV4_BYTES {
            let (length, identification) =
                (packet_bytes.to_be_bytes(), identification.to_be_bytes());
            bytes[self.ip + 2..self.ip + 4].copy_from_slice(&length);
            bytes[self.ip + 4..self.ip + 6].copy_from_slice(&identification);
            let sum = self.ip_sum + word(length) + word(identification);
            bytes[self.ip + 10..self.ip + 12].copy_from_slice(&(!fold(sum)).to_ne_bytes());
        } else {
            bytes[self.ip + 4..self.ip + 6].copy_from_slice(&udp_length);
        }
        bytes[self.udp + 4..self.udp + 6].copy_from_slice(&udp_length);
        // The length counts twice: in the pseudo header and in the header.
        let sum = self.udp_sum + 2 * word(udp_length) + sum(payload);
        let checksum = match !fold(sum) {
            // Zero would mean that there is none.
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

/// Two bytes as they count in a sum.
#[inline]
fn word(bytes: [u8; 2]) -> u64 {
    u64::from(u16::from_ne_bytes(bytes))
}

/// The sum of 16-bit words that RFC 1071 wants, not yet folded, in the machine's byte
/// order (which does not matter as long as it is written back in the same).
///
/// Words of 32 bits are added to 64 bits: no carry is lost below 16 GiB, and the compiler
/// makes vector instructions of the loop.
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

/// A sum in 16 bits, carries added back.
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

/// Who sent the UDP datagram in a frame, and where its payload lies; `None` for anything
/// but a whole one, unfragmented and without IP options. No checksum is looked at.
#[must_use]
pub fn read_udp(frame: &[u8]) -> Option<(SocketAddr, Range<usize>)> {
    let half = |at: usize| {
        let bytes = frame.get(at..)?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    };
    let tagged = half(12)? == TYPE_VLAN;
    let ip = ETHERNET_BYTES + if tagged { VLAN_BYTES } else { 0 };
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
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;

    const MAC: Ethernet = Ethernet {
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 7],
        vlan: None,
    };

    fn frame(template: &Template, identification: u16, payload: &[u8]) -> Vec<u8> {
        let headers = template.finish(identification, payload);
        [&headers[..template.bytes()], payload].concat()
    }

    /// The checksum as the RFC has it, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0_u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).expect("folded")
    }

    fn address(v6: bool, bytes: [u8; 16], port: u16) -> SocketAddr {
        let four: [u8; 4] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let ip = if v6 {
            IpAddr::from(bytes)
        } else {
            IpAddr::from(four)
        };
        SocketAddr::new(ip, port)
    }

    proptest! {
        #[test]
        fn frames_read_by_others_say_what_was_written(
            v6: bool,
            from: [u8; 16],
            to: [u8; 16],
            ports: [u16; 2],
            vlan in proptest::option::of(0_u16..4096),
            identification: u16,
            hops in 1_u8..,
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (from, to) = (address(v6, from, ports[0]), address(v6, to, ports[1]));
            let ethernet = Ethernet { vlan, ..MAC };
            let template = Template::new(&ethernet, from, to, hops).expect("one version");
            let bytes = frame(&template, identification, &payload);
            let (sender, range) = read_udp(&bytes).expect("a whole packet");
            prop_assert_eq!((sender, &bytes[range]), (from, &payload[..]));
            prop_assert_eq!(read_udp(&bytes[..bytes.len() - 1]), None);
            let packet = SlicedPacket::from_ethernet(&bytes).expect("a whole packet");
            prop_assert_eq!(packet.vlan_ids().first().map(|id| id.value()), vlan);
            let Some(TransportSlice::Udp(udp)) = packet.transport else {
                panic!("no UDP");
            };
            prop_assert_eq!(udp.payload(), &payload[..]);
            prop_assert_eq!([udp.source_port(), udp.destination_port()], ports);
            let header = udp.to_header();
            match packet.net.expect("an IP packet") {
                NetSlice::Ipv4(ip) => {
                    let ip = ip.header();
                    prop_assert_eq!(IpAddr::V4(ip.source_addr()), from.ip());
                    prop_assert_eq!(IpAddr::V4(ip.destination_addr()), to.ip());
                    prop_assert_eq!(ip.to_header().calc_header_checksum(), ip.header_checksum());
                    prop_assert_eq!(ip.identification(), identification);
                    prop_assert_eq!(ip.ttl(), hops);
                    prop_assert!(ip.dont_fragment());
                    let sum = header.calc_checksum_ipv4(&ip.to_header(), &payload);
                    prop_assert_eq!(udp.checksum(), sum.expect("short"));
                }
                NetSlice::Ipv6(ip) => {
                    let ip = ip.header();
                    prop_assert_eq!(IpAddr::V6(ip.source_addr()), from.ip());
                    prop_assert_eq!(IpAddr::V6(ip.destination_addr()), to.ip());
                    prop_assert_eq!(ip.hop_limit(), hops);
                    let sum = header.calc_checksum_ipv6(&ip.to_header(), &payload);
                    prop_assert_eq!(udp.checksum(), sum.expect("short"));
                }
                NetSlice::Arp(_) => panic!("not IP"),
            }
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
            let ours = fold(sum(&bytes)).to_ne_bytes();
            let theirs = slow(&bytes).to_be_bytes();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_ones() {
        let from: SocketAddr = "10.0.0.1:7".parse().expect("an address");
        let template = Template::new(&MAC, from, from, 64).expect("one version");
        // The two bytes that make the sum come out as all ones.
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
