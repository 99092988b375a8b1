//! Opens sockets and computes frame lengths.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{PortRange, UdpOptions};
use crate::{Class, sys};

/// Longest frame: a jumbo packet of 9000 bytes over IPv4. Longer ones bring no gain, and buffers
/// are sized for this.
pub const MAX_FRAME_BYTES: usize = 9000 - 28;

/// MTU assumed if no interface owns the address (it is local through a route).
const ASSUMED_MTU_BYTES: usize = 1500;

/// Attempts with another port when a port was lost before it was pinned.
const PORT_ATTEMPTS: u32 = 8;

/// Why a UDP link could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Peers cannot send to the address.
    #[error(
        "cannot open the udp link on {ip}: it is not a unicast address that peers can reply to; \
         use an address of this machine"
    )]
    NotUnicast {
        /// Local address of the link.
        ip: IpAddr,
    },
    /// The socket cannot be created.
    #[error(
        "cannot open the udp link on {ip}: creating a socket failed: {source}; {}",
        socket_advice(.source)
    )]
    Socket {
        /// Local address of the link.
        ip: IpAddr,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// The address and port are not available.
    #[error(
        "cannot open the udp link: binding its {class:?} socket to {address} failed: {source}; {}",
        bind_advice(.source)
    )]
    Bind {
        /// Requested address; port 0 means any.
        address: SocketAddr,
        /// Class of the socket.
        class: Class,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// All permitted ports are in use.
    #[error(
        "cannot open the udp link on {ip}: none of the ports {ports} is free, and a process needs \
         two; end processes that use them, or configure a wider range"
    )]
    NoPort {
        /// Local address of the link.
        ip: IpAddr,
        /// The permitted ports.
        ports: PortRange,
    },
    /// A required socket option was refused.
    #[error(
        "cannot open the udp link on {ip}: the kernel refuses {option}: {source}; \
         Linux 5.4 or newer is needed"
    )]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Address of the socket.
        ip: IpAddr,
        /// Error returned by the kernel.
        source: io::Error,
    },
    /// The interfaces of this machine cannot be listed.
    #[error(
        "cannot open the udp link on {ip}: listing the network interfaces failed: {source}; \
         check that netlink sockets are allowed"
    )]
    Interfaces {
        /// Local address of the link.
        ip: IpAddr,
        /// Error returned by the kernel.
        source: io::Error,
    },
}

fn socket_advice(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files",
        Some(libc::EAFNOSUPPORT) => "this kernel does not support that IP version",
        _ => "check the limits of this process",
    }
}

fn bind_advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => "another process uses that port; choose another or port 0",
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has that address; see `ip addr`"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
        }
        _ => "check the address",
    }
}

/// A bound socket and its address.
pub(super) struct BoundSocket {
    pub(super) socket: OwnedFd,
    pub(super) local: SocketAddr,
}

/// Opens and binds one of the two sockets.
pub(super) fn open(
    ip: IpAddr,
    scope_id: u32,
    class: Class,
    options: &UdpOptions,
) -> Result<BoundSocket, OpenError> {
    let socket = plain_socket(ip).map_err(|source| OpenError::Socket { ip, source })?;
    forbid_fragments(socket.as_fd(), ip)?;
    raise_buffers(socket.as_fd(), options.buffer_bytes);
    let port = match class {
        Class::Small => options.small_port,
        Class::Bulk => options.bulk_port,
    };
    let address = with_port(ip, port, scope_id);
    let failed = |source| OpenError::Bind {
        address,
        class,
        source,
    };
    match options.ports.filter(|_| port == 0) {
        None => bind_later(socket.as_fd(), address, options).map_err(failed)?,
        Some(ports) => {
            let is_taken = |cause: &io::Error| cause.kind() == io::ErrorKind::AddrInUse;
            let mut tries = ports
                .from(rand::random())
                .map(|port| bind_later(socket.as_fd(), with_port(ip, port, scope_id), options))
                .skip_while(|bound| bound.as_ref().is_err_and(is_taken));
            tries
                .next()
                .ok_or(OpenError::NoPort { ip, ports })?
                .map_err(failed)?;
        }
    }
    let local = rustix::net::getsockname(&socket)
        .and_then(SocketAddr::try_from)
        .map_err(|error| failed(error.into()))?;
    Ok(BoundSocket { socket, local })
}

/// Like [`bind`], also to an address that is missing now, if the options permit that.
fn bind_later(socket: BorrowedFd<'_>, address: SocketAddr, options: &UdpOptions) -> io::Result<()> {
    match bind(socket, address) {
        Err(cause) if options.may_be_absent && cause.kind() == io::ErrorKind::AddrNotAvailable => {
            let (level, option) = match address.ip() {
                IpAddr::V4(_) => (libc::SOL_IP, libc::IP_FREEBIND),
                IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_FREEBIND),
            };
            sys::set_option(socket, level, option, 1_i32)?;
            bind(socket, address)?;
            // Otherwise frames would leave through other interfaces from an address that is not ours.
            sys::set_option(socket, level, option, 0_i32)
        }
        done => done,
    }
}

/// Binds to a port that stays the socket's until it is closed; the ring broker requires that.
fn bind(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        rustix::net::bind(socket, &address)?;
        // A link-local address is bound to its device, which pinning would undo.
        if address.port() != 0
            || matches!(address.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local())
        {
            return Ok(());
        }
        match sys::pin_port(socket) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse && attempts > 0 => attempts -= 1,
            done => return done,
        }
    }
}

/// A socket with a port of its own at the local address, connected to a peer.
pub(super) fn connected(local: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = plain_socket(local.ip())?;
    forbid_fragments(socket.as_fd(), local.ip()).map_err(io::Error::other)?;
    let mut address = local;
    address.set_port(0);
    rustix::net::bind(&socket, &address)?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket)
}

/// Finds the interface that owns an address: its MTU, and the scope id of a link-local IPv6
/// address.
pub(super) fn interface(ip: IpAddr) -> Result<(usize, u32), OpenError> {
    let socket = plain_socket(ip).map_err(|source| OpenError::Socket { ip, source })?;
    let all = sys::interface_addresses().map_err(|source| OpenError::Interfaces { ip, source })?;
    // Any address of 127.0.0.0/8 is valid, although the interface lists only one.
    let owner = all.iter().find(|address| address.ip == ip).or_else(|| {
        all.iter()
            .find(|address| address.loopback && ip.is_loopback() && address.ip.is_loopback())
    });
    let mtu =
        |address: &sys::InterfaceAddress| sys::interface_mtu(socket.as_fd(), &address.name).ok();
    Ok(match owner {
        Some(address) => (mtu(address).unwrap_or(ASSUMED_MTU_BYTES), address.scope_id),
        None => {
            let usable = all.iter().filter(|address| address.up && !address.loopback);
            (usable.filter_map(mtu).min().unwrap_or(ASSUMED_MTU_BYTES), 0)
        }
    })
}

/// The longest frame that fits into a packet of `mtu_bytes`.
pub(super) fn frame_bytes(mtu_bytes: usize, ip: IpAddr) -> usize {
    let headers = if ip.is_ipv4() { 20 + 8 } else { 40 + 8 };
    mtu_bytes.saturating_sub(headers).clamp(1, MAX_FRAME_BYTES)
}

/// Bytes of the longest frame of a link opened on a local address.
///
/// # Errors
/// The interfaces cannot be listed.
pub fn longest_frame_bytes(ip: IpAddr) -> Result<usize, OpenError> {
    Ok(frame_bytes(interface(ip)?.0, ip))
}

fn plain_socket(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if ip.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// Forbids fragmentation: a packet that is too long for the interface is refused here
/// (`EMSGSIZE`), and no router may fragment it. `PROBE` ignores path MTUs reported by ICMP, which
/// anyone can forge.
fn forbid_fragments(socket: BorrowedFd<'_>, ip: IpAddr) -> Result<(), OpenError> {
    let (option, result) = if ip.is_ipv4() {
        let result = sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::PROBE);
        ("IP_MTU_DISCOVER", result)
    } else {
        let result = sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::PROBE);
        ("IPV6_MTU_DISCOVER", result)
    };
    result.map_err(|error| OpenError::Option {
        option,
        ip,
        source: error.into(),
    })
}

/// Requests long queues: beyond the system's limit if privileged, otherwise up to it. The caller
/// reads back the granted size, so a refusal is not an error.
fn raise_buffers(socket: BorrowedFd<'_>, bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
}

fn with_port(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, scope_id).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_fit_the_packet_of_their_ip_version_and_stop_at_jumbo() {
        let v4 = IpAddr::from([127, 0, 0, 1]);
        let v6 = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
        assert_eq!(frame_bytes(1500, v4), 1472);
        assert_eq!(frame_bytes(1500, v6), 1452);
        assert_eq!(frame_bytes(9000, v6), 8952);
        assert_eq!(frame_bytes(65536, v4), MAX_FRAME_BYTES);
        assert_eq!(frame_bytes(0, v4), 1);
    }

    #[test]
    fn every_open_error_names_the_address_and_a_remedy() {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let address = SocketAddr::new(ip, 9);
        let os = io::Error::from_raw_os_error;
        for (error, advice) in [
            (OpenError::NotUnicast { ip }, "use an address"),
            (
                OpenError::Socket {
                    ip,
                    source: os(libc::EMFILE),
                },
                "open files",
            ),
            (
                OpenError::Bind {
                    address,
                    class: Class::Small,
                    source: os(libc::EADDRINUSE),
                },
                "choose another",
            ),
            (
                OpenError::Bind {
                    address,
                    class: Class::Bulk,
                    source: os(libc::EADDRNOTAVAIL),
                },
                "ip addr",
            ),
            (
                OpenError::Option {
                    option: "IP_MTU_DISCOVER",
                    ip,
                    source: os(libc::EINVAL),
                },
                "Linux",
            ),
            (
                OpenError::NoPort {
                    ip,
                    ports: PortRange::new(7412, 7413).unwrap(),
                },
                "7412-7413 is free",
            ),
            (
                OpenError::Interfaces {
                    ip,
                    source: os(libc::EPERM),
                },
                "netlink",
            ),
        ] {
            let text = error.to_string();
            assert!(text.contains("10.0.0.1") && text.contains(advice), "{text}");
        }
    }
}
