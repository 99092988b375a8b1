//! The ingress program's rules as plain code, and packets to try them on; for tests.

use std::net::IpAddr;

use proptest::prelude::*;

use super::maps::{KEY_BYTES, Reason, key};
use crate::headers;
use crate::layout::{CLASSES, MAX_PAYLOAD_BYTES};

/// Index of the loopback interface, on which the kernel does test runs.
pub(crate) const INTERFACE: u32 = 1;
pub(crate) const PORT: u16 = 4711;
pub(crate) const FROM_PORT: u16 = 815;
/// MAC address of the loopback interface.
pub(crate) const MAC: [u8; 6] = [0; 6];

pub(crate) fn our_address(version: u8) -> IpAddr {
    match version {
        4 => IpAddr::from([10, 7, 0, 2]),
        _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2]),
    }
}

pub(crate) fn their_address(version: u8) -> IpAddr {
    match version {
        4 => IpAddr::from([10, 7, 0, 1]),
        _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Metadata of a packet from the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around {
    pub(crate) tagged: bool,
    pub(crate) other_host: bool,
    pub(crate) merged: bool,
}

/// A UDP packet to our port, with this many words of IP options (IPv4).
pub(crate) fn packet(version: u8, payload: usize, option_words: u8) -> Vec<u8> {
    let udp_bytes = u16::try_from(8 + payload).unwrap();
    let mut frame = [MAC, [2, 0, 0, 0, 0, 1]].concat();
    if version == 4 {
        let total = udp_bytes + 20 + 4 * u16::from(option_words);
        frame.extend([0x08, 0x00, 0x45 + option_words, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(udp_bytes.to_be_bytes());
        frame.extend([17, 64]);
    }
    frame.extend(octets(their_address(version)));
    frame.extend(octets(our_address(version)));
    frame.extend(vec![1; 4 * usize::from(option_words)]);
    frame.extend(FROM_PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(udp_bytes.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..=u8::MAX).cycle().take(payload));
    frame
}

/// Sets the checksum of an IPv4 header without options; bridges check it.
pub(crate) fn set_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = !headers::fold(headers::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&sum.to_ne_bytes());
}

/// Expected fate of a packet to one of our ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The packet is passed on and counted.
    Refused(Reason, [u8; KEY_BYTES]),
    /// In the ring, if that has room: source address and port, payload, bytes reserved.
    Taken {
        key: [u8; KEY_BYTES],
        source: [u8; 16],
        port: u16,
        version: u8,
        payload: Vec<u8>,
        class: usize,
    },
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The rules; `None` for a packet that is passed on uncounted. `ours` is true if a ring exists.
pub(crate) fn fate(
    frame: &[u8],
    around: Around,
    ours: impl Fn(&[u8; KEY_BYTES]) -> bool,
) -> Option<Fate> {
    let version = match word(frame, 12)? {
        0x0800 => 4,
        0x86dd => 6,
        _ => return None,
    };
    let udp = if version == 4 { 34 } else { 54 };
    if frame.len() < udp + 8 || around.tagged {
        return None;
    }
    let first = frame[14];
    let (mut options, mut fragment) = (false, false);
    let mut port_at = udp + 2;
    let (source, destination, total);
    if version == 4 {
        let (words, bits) = (usize::from(first & 15), word(frame, 20)?);
        if first >> 4 != 4 || words < 5 || frame[23] != 17 || bits & 0x1fff != 0 {
            return None;
        }
        options = words > 5;
        fragment = bits & 0x2000 != 0;
        port_at = 14 + 4 * words + 2;
        let four = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap();
        (source, destination) = (IpAddr::from(four(26)), IpAddr::from(four(30)));
        total = usize::from(word(frame, 16)?).wrapping_sub(20);
    } else {
        if first >> 4 != 6 || frame[20] != 17 {
            return None;
        }
        let sixteen = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap();
        (source, destination) = (IpAddr::from(sixteen(22)), IpAddr::from(sixteen(38)));
        total = usize::from(word(frame, 18)?);
    }
    let key = key(destination, INTERFACE, word(frame, port_at)?);
    if !ours(&key) {
        return None;
    }
    let udp_bytes = usize::from(word(frame, udp + 4)?);
    let agree = udp_bytes == total && udp + udp_bytes <= frame.len() && udp_bytes > 8;
    let refused = [
        (options, Reason::Options),
        (fragment, Reason::Fragment),
        (around.other_host, Reason::OtherHost),
        (!agree, Reason::Length),
        (udp_bytes > 8 + MAX_PAYLOAD_BYTES, Reason::TooLong),
    ];
    if let Some((_, reason)) = refused.into_iter().find(|(applies, _)| *applies) {
        return Some(Fate::Refused(reason, key));
    }
    let payload = frame[udp + 8..udp + udp_bytes].to_vec();
    let mut padded = [0; 16];
    let octets = octets(source);
    padded[..octets.len()].copy_from_slice(&octets);
    Some(Fate::Taken {
        key,
        source: padded,
        port: word(frame, udp)?,
        version,
        class: *CLASSES
            .iter()
            .find(|class| **class >= payload.len())
            .unwrap(),
        payload,
    })
}

/// Named packets for every rule.
pub(crate) fn samples() -> Vec<(String, Vec<u8>, Around)> {
    let mut all = Vec::new();
    let plain = Around::default();
    for version in [4, 6] {
        let udp = if version == 4 { 34 } else { 54 };
        let mut add = |what: &str, frame: Vec<u8>, around: Around| {
            all.push((format!("IPv{version}, {what}"), frame, around));
        };
        let changed = |at: usize, byte: u8| {
            let mut frame = packet(version, 100, 0);
            frame[at] = byte;
            frame
        };
        for class in CLASSES {
            add("a whole class", packet(version, class, 0), plain);
            add("one byte more", packet(version, class + 1, 0), plain);
        }
        add("one byte", packet(version, 1, 0), plain);
        add("no payload", packet(version, 0, 0), plain);
        add("too long", packet(version, 20_000, 0), plain);
        let padded = [packet(version, 1, 0), vec![0; 20]].concat();
        add("padded", padded, plain);
        add("cut", packet(version, 100, 0)[..120].to_vec(), plain);
        add(
            "cut in the header",
            packet(version, 100, 0)[..40].to_vec(),
            plain,
        );
        add("another port", changed(udp + 2, 99), plain);
        add("another address", changed(udp - 1, 99), plain);
        add("UDP length too short", changed(udp + 5, 50), plain);
        add("UDP length below its header", changed(udp + 4, 0), plain);
        add("UDP length too long", changed(udp + 4, 1), plain);
        add(
            "IP length too long",
            changed(if version == 4 { 16 } else { 18 }, 9),
            plain,
        );
        add("TCP", changed(if version == 4 { 23 } else { 20 }, 6), plain);
        add("another IP version", changed(14, 0x55), plain);
        add("a VLAN tag inside", changed(12, 0x81), plain);
        add("ARP", changed(13, 0x06), plain);
        add(
            "another host's",
            changed(5, 9),
            Around {
                other_host: true,
                ..plain
            },
        );
        add(
            "merged",
            packet(version, 100, 0),
            Around {
                merged: true,
                ..plain
            },
        );
        add(
            "tagged",
            packet(version, 100, 0),
            Around {
                tagged: true,
                ..plain
            },
        );
        if version == 4 {
            add("options", packet(4, 100, 1), plain);
            add("all options", packet(4, 100, 10), plain);
            add("options cut", packet(4, 100, 10)[..60].to_vec(), plain);
            add("a header too short", changed(14, 0x44), plain);
            add("first fragment", changed(20, 0x20), plain);
            add("a later fragment", changed(21, 0x01), plain);
            add("last bit of the offset", changed(20, 0x10), plain);
        }
    }
    all
}

/// A valid packet with some header bytes changed, truncated or padded.
pub(crate) fn damaged_packet() -> impl Strategy<Value = Vec<u8>> {
    let version = prop::sample::select(vec![4_u8, 6]);
    let payload = prop_oneof![0_usize..200, 0_usize..9_300];
    let options = prop_oneof![9 => Just(0_u8), 1 => 0_u8..=10];
    let changes = prop::collection::vec((0_usize..110, any::<u8>()), 0..4);
    let end = prop_oneof![4 => Just(0_isize), 1 => -120_isize..60];
    (version, payload, options, changes, end).prop_map(
        |(version, payload, options, changes, end)| {
            let options = if version == 4 { options } else { 0 };
            let mut frame = packet(version, payload, options);
            for (at, byte) in changes {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            let length = frame.len().saturating_add_signed(end).max(1);
            frame.resize(length, 0);
            frame
        },
    )
}
