//! The program at an interface's TCX ingress: it puts small packets for this node's processes into
//! their rings and passes everything else on, untouched.
//!
//! `docs/design/bpf.md` lists what it takes and why it passes packets on. Other traffic takes a short
//! path: three bytes of a frame show that it is not UDP.

use super::assembler::{Assembler, Helper, Label, Math, Program, Reg, Size, When};
use super::maps::{COUNTERS, FULL, RINGS, Reason};
use super::packet::{
    ETHERNET_BYTES, ETHERTYPE, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT, FRAGMENT_OFFSET, Ip, UDP,
    network_16, skb,
};
use crate::layout::{CLASSES, MAX_PAYLOAD_BYTES, RECORD_HEADER_BYTES};

use Reg::{Frame, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};

/// Return value for a packet that was put into a ring: `TCX_DROP`.
pub(crate) const TAKEN: i32 = 2;
/// Return value for a packet that is passed on, also to other programs: `TCX_NEXT`.
pub(crate) const PASSED: i32 = -1;

/// Stack offsets. A copy of the headers is placed so that the IP header is aligned.
const HEADERS: i16 = -62;
const KEY: i16 = -88;
const INDEX: i16 = -92;
const PORT: i16 = -94;

/// The first byte of an IPv4 header without options.
const PLAIN_V4: i32 = 0x45;

struct Writer {
    code: Assembler,
    /// Jump target that returns [`PASSED`].
    pass: Label,
    /// Jump targets by reason: each counts the packet and passes it on.
    refused: [Label; Reason::ALL.len()],
}

/// A short length as an operand.
fn constant(value: usize) -> i32 {
    i32::try_from(value).expect("lengths of packets are small")
}

/// The ingress program. R6 holds the context, R7 the length of the payload, R8 points to the headers
/// (in the packet, or copied to the stack), R9 to the ring and later to the record.
pub(crate) fn program() -> Program {
    let mut code = Assembler::default();
    let pass = code.label();
    let refused = Reason::ALL.map(|_| code.label());
    let mut writer = Writer {
        code,
        pass,
        refused,
    };
    let found = [(); 2].map(|()| writer.code.label());
    writer.find_udp(found);
    for (ip, label) in [Ip::V4, Ip::V6].into_iter().zip(found) {
        writer.code.place(label);
        writer.find_ring(ip);
        writer.check(ip);
        writer.deposit(ip);
    }
    writer.end();
    writer.code.finish()
}

impl Writer {
    /// Jumps to the label for IPv4 or IPv6, with R8 = headers, if it is UDP over IP.
    fn find_udp(&mut self, found: [Label; 2]) {
        let copied = self.code.label();
        let code = &mut self.code;
        code.set(R6, R1);
        code.load(Size::Word, R8, R6, skb::DATA);
        code.load(Size::Word, R3, R6, skb::DATA_END);
        code.set(R4, R8);
        code.math(Math::Add, R4, i32::from(Ip::V4.payload()));
        code.jump_if(R4, When::Greater, R3, copied);
        self.look_for_udp(found[0]);
        let code = &mut self.code;
        code.set(R4, R8);
        code.math(Math::Add, R4, i32::from(Ip::V6.payload()));
        code.jump_if(R4, When::Greater, R3, copied);
        code.jump(found[1]);

        // The headers are not contiguous, or incomplete.
        code.place(copied);
        self.copy_headers(0, Ip::V4.payload());
        self.code.set(R8, Frame);
        self.code.math(Math::Add, R8, i32::from(HEADERS));
        self.look_for_udp(found[0]);
        self.copy_headers(Ip::V4.payload(), Ip::V6.payload());
        self.code.jump(found[1]);
    }

    /// Jumps if it is UDP over IPv4, continues if it is UDP over IPv6, otherwise passes.
    fn look_for_udp(&mut self, found4: Label) {
        let six = self.code.label();
        let (code, pass) = (&mut self.code, self.pass);
        code.load(Size::Half, R4, R8, ETHERTYPE);
        code.jump_if(R4, When::Different, network_16(ETHERTYPE_IPV4), six);
        code.load(Size::Byte, R4, R8, Ip::V4.protocol);
        code.jump_if(R4, When::Equal, UDP, found4);
        code.jump(pass);
        code.place(six);
        code.jump_if(R4, When::Different, network_16(ETHERTYPE_IPV6), pass);
        code.load(Size::Byte, R4, R8, Ip::V6.protocol);
        code.jump_if(R4, When::Different, UDP, pass);
    }

    /// Copies a range of the frame to the stack, or passes if the frame is shorter.
    fn copy_headers(&mut self, from: i16, to: i16) {
        let (code, pass) = (&mut self.code, self.pass);
        code.set(R1, R6);
        code.set(R2, i32::from(from));
        code.set(R3, Frame);
        code.math(Math::Add, R3, i32::from(HEADERS + from));
        code.set(R4, i32::from(to - from));
        code.call(Helper::SkbLoadBytes);
        code.jump_if(R0, When::Different, 0, pass);
    }

    /// R9 = the ring of the packet's destination; passes the packet if it does not exist.
    fn find_ring(&mut self, ip: Ip) {
        let (keyed, options) = (self.code.label(), self.code.label());
        let (code, pass) = (&mut self.code, self.pass);
        // A tagged packet for us returns untagged on the VLAN\'s own interface.
        code.load(Size::Word, R4, R6, skb::VLAN_PRESENT);
        code.jump_if(R4, When::Different, 0, pass);
        code.load(Size::Byte, R4, R8, ETHERNET_BYTES);
        if ip.version == 4 {
            // Only the first fragment has ports.
            code.load(Size::Half, R5, R8, Ip::FRAGMENT);
            code.jump_if(R5, When::AnyBit, network_16(FRAGMENT_OFFSET), pass);
            code.jump_if(R4, When::Different, PLAIN_V4, options);
        } else {
            code.math(Math::And, R4, 0xf0);
            code.jump_if(R4, When::Different, 0x60, pass);
        }
        code.load(Size::Half, R5, R8, ip.udp() + 2);
        code.place(keyed);
        match ip.version {
            4 => {
                code.load(Size::Word, R4, R8, ip.destination);
                code.store(Size::Word, Frame, KEY, R4);
                code.store(Size::Word, Frame, KEY + 4, 0);
                code.store(Size::Double, Frame, KEY + 8, 0);
            }
            _ => {
                for at in [0, 8] {
                    code.load(Size::Double, R4, R8, ip.destination + at);
                    code.store(Size::Double, Frame, KEY + at, R4);
                }
            }
        }
        code.load(Size::Word, R4, R6, skb::IFINDEX);
        code.store(Size::Word, Frame, KEY + 16, R4);
        code.store(Size::Half, Frame, KEY + 20, R5);
        code.store(Size::Half, Frame, KEY + 22, i32::from(ip.version));
        look_up(code, RINGS, KEY);
        code.jump_if(R0, When::Equal, 0, pass);
        code.set(R9, R0);
        if ip.version == 4 {
            let ready = code.label();
            code.jump(ready);
            code.place(options);
            self.load_port_after_options(keyed);
            self.code.place(ready);
        }
    }

    /// Given the first byte of the header in R4, sets R5 to the destination port.
    fn load_port_after_options(&mut self, keyed: Label) {
        let (code, pass) = (&mut self.code, self.pass);
        code.set(R2, R4);
        code.math(Math::And, R4, 0xf0);
        code.jump_if(R4, When::Different, 0x40, pass);
        code.math(Math::And, R2, 0x0f);
        // Header length in units of 4 bytes; at least five.
        let enough = code.label();
        code.jump_if(R2, When::Greater, 5, enough);
        code.jump(pass);
        code.place(enough);
        code.math(Math::ShiftLeft, R2, 2);
        code.math(Math::Add, R2, i32::from(ETHERNET_BYTES + 2));
        code.set(R1, R6);
        code.set(R3, Frame);
        code.math(Math::Add, R3, i32::from(PORT));
        code.set(R4, 2);
        code.call(Helper::SkbLoadBytes);
        code.jump_if(R0, When::Different, 0, pass);
        code.load(Size::Half, R5, Frame, PORT);
        code.jump(keyed);
    }

    /// Sets R7 to the payload length; refuses packets that the socket must handle.
    fn check(&mut self, ip: Ip) {
        let refused = self.refused;
        let refuse = |reason: Reason| refused[reason as usize];
        let code = &mut self.code;
        if ip.version == 4 {
            code.load(Size::Byte, R4, R8, ETHERNET_BYTES);
            code.jump_if(R4, When::Different, PLAIN_V4, refuse(Reason::Options));
            code.load(Size::Half, R4, R8, Ip::FRAGMENT);
            let bits = network_16(FRAGMENT);
            code.jump_if(R4, When::AnyBit, bits, refuse(Reason::Fragment));
        }
        // PACKET_HOST is 0.
        code.load(Size::Word, R4, R6, skb::PKT_TYPE);
        code.jump_if(R4, When::Different, 0, refuse(Reason::OtherHost));
        code.load(Size::Word, R0, R6, skb::LEN);
        let length = refuse(Reason::Length);
        code.load(Size::Half, R7, R8, ip.udp() + 4);
        code.order_16(R7);
        code.load(Size::Half, R4, R8, ip.length);
        code.order_16(R4);
        code.set(R5, R7);
        code.math(Math::Add, R5, i32::from(ip.counted));
        code.jump_if(R5, When::Different, R4, length);
        // A frame may be longer than its packet, because short ones are padded.
        code.set(R5, R7);
        code.math(Math::Add, R5, i32::from(ip.udp()));
        code.jump_if(R5, When::Greater, R0, length);
        code.math(Math::Add, R7, -i32::from(ip.payload() - ip.udp()));
        // A negative length is a large unsigned number.
        code.jump_if(R7, When::Greater, i32::from(u16::MAX), length);
        let limit = constant(MAX_PAYLOAD_BYTES);
        code.jump_if(R7, When::Greater, limit, refuse(Reason::TooLong));
        let some = code.label();
        code.jump_if(R7, When::Greater, 0, some);
        code.jump(length);
        code.place(some);
    }

    /// Puts the packet into the ring R9 and returns "taken".
    fn deposit(&mut self, ip: Ip) {
        let (fill, unreadable, counted) = (self.code.label(), self.code.label(), self.code.label());
        let full = self.refused[Reason::Full as usize];
        let code = &mut self.code;
        for class in CLASSES {
            let larger = code.label();
            // The check is redundant for the last class, but costs only one instruction.
            code.jump_if(R7, When::Greater, constant(class), larger);
            code.set(R1, R9);
            code.set(R2, constant(RECORD_HEADER_BYTES + class));
            code.set(R3, 0);
            code.call(Helper::RingReserve);
            code.jump_if(R0, When::Equal, 0, full);
            code.set(R9, R0);
            code.jump(fill);
            code.place(larger);
        }
        code.jump(self.refused[Reason::TooLong as usize]);

        code.place(fill);
        code.set(R1, R6);
        code.set(R2, i32::from(ip.payload()));
        code.set(R3, R9);
        code.math(Math::Add, R3, constant(RECORD_HEADER_BYTES));
        code.set(R4, R7);
        code.call(Helper::SkbLoadBytes);
        code.jump_if(R0, When::Different, 0, unreadable);
        if ip.version == 4 {
            code.load(Size::Word, R4, R8, ip.source);
            code.store(Size::Word, R9, 0, R4);
            code.store(Size::Word, R9, 4, 0);
            code.store(Size::Double, R9, 8, 0);
        } else {
            for at in [0, 8] {
                code.load(Size::Double, R4, R8, ip.source + at);
                code.store(Size::Double, R9, at, R4);
            }
        }
        code.load(Size::Half, R4, R8, ip.udp());
        code.store(Size::Half, R9, 16, R4);
        code.store(Size::Half, R9, 18, R7);
        let version = ip.version.to_le_bytes()[0];
        let tail = i32::from_ne_bytes([version, 0, 0, 0]);
        code.store(Size::Word, R9, 20, tail);
        code.set(R1, R9);
        code.set(R2, 0);
        code.call(Helper::RingSubmit);
        code.set(R7, Reason::Deposited as i32);
        count(code, counted);
        code.place(counted);
        code.set(R0, TAKEN);
        code.exit();

        code.place(unreadable);
        code.set(R1, R9);
        code.set(R2, 0);
        code.call(Helper::RingDiscard);
        code.jump(self.refused[Reason::Unreadable as usize]);
    }

    /// Counts refused packets, and passes them and other traffic on.
    fn end(&mut self) {
        let counting = self.code.label();
        let code = &mut self.code;
        for (reason, label) in Reason::ALL.into_iter().zip(self.refused) {
            // The kernel rejects unreachable code.
            if !code.is_used(label) {
                continue;
            }
            code.place(label);
            if reason == Reason::Full {
                let unknown = code.label();
                look_up(code, FULL, KEY);
                code.jump_if(R0, When::Equal, 0, unknown);
                code.set(R1, 1);
                code.add_to_memory(R0, 0, R1);
                code.place(unknown);
            }
            code.set(R7, reason as i32);
            code.jump(counting);
        }
        code.place(counting);
        count(code, self.pass);
        code.place(self.pass);
        code.set(R0, PASSED);
        code.exit();
    }
}

/// R0 = address of the map value for the key on the stack, or 0.
pub(super) fn look_up(code: &mut Assembler, map: i32, key: i16) {
    code.load_map(R1, map);
    code.set(R2, Frame);
    code.math(Math::Add, R2, i32::from(key));
    code.call(Helper::MapLookup);
}

/// Counts the reason in R7. Counters are per CPU, so no other CPU writes them.
fn count(code: &mut Assembler, done: Label) {
    code.store(Size::Word, Frame, INDEX, R7);
    look_up(code, COUNTERS, INDEX);
    code.jump_if(R0, When::Equal, 0, done);
    code.load(Size::Double, R1, R0, 0);
    code.math(Math::Add, R1, 1);
    code.store(Size::Double, R0, 0, R1);
}
