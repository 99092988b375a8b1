//! The program that leads the packets of one UDP port into an AF_XDP socket.
//!
//! All else is passed on: other packets, IP options, fragments, and packets of this port
//! on another queue, which are counted. It runs at XDP in generic mode, and is gone when its descriptor is
//! closed. Source: Linux, include/uapi/linux/bpf.h.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::Xsk;
use crate::bpf::CardId;
use crate::bpf::headers::{PROTOCOL_UDP, TYPE_IPV4, TYPE_IPV6};

/// The program of one socket; dropping it takes it off the card.
#[derive(Debug)]
pub struct XskHook {
    link: OwnedFd,
    _sockets: OwnedFd,
    counter: OwnedFd,
}

impl XskHook {
    /// Leads what comes on a card to this address and port into the socket.
    ///
    /// # Errors
    /// Without CAP_BPF and CAP_NET_ADMIN, or when there is another program at this place.
    pub fn attach(card: &CardId, xsk: &Xsk, to: SocketAddr) -> io::Result<XskHook> {
        let tell = |what: &str, error: io::Error| {
            let CardId { index, name } = card;
            let text = format!("cannot {what} card {name} (number {index}): {error}");
            io::Error::new(error.kind(), text)
        };
        let make = || -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
            let sockets = create_map(MAP_OF_SOCKETS, 4)?;
            let counter = create_map(MAP_ARRAY, 8)?;
            let value = xsk.as_fd().as_raw_fd().cast_unsigned();
            set_entry(&sockets, &value)?;
            let code = instructions(to, xsk.queue(), sockets.as_raw_fd(), counter.as_raw_fd());
            Ok((load(&code)?, sockets, counter))
        };
        let (program, sockets, counter) =
            make().map_err(|error| tell("load the program of an AF_XDP socket for", error))?;
        let link = attach(&program, card.index)
            .map_err(|error| tell("attach the program of an AF_XDP socket to", error))?;
        Ok(XskHook {
            link,
            _sockets: sockets,
            counter,
        })
    }

    /// Packets for this port that came on another queue and were passed to the socket.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn wrong_queue(&self) -> io::Result<u64> {
        let mut value = 0_u64;
        let key = 0_u32;
        let attributes = Entry {
            map: self.counter.as_raw_fd().cast_unsigned(),
            _none: 0,
            key: address(&raw const key),
            value: address(&raw mut value),
            flags: 0,
        };
        call(LOOK_UP, &attributes)?;
        Ok(value)
    }
}

impl Drop for XskHook {
    /// Closing would do it, too, but a moment later: packets of that moment would still
    /// go to the socket.
    fn drop(&mut self) {
        let link = self.link.as_raw_fd().cast_unsigned();
        let _closing_will_do = call(DETACH_LINK, &link);
    }
}

const MAP_ARRAY: u32 = 2;
const MAP_OF_SOCKETS: u32 = 17;
const CREATE_MAP: libc::c_long = 0;
const LOOK_UP: libc::c_long = 1;
const UPDATE: libc::c_long = 2;
const LOAD: libc::c_long = 5;
const CREATE_LINK: libc::c_long = 28;
const DETACH_LINK: libc::c_long = 34;
const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const GENERIC: u32 = 1 << 1;

#[repr(C)]
struct NewMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct Entry {
    map: u32,
    _none: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct NewProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

#[repr(C)]
struct NewLink {
    program: u32,
    card: u32,
    kind: u32,
    flags: u32,
}

/// The bpf(2) call with attributes of this layout; what lies behind them counts as zero.
fn call<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: pointer and length describe `attributes`; addresses in them lead to values
    // that the callers below keep until it returns, of the sizes the maps were made with.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let number = RawFd::try_from(result).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the call has just made it, close-on-exec, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

fn create_map(kind: u32, value_bytes: u32) -> io::Result<OwnedFd> {
    let attributes = NewMap {
        kind,
        key_bytes: 4,
        value_bytes,
        entries: 1,
        flags: 0,
    };
    descriptor(call(CREATE_MAP, &attributes)?)
}

fn set_entry(map: &OwnedFd, value: &u32) -> io::Result<()> {
    let key = 0_u32;
    let attributes = Entry {
        map: map.as_raw_fd().cast_unsigned(),
        _none: 0,
        key: address(&raw const key),
        value: address(std::ptr::from_ref(value)),
        flags: 0,
    };
    call(UPDATE, &attributes).map(drop)
}

fn load(code: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = NewProgram {
        kind: PROGRAM_XDP,
        count: u32::try_from(code.len()).unwrap_or(0),
        instructions: address(code.as_ptr()),
        license: address(c"Dual MIT/GPL".as_ptr()),
        log_level: 0,
        log_bytes: 0,
        log: 0,
    };
    descriptor(call(LOAD, &attributes)?)
}

fn attach(program: &OwnedFd, card: u32) -> io::Result<OwnedFd> {
    let attributes = NewLink {
        program: program.as_raw_fd().cast_unsigned(),
        card,
        kind: ATTACH_XDP,
        flags: GENERIC,
    };
    descriptor(call(CREATE_LINK, &attributes)?)
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high half.
    registers: u8,
    offset: i16,
    number: i32,
}

#[cfg(target_endian = "big")]
compile_error!("the halves of `registers` are swapped on such a machine");

const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> Instruction {
    Instruction {
        code,
        registers: from << 4 | to,
        offset,
        number,
    }
}

const LOAD_WORD: u8 = 0x61;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const MOVE_NUMBER: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_NUMBER: u8 = 0x07;
const AND_WORD: u8 = 0x54;
const STORE_WORD: u8 = 0x62;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_NOT: u8 = 0x55;
const JUMP_WORD_IF_NOT: u8 = 0x56;
const JUMP_IF: u8 = 0x15;
const ATOMIC: u8 = 0xdb;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_MAP: u8 = 0x18;

const LOOK_UP_ELEMENT: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;

/// Packets to this address and port on this queue go to the socket in the map.
fn instructions(to: SocketAddr, queue: u32, sockets: RawFd, counter: RawFd) -> Vec<Instruction> {
    let queue = queue.cast_signed();
    let mut code = Vec::with_capacity(48);
    // Jumps to the end, filled in when it is known where that is.
    let mut leave = Vec::new();
    code.extend([
        // r6 = queue, r2 = packet, r3 = its end
        instruction(LOAD_WORD, 6, 1, 16, 0),
        instruction(LOAD_WORD, 2, 1, 0, 0),
        instruction(LOAD_WORD, 3, 1, 4, 0),
    ]);
    // Length; then what must stand where: size, place, bits that count, value.
    let (length, wanted) = wanted(to);
    code.extend([
        instruction(MOVE_REGISTER, 4, 2, 0, 0),
        instruction(ADD_NUMBER, 4, 0, 0, length),
    ]);
    leave.push(code.len());
    code.push(instruction(JUMP_IF_GREATER, 4, 3, 0, 0));
    for (size, at, bits, value) in wanted {
        code.push(instruction(size, 5, 2, at, 0));
        if bits != -1 {
            code.push(instruction(AND_WORD, 5, 0, 0, bits));
        }
        leave.push(code.len());
        code.push(instruction(JUMP_WORD_IF_NOT, 5, 0, 0, value));
    }
    // To the socket, if this is its queue, else count and pass on.
    code.push(instruction(JUMP_IF_NOT, 6, 0, 6, queue));
    code.extend([
        instruction(LOAD_MAP, 1, 1, 0, sockets),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE_NUMBER, 2, 0, 0, 0),
        instruction(MOVE_NUMBER, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
        instruction(STORE_WORD, 10, 0, -4, 0),
        instruction(LOAD_MAP, 1, 1, 0, counter),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE_REGISTER, 2, 10, 0, 0),
        instruction(ADD_NUMBER, 2, 0, 0, -4),
        instruction(CALL, 0, 0, 0, LOOK_UP_ELEMENT),
    ]);
    leave.push(code.len());
    code.extend([
        instruction(JUMP_IF, 0, 0, 0, 0),
        instruction(MOVE_NUMBER, 1, 0, 0, 1),
        // An addition: number 0.
        instruction(ATOMIC, 0, 1, 0, 0),
    ]);
    let end = code.len();
    for jump in leave {
        code[jump].offset = i16::try_from(end - jump - 1).unwrap_or(0);
    }
    code.extend([
        instruction(MOVE_NUMBER, 0, 0, 0, XDP_PASS),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    code
}

/// Bytes that the packet must have at least, and what must stand in it: how it is loaded,
/// from where, the bits that count, and their value as loaded.
fn wanted(to: SocketAddr) -> (i32, Vec<(u8, i16, i32, i32)>) {
    let half = |bytes: [u8; 2]| i32::from(u16::from_ne_bytes(bytes));
    let port = half(to.port().to_be_bytes());
    match to {
        SocketAddr::V4(to) => {
            let address = i32::from_ne_bytes(to.ip().octets());
            let list = vec![
                (LOAD_HALF, 12, -1, half(TYPE_IPV4.to_be_bytes())),
                // Version 4, no options; no fragment (neither "more" nor an offset).
                (LOAD_BYTE, 14, -1, 0x45),
                (LOAD_HALF, 20, half([0x3f, 0xff]), 0),
                (LOAD_BYTE, 23, -1, i32::from(PROTOCOL_UDP)),
                (LOAD_WORD, 30, -1, address),
                (LOAD_HALF, 36, -1, port),
            ];
            (42, list)
        }
        SocketAddr::V6(to) => {
            let mut list = vec![
                (LOAD_HALF, 12, -1, half(TYPE_IPV6.to_be_bytes())),
                (LOAD_BYTE, 20, -1, i32::from(PROTOCOL_UDP)),
            ];
            for (at, word) in (38_i16..).step_by(4).zip(to.ip().octets().chunks_exact(4)) {
                let word = i32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                list.push((LOAD_WORD, at, -1, word));
            }
            list.push((LOAD_HALF, 56, -1, port));
            (62, list)
        }
    }
}
