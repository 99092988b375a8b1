//! The few words of the kernel's routing netlink that a sender of raw frames needs:
//! requests written, answers and news read.
//!
//! Everything read is checked against its own lengths: what is cut off, too long or of an
//! unknown kind is skipped, whoever sent it. Nothing is allocated but when a socket is
//! opened. Source: Linux, include/uapi/linux/{netlink,rtnetlink,neighbour,if_link}.h.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

const MESSAGE_ERROR: u16 = 2;
pub(super) const NEW_LINK: u16 = 16;
pub(super) const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
pub(super) const NEW_ADDRESS: u16 = 20;
pub(super) const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
pub(super) const NEW_NEIGHBOUR: u16 = 28;
pub(super) const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;

/// Groups 1 (link), 3 (neighbour), 5 and 9 (addresses), 7 and 11 (routes), 8 and 19
/// (rules), 32 (next hops): group n is bit n - 1.
const GROUPS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 6 | 1 << 10 | 1 << 7 | 1 << 18 | 1 << 31;

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
const ATTRIBUTE_TYPE: u16 = 0x3fff;
const REQUEST: u16 = 1;

const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;

/// Longer than what the kernel sends at once.
const BUFFER_BYTES: usize = 32 << 10;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) sequence: u32,
    pub(super) content: &'a [u8],
}

/// The messages of a datagram, up to the first whose length is wrong.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            sequence: u32_at(bytes, 8)?,
            content: bytes.get(HEADER_BYTES..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The attributes after a fixed part, up to the first whose length is wrong.
fn attributes(content: &[u8], fixed_bytes: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut bytes = content.get(fixed_bytes..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & ATTRIBUTE_TYPE;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}

/// What a message of a network interface says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkNews {
    pub(super) index: u32,
    pub(super) ethernet: bool,
    /// Switched on, and with a carrier.
    pub(super) up: bool,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: Option<u32>,
    /// The number of the VLAN that this interface is.
    pub(super) vlan: Option<u16>,
}

const LINK_FIXED_BYTES: usize = 16;

pub(super) fn link(content: &[u8]) -> Option<LinkNews> {
    const ARPHRD_ETHER: u16 = 1;
    const UP_AND_RUNNING: u32 = 1 | 0x40;
    // Other families (bridges) use the same messages for something else.
    if *content.first()? != 0 || content.len() < LINK_FIXED_BYTES {
        return None;
    }
    let mut news = LinkNews {
        ethernet: u16_at(content, 2)? == ARPHRD_ETHER,
        index: u32_at(content, 4)?,
        up: u32_at(content, 8)? & UP_AND_RUNNING == UP_AND_RUNNING,
        mac: None,
        mtu: None,
        vlan: None,
    };
    for (kind, value) in attributes(content, LINK_FIXED_BYTES) {
        match kind {
            1 => news.mac = value.try_into().ok(),
            4 => news.mtu = u32_at(value, 0),
            18 => news.vlan = vlan(value),
            _ => {}
        }
    }
    Some(news)
}

/// The number in the details of a VLAN device.
fn vlan(details: &[u8]) -> Option<u16> {
    let find = |wanted| move |&(kind, _): &(u16, &[u8])| kind == wanted;
    let (_, name) = attributes(details, 0).find(find(1))?;
    let (_, data) = attributes(details, 0).find(find(2))?;
    let (_, number) = attributes(data, 0).find(find(1))?;
    name.starts_with(b"vlan\0").then(|| u16_at(number, 0))?
}

/// What a message of a neighbour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighbourNews {
    pub(super) card: u32,
    pub(super) state: u16,
    pub(super) address: IpAddr,
    pub(super) mac: Option<[u8; 6]>,
}

const NEIGHBOUR_FIXED_BYTES: usize = 12;

pub(super) fn neighbour(content: &[u8]) -> Option<NeighbourNews> {
    let (card, state) = (u32_at(content, 4)?, u16_at(content, 8)?);
    let (mut found, mut mac) = (None, None);
    for (kind, value) in attributes(content, NEIGHBOUR_FIXED_BYTES) {
        match kind {
            1 => found = address(value),
            2 => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(NeighbourNews {
        card,
        state,
        address: found?,
        mac,
    })
}

/// What the answer to a question for a route says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteNews {
    pub(super) card: Option<u32>,
    /// To one other host, by nothing but a card: no tunnel, no way that is down.
    pub(super) plain: bool,
    /// To this machine itself.
    pub(super) local: bool,
    pub(super) gateway: Option<IpAddr>,
    pub(super) mtu: Option<u32>,
    pub(super) hops: Option<u8>,
}

const ROUTE_FIXED_BYTES: usize = 12;

pub(super) fn route(content: &[u8]) -> Option<RouteNews> {
    const UNICAST: u8 = 1;
    const LOCAL: u8 = 2;
    const DEAD_OR_NO_CARRIER: u32 = 1 | 16;
    let mut news = RouteNews {
        card: None,
        plain: *content.get(7)? == UNICAST && u32_at(content, 8)? & DEAD_OR_NO_CARRIER == 0,
        local: *content.get(7)? == LOCAL,
        gateway: None,
        mtu: None,
        hops: None,
    };
    for (kind, value) in attributes(content, ROUTE_FIXED_BYTES) {
        match kind {
            4 => news.card = u32_at(value, 0),
            5 => news.gateway = address(value),
            8 => metrics(value, &mut news),
            // A gateway of the other IP version: its family stands before it.
            18 => news.gateway = value.get(2..).and_then(address),
            // Several ways, or one into a tunnel.
            9 | 21 | 22 => news.plain = false,
            _ => {}
        }
    }
    Some(news)
}

fn metrics(value: &[u8], news: &mut RouteNews) {
    for (kind, value) in attributes(value, 0) {
        let number = u32_at(value, 0).filter(|number| *number > 0);
        match kind {
            2 => news.mtu = number,
            10 => news.hops = number.and_then(|hops| u8::try_from(hops).ok()),
            _ => {}
        }
    }
}

const ADDRESS_FIXED_BYTES: usize = 8;

/// Which address of this machine a message is about.
pub(super) fn own_address(content: &[u8]) -> Option<IpAddr> {
    // Between two ends of a line the first is the other's.
    let find = |wanted| attributes(content, ADDRESS_FIXED_BYTES).find(|(kind, _)| *kind == wanted);
    let (_, found) = find(2).or_else(|| find(1))?;
    address(found)
}

/// A request under construction.
struct Request {
    bytes: [u8; 128],
    length: usize,
}

impl Request {
    fn new(kind: u16, sequence: u32, fixed: &[u8]) -> Request {
        let mut request = Request {
            bytes: [0; 128],
            length: HEADER_BYTES,
        };
        request.bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        request.bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
        request.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        request.put(fixed);
        request
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Values here are 4 or 16 bytes long, so there is no padding.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = if value.len() == 4 { 8_u16 } else { 20 };
        self.put(&length.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
    }

    fn ip(&mut self, kind: u16, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.attribute(kind, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(kind, &ip.octets()),
        }
    }

    fn finished(&mut self) -> &[u8] {
        let length = u32::try_from(self.length).unwrap_or(0);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        &self.bytes[..self.length]
    }
}

fn family(ip: IpAddr) -> (u8, u8) {
    match ip {
        IpAddr::V4(_) => (FAMILY_V4, 32),
        IpAddr::V6(_) => (FAMILY_V6, 128),
    }
}

/// A socket to the kernel, with room for what it says.
#[derive(Debug)]
pub(super) struct Socket {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

/// What was heard on the socket for news.
pub(super) enum Heard<'a> {
    /// Nothing more, now.
    Nothing,
    /// News, as a datagram.
    Datagram(&'a [u8]),
    /// Some were lost: there were more than the socket holds.
    Overrun,
}

impl Socket {
    /// One to ask questions.
    pub(super) fn for_questions() -> io::Result<Socket> {
        Self::open(0)
    }

    /// One that hears all news about links, addresses, routes, rules and neighbours.
    pub(super) fn for_news() -> io::Result<Socket> {
        Self::open(GROUPS)
    }

    fn open(groups: u32) -> io::Result<Socket> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            // The routing family has number 0.
            None,
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Socket {
            socket,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            sequence: 0,
        })
    }

    /// Says what the kernel has told since, without waiting.
    pub(super) fn hear(&mut self) -> io::Result<Heard<'_>> {
        loop {
            return match receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(Some(length)) => Ok(Heard::Datagram(&self.buffer[..length])),
                Ok(None) | Err(Errno::NOBUFS) => Ok(Heard::Overrun),
                Err(Errno::AGAIN) => Ok(Heard::Nothing),
                Err(Errno::INTR) => continue,
                // From somebody else.
                Err(Errno::PERM) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }

    /// What a network interface is now.
    pub(super) fn ask_link(&mut self, index: u32) -> io::Result<LinkNews> {
        let mut fixed = [0; LINK_FIXED_BYTES];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        let request = Request::new(GET_LINK, self.next(), &fixed);
        let answer = self.ask(request, NEW_LINK)?;
        link(answer).ok_or_else(unreadable)
    }

    /// By which way a packet from `source` would leave; by `card` where an address means
    /// something on one card only.
    pub(super) fn ask_route(
        &mut self,
        card: u32,
        source: IpAddr,
        to: IpAddr,
    ) -> io::Result<RouteNews> {
        let (family, bits) = family(to);
        let mut fixed = [0; ROUTE_FIXED_BYTES];
        fixed[..3].copy_from_slice(&[family, bits, bits]);
        let mut request = Request::new(GET_ROUTE, self.next(), &fixed);
        request.ip(1, to);
        request.ip(2, source);
        if matches!(to, IpAddr::V6(to) if to.is_unicast_link_local()) {
            request.attribute(4, &card.to_ne_bytes());
        }
        let answer = self.ask(request, NEW_ROUTE)?;
        route(answer).ok_or_else(unreadable)
    }

    /// What is known about a neighbour on a card.
    pub(super) fn ask_neighbour(&mut self, card: u32, of: IpAddr) -> io::Result<NeighbourNews> {
        let mut fixed = [0; NEIGHBOUR_FIXED_BYTES];
        fixed[0] = family(of).0;
        fixed[4..8].copy_from_slice(&card.to_ne_bytes());
        let mut request = Request::new(GET_NEIGHBOUR, self.next(), &fixed);
        request.ip(1, of);
        let answer = self.ask(request, NEW_NEIGHBOUR)?;
        neighbour(answer).ok_or_else(unreadable)
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// The kernel answers before the sending returns: nothing is waited for.
    fn ask(&mut self, mut request: Request, wanted: u16) -> io::Result<&[u8]> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(
            &self.socket,
            request.finished(),
            SendFlags::empty(),
            &kernel,
        )?;
        let (from, until) = loop {
            let length = match receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(Some(length)) => length,
                Ok(None) => return Err(unreadable()),
                Err(Errno::INTR | Errno::PERM) => continue,
                Err(error) => return Err(error.into()),
            };
            let datagram = &self.buffer[..length];
            // What is left of an earlier question is passed over.
            let Some(answer) = messages(datagram).find(|one| one.sequence == self.sequence) else {
                continue;
            };
            if answer.kind == MESSAGE_ERROR {
                let code = u32_at(answer.content, 0).ok_or_else(unreadable)?;
                return Err(io::Error::from_raw_os_error(
                    code.cast_signed().wrapping_neg(),
                ));
            }
            if answer.kind != wanted {
                return Err(unreadable());
            }
            let from = answer.content.as_ptr().addr() - datagram.as_ptr().addr();
            break (from, from + answer.content.len());
        };
        Ok(&self.buffer[from..until])
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Length of a datagram of the kernel; `None` when it was longer than the room for it,
/// EPERM when it is not the kernel's.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (kept, length, from) = recvfrom(socket, &mut *buffer, flags)?;
    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
    if from.is_none_or(|from| from.pid() != 0) {
        return Err(Errno::PERM);
    }
    Ok((length == kept).then_some(kept))
}

fn unreadable() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's answer about links, routes or neighbours cannot be read",
    )
}

#[cfg(test)]
mod tests;
