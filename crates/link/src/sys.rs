//! Safe wrappers over the few system calls that `rustix` does not offer.
//!
//! Knows no links: sockets are descriptors, interfaces are names. Batched
//! sending and receiving live in `udp/send.rs` and `udp/receive.rs`, since
//! their pointers belong to buffers kept there.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

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
    pub name: String,
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
    let found = getifaddrs()?.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| (v4.ip().into(), 0));
        let v6 = || Some(address.as_sockaddr_in6()?).map(|v6| (v6.ip().into(), v6.scope_id()));
        let (ip, scope_id) = v4.or_else(v6)?;
        Some(InterfaceAddress {
            name: one.interface_name,
            ip,
            scope_id,
            up: one.flags.contains(InterfaceFlags::IFF_UP),
            loopback: one.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        })
    });
    Ok(found.collect())
}

/// What kind of interface it is (`ARPHRD_...`), and its hardware address if that has six bytes.
///
/// # Errors
/// What the kernel says; there is no such interface.
pub fn interface_hardware(name: &str) -> io::Result<(u16, [u8; 6])> {
    let found = getifaddrs()?.find_map(|one| {
        let link = *one.address?.as_link_addr()?;
        (one.interface_name == name).then_some((link.hatype(), link.addr().unwrap_or_default()))
    });
    found.ok_or_else(|| rustix::io::Errno::NODEV.into())
}

/// The MTU in bytes of the named interface.
///
/// # Errors
/// What the kernel says, or the name is longer than any.
pub fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    // SAFETY: `ifreq` is plain C data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
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

/// Types for which every pattern of bits is a value.
///
/// # Safety
/// They must be such.
pub unsafe trait Integer: Default {}
// SAFETY: integers are.
unsafe impl Integer for u64 {}
// SAFETY: integers are.
unsafe impl Integer for u32 {}
// SAFETY: integers are.
unsafe impl Integer for libc::c_int {}

/// Reads an option of `SOL_SOCKET` that has the size of `T`.
///
/// # Errors
/// What the kernel says; [`io::ErrorKind::InvalidData`] if the option has another size.
pub fn socket_option<T: Integer>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = socklen_of::<T>();
    // SAFETY: pointer and length describe `value`, an integer as `Integer` promises, so
    // that whatever the kernel writes is valid; it lives during the call.
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
/// What the kernel says.
pub fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel only reads; where it
    // holds a pointer (a filter), the kernel checks what that leads to.
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

/// Bytes that a socket has sent and that no interface has taken yet, with what the kernel needs
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
