//! The broker's checks of a client: its user, and that the passed socket proves ownership of an
//! address and a port for as long as it is open.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};

use dipole_link::sys::{peer_credentials, socket_option};

/// The process at the other end of a connection, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The process; 0 if it cannot be seen from here.
    pub pid: i32,
    /// User id of the process.
    pub uid: u32,
    /// Its groups, all of them.
    pub groups: Vec<u32>,
}

impl Caller {
    /// The process at the other end of a connected unix socket.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Caller> {
        let who = peer_credentials(socket)?;
        let mut groups = peer_groups(socket)?;
        groups.push(who.gid);
        Ok(Caller {
            pid: who.pid,
            uid: who.uid,
            groups,
        })
    }
}

/// Why a socket does not prove ownership.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// It is not a UDP socket.
    #[error("it is not a UDP socket")]
    NotUdp,
    /// It belongs to another network namespace, whose addresses are unrelated.
    #[error("it belongs to another network namespace than the broker")]
    OtherNamespace,
    /// It is not bound to a port, or bound to all addresses.
    #[error("it is not bound to one address and a port")]
    Unbound,
    /// Its address belongs to one link only (fe80::).
    #[error("its address is link-local; bind another address of the interface")]
    LinkLocal,
    /// It is connected to one peer.
    #[error("it is connected")]
    Connected,
    /// Its port can be shared: through SO_REUSEADDR, SO_REUSEPORT, or because it is bound to a device.
    #[error("its port can be shared: it has SO_REUSEADDR or SO_REUSEPORT, or is bound to a device")]
    Shared,
    /// The kernel chose its port, which can be released while the socket is open.
    #[error("its port can be released while it is open; bind it by number, not as port 0")]
    ReleasablePort,
    /// A socket option cannot be read.
    #[error("its options cannot be read: {0}")]
    System(io::Error),
}

impl From<Errno> for OwnershipError {
    fn from(error: Errno) -> OwnershipError {
        OwnershipError::System(error.into())
    }
}

/// Identifies a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace(u64);

impl Namespace {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel is older than 5.14.
    pub fn current() -> io::Result<Namespace> {
        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0));
        let socket: OwnedFd = match socket {
            Ok(socket) => socket.into(),
            // A namespace without loopback.
            Err(_) => {
                rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::UDP))?
            }
        };
        Ok(Namespace(namespace_cookie(socket.as_fd())?))
    }
}

/// The address and port that belong to the holder of a UDP socket alone, for as long as it is
/// open in any process. An unconnected socket is not disturbed.
///
/// # Errors
/// Why ownership is not proven.
pub fn check_ownership(
    socket: BorrowedFd<'_>,
    here: Namespace,
) -> Result<SocketAddr, OwnershipError> {
    let family = sockopt::socket_domain(socket).map_err(|_| OwnershipError::NotUdp)?;
    let is_udp = [AddressFamily::INET, AddressFamily::INET6].contains(&family)
        && sockopt::socket_type(socket)? == SocketType::DGRAM
        && sockopt::socket_protocol(socket)? == Some(ipproto::UDP);
    if !is_udp {
        return Err(OwnershipError::NotUdp);
    }
    if namespace_cookie(socket).map_err(OwnershipError::System)? != here.0 {
        return Err(OwnershipError::OtherNamespace);
    }
    match rustix::net::getpeername(socket) {
        Err(Errno::NOTCONN) => {}
        Ok(_) => return Err(OwnershipError::Connected),
        Err(error) => return Err(error.into()),
    }
    let address = recheck_ownership(socket)?;
    // Disconnecting releases a port that the kernel chose: better now than later, when another
    // process could get it. A port that was bound by number stays.
    rustix::net::connect_unspec(socket)?;
    match recheck_ownership(socket) {
        Ok(again) if again == address => Ok(address),
        Ok(_) | Err(OwnershipError::Unbound) => Err(OwnershipError::ReleasablePort),
        Err(error) => Err(error),
    }
}

/// Repeats the checks of [`check_ownership`] whose result the holder of the socket can change.
///
/// # Errors
/// Description of the change.
pub fn recheck_ownership(socket: BorrowedFd<'_>) -> Result<SocketAddr, OwnershipError> {
    let bound = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    let ip = bound.ip().to_canonical();
    if ip.is_unspecified() || bound.port() == 0 {
        return Err(OwnershipError::Unbound);
    }
    if matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return Err(OwnershipError::LinkLocal);
    }
    if sockopt::socket_reuseaddr(socket)?
        || sockopt::socket_reuseport(socket)?
        || bound_device(socket).map_err(OwnershipError::System)? != 0
    {
        return Err(OwnershipError::Shared);
    }
    Ok(SocketAddr::new(ip, bound.port()))
}

/// Identifies the network namespace of a socket.
fn namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    socket_option(socket, libc::SO_NETNS_COOKIE)
}

/// The device that a socket is bound to; 0 for none.
fn bound_device(socket: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    socket_option(socket, libc::SO_BINDTOIFINDEX)
}

/// The supplementary groups of the process at the other end of a connected unix socket.
fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let bytes = size_of_val(&groups[..]);
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: pointer and length describe all of `groups`, integers for which every bit
        // pattern is valid; it lives and is not moved during the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let found = usize::try_from(length).unwrap_or(0) / size_of::<u32>();
        if result == 0 {
            groups.truncate(found);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel returns the required size.
        if error.raw_os_error() != Some(libc::ERANGE) || found <= groups.len() {
            return Err(error);
        }
        groups.resize(found, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;

    fn judged(socket: impl AsFd) -> Result<SocketAddr, OwnershipError> {
        check_ownership(socket.as_fd(), Namespace::current().unwrap())
    }

    fn udp(address: &str) -> UdpSocket {
        UdpSocket::bind(address).unwrap()
    }

    #[test]
    fn a_pinned_port_is_owned_and_the_socket_keeps_working() {
        let socket = udp("127.0.0.1:0");
        let address = socket.local_addr().unwrap();
        dipole_link::sys::pin_port(socket.as_fd()).unwrap();
        assert_eq!(judged(&socket).unwrap(), address);
        assert_eq!(recheck_ownership(socket.as_fd()).unwrap(), address);
        udp("127.0.0.1:0").send_to(b"x", address).unwrap();
        assert_eq!(socket.recv_from(&mut [0; 8]).unwrap().0, 1);
    }

    #[test]
    fn an_ipv4_address_mapped_into_an_ipv6_socket_is_that_address() {
        let socket = udp("[::ffff:127.0.0.1]:0");
        dipole_link::sys::pin_port(socket.as_fd()).unwrap();
        assert!(judged(&socket).unwrap().ip().is_ipv4());
    }

    #[test]
    fn sockets_that_prove_nothing_give_different_errors() {
        assert!(matches!(
            judged(TcpListener::bind("127.0.0.1:0").unwrap()),
            Err(OwnershipError::NotUdp)
        ));
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(matches!(judged(one), Err(OwnershipError::NotUdp)));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(judged(file), Err(OwnershipError::NotUdp)));
        assert!(matches!(
            judged(udp("0.0.0.0:0")),
            Err(OwnershipError::Unbound)
        ));
        let none = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        assert!(matches!(judged(none), Err(OwnershipError::Unbound)));
        let connected = udp("127.0.0.1:0");
        connected.connect(connected.local_addr().unwrap()).unwrap();
        assert!(matches!(judged(connected), Err(OwnershipError::Connected)));
        let shared = udp("127.0.0.1:0");
        sockopt::set_socket_reuseaddr(&shared, true).unwrap();
        assert!(matches!(judged(shared), Err(OwnershipError::Shared)));
        // The kernel chose it, and takes it back as soon as its holder wants.
        assert!(matches!(
            judged(udp("127.0.0.1:0")),
            Err(OwnershipError::ReleasablePort)
        ));
    }

    /// Binds a socket to the loopback device.
    fn bind_to_device(socket: &UdpSocket) {
        let index: libc::c_int = 1;
        // SAFETY: pointer and length describe `index`, which lives during the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BINDTOIFINDEX,
                (&raw const index).cast(),
                libc::socklen_t::try_from(size_of_val(&index)).unwrap(),
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    #[test]
    fn a_port_that_another_socket_could_have_too_is_not_owned() {
        let shared = udp("127.0.0.1:0");
        dipole_link::sys::pin_port(shared.as_fd()).unwrap();
        assert!(judged(&shared).is_ok());
        sockopt::set_socket_reuseport(&shared, true).unwrap();
        assert!(matches!(judged(&shared), Err(OwnershipError::Shared)));

        let on_device = udp("127.0.0.1:0");
        dipole_link::sys::pin_port(on_device.as_fd()).unwrap();
        bind_to_device(&on_device);
        assert!(matches!(judged(&on_device), Err(OwnershipError::Shared)));

        let here = Namespace::current().unwrap();
        let elsewhere = Namespace(here.0 ^ 1);
        let pinned = udp("127.0.0.1:0");
        dipole_link::sys::pin_port(pinned.as_fd()).unwrap();
        assert!(check_ownership(pinned.as_fd(), here).is_ok());
        let found = check_ownership(pinned.as_fd(), elsewhere);
        assert!(matches!(found, Err(OwnershipError::OtherNamespace)));
    }

    #[test]
    fn the_other_end_is_known_with_all_its_groups() {
        let (one, _other) = UnixStream::pair().unwrap();
        let caller = Caller::of(one.as_fd()).unwrap();
        assert_eq!(u32::try_from(caller.pid), Ok(std::process::id()));
        assert_eq!(caller.uid, rustix::process::geteuid().as_raw());
        for group in rustix::process::getgroups().unwrap() {
            assert!(caller.groups.contains(&group.as_raw()));
        }
        assert!(caller.groups.contains(&rustix::process::getegid().as_raw()));
    }
}
