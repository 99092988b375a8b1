//! Sends raw frames through an AF_PACKET socket: the headers are ours, the kernel only passes
//! each frame to the interface.
//!
//! The socket has protocol 0, so it receives nothing. With the kernel's queueing bypassed a
//! frame goes to the interface's driver within the call; otherwise it passes the interface's
//! queueing discipline and egress programs.
//!
//! Headers and payload are copied into one buffer and sent with a plain `send`: two pieces with
//! `sendmsg` cost 0.2 us more at 64 bytes and are no faster at 8900.

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

/// Room for any headers and payload; unused pages take no memory.
const BUFFER_BYTES: usize = MAX_HEADER_BYTES + 65_535;

/// The outcome of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel has taken it.
    Taken,
    /// There is no room now: offer it again.
    Full,
    /// It cannot be sent through this interface: the interface is down or gone, the frame is too
    /// long, or the addresses have different IP versions. The UDP socket may still reach the
    /// destination.
    CannotSend,
}

/// The headers of the previous frame; most frames have the same addresses.
#[derive(Debug, Default)]
pub(super) struct Templates {
    last: Option<(u64, SocketAddr, SocketAddr, Template)>,
    identification: u16,
}

impl Templates {
    /// Headers for a frame, to be [finished](Template::finish) with the returned identification;
    /// `None` if the addresses have different IP versions.
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

/// Writes a whole frame to the start of `room`, which must be large enough; returns its length.
#[inline]
pub(super) fn write_frame(
    template: &Template,
    identification: u16,
    payload: &[u8],
    room: &mut [u8],
) -> usize {
    let start = template.bytes();
    let end = start + payload.len();
    room[start..end].copy_from_slice(payload);
    let headers = template.finish(identification, &room[start..end]);
    room[..start].copy_from_slice(&headers[..start]);
    end
}

/// Sends raw frames through one interface.
pub struct RawSender {
    socket: OwnedFd,
    templates: Templates,
    buffer: Box<[u8]>,
}

impl RawSender {
    /// Opens a socket on an interface; with `bypass`, it skips the kernel's queueing.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing, or the interface does not exist.
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

    /// Uses a socket that a broker has opened and bound to the interface.
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
    /// If the socket is broken.
    #[inline]
    pub fn send(
        &mut self,
        route: &Route,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
    ) -> io::Result<Sent> {
        if payload.len() > route.longest_payload() {
            return Ok(Sent::CannotSend);
        }
        let Some((template, identification)) = self.templates.of(route, from, to) else {
            return Ok(Sent::CannotSend);
        };
        let end = write_frame(template, identification, payload, &mut self.buffer);
        loop {
            match send(&self.socket, &self.buffer[..end], SendFlags::DONTWAIT) {
                Ok(_) => return Ok(Sent::Taken),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(Sent::Full),
                Err(Errno::MSGSIZE | Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    return Ok(Sent::CannotSend);
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

/// Opens a socket that can send through this interface but receive nothing. Returns it with its
/// cookie, by which the program at the interface's egress recognises its frames. It is bound to
/// the interface, uses the kernel's queueing, and has a locked filter that rejects everything.
/// `docs/design/bpf.md` lists what its holder can still do.
///
/// # Errors
/// CAP_NET_RAW is missing, or the interface does not exist.
pub fn guarded_socket(interface: &InterfaceId) -> io::Result<(OwnedFd, u64)> {
    let socket = packet_socket(interface)?;
    let fd = socket.as_fd();
    let mut nothing = libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K: number of bytes to keep
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    // The kernel follows the pointer in `program` to `nothing`, which is still alive here.
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

/// Binds a packet socket to an interface, for no Ethernet type, so that it receives nothing.
fn bind_to(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    // SAFETY: the fields are integers, for which zero is valid.
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
