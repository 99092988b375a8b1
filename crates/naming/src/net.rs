//! Socket addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Any address of this machine, of the other's family.
pub(crate) fn any_like(other: SocketAddr) -> IpAddr {
    match other {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The address that packets to another leave from; nothing is sent.
///
/// # Errors
/// What the system says: there is no route.
pub fn address_towards(to: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((any_like(to), 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}
