//! Raw frames out by an AF_PACKET socket: the headers are ours, the kernel only hands
//! frame after frame to the interface.
//!
//! The socket is of protocol 0, so it receives nothing. With the kernel's queueing
//! bypassed a frame goes to the interface's driver within the call; without, it passes the
//! interface's queueing discipline and the programs at its egress.
//!
//! Headers and payload are copied into one buffer and sent by the plainest call: two pieces
//! by `sendmsg` cost 0.2 us more at 64 bytes and no less at 8900.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with, sockopt};

use super::InterfaceId;
use super::headers::{MAX_HEADER_BYTES, Template};
use super::neighbours::Route;
use dipole_link::sys::{set_option, socklen_of};

/// Room for any headers before any payload; what is never used takes no memory.
const BUFFER_BYTES: usize = MAX_HEADER_BYTES + 65_535;

/// The outcome of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel has it.
    Taken,
    /// There is no room now: offer it again.
    Full,
    /// It cannot be sent by this interface: that is down or gone, the frame is too long for it, or
    /// the addresses are of two IP versions. The UDP socket may still reach the destination.
    NotThisWay,
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct RawFrame<'a> {
    /// Its route.
    pub route: Route,
    /// The address and port that it comes from.
    pub from: SocketAddr,
    /// Where it goes.
    pub to: SocketAddr,
    /// The UDP payload, in two parts of which either may be empty.
    pub payload: [&'a [u8]; 2],
}

/// The headers made for the frame before; most frames go where that went.
#[derive(Debug, Default)]
pub(super) struct Templates {
    last: Option<(u64, SocketAddr, SocketAddr, Template)>,
    identification: u16,
}

impl Templates {
    /// Headers for such a frame, to be [finished](Template::finish) with this identification;
    /// `None` when the addresses are of two IP versions.
    #[inline]
    pub(super) fn of(
        &mut self,
        route: &Route,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<(&Template, u16)> {
        let same = |(serial, last_from, last_to, _): &(u64, SocketAddr, SocketAddr, Template)| {
            *serial == route.serial && *last_to == to && *last_from == from
        };
        if !self.last.as_ref().is_some_and(same) {
            let template = Template::new(&route.ethernet(), from, to, route.hops)?;
            self.last = Some((route.serial, from, to, template));
        }
        let (_, _, _, template) = self.last.as_ref()?;
        self.identification = self.identification.wrapping_add(1);
        Some((template, self.identification))
    }
}

/// Writes a whole frame to the start of `room`, which has room for any headers and the
/// payload; returns its length.
#[inline]
pub(super) fn write_frame(
    template: &Template,
    identification: u16,
    payload: [&[u8]; 2],
    room: &mut [u8],
) -> usize {
    let start = template.bytes();
    let middle = start + payload[0].len();
    let end = middle + payload[1].len();
    room[start..middle].copy_from_slice(payload[0]);
    room[middle..end].copy_from_slice(payload[1]);
    let headers = template.finish(identification, &room[start..end]);
    room[..start].copy_from_slice(&headers[..start]);
    end
}

/// Sends raw frames by one interface.
pub struct RawSender {
    socket: OwnedFd,
    templates: Templates,
    buffer: Box<[u8]>,
}

impl RawSender {
    /// Opens a socket on an interface; with `bypass`, past the kernel's queueing.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or when there is no such interface.
    pub fn open(interface: &InterfaceId, bypass: bool) -> io::Result<RawSender> {
        let socket = packet_socket(interface)?;
        if bypass {
            set_option(
                socket.as_fd(),
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                1_i32,
            )?;
        }
        Ok(RawSender::from_socket(socket))
    }

    /// Sends by a socket that a broker has opened and bound to the interface.
    #[must_use]
    pub fn from_socket(socket: OwnedFd) -> RawSender {
        RawSender {
            socket,
            templates: Templates::default(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
        }
    }

    /// Sends one frame; the payload is copied before this returns. Never waits.
    ///
    /// # Errors
    /// When the socket is broken.
    #[inline]
    pub fn send(
        &mut self,
        route: &Route,
        from: SocketAddr,
        to: SocketAddr,
        payload: [&[u8]; 2],
    ) -> io::Result<Sent> {
        if payload[0].len() + payload[1].len() > route.longest_payload() {
            return Ok(Sent::NotThisWay);
        }
        let Some((template, identification)) = self.templates.of(route, from, to) else {
            return Ok(Sent::NotThisWay);
        };
        let end = write_frame(template, identification, payload, &mut self.buffer);
        loop {
            match send(&self.socket, &self.buffer[..end], SendFlags::DONTWAIT) {
                Ok(_) => return Ok(Sent::Taken),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(Sent::Full),
                Err(Errno::MSGSIZE | Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    return Ok(Sent::NotThisWay);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for RawSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for RawSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSender")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// A socket that can send by this interface but receive nothing, and its cookie, by which a
/// program at the interface's egress recognises its frames. It is bound to the interface,
/// passes the kernel's queueing, and has a filter that lets nothing in and can't be
/// taken off. `docs/design/bpf.md` lists what its holder can do nevertheless.
///
/// # Errors
/// Without CAP_NET_RAW, or when there is no such interface.
pub fn guarded_socket(interface: &InterfaceId) -> io::Result<(OwnedFd, u64)> {
    let socket = packet_socket(interface)?;
    let fd = socket.as_fd();
    let mut nothing = libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K: so many bytes are kept
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    // The kernel follows the pointer in `program` to `nothing`, which lives here still.
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1_i32)?;
    let cookie = sockopt::socket_cookie(fd)?;
    Ok((socket, cookie))
}

/// A packet socket that receives nothing, bound to an interface.
pub(super) fn packet_socket(interface: &InterfaceId) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|error| {
            interface.cannot(
                "open a raw socket (it takes CAP_NET_RAW) for",
                &error.into(),
            )
        })?;
    bind_to(socket.as_fd(), interface.index)
        .map_err(|cause| interface.cannot("bind a raw socket to", &cause))?;
    Ok(socket)
}

/// Binds a packet socket to an interface, for frames of no Ethernet type: none come.
fn bind_to(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    // SAFETY: plain integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::c_ushort::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_ifindex =
        i32::try_from(interface).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: pointer and length describe `address`, which the kernel reads.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            socklen_of::<libc::sockaddr_ll>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
