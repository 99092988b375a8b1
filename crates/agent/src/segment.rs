//! The networks that a node's cards are on, as far as a word to everybody reaches.
//!
//! By IPv4 that word is a broadcast to 255.255.255.255 from the address of the card, by IPv6 one
//! to a group of the link. A socket bound to a card's address hears neither, hence more sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

/// Link-local, for as long as somebody is in it.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4450, 0x5041);

/// See the module.
#[derive(Debug)]
pub(super) struct Segments {
    port: u16,
    hearing: Vec<UdpSocket>,
    /// A socket for each card, and where everybody on its network is reached.
    speaking: Vec<(UdpSocket, SocketAddr)>,
}

impl Segments {
    /// Those of cards with these addresses.
    pub(super) fn open(cards: &[IpAddr], port: u16) -> io::Result<Segments> {
        let mut segments = Segments {
            port,
            hearing: Vec::new(),
            speaking: Vec::new(),
        };
        if cards.iter().any(IpAddr::is_ipv4) {
            let all = SocketAddr::from((Ipv4Addr::BROADCAST, port));
            segments.hearing.push(shared(all)?);
        }
        for card in cards {
            let to = match card {
                IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::BROADCAST, port)),
                IpAddr::V6(card) => {
                    let scope = scope_of(*card)?;
                    let all = SocketAddrV6::new(GROUP, port, 0, scope).into();
                    let hearing = shared(all)?;
                    hearing.join_multicast_v6(&GROUP, scope)?;
                    segments.hearing.push(hearing);
                    all
                }
            };
            // Its address says by which card: the kernel sends a broadcast where that is.
            let socket = UdpSocket::bind((*card, 0))?;
            socket.set_broadcast(true)?;
            if to.is_ipv6() {
                socket.set_multicast_loop_v6(true)?;
            }
            socket.set_nonblocking(true)?;
            segments.speaking.push((socket, to));
        }
        Ok(segments)
    }

    /// Sockets at which words to all arrive; reading them does not block.
    pub(super) fn hearing(&self) -> &[UdpSocket] {
        &self.hearing
    }

    /// Says a word to everybody, on every card.
    pub(super) fn say(&self, packet: &[u8]) {
        for (socket, to) in &self.speaking {
            if let Err(cause) = socket.send_to(packet, to) {
                let from = socket.local_addr().ok();
                tracing::debug!(?from, port = self.port, %cause, "an announcement");
            }
        }
    }
}

/// A socket that other agents of this machine may have too: each gets what is sent to all.
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

/// The number of the interface with an address.
fn scope_of(address: Ipv6Addr) -> io::Result<u32> {
    let name = getifaddrs()?
        .find(|one| {
            let storage = one
                .address
                .as_ref()
                .and_then(|storage| storage.as_sockaddr_in6());
            storage.is_some_and(|found| found.ip() == address)
        })
        .map(|one| one.interface_name);
    let name = name.ok_or_else(|| io::Error::other("no card has the address"))?;
    Ok(nix::net::if_::if_nametoindex(name.as_str())?)
}

/// Addresses of this machine that others may reach it by: of interfaces that are up and reach
/// many, one of each; neither bridges, which containers hang on, nor tunnels.
pub(super) fn own_cards() -> io::Result<Vec<IpAddr>> {
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
            // IPv4 before IPv6, else the first.
            Some((_, known)) if known.is_ipv6() && ip.is_ipv4() => *known = ip,
            Some(_) => {}
        }
    }
    found.truncate(dipole_node::MAX_CARDS);
    Ok(found.into_iter().map(|(_, ip)| ip).collect())
}
