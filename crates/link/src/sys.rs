//! Safe wrappers over the few system calls that `rustix` does not offer.
//!
//! Knows no links: sockets are descriptors, interfaces are names. Batched
//! sending and receiving live in `udp/send.rs` and `udp/receive.rs`, since
//! their pointers belong to buffers kept there.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// The length of a C type as system calls want it.
#[allow(
    clippy::cast_possible_truncation,
    reason = "C structures are far shorter than 4 GiB"
)]
pub const fn socklen_of<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

/// One address of one network interface.
#[derive(Clone, Debug)]
pub struct InterfaceAddress {
    /// The interface's name.
    pub name: Vec<u8>,
    /// The address.
    pub ip: IpAddr,
    /// The interface's number where the address is an IPv6 link-local one, else 0.
    pub scope_id: u32,
    /// Switched on.
    pub up: bool,
    /// The loopback interface.
    pub loopback: bool,
}

/// Lists the addresses of all interfaces in the caller's network namespace.
///
/// # Errors
/// What the kernel says.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut head: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `head` is a valid place for the one pointer that the call writes.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list that getifaddrs built; it stays
        // allocated and unchanged until freeifaddrs below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: `ifa_addr` is null or points to a socket address that is as
        // long as its family says, aligned by the C library.
        let Some((ip, scope_id)) = (unsafe { parse_sockaddr(entry.ifa_addr) }) else {
            continue;
        };
        // SAFETY: `ifa_name` is a NUL-terminated string owned by the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let has = |flag: libc::c_int| entry.ifa_flags & flag.cast_unsigned() != 0;
        found.push(InterfaceAddress {
            name: name.to_bytes().to_vec(),
            ip,
            scope_id,
            up: has(libc::IFF_UP),
            loopback: has(libc::IFF_LOOPBACK),
        });
    }
    // SAFETY: `head` came from getifaddrs, is freed once, and nothing borrowed
    // from the list outlives the loop.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// The address that a C socket address holds, with the scope of an IPv6 one.
///
/// # Safety
/// `address` is null or points to a readable socket address of the size that
/// its family has, aligned for it.
unsafe fn parse_sockaddr(address: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    let address = NonNull::new(address.cast_mut())?;
    // SAFETY: not null, hence readable by the caller's promise; every socket
    // address starts with its family.
    match libc::c_int::from(unsafe { address.as_ref().sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a whole `sockaddr_in`.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().as_ref() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some((IpAddr::V4(ip), 0))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a whole `sockaddr_in6`.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().as_ref() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some((IpAddr::V6(ip), v6.sin6_scope_id))
        }
        _ => None,
    }
}

/// The MTU in bytes of the named interface.
///
/// # Errors
/// What the kernel says, or the name is longer than any.
pub fn interface_mtu(socket: BorrowedFd<'_>, name: &[u8]) -> io::Result<usize> {
    // SAFETY: `ifreq` is plain C data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = libc::c_char::from_ne_bytes([*byte]);
    }
    // SAFETY: SIOCGIFMTU reads the name, which is NUL-terminated since it is
    // shorter than its zeroed field, and writes inside `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel filled the `mtu` member; any
    // bit pattern is a valid integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Switches a UDP socket option that is an integer.
///
/// # Errors
/// What the kernel says.
pub fn set_udp_option(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives during
    // the call; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            option,
            (&raw const value).cast(),
            socklen_of::<libc::c_int>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Bytes that a socket has sent and that no card has taken yet, with what the kernel needs
/// for them; `None` if it does not say.
pub fn queued_bytes(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one `int` where the pointer leads, which lives during the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then_some(bytes)
}

/// Ties a port that the kernel chose to its bound UDP socket, as one that was asked for by
/// its number is. Otherwise whoever holds the socket can give the port up (by connecting to
/// nobody) while it is open, and it proves nothing to others.
///
/// # Errors
/// `AddrInUse`: another has got the port meanwhile, and the socket has none any more.
pub fn pin_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let address = std::net::SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    rustix::net::connect_unspec(socket)?;
    let now = std::net::SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    if now.port() == 0 {
        rustix::net::bind(socket, &address)?;
    }
    Ok(())
}

/// Who is at the other end of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process; 0 if it cannot be seen from here (another namespace).
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// The process at the other end of a connected unix socket, as the kernel knows it.
/// (`rustix` cannot report one that is not visible.)
///
/// # Errors
/// What the kernel says.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = socklen_of::<libc::ucred>();
    // SAFETY: pointer and length describe `found`, plain integers, which the kernel fills.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials {
        pid: found.pid,
        uid: found.uid,
        gid: found.gid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_loopback_interface_is_found_with_its_mtu() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let all = interface_addresses().unwrap();
        let wanted = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let loopback = all.iter().find(|address| address.ip == wanted).unwrap();
        assert!(loopback.up && loopback.loopback);
        assert!(interface_mtu(socket.as_fd(), &loopback.name).unwrap() >= 1280);
    }

    #[test]
    fn the_other_end_of_a_socket_pair_is_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let found = peer_credentials(one.as_fd()).unwrap();
        assert_eq!(u32::try_from(found.pid), Ok(std::process::id()));
    }

    #[test]
    fn an_unknown_or_overlong_interface_name_is_an_error() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(interface_mtu(socket.as_fd(), b"nosuch0").is_err());
        assert!(interface_mtu(socket.as_fd(), &[b'x'; 64]).is_err());
    }
}
