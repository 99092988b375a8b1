//! Where to send a raw frame: next hop, its hardware address, and the path MTU.
//!
//! The kernel decides, as it would for a packet of the process's socket; its answers are cached
//! until something changes. Only destinations that are reached through this interface, over
//! Ethernet, and as a single other host have a route here; all others use the socket.
//!
//! Raw frames do not show the kernel that a neighbour is in use, so it would never confirm it.
//! Therefore an answer is valid for [`FRESH_NS`], and if the kernel then considers the neighbour
//! stale, one packet is sent through the socket, which makes the kernel probe it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::NeighbourState;
use rustc_hash::FxBuildHasher;

use super::InterfaceId;
use super::headers::{Ethernet, ip_udp_bytes};
pub use super::netlink::InterfaceState;
use super::netlink::{Neighbour, RouteState, Socket, own_address};

/// How long a route is cached without notifications: the kernel itself trusts a neighbour for
/// some 30 s, and a path MTU reported by a router causes no notification.
pub const FRESH_NS: u64 = 10_000_000_000;
/// How long the lack of a route is cached.
pub const NO_ROUTE_NS: u64 = 100_000_000;
/// Notifications are polled at most this often.
pub const FOLLOW_NS: u64 = 1_000_000;
/// Destinations cached; beyond that the cache is cleared.
const MAX_KNOWN: usize = 4096;
/// Datagrams of notifications read at once.
const MAX_NOTIFICATIONS: usize = 64;
/// Maximum IP packet length.
const MAX_MTU: usize = 65_535;
/// The kernel's default time to live.
const HOPS: u8 = 64;

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The next hop's hardware address.
    pub mac: [u8; 6],
    /// This interface's hardware address.
    pub own_mac: [u8; 6],
    /// Bytes of the longest IP packet on this route.
    pub mtu: usize,
    /// The source address of frames.
    pub source: IpAddr,
    /// Time to live.
    pub hops: u8,
    /// Changes whenever any of the above may have changed.
    pub serial: u64,
}

impl Route {
    /// Bytes of the longest UDP payload that takes this route unfragmented.
    #[must_use]
    pub fn longest_payload(&self) -> usize {
        self.mtu.saturating_sub(ip_udp_bytes(self.source))
    }

    /// The addresses of its Ethernet frames.
    #[must_use]
    pub fn ethernet(&self) -> Ethernet {
        Ethernet {
            destination: self.mac,
            source: self.own_mac,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    route: Option<Route>,
    next_hop: IpAddr,
    until_ns: u64,
}

/// The route that was looked up last.
#[derive(Clone, Copy, Debug)]
struct Last {
    to: IpAddr,
    until_ns: u64,
    route: Route,
}

/// The routes from one interface.
#[derive(Debug)]
pub struct Neighbours {
    interface: InterfaceId,
    own: IpAddr,
    /// False while the address is gone.
    has_own: bool,
    state: InterfaceState,
    queries: Socket,
    notifications: Socket,
    known: HashMap<IpAddr, Known, FxBuildHasher>,
    last: Option<Last>,
    followed_ns: Option<u64>,
    serial: u64,
}

impl Neighbours {
    /// Opens the route cache of an interface, for packets from one of its addresses.
    ///
    /// The interface does not exist, or no netlink socket can be opened.
    pub fn open(interface: &InterfaceId, own: IpAddr) -> io::Result<Neighbours> {
        let failed = |cause| interface.cannot("query the kernel about", &cause);
        // Subscribed before the first query, so no change is missed in between.
        let notifications = Socket::for_notifications().map_err(failed)?;
        let mut queries = Socket::for_queries().map_err(failed)?;
        let state = queries.query_link(interface.index).map_err(failed)?;
        Ok(Neighbours {
            interface: interface.clone(),
            own,
            has_own: is_local(&mut queries, interface.index, own),
            state,
            queries,
            notifications,
            known: HashMap::default(),
            last: None,
            followed_ns: None,
            serial: 0,
        })
    }

    /// State of the interface as of the last [`follow`](Self::follow).
    #[must_use]
    pub fn interface_state(&self) -> InterfaceState {
        self.state
    }

    /// The route to an address. `None` if this interface has no route now, or if this packet
    /// must make the kernel confirm a neighbour; send it through the socket. Never waits.
    #[inline]
    pub fn route(&mut self, now_ns: u64, to: IpAddr) -> Option<&Route> {
        let fresh = |last: &Last| last.to == to && now_ns < last.until_ns;
        if !self.last.as_ref().is_some_and(fresh) {
            self.last = self.find(now_ns, to);
        }
        self.last.as_ref().map(|last| &last.route)
    }

    #[inline(never)]
    fn find(&mut self, now_ns: u64, to: IpAddr) -> Option<Last> {
        if let Some(known) = self.known.get(&to)
            && now_ns < known.until_ns
        {
            let until_ns = known.until_ns;
            return known.route.map(|route| Last {
                to,
                until_ns,
                route,
            });
        }
        if !self.state.ethernet || !self.state.up || !self.has_own || !may_have_route(self.own, to)
        {
            return None;
        }
        let way = (self.queries).query_route(self.interface.index, self.own, to);
        let way = way.ok();
        let next_hop = way.and_then(|way| way.gateway).unwrap_or(to);
        let found = way.and_then(|way| self.ask(&way, next_hop));
        let valid_ns = match found {
            Some(_) => FRESH_NS,
            None => NO_ROUTE_NS,
        };
        let until_ns = now_ns.saturating_add(valid_ns);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        let known = Known {
            route: found.map(|(route, _)| route),
            next_hop,
            until_ns,
        };
        self.known.insert(to, known);
        // A single packet through the socket makes the kernel confirm a stale neighbour.
        let (route, _) = found.filter(|(_, stale)| !stale)?;
        Some(Last {
            to,
            until_ns,
            route,
        })
    }

    /// The route through a next hop, and whether the kernel considers that stale.
    fn ask(&mut self, found: &RouteState, next_hop: IpAddr) -> Option<(Route, bool)> {
        let interface = self.interface.index;
        if !found.plain || found.interface != Some(interface) {
            return None;
        }
        let neighbour = self.queries.query_neighbour(interface, next_hop).ok()?;
        let mac = usable(&neighbour)?;
        let way_mtu = found.mtu.and_then(|mtu| usize::try_from(mtu).ok());
        self.serial += 1;
        let route = Route {
            mac,
            own_mac: self.state.mac,
            mtu: way_mtu.unwrap_or(MAX_MTU).min(self.state.mtu).min(MAX_MTU),
            source: self.own,
            hops: found.hops.unwrap_or(HOPS),
            serial: self.serial,
        };
        Some((route, neighbour.state == NeighbourState::Stale))
    }

    /// Applies the kernel's notifications and drops the routes that they may concern. Never
    /// waits; it polls at most once in [`FOLLOW_NS`], so it may be called at every step.
    pub fn follow(&mut self, now_ns: u64) {
        let next_ns = self.followed_ns.map(|then| then.saturating_add(FOLLOW_NS));
        if next_ns.is_some_and(|next_ns| now_ns < next_ns) {
            return;
        }
        self.followed_ns = Some(now_ns);
        for _ in 0..MAX_NOTIFICATIONS {
            match self.notifications.notifications() {
                Ok(None) => return,
                Ok(Some(changes)) => {
                    for change in &changes {
                        self.apply(change);
                    }
                    self.last = None;
                }
                Err(_) => self.start_over(),
            }
        }
        // The rest is read next time; until then nothing cached is trusted.
        self.forget();
    }

    /// Drops all routes; each is looked up when it is next needed.
    pub fn forget(&mut self) {
        self.known.clear();
        self.last = None;
    }

    /// Resets the cache after notifications were lost: the interface must be queried again, too.
    fn start_over(&mut self) {
        self.forget();
        let found = self.queries.query_link(self.interface.index);
        self.state = found.unwrap_or_default();
        self.has_own = is_local(&mut self.queries, self.interface.index, self.own);
    }

    fn apply(&mut self, message: &RouteNetlinkMessage) {
        use RouteNetlinkMessage::{
            DelAddress, DelLink, DelNeighbour, NewAddress, NewLink, NewNeighbour,
        };
        let interface = self.interface.index;
        let of_ours = |link| InterfaceState::of(link).filter(|link| link.index == interface);
        match message {
            NewNeighbour(neighbour) | DelNeighbour(neighbour) => {
                if let Some(entry) = Neighbour::of(neighbour)
                    && entry.interface == interface
                {
                    self.known
                        .retain(|_, known| known.next_hop != entry.address);
                }
                return;
            }
            NewLink(link) => self.state = of_ours(link).unwrap_or(self.state),
            DelLink(link) if of_ours(link).is_some() => self.state = InterfaceState::default(),
            NewAddress(address) if own_address(address) == Some(self.own) => self.has_own = true,
            DelAddress(address) if own_address(address) == Some(self.own) => self.has_own = false,
            _ => {}
        }
        // Links, addresses, routes, rules, next hops: any route may have changed.
        self.known.clear();
    }
}

/// The hardware address of a neighbour, if the kernel itself would send to it now.
fn usable(neighbour: &Neighbour) -> Option<[u8; 6]> {
    use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    let is_valid = matches!(
        neighbour.state,
        Reachable | Stale | Delay | Probe | Noarp | Permanent
    );
    let mac = neighbour.mac.filter(|_| is_valid)?;
    // Unicast and not all zeros.
    (mac != [0; 6] && mac[0] & 1 == 0).then_some(mac)
}

/// True if an address belongs to this machine, in the namespace of the socket.
fn is_local(queries: &mut Socket, interface: u32, own: IpAddr) -> bool {
    let found = queries.query_route(interface, own, own);
    found.is_ok_and(|found| found.local)
}

/// False for destinations that never have a route here.
fn may_have_route(own: IpAddr, to: IpAddr) -> bool {
    own.is_ipv4() == to.is_ipv4()
        && own != to
        && !to.is_multicast()
        && !to.is_loopback()
        && !to.is_unspecified()
        && !matches!(to, IpAddr::V4(to) if to.is_broadcast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(state: NeighbourState, mac: Option<[u8; 6]>) -> Neighbour {
        Neighbour {
            interface: 1,
            state,
            address: [10, 0, 0, 1].into(),
            mac,
        }
    }

    #[test]
    fn only_neighbours_with_a_valid_address_are_sent_to() {
        let mac = [2, 0, 0, 0, 0, 1];
        use NeighbourState::{
            Delay, Failed, Incomplete, Noarp, None as NoState, Permanent, Probe, Reachable, Stale,
        };
        for state in [Reachable, Stale, Delay, Probe, Noarp, Permanent] {
            assert_eq!(usable(&of(state, Some(mac))), Some(mac));
            assert_eq!(usable(&of(state, None)), None);
            assert_eq!(usable(&of(state, Some([0; 6]))), None);
            assert_eq!(usable(&of(state, Some([0xff; 6]))), None);
        }
        for state in [NoState, Incomplete, Failed] {
            assert_eq!(usable(&of(state, Some(mac))), None);
        }
    }

    #[test]
    fn loopback_has_no_routes() {
        let interface = InterfaceId {
            index: 1,
            name: "lo".to_owned(),
        };
        let own = [127, 0, 0, 1].into();
        let mut ways = Neighbours::open(&interface, own).expect("netlink");
        assert!(!ways.interface_state().ethernet);
        for to in [own, [127, 0, 0, 2].into(), [10, 0, 0, 1].into()] {
            assert_eq!(ways.route(0, to), None);
        }
    }

    #[test]
    fn an_interface_that_does_not_exist_is_named() {
        let interface = InterfaceId {
            index: u32::MAX >> 1,
            name: "nosuch0".to_owned(),
        };
        let error =
            Neighbours::open(&interface, [10, 0, 0, 1].into()).expect_err("no such interface");
        assert!(error.to_string().contains("nosuch0"), "{error}");
    }
}
