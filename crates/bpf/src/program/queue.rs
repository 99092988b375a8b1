//! The program that leads the packets of one UDP port into an AF_XDP socket.
//!
//! All else is passed on: other packets and hosts, IP options, fragments, frames without
//! payload or too long for a piece of the socket's memory, and packets of this port on
//! another queue, which are counted. It runs at XDP, on packets in one piece.

use std::net::{IpAddr, SocketAddr};

use super::assembler::{Assembler, Helper, Label, Math, Program, Reg, Size, When};
use super::packet::{
    ETHERNET_BYTES, ETHERTYPE, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT, Ip, UDP, UDP_BYTES,
    network_16,
};

use Reg::{Frame, R0, R1, R2, R3, R4, R6, R7, R8};

/// The program's maps: the socket, and how many packets came on another queue.
pub(crate) const SOCKETS: i32 = 0;
pub(crate) const COUNTER: i32 = 1;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

const XDP_PASS: i32 = 2;
const PLAIN_V4: i32 = 0x45;

/// Whose packets go to the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The interface's own address.
    pub(crate) mac: [u8; 6],
    pub(crate) to: SocketAddr,
    pub(crate) queue: u32,
    /// Bytes of the longest frame that the socket takes.
    pub(crate) longest: usize,
}

/// The program. R6 is the context, R7 points to the packet, R8 is its queue.
pub(crate) fn program(wanted: &Wanted) -> Program {
    let ip = match wanted.to.ip() {
        IpAddr::V4(_) => Ip::V4,
        IpAddr::V6(_) => Ip::V6,
    };
    let mut code = Assembler::default();
    let (pass, elsewhere) = (code.label(), code.label());
    code.set(R6, R1);
    code.load(Size::Word, R8, R6, RX_QUEUE);
    code.load(Size::Word, R7, R6, DATA);
    code.load(Size::Word, R3, R6, DATA_END);
    code.set(R4, R7);
    code.math(Math::Add, R4, i32::from(ip.payload()));
    code.jump_if(R4, When::Greater, R3, pass);
    check_headers(&mut code, wanted, ip, pass);
    let queue = i32::try_from(wanted.queue).unwrap_or(i32::MAX);
    code.jump_if(R8, When::Different, queue, elsewhere);
    // What does not fit into a piece would be lost there.
    code.set(R1, R6);
    code.call(Helper::XdpLength);
    let longest = i32::try_from(wanted.longest).unwrap_or(i32::MAX);
    code.jump_if(R0, When::Greater, longest, pass);
    code.load_map(R1, SOCKETS);
    code.set(R2, 0);
    code.set(R3, XDP_PASS);
    code.call(Helper::RedirectMap);
    code.exit();
    code.place(elsewhere);
    code.store(Size::Word, Frame, -4, 0);
    code.load_map(R1, COUNTER);
    code.set(R2, Frame);
    code.math(Math::Add, R2, -4);
    code.call(Helper::MapLookup);
    code.jump_if(R0, When::Equal, 0, pass);
    code.set(R1, 1);
    code.add_to_memory(R0, 0, R1);
    code.place(pass);
    code.set(R0, XDP_PASS);
    code.exit();
    code.finish()
}

/// Passes what is not for the address and port, or not plain.
fn check_headers(code: &mut Assembler, wanted: &Wanted, ip: Ip, pass: Label) {
    let mut halves = |at: i16, bytes: &[u8]| {
        for (at, half) in (at..).step_by(2).zip(bytes.chunks_exact(2)) {
            code.load(Size::Half, R4, R7, at);
            let half = network_16(u16::from_be_bytes([half[0], half[1]]));
            code.jump_if(R4, When::Different, half, pass);
        }
    };
    halves(0, &wanted.mac);
    halves(ip.udp() + 2, &wanted.to.port().to_be_bytes());
    match wanted.to.ip() {
        IpAddr::V4(to) => {
            halves(ETHERTYPE, &ETHERTYPE_IPV4.to_be_bytes());
            halves(ip.destination, &to.octets());
            code.load(Size::Byte, R4, R7, ETHERNET_BYTES);
            code.jump_if(R4, When::Different, PLAIN_V4, pass);
            code.load(Size::Half, R4, R7, Ip::FRAGMENT);
            code.jump_if(R4, When::AnyBit, network_16(FRAGMENT), pass);
        }
        IpAddr::V6(to) => {
            halves(ETHERTYPE, &ETHERTYPE_IPV6.to_be_bytes());
            halves(ip.destination, &to.octets());
        }
    }
    code.load(Size::Byte, R4, R7, ip.protocol);
    code.jump_if(R4, When::Different, UDP, pass);
    let some = code.label();
    code.load(Size::Half, R4, R7, ip.udp() + 4);
    code.order_16(R4);
    code.jump_if(R4, When::Greater, i32::from(UDP_BYTES), some);
    code.jump(pass);
    code.place(some);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::headers::{Ethernet, Template};
    use crate::program::interpreter::{Input, Maps, run};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const LONGEST: usize = 1000;
    const QUEUE: u32 = 3;
    const XDP_REDIRECT: i32 = 4;

    /// Both ends of the wire; the second is ours.
    fn ends(version: u8) -> [SocketAddr; 2] {
        let texts = match version {
            4 => ["192.0.2.1:700", "198.51.100.200:40000"],
            _ => ["[fd00::1]:700", "[fd00::ffee:2]:40000"],
        };
        texts.map(|text| text.parse().unwrap())
    }

    fn code(version: u8) -> Program {
        let [_, to] = ends(version);
        let (mac, queue, longest) = (MAC, QUEUE, LONGEST);
        let wanted = Wanted {
            mac,
            to,
            queue,
            longest,
        };
        program(&wanted)
    }

    fn packet(version: u8, length: usize) -> Vec<u8> {
        let [from, to] = ends(version);
        let ethernet = Ethernet {
            destination: MAC,
            source: [2, 0, 0, 0, 0, 1],
        };
        let payload = vec![7; length];
        let template = Template::new(&ethernet, from, to, 64).unwrap();
        let mut frame = template.finish(1, &payload)[..template.bytes()].to_vec();
        frame.extend(payload);
        frame
    }

    /// What the program returns, and how many packets it has counted.
    fn fate(version: u8, frame: &[u8], queue: u32) -> (i32, u64) {
        run_with(true, version, frame, queue)
    }

    fn run_with(has_socket: bool, version: u8, frame: &[u8], queue: u32) -> (i32, u64) {
        let input = Input {
            frame,
            linear: frame.len(),
            fields: HashMap::from([(RX_QUEUE, queue)]),
            data: [DATA, DATA_END],
            cookie: 0,
        };
        let wrong = 0;
        let mut maps = Maps::Queue { has_socket, wrong };
        let returned = run(&code(version), &input, &mut maps).unwrap();
        let Maps::Queue { wrong, .. } = maps else {
            unreachable!()
        };
        (returned, wrong)
    }

    #[test]
    fn packets_for_the_port_go_to_the_socket_of_their_queue() {
        for version in [4, 6] {
            for length in [1, 2, 700] {
                let frame = packet(version, length);
                assert_eq!(fate(version, &frame, QUEUE), (XDP_REDIRECT, 0));
                assert_eq!(fate(version, &frame, QUEUE + 1), (XDP_PASS, 1));
            }
        }
    }

    #[test]
    fn frames_without_payload_or_too_long_are_passed() {
        for version in [4, 6] {
            let headers = packet(version, 0).len();
            for (length, wanted) in [
                (0, XDP_PASS),
                (LONGEST - headers, XDP_REDIRECT),
                (LONGEST - headers + 1, XDP_PASS),
            ] {
                let frame = packet(version, length);
                assert_eq!(fate(version, &frame, QUEUE), (wanted, 0), "{length}");
            }
        }
    }

    #[test]
    fn every_byte_that_says_whose_packet_it_is_counts() {
        // MAC, type; IPv4: options, fragment, protocol, address, port; IPv6 likewise.
        let four = [0..6, 12..15, 20..22, 23..24, 30..34, 36..38];
        let six = [0..6, 12..14, 20..21, 38..54, 56..58];
        for (version, places) in [(4, &four[..]), (6, &six[..])] {
            for at in places.iter().cloned().flatten() {
                let mut frame = packet(version, 10);
                // The top bit of an IPv4 fragment field means nothing; the next does.
                frame[at] ^= 0x20;
                let found = fate(version, &frame, QUEUE);
                assert_eq!(found, (XDP_PASS, 0), "IPv{version}, byte {at}");
            }
        }
    }

    #[test]
    fn a_map_without_a_socket_passes() {
        assert_eq!(run_with(false, 4, &packet(4, 10), QUEUE), (XDP_PASS, 0));
    }

    proptest! {
        #[test]
        fn cut_and_damaged_packets_are_never_read_beyond_their_end(
            six in any::<bool>(),
            length in 0..64_usize,
            keep in 0..128_usize,
            damage in proptest::collection::vec((0..128_usize, any::<u8>()), 0..4),
        ) {
            let version = if six { 6 } else { 4 };
            let mut frame = packet(version, length);
            for (at, byte) in damage {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            frame.truncate(keep);
            // It runs without a wrong access, whatever it says.
            let (returned, counted) = fate(version, &frame, QUEUE);
            prop_assert!([XDP_PASS, XDP_REDIRECT].contains(&returned));
            prop_assert_eq!(counted, 0);
            let headers = packet(version, 0).len();
            prop_assert!(frame.len() >= headers || returned == XDP_PASS);
        }
    }
}
