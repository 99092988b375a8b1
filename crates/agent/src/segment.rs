//! The network segments of a node's interfaces, for broadcasts.
//!
//! IPv4 broadcasts go to 255.255.255.255 from the interface's address, IPv6 ones to a link-local
//! multicast group. A socket bound to the interface's address receives neither, so there are extra
//! receiving sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use dipole_bpf::interface_of;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

/// Multicast group: link-local, not permanently assigned.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4450, 0x5041);

#[derive(Debug)]
pub(super) struct Segments {
    port: u16,
    receivers: Vec<UdpSocket>,
    /// A socket for each interface, and the address that reaches all nodes of its segment.
    senders: Vec<(UdpSocket, SocketAddr)>,
}

impl Segments {
    /// Opens the segments of the interfaces with these addresses.
    pub(super) fn open(addresses: &[IpAddr], port: u16) -> io::Result<Segments> {
        let mut segments = Segments {
            port,
            receivers: Vec::new(),
            senders: Vec::new(),
        };
        if addresses.iter().any(IpAddr::is_ipv4) {
            let all = SocketAddr::from((Ipv4Addr::BROADCAST, port));
            segments.receivers.push(shared(all)?);
        }
        for address in addresses {
            let to = match address {
                IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::BROADCAST, port)),
                IpAddr::V6(address) => {
                    let scope = scope_of(*address)?;
                    let all = SocketAddrV6::new(GROUP, port, 0, scope).into();
                    let receivers = shared(all)?;
                    receivers.join_multicast_v6(&GROUP, scope)?;
                    segments.receivers.push(receivers);
                    all
                }
            };
            // The bound address selects the interface of the broadcast.
            let socket = UdpSocket::bind((*address, 0))?;
            socket.set_broadcast(true)?;
            if to.is_ipv6() {
                socket.set_multicast_loop_v6(true)?;
            }
            socket.set_nonblocking(true)?;
            segments.senders.push((socket, to));
        }
        Ok(segments)
    }

    /// Sockets that receive broadcasts. They do not block.
    pub(super) fn receivers(&self) -> &[UdpSocket] {
        &self.receivers
    }

    /// Broadcasts a packet on every segment.
    pub(super) fn broadcast(&self, packet: &[u8]) {
        for (socket, to) in &self.senders {
            if let Err(cause) = socket.send_to(packet, to) {
                let from = socket.local_addr().ok();
                tracing::debug!(?from, port = self.port, %cause, "an announcement could not be sent");
            }
        }
    }
}

/// A socket that other agents of this machine may share; each receives all broadcasts.
fn shared(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}

/// Index of the interface with an address.
fn scope_of(address: Ipv6Addr) -> io::Result<u32> {
    match interface_of(address.into()) {
        Ok((interface, _)) => Ok(interface.index),
        Err(cause) => {
            let text = format!("the interface of {address}: {cause}");
            Err(io::Error::new(cause.kind(), text))
        }
    }
}

/// Addresses at which other machines may reach this one: one for each interface that is up and can
/// broadcast, except bridges (which containers use) and tunnels.
pub(super) fn own_interfaces() -> io::Result<Vec<IpAddr>> {
    let wanted =
        InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING | InterfaceFlags::IFF_BROADCAST;
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    for one in getifaddrs()? {
        let folder = std::path::Path::new("/sys/class/net").join(&one.interface_name);
        let unwanted = InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_POINTOPOINT;
        if !one.flags.contains(wanted)
            || one.flags.intersects(unwanted)
            || folder.join("bridge").exists()
        {
            continue;
        }
        let Some(storage) = one.address else { continue };
        let v4 = storage.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        let v6 = storage.as_sockaddr_in6().map(|found| found.ip());
        let v6 = v6.filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::V6);
        let Some(ip) = v4.or(v6) else { continue };
        match found
            .iter_mut()
            .find(|(name, _)| *name == one.interface_name)
        {
            None => found.push((one.interface_name, ip)),
            // IPv4 is preferred, then the first address.
            Some((_, known)) if known.is_ipv6() && ip.is_ipv4() => *known = ip,
            Some(_) => {}
        }
    }
    found.truncate(dipole_node::MAX_INTERFACES);
    Ok(found.into_iter().map(|(_, ip)| ip).collect())
}
