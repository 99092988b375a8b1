//! Routing netlink: queries about interfaces, routes and neighbours, and notifications of
//! changes, reduced to what a sender of raw frames needs.

use std::io;
use std::net::IpAddr;

use dipole_link::netlink::{self, unreadable};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily as Family, RouteNetlinkMessage};

/// Groups 1 (link), 3 (neighbour), 5 and 9 (addresses), 7 and 11 (routes), 8 and 19
/// (rules), 32 (next hops): group n is bit n - 1.
const GROUPS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 8 | 1 << 6 | 1 << 10 | 1 << 7 | 1 << 18 | 1 << 31;

/// State of a network interface; the default is that of a missing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceState {
    pub(super) index: u32,
    /// It carries Ethernet frames.
    pub ethernet: bool,
    /// It is up and has a carrier.
    pub up: bool,
    /// Its hardware address; zeros if it has none.
    pub mac: [u8; 6],
    /// Bytes of the longest IP packet.
    pub mtu: usize,
}

impl InterfaceState {
    /// `None` for messages of other families that use the same types (bridges).
    pub(super) fn of(message: &LinkMessage) -> Option<InterfaceState> {
        if message.header.interface_family != Family::Unspec {
            return None;
        }
        let mut state = InterfaceState {
            index: message.header.index,
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            up: (message.header.flags).contains(LinkFlags::Up | LinkFlags::Running),
            ..InterfaceState::default()
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::Address(mac) => state.mac = mac[..].try_into().unwrap_or_default(),
                LinkAttribute::Mtu(mtu) => state.mtu = usize::try_from(*mtu).unwrap_or(0),
                _ => {}
            }
        }
        Some(state)
    }
}

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) interface: u32,
    pub(super) state: NeighbourState,
    pub(super) address: IpAddr,
    pub(super) mac: Option<[u8; 6]>,
}

impl Neighbour {
    /// `None` for an entry without an IP address.
    pub(super) fn of(message: &NeighbourMessage) -> Option<Neighbour> {
        let (mut address, mut mac) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                    address = Some(IpAddr::V4(*ip));
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                    address = Some(IpAddr::V6(*ip));
                }
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes[..].try_into().ok(),
                _ => {}
            }
        }
        Some(Neighbour {
            interface: message.header.ifindex,
            state: message.header.state,
            address: address?,
            mac,
        })
    }
}

/// The kernel's answer to a route query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteState {
    pub(super) interface: Option<u32>,
    /// Leads to a single other host through an interface: no tunnel, no multipath, not down.
    pub(super) plain: bool,
    /// Leads to this machine itself.
    pub(super) local: bool,
    pub(super) gateway: Option<IpAddr>,
    pub(super) mtu: Option<u32>,
    pub(super) hops: Option<u8>,
}

impl RouteState {
    fn of(message: &RouteMessage) -> RouteState {
        let header = &message.header;
        let is_down = (header.flags).intersects(RouteFlags::Dead | RouteFlags::Linkdown);
        let mut state = RouteState {
            interface: None,
            plain: header.kind == RouteType::Unicast && !is_down,
            local: header.kind == RouteType::Local,
            gateway: None,
            mtu: None,
            hops: None,
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => state.interface = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(ip))
                | RouteAttribute::Via(RouteVia::Inet(ip)) => state.gateway = Some((*ip).into()),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip))
                | RouteAttribute::Via(RouteVia::Inet6(ip)) => state.gateway = Some((*ip).into()),
                RouteAttribute::Metrics(metrics) => state.apply(metrics),
                RouteAttribute::MultiPath(_)
                | RouteAttribute::Encap(_)
                | RouteAttribute::EncapType(_) => state.plain = false,
                _ => {}
            }
        }
        state
    }

    fn apply(&mut self, metrics: &[RouteMetric]) {
        for metric in metrics {
            match metric {
                RouteMetric::Mtu(mtu) if *mtu > 0 => self.mtu = Some(*mtu),
                RouteMetric::Hoplimit(hops) if *hops > 0 => self.hops = u8::try_from(*hops).ok(),
                _ => {}
            }
        }
    }
}

/// The local address in an address message.
pub(super) fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    // On a point-to-point link IFA_ADDRESS is the peer's, and IFA_LOCAL ours.
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => return Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            _ => {}
        }
    }
    address
}

/// A routing netlink socket.
#[derive(Debug)]
pub(super) struct Socket(netlink::Socket);

impl Socket {
    /// Opens a socket for queries.
    pub(super) fn for_queries() -> io::Result<Socket> {
        netlink::Socket::open(None, 0).map(Socket)
    }

    /// Opens a socket for notifications of links, addresses, routes, rules and neighbours.
    pub(super) fn for_notifications() -> io::Result<Socket> {
        netlink::Socket::open(None, GROUPS).map(Socket)
    }

    /// Reads one datagram of notifications without waiting; `None` if there are no more now.
    ///
    /// # Errors
    /// Some were lost (the socket's buffer was full) or cannot be parsed.
    pub(super) fn notifications(&mut self) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
        self.0.notifications()
    }

    /// The current state of an interface.
    pub(super) fn query_link(&mut self, index: u32) -> io::Result<InterfaceState> {
        let mut query = LinkMessage::default();
        query.header.index = index;
        let state = match self.query(RouteNetlinkMessage::GetLink(query))? {
            RouteNetlinkMessage::NewLink(answer) => InterfaceState::of(&answer),
            _ => None,
        };
        state.ok_or_else(|| unreadable("not about an interface"))
    }

    /// The route of a packet from `source`; link-local destinations are assumed to be on
    /// `interface`.
    pub(super) fn query_route(
        &mut self,
        interface: u32,
        source: IpAddr,
        to: IpAddr,
    ) -> io::Result<RouteState> {
        let mut query = RouteMessage::default();
        let (family, bits) = family(to);
        query.header.address_family = family;
        query.header.destination_prefix_length = bits;
        query.header.source_prefix_length = bits;
        query.attributes = vec![
            RouteAttribute::Destination(to.into()),
            RouteAttribute::Source(source.into()),
        ];
        if matches!(to, IpAddr::V6(to) if to.is_unicast_link_local()) {
            query.attributes.push(RouteAttribute::Oif(interface));
        }
        match self.query(RouteNetlinkMessage::GetRoute(query))? {
            RouteNetlinkMessage::NewRoute(answer) => Ok(RouteState::of(&answer)),
            _ => Err(unreadable("not about a route")),
        }
    }

    /// The table entry of a neighbour on an interface.
    pub(super) fn query_neighbour(&mut self, interface: u32, of: IpAddr) -> io::Result<Neighbour> {
        let mut query = NeighbourMessage::default();
        query.header.family = family(of).0;
        query.header.ifindex = interface;
        query.attributes = vec![NeighbourAttribute::Destination(of.into())];
        let neighbour = match self.query(RouteNetlinkMessage::GetNeighbour(query))? {
            RouteNetlinkMessage::NewNeighbour(answer) => Neighbour::of(&answer),
            _ => None,
        };
        neighbour.ok_or_else(|| unreadable("not about a neighbour"))
    }

    fn query(&mut self, query: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        let reply = self.0.request(query, false)?;
        reply.ok_or_else(|| unreadable("it has no content"))
    }
}

fn family(ip: IpAddr) -> (Family, u8) {
    match ip {
        IpAddr::V4(_) => (Family::Inet, 32),
        IpAddr::V6(_) => (Family::Inet6, 128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_link::netlink::messages;
    use netlink_packet_core::NetlinkMessage;

    #[test]
    fn the_loopback_interface_and_the_route_to_it_are_known() {
        let mut socket = Socket::for_queries().expect("netlink");
        let loopback = socket.query_link(1).expect("every namespace has one");
        assert_eq!((loopback.index, loopback.ethernet), (1, false));
        assert!(loopback.mtu >= 1280);
        let own: IpAddr = [127, 0, 0, 1].into();
        let route = socket.query_route(1, own, own).expect("a route");
        assert_eq!((route.interface, route.plain), (Some(1), false));
        assert!(route.local);
        let error = socket.query_link(u32::MAX >> 1).expect_err("no such");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert!(socket.query_neighbour(1, [127, 0, 0, 9].into()).is_err());
    }

    #[test]
    fn a_route_has_gateway_limits_and_exclusions() {
        let mut message = RouteMessage::default();
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            RouteAttribute::Oif(3),
            RouteAttribute::Gateway(RouteAddress::Inet([10, 0, 0, 254].into())),
            RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400), RouteMetric::Hoplimit(9)]),
        ];
        let wanted = RouteState {
            interface: Some(3),
            plain: true,
            local: false,
            gateway: Some([10, 0, 0, 254].into()),
            mtu: Some(1400),
            hops: Some(9),
        };
        assert_eq!(RouteState::of(&message), wanted);
        let mut down = message.clone();
        down.header.flags = RouteFlags::Linkdown;
        assert!(!RouteState::of(&down).plain);
        let mut forked = message.clone();
        (forked.attributes).push(RouteAttribute::MultiPath(Vec::new()));
        assert!(!RouteState::of(&forked).plain);
        message.header.kind = RouteType::BlackHole;
        message.attributes[1] = RouteAttribute::Via(RouteVia::Inet6([0xfd; 16].into()));
        let found = RouteState::of(&message);
        assert_eq!(found.gateway, Some([0xfd; 16].into()));
        assert!(!found.plain);
    }

    #[test]
    fn messages_are_read_one_after_another_until_one_is_malformed() {
        let serialized = |route: RouteMessage| {
            let mut message = NetlinkMessage::from(RouteNetlinkMessage::NewRoute(route));
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            bytes
        };
        let one = serialized(RouteMessage::default());
        let mut bytes = [&one[..], &one].concat();
        let count = |bytes: &[u8]| {
            messages::<RouteNetlinkMessage>(bytes)
                .filter(Result::is_ok)
                .count()
        };
        assert_eq!(
            (
                count(&bytes),
                messages::<RouteNetlinkMessage>(&bytes).count()
            ),
            (2, 2)
        );
        assert_eq!(count(&bytes[..bytes.len() - 1]), 1);
        assert_eq!(
            messages::<RouteNetlinkMessage>(&bytes[..bytes.len() - 1]).count(),
            2
        );
        for length in [0, u32::MAX] {
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(
                (
                    count(&bytes),
                    messages::<RouteNetlinkMessage>(&bytes).count()
                ),
                (0, 1)
            );
        }
    }
}
