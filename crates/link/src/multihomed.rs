//! Several interfaces behind one link: a frame leaves by the interface from which the kernel
//! would reach its destination.
//!
//! A process binds the same kind of sockets on each, with the same ports; its peers learn all addresses in the
//! handshake, and the protocol has a lane for each. What is sent by an interface that is down is
//! lost, as on any link: the protocol sees that and takes another lane. It also finds out
//! which addresses answer at all; which of our interfaces leads to one is the kernel's routing
//! table's business alone.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;

use crate::udp::{OpenError, Udp, UdpOptions};
use crate::{Caps, Class, Incoming, Link, Outgoing};

/// A destination for which there was no way is asked about again after so long.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How often other ports are tried when those of the first interface are taken on another.
const PORT_ATTEMPTS: u32 = 8;
/// The same where there are few ports, and many of them taken.
const RANGE_ATTEMPTS: u32 = 64;

/// See the module.
#[derive(Debug)]
pub struct Multihomed<L> {
    interfaces: Vec<L>,
    /// By destination: which interface, and until when that is believed.
    ways: HashMap<IpAddr, (usize, u64)>,
    /// Whose frames the last poll offers.
    polled: usize,
    /// Who is polled first.
    turn: usize,
    /// Whose `send` took less than it was given, the last time.
    refused_by: Option<usize>,
}

impl<L: Link> Multihomed<L> {
    /// Opens a link on each of these addresses of this machine; the first is the one by
    /// which the process is known. `finish` makes of each what it shall be.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing stays open.
    ///
    /// # Panics
    /// When there are no addresses.
    pub fn bind(
        addresses: &[IpAddr],
        options: &UdpOptions,
        finish: impl FnMut(Udp) -> L,
    ) -> Result<Multihomed<L>, OpenError> {
        assert!(!addresses.is_empty(), "at least one interface");
        let mut interfaces = open(addresses, options);
        // With a range of ports each try begins at another of them.
        let attempts = options.ports.map_or(PORT_ATTEMPTS, |_| RANGE_ATTEMPTS);
        for _ in 0..attempts {
            if !matches!(interfaces, Err(OpenError::Bind { .. })) {
                break;
            }
            interfaces = open(addresses, options);
        }
        Ok(Multihomed {
            interfaces: interfaces?.into_iter().map(finish).collect(),
            ways: HashMap::new(),
            polled: 0,
            turn: 0,
            refused_by: None,
        })
    }

    /// The links, one for each interface.
    #[must_use]
    pub fn links(&self) -> &[L] {
        &self.interfaces
    }

    /// By which interface to send there.
    #[inline]
    fn way(&mut self, to: IpAddr, now_ns: u64) -> usize {
        match self.ways.get(&to) {
            Some((interface, until)) if *until > now_ns => *interface,
            _ => self.find_way(to, now_ns),
        }
    }

    /// The interface from which the kernel would send there now.
    fn routed(&self, to: IpAddr) -> Option<usize> {
        let from = source_address(to).ok();
        let mut interfaces = self.interfaces.iter();
        interfaces.position(|interface| Some(interface.local(Class::Small).ip()) == from)
    }

    #[cold]
    fn find_way(&mut self, to: IpAddr, now_ns: u64) -> usize {
        let found = self.routed(to);
        let (interface, until) = match (found, self.ways.get(&to)) {
            (Some(interface), _) => (interface, u64::MAX),
            // An interface that is down has no routes.
            (None, Some((before, _))) => (*before, now_ns.saturating_add(ASK_AGAIN_NS)),
            (None, None) => (0, now_ns.saturating_add(ASK_AGAIN_NS)),
        };
        self.ways.insert(to, (interface, until));
        interface
    }
}

/// Links on all of them, with the same ports: who knows one address knows all.
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

/// The address from which the kernel would send there; nothing is sent.
///
/// # Errors
/// There is no way there.
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
            looks_per_call: one.looks_per_call.min(other.looks_per_call),
            small_run_frames: one.small_run_frames.min(other.small_run_frames),
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

    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        let known = self.ways.get(&to.ip()).map(|(interface, _)| *interface);
        let interface = known.or_else(|| self.routed(to.ip())).unwrap_or(0);
        self.interfaces[interface].local(class)
    }

    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        self.refused_by = None;
        while let Some(first) = batch.get(taken) {
            let interface = self.way(first.to.ip(), now_ns);
            let rest = &batch[taken..];
            let alike = rest
                .iter()
                .take_while(|frame| self.way(frame.to.ip(), now_ns) == interface)
                .count();
            let sent = self.interfaces[interface].send(now_ns, &rest[..alike])?;
            taken += sent;
            if sent < alike {
                self.refused_by = Some(interface);
                break;
            }
        }
        Ok(taken)
    }

    fn refuses_next(&self) -> bool {
        self.refused_by
            .is_some_and(|interface| self.interfaces[interface].refuses_next())
    }

    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        for _ in 0..self.interfaces.len() {
            let interface = self.turn;
            self.turn = (self.turn + 1) % self.interfaces.len();
            let count = self.interfaces[interface].poll(now_ns, class)?;
            if count > 0 {
                self.polled = interface;
                return Ok(count);
            }
        }
        Ok(0)
    }

    fn frame(&self, index: usize) -> Incoming<'_> {
        self.interfaces[self.polled].frame(index)
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
    fn frames_come_by_every_interface_and_one_side_may_have_more_of_them() {
        // From loopback the kernel takes 127.0.0.1 as the source of all of it.
        let addresses = [ip("127.0.0.1"), ip("127.0.0.2")];
        let options = UdpOptions::default();
        let mut two = Multihomed::bind(&addresses, &options, |link| link).expect("loopback");
        let mut one = Multihomed::bind(&addresses[..1], &options, |link| link).expect("loopback");
        for class in [Class::Small, Class::Bulk] {
            let locals = two.locals(class);
            assert_eq!(locals.len(), 2);
            assert_eq!(locals[0], two.local(class));
            for (number, to) in (0_u8..).zip(&locals) {
                let frame = Outgoing {
                    class,
                    to: *to,
                    head: &[number],
                    any_port: false,
                    payload: &[],
                };
                assert_eq!(two.source(class, *to), two.local(class));
                assert_eq!(one.send(0, &[frame]).expect("works"), 1);
            }
            let mut got = Vec::new();
            while got.len() < 2 {
                for index in 0..two.poll(0, class).expect("works") {
                    got.push(two.frame(index).bytes.to_vec());
                }
            }
            got.sort();
            assert_eq!(got, [[0], [1]]);
        }
        assert_eq!(two.descriptors().len(), 2 * one.descriptors().len());
    }

    #[test]
    fn an_address_that_is_not_ours_is_an_error() {
        let addresses = [ip("127.0.0.1"), ip("192.0.2.1")];
        assert!(Multihomed::bind(&addresses, &UdpOptions::default(), |link| link).is_err());
    }
}
