//! The program at an interface's egress: it drops frames of guarded sockets whose source was not
//! granted to them.
//!
//! A guarded socket is identified by its cookie. Its frames must have the granted MAC address, IP
//! address and UDP port; others are dropped and counted. Frames of all other sockets pass.

use super::assembler::{Assembler, Helper, Label, Math, Program, Reg, Size, When};
use super::dispatch::look_up;
use super::maps::{ALLOWED_ADDRESS, ALLOWED_PORTS, ALLOWED_VERSION, COOKIES, REFUSED};
use super::packet::{ETHERNET_BYTES, ETHERTYPE, FRAGMENT, Ip, UDP, network_16, skb};

use Reg::{Frame, R0, R1, R2, R3, R4, R5, R6, R7, R8};

/// `TCX_DROP`.
pub(crate) const REFUSES: i32 = 2;
/// `TCX_NEXT`.
pub(crate) const PASSES: i32 = -1;

/// Stack offsets. The headers are placed so that the IP header is aligned.
const HEADERS: i16 = -62;
const COOKIE: i16 = -72;
const INDEX: i16 = -76;

/// The egress program. R6 holds the context, R7 the allowed source, R8 the headers.
pub(crate) fn program() -> Program {
    let mut code = Assembler::default();
    let (pass, refuse, six) = (code.label(), code.label(), code.label());
    code.set(R6, R1);
    code.call(Helper::SocketCookie);
    code.store(Size::Double, Frame, COOKIE, R0);
    look_up(&mut code, COOKIES, COOKIE);
    code.jump_if(R0, When::Equal, 0, pass);
    code.set(R7, R0);
    // Single untagged frames only: segmentation or tagging after this check would evade it.
    code.load(Size::Word, R4, R6, skb::VLAN_PRESENT);
    code.jump_if(R4, When::Different, 0, refuse);
    code.load(Size::Word, R4, R6, skb::GSO_SIZE);
    code.jump_if(R4, When::Different, 0, refuse);

    copy_headers(&mut code, 0, Ip::V4.payload(), refuse);
    code.set(R8, Frame);
    code.math(Math::Add, R8, i32::from(HEADERS));
    for at in [0, 2, 4] {
        code.load(Size::Half, R4, R8, 6 + at);
        code.load(Size::Half, R5, R7, at);
        code.jump_if(R4, When::Different, R5, refuse);
    }
    code.load(Size::Half, R4, R7, ALLOWED_VERSION);
    code.jump_if(R4, When::Different, 4, six);
    code.load(Size::Byte, R4, R8, ETHERNET_BYTES);
    code.jump_if(R4, When::Different, 0x45, refuse);
    code.load(Size::Half, R4, R8, Ip::FRAGMENT);
    code.jump_if(R4, When::AnyBit, network_16(FRAGMENT), refuse);
    check_source(&mut code, Ip::V4, pass, refuse);

    code.place(six);
    // A socket that may send nothing has no version.
    code.jump_if(R4, When::Different, 6, refuse);
    copy_headers(&mut code, Ip::V4.payload(), Ip::V6.payload(), refuse);
    code.load(Size::Byte, R4, R8, ETHERNET_BYTES);
    code.math(Math::And, R4, 0xf0);
    code.jump_if(R4, When::Different, 0x60, refuse);
    check_source(&mut code, Ip::V6, pass, refuse);

    code.place(refuse);
    code.store(Size::Word, Frame, INDEX, 0);
    look_up(&mut code, REFUSED, INDEX);
    let counted = code.label();
    code.jump_if(R0, When::Equal, 0, counted);
    code.load(Size::Double, R1, R0, 0);
    code.math(Math::Add, R1, 1);
    code.store(Size::Double, R0, 0, R1);
    code.place(counted);
    code.set(R0, REFUSES);
    code.exit();
    code.place(pass);
    code.set(R0, PASSES);
    code.exit();
    code.finish()
}

/// Copies a range of the frame to the stack.
fn copy_headers(code: &mut Assembler, from: i16, to: i16, refuse: Label) {
    code.set(R1, R6);
    code.set(R2, i32::from(from));
    code.set(R3, Frame);
    code.math(Math::Add, R3, i32::from(HEADERS + from));
    code.set(R4, i32::from(to - from));
    code.call(Helper::SkbLoadBytes);
    code.jump_if(R0, When::Different, 0, refuse);
}

/// Passes UDP frames from the allowed address and one of the allowed ports.
fn check_source(code: &mut Assembler, ip: Ip, pass: Label, refuse: Label) {
    code.load(Size::Half, R4, R8, ETHERTYPE);
    code.jump_if(R4, When::Different, network_16(ip.ethertype), refuse);
    code.load(Size::Byte, R4, R8, ip.protocol);
    code.jump_if(R4, When::Different, UDP, refuse);
    let (size, parts): (Size, &[i16]) = match ip.version {
        4 => (Size::Word, &[0]),
        _ => (Size::Double, &[0, 8]),
    };
    for at in parts {
        code.load(size, R4, R8, ip.source + at);
        code.load(size, R5, R7, ALLOWED_ADDRESS + at);
        code.jump_if(R4, When::Different, R5, refuse);
    }
    code.load(Size::Half, R4, R8, ip.udp());
    for port in ALLOWED_PORTS {
        code.load(Size::Half, R5, R7, port);
        code.jump_if(R4, When::Equal, R5, pass);
    }
    code.jump(refuse);
}
