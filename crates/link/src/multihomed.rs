//! Several interfaces behind one link: a frame leaves through the interface from which the
//! kernel would reach its destination.
//!
//! An interface is in use while its address exists and it can carry packets. The sockets of the
//! others stay open and are bound already, so their address may appear later, or come back.
//!
//! A process binds the same kind of sockets on each interface, with the same ports. Its peers get
//! all addresses in the handshake, and the protocol has a lane for each. Frames sent through an
//! interface that is down are lost, as on any link; the protocol notices and uses another lane.
//! The protocol also finds out which addresses respond; which of our interfaces leads to an
//! address is decided only by the kernel's routing table.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;

use crate::udp::{OpenError, Udp, UdpOptions};
use crate::{Caps, Class, Incoming, Link, Outgoing, sys};

/// Interval between route lookups for an unreachable destination.
const RETRY_ROUTE_NS: u64 = 1_000_000_000;

/// Attempts with other ports if those of the first interface are in use on another one.
const PORT_ATTEMPTS: u32 = 8;
/// Attempts with a port range, where many of the few ports may be in use.
const RANGE_ATTEMPTS: u32 = 64;

/// A link over several interfaces.
#[derive(Debug)]
pub struct Multihomed<L> {
    interfaces: Vec<L>,
    /// True for those that have their address now.
    in_use: Vec<bool>,
    /// By destination: the interface, and until when the entry is valid.
    routes: HashMap<IpAddr, (usize, u64)>,
    /// The interface of the last poll's frames.
    polled: usize,
    /// The interface to poll next.
    next_polled: usize,
    /// The interface whose last `send` took fewer frames than given.
    refused_by: Option<usize>,
}

impl<L: Link> Multihomed<L> {
    /// Opens a link on each of these local addresses; the first is the one by which the process
    /// is known. Addresses that are missing now are used once they exist, if any exists. `finish`
    /// converts each UDP link.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing stays open.
    ///
    /// # Panics
    /// If there are no addresses.
    pub fn bind(
        addresses: &[IpAddr],
        options: &UdpOptions,
        finish: impl FnMut(Udp) -> L,
    ) -> Result<Multihomed<L>, OpenError> {
        assert!(!addresses.is_empty(), "at least one interface");
        let present = present_addresses();
        let in_use: Vec<bool> = (addresses.iter())
            .map(|address| is_present(&present, *address))
            .collect();
        let has_any = in_use.contains(&true);
        let options = &UdpOptions {
            may_be_absent: has_any,
            ..options.clone()
        };
        let mut interfaces = open(addresses, options);
        // With a port range each attempt starts at another port.
        let attempts = options.ports.map_or(PORT_ATTEMPTS, |_| RANGE_ATTEMPTS);
        for _ in 0..attempts {
            if !matches!(interfaces, Err(OpenError::Bind { .. })) {
                break;
            }
            interfaces = open(addresses, options);
        }
        Ok(Multihomed {
            interfaces: interfaces?.into_iter().map(finish).collect(),
            in_use: match has_any {
                true => in_use,
                false => vec![true; addresses.len()],
            },
            routes: HashMap::new(),
            polled: 0,
            next_polled: 0,
            refused_by: None,
        })
    }

    /// The links, one per interface.
    #[must_use]
    pub fn links(&self) -> &[L] {
        &self.interfaces
    }

    /// Replaces an interface whose address has changed. Returns the destinations that were reached
    /// through it.
    ///
    /// # Panics
    /// If the interface does not exist.
    pub fn replace(&mut self, interface: usize, link: L) -> Vec<IpAddr> {
        self.interfaces[interface] = link;
        self.in_use[interface] = true;
        let routes = self.routes.extract_if(|_, (by, _)| *by == interface);
        routes.map(|(to, _)| to).collect()
    }

    /// The interface for a destination.
    #[inline]
    fn route(&mut self, to: IpAddr, now_ns: u64) -> usize {
        match self.routes.get(&to) {
            Some((interface, until)) if *until > now_ns => *interface,
            _ => self.find_route(to, now_ns),
        }
    }

    /// The first interface in use.
    fn first(&self) -> usize {
        self.in_use.iter().position(|in_use| *in_use).unwrap_or(0)
    }

    /// The interface that the kernel would use for a destination now.
    fn routed(&self, to: IpAddr) -> Option<usize> {
        // Every interface has a route to link-local addresses; a node has one interface with them.
        let from = match is_v6_link_local(to) {
            true => None,
            false => Some(source_address(to).ok()?),
        };
        let mut interfaces = self.interfaces.iter().zip(&self.in_use);
        interfaces.position(|(interface, in_use)| {
            let own = interface.local(Class::Small).ip();
            *in_use && from.map_or_else(|| is_v6_link_local(own), |from| own == from)
        })
    }

    #[cold]
    fn find_route(&mut self, to: IpAddr, now_ns: u64) -> usize {
        let found = self.routed(to);
        let (interface, until) = match (found, self.routes.get(&to)) {
            (Some(interface), _) => (interface, u64::MAX),
            // An interface that is down has no routes.
            (None, Some((before, _))) => (*before, now_ns.saturating_add(RETRY_ROUTE_NS)),
            (None, None) => (self.first(), now_ns.saturating_add(RETRY_ROUTE_NS)),
        };
        self.routes.insert(to, (interface, until));
        interface
    }
}

fn is_v6_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The addresses of this machine whose interfaces can carry packets now.
pub fn present_addresses() -> Vec<IpAddr> {
    let all = sys::interface_addresses().unwrap_or_default();
    let running = all.into_iter().filter(|one| one.running);
    running.map(|one| one.ip).collect()
}

/// True if an address can be used. All of 127.0.0.0/8 exists, although only one is listed.
fn is_present(present: &[IpAddr], address: IpAddr) -> bool {
    address.is_loopback() || present.contains(&address)
}

/// Opens links on all addresses, with the same ports: a peer that knows one address knows all.
fn open(addresses: &[IpAddr], options: &UdpOptions) -> Result<Vec<Udp>, OpenError> {
    let mut interfaces: Vec<Udp> = Vec::new();
    for address in addresses {
        let ports = match interfaces.first() {
            None => options.clone(),
            Some(first) => UdpOptions {
                small_port: first.local(Class::Small).port(),
                bulk_port: first.local(Class::Bulk).port(),
                ..options.clone()
            },
        };
        interfaces.push(Udp::bind(*address, &ports)?);
    }
    Ok(interfaces)
}

/// The source address that the kernel would use for a destination; sends nothing.
///
/// # Errors
/// There is no route.
pub fn source_address(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Any port will do.
    socket.connect((to, 9))?;
    Ok(socket.local_addr()?.ip())
}

impl<L: Link> Link for Multihomed<L> {
    fn caps(&self) -> Caps {
        let caps = self.interfaces.iter().map(Link::caps);
        let least = caps.reduce(|one, other| Caps {
            max_frame_bytes: one.max_frame_bytes.min(other.max_frame_bytes),
            receive_frames: one.receive_frames.min(other.receive_frames),
            polls_per_syscall: one.polls_per_syscall.min(other.polls_per_syscall),
            small_run_frames: one.small_run_frames.min(other.small_run_frames),
            checks_frames: one.checks_frames && other.checks_frames,
        });
        least.unwrap_or_else(|| unreachable!("at least one interface"))
    }

    fn local(&self, class: Class) -> SocketAddr {
        self.interfaces[0].local(class)
    }

    fn locals(&self, class: Class) -> Vec<SocketAddr> {
        self.interfaces
            .iter()
            .map(|interface| interface.local(class))
            .collect()
    }

    fn is_in_use(&self, interface: usize) -> bool {
        self.in_use[interface]
    }

    fn set_present(&mut self, present: &[IpAddr], destinations: &[IpAddr]) -> Option<Vec<IpAddr>> {
        let addresses = self.interfaces.iter().map(|it| it.local(Class::Small).ip());
        let in_use: Vec<bool> = addresses.map(|ip| is_present(present, ip)).collect();
        let has_changed = in_use != self.in_use && in_use.contains(&true);
        if has_changed {
            self.in_use = in_use;
        }
        // Routes may have changed even if the addresses are the same.
        let before = std::mem::take(&mut self.routes);
        let mut moved = Vec::new();
        for to in destinations {
            let interface = self.routed(*to);
            // Nothing was sent there before if no interface is known.
            let known = before.get(to).map(|(interface, _)| *interface);
            if known.is_some_and(|known| interface != Some(known)) {
                moved.push(*to);
            }
            if let Some(interface) = interface {
                self.routes.insert(*to, (interface, u64::MAX));
            }
        }
        (has_changed || !moved.is_empty()).then_some(moved)
    }

    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        let known = self.routes.get(&to.ip()).map(|(interface, _)| *interface);
        let interface = known
            .or_else(|| self.routed(to.ip()))
            .unwrap_or_else(|| self.first());
        self.interfaces[interface].local(class)
    }

    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let (mut taken, mut entries) = (0, 0);
        self.refused_by = None;
        while let Some(first) = batch.get(entries) {
            let interface = self.route(first.to.ip(), now_ns);
            let rest = &batch[entries..];
            let alike = rest
                .iter()
                .take_while(|frame| self.route(frame.to.ip(), now_ns) == interface)
                .count();
            let alike = &rest[..alike];
            let sent = self.interfaces[interface].send(now_ns, alike)?;
            taken += sent;
            if sent < alike.iter().map(Outgoing::count).sum() {
                self.refused_by = Some(interface);
                break;
            }
            entries += alike.len();
        }
        Ok(taken)
    }

    fn refuses_next(&self) -> bool {
        self.refused_by
            .is_some_and(|interface| self.interfaces[interface].refuses_next())
    }

    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        for _ in 0..self.interfaces.len() {
            let interface = self.next_polled;
            self.next_polled = (self.next_polled + 1) % self.interfaces.len();
            let count = self.interfaces[interface].poll(now_ns, class)?;
            if count > 0 {
                self.polled = interface;
                return Ok(count);
            }
        }
        Ok(0)
    }

    fn message(&self, index: usize) -> Incoming<'_> {
        self.interfaces[self.polled].message(index)
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.interfaces
            .iter()
            .filter_map(Link::next_deadline_ns)
            .min()
    }

    fn arm(&mut self) -> bool {
        let awake = self
            .interfaces
            .iter_mut()
            .position(|interface| !interface.arm());
        for interface in self.interfaces.iter_mut().take(awake.unwrap_or(0)) {
            interface.disarm();
        }
        awake.is_none()
    }

    fn disarm(&mut self) {
        self.interfaces.iter_mut().for_each(Link::disarm);
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.interfaces.iter().flat_map(Link::descriptors).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn frames_arrive_through_every_interface_and_one_side_may_have_more_interfaces() {
        // On loopback the kernel uses 127.0.0.1 as the source for the whole network.
        let addresses = [ip("127.0.0.1"), ip("127.0.0.2")];
        let options = UdpOptions::default();
        let mut two = Multihomed::bind(&addresses, &options, |link| link).expect("loopback");
        let mut one = Multihomed::bind(&addresses[..1], &options, |link| link).expect("loopback");
        for class in [Class::Small, Class::Bulk] {
            let locals = two.locals(class);
            assert_eq!(locals.len(), 2);
            assert_eq!(locals[0], two.local(class));
            for (number, to) in (0_u8..).zip(&locals) {
                let payload = [number];
                let frame = Outgoing::frame(class, *to, &payload);
                assert_eq!(two.source(class, *to), two.local(class));
                assert_eq!(one.send(0, &[frame]).expect("works"), 1);
            }
            let mut got = Vec::new();
            while got.len() < 2 {
                for index in 0..two.poll(0, class).expect("works") {
                    got.push(two.message(index).bytes.to_vec());
                }
            }
            got.sort();
            assert_eq!(got, [[0], [1]]);
        }
        assert_eq!(two.descriptors().len(), 2 * one.descriptors().len());
    }

    #[test]
    fn foreign_addresses_are_an_error_if_there_are_no_others() {
        let foreign = [ip("203.0.113.2"), ip("203.0.113.1")];
        assert!(Multihomed::bind(&foreign, &UdpOptions::default(), |link| link).is_err());
    }

    #[test]
    fn a_missing_address_waits_until_it_exists() {
        let addresses = [ip("203.0.113.1"), ip("127.0.0.1")];
        let bound = Multihomed::bind(&addresses, &UdpOptions::default(), |link| link);
        let mut link = bound.expect("one of them exists");
        let in_use = |link: &Multihomed<Udp>| [link.is_in_use(0), link.is_in_use(1)];
        assert_eq!(in_use(&link), [false, true]);
        assert_eq!(link.local(Class::Small).ip(), addresses[0]);
        // Frames leave through the other one.
        let to = link.locals(Class::Small)[1];
        assert_eq!(link.source(Class::Small, to), to);
        let frame = Outgoing::frame(Class::Small, to, b"x");
        assert_eq!(link.send(0, &[frame]).expect("works"), 1);
        while link.poll(0, Class::Small).expect("works") == 0 {}
        assert_eq!(link.message(0).bytes, b"x");
        // It appears: only the list of interfaces changes.
        let moved = link.set_present(&[addresses[0]], &[to.ip()]);
        assert_eq!((moved, in_use(&link)), (Some(Vec::new()), [true, true]));
        // Nothing has changed, although nothing was sent in between.
        for _ in 0..2 {
            assert_eq!(link.set_present(&[addresses[0]], &[to.ip()]), None);
        }
    }
}
