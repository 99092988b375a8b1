//! Safe wrappers for the few system calls that `rustix` does not offer.
//!
//! Independent of links: sockets are descriptors, interfaces are names. Batched sending and receiving
//! are in `udp/send.rs` and `udp/receive.rs`, next to the buffers that their pointers refer to.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{SockaddrStorage, getsockopt};

/// The size of a C type as a `socklen_t`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "C structures are far shorter than 4 GiB"
)]
pub const fn socklen_of<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

/// One address of a network interface.
#[derive(Clone, Debug)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub name: String,
    /// An address of the interface.
    pub ip: IpAddr,
    /// Length of the prefix of its subnet in bits; that of a single address if it has no subnet.
    pub prefix_bits: u8,
    /// The interface's index for an IPv6 link-local address, otherwise 0.
    pub scope_id: u32,
    /// The interface is up.
    pub up: bool,
    /// It can carry packets now: it is up and, where that matters, has a carrier.
    pub running: bool,
    /// It is the loopback interface.
    pub loopback: bool,
}

/// Lists the addresses of all interfaces in the caller's network namespace.
///
/// # Errors
/// The error that the kernel returns.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let found = getifaddrs()?.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| (v4.ip().into(), 0));
        let v6 = || Some(address.as_sockaddr_in6()?).map(|v6| (v6.ip().into(), v6.scope_id()));
        let (ip, scope_id) = v4.or_else(v6)?;
        Some(InterfaceAddress {
            name: one.interface_name,
            ip,
            prefix_bits: prefix_bits(one.netmask, ip),
            scope_id,
            up: one.flags.contains(InterfaceFlags::IFF_UP),
            running: (one.flags).contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            loopback: one.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        })
    });
    Ok(found.collect())
}

/// Number of leading ones of a netmask; all bits of the address without one.
fn prefix_bits(netmask: Option<SockaddrStorage>, ip: IpAddr) -> u8 {
    let v4 = || {
        Some(
            netmask
                .as_ref()?
                .as_sockaddr_in()?
                .ip()
                .to_bits()
                .leading_ones(),
        )
    };
    let v6 = || {
        Some(
            netmask
                .as_ref()?
                .as_sockaddr_in6()?
                .ip()
                .to_bits()
                .leading_ones(),
        )
    };
    let all = if ip.is_ipv4() { 32 } else { 128 };
    let bits = v4().or_else(v6).unwrap_or(all);
    u8::try_from(bits).unwrap_or(u8::MAX)
}

/// A copy of a descriptor whose number the parent process has passed on in a variable.
///
/// # Errors
/// The error that the kernel returns: no such descriptor is open.
pub fn inherited_descriptor(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes any number; it fails if no such descriptor is open.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// The interface's hardware type (`ARPHRD_...`), and its hardware address if that has six bytes.
///
/// # Errors
/// The error that the kernel returns; the interface does not exist.
pub fn interface_hardware(name: &str) -> io::Result<(u16, [u8; 6])> {
    let found = getifaddrs()?.find_map(|one| {
        let link = *one.address?.as_link_addr()?;
        (one.interface_name == name).then_some((link.hatype(), link.addr().unwrap_or_default()))
    });
    found.ok_or_else(|| rustix::io::Errno::NODEV.into())
}

/// MTU of the named interface in bytes.
///
/// # Errors
/// The error that the kernel returns, or the name is too long.
pub fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    // SAFETY: `ifreq` is plain C data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    // SAFETY: SIOCGIFMTU reads the name, which is NUL-terminated since it is shorter than its
    // zeroed field, and writes inside `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel filled the `mtu` member; any bit pattern is a
    // valid integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Types for which every bit pattern is a valid value.
///
/// # Safety
/// The implementing type must have this property.
pub unsafe trait Integer: Default {}
// SAFETY: every bit pattern is a valid integer.
unsafe impl Integer for u64 {}
// SAFETY: as above.
unsafe impl Integer for u32 {}
// SAFETY: as above.
unsafe impl Integer for libc::c_int {}

/// Reads a `SOL_SOCKET` option of the size of `T`.
///
/// # Errors
/// The error that the kernel returns; [`io::ErrorKind::InvalidData`] if the option has another size.
pub fn socket_option<T: Integer>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = socklen_of::<T>();
    // SAFETY: pointer and length describe `value`, which lives during the call; it is an
    // `Integer`, so whatever the kernel writes is valid.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match result {
        0 if length == socklen_of::<T>() => Ok(value),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets a socket option to a plain C value.
///
/// # Errors
/// The error that the kernel returns.
pub fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel only reads; if it contains a
    // pointer (a filter), the kernel checks that memory itself.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            socklen_of::<T>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that a socket has sent and no interface has taken yet, including the kernel's overhead;
/// `None` if the kernel does not report it.
pub fn queued_bytes(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one `int` through the pointer, which is valid during the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then_some(bytes)
}

/// Makes a UDP port that the kernel chose permanent, as if it had been requested by number.
/// Otherwise the holder of the socket could release the port (by connecting to AF_UNSPEC) while
/// it is open, so holding the socket would not prove ownership of the port.
///
/// # Errors
/// `AddrInUse`: another socket has taken the port meanwhile, and this one is unbound.
pub fn pin_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    let address = std::net::SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    rustix::net::connect_unspec(socket)?;
    let now = std::net::SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    if now.port() == 0 {
        rustix::net::bind(socket, &address)?;
    }
    Ok(())
}

/// Credentials of the process at the other end of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process id; 0 if it is in another pid namespace.
    pub pid: i32,
    /// Its effective user id.
    pub uid: u32,
    /// Its effective group id.
    pub gid: u32,
}

/// Credentials of the process at the other end of a connected unix socket. (`rustix` cannot
/// report a process that is not visible.)
///
/// # Errors
/// The error that the kernel returns.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let found = getsockopt(&socket, PeerCredentials)?;
    Ok(Credentials {
        pid: found.pid(),
        uid: found.uid(),
        gid: found.gid(),
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
        let wanted = IpAddr::from([127, 0, 0, 1]);
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
        assert!(interface_mtu(socket.as_fd(), "nosuch0").is_err());
        assert!(interface_mtu(socket.as_fd(), &"x".repeat(64)).is_err());
    }
}
