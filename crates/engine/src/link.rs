//! All kinds of links behind one type, chosen at run time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use dipole_bpf::{Bpf, BpfStats};
use dipole_link::sim;
use dipole_link::{Caps, Capture, Class, Fault, Incoming, Link, Multihomed, Outgoing, Udp};

/// Any link. A `match` is cheaper on the hot path than a virtual call.
#[derive(Debug)]
pub enum AnyLink {
    /// Plain UDP sockets.
    Udp(Box<Udp>),
    /// UDP sockets with a fast path for small packets.
    Bpf(Box<Bpf>),
    /// Several interfaces, used together.
    Multihomed(Box<Multihomed<AnyLink>>),
    /// A port of a simulated network.
    Sim(sim::Port),
    /// Faults injected into another link.
    Fault(Box<Fault<AnyLink>>),
    /// Another link whose packets are recorded.
    Capture(Box<Capture<AnyLink>>),
}

impl AnyLink {
    /// Sum of the counters of all bpf links; `None` without a bpf link.
    #[must_use]
    pub fn bpf_stats(&self) -> Option<BpfStats> {
        match self {
            AnyLink::Udp(_) | AnyLink::Sim(_) => None,
            AnyLink::Bpf(link) => Some(link.stats()),
            AnyLink::Multihomed(link) => {
                let stats = link.links().iter().filter_map(AnyLink::bpf_stats);
                stats.reduce(|one, other| one + other)
            }
            AnyLink::Fault(link) => link.inner().bpf_stats(),
            AnyLink::Capture(link) => link.inner().bpf_stats(),
        }
    }

    /// Replaces an interface, by its position in [`Link::locals`], whose address has changed. Returns
    /// which of the `destinations` were reached through it.
    pub fn replace_interface(
        &mut self,
        interface: usize,
        mut link: AnyLink,
        destinations: &[IpAddr],
    ) -> Vec<IpAddr> {
        let inner = match self {
            AnyLink::Fault(outer) => outer.inner_mut(),
            AnyLink::Capture(outer) => outer.inner_mut(),
            AnyLink::Multihomed(all) => {
                link.continue_counters(&all.links()[interface]);
                let mut moved = all.replace(interface, link);
                moved.retain(|to| destinations.contains(to));
                return moved;
            }
            AnyLink::Udp(_) | AnyLink::Bpf(_) | AnyLink::Sim(_) => {
                link.continue_counters(self);
                *self = link;
                return destinations.to_vec();
            }
        };
        inner.replace_interface(interface, link, destinations)
    }

    /// Counts on from the counters of the link that this one replaces.
    fn continue_counters(&mut self, former: &AnyLink) {
        if let (AnyLink::Bpf(link), Some(stats)) = (self, former.bpf_stats()) {
            link.continue_counters(stats);
        }
    }
}

impl From<Udp> for AnyLink {
    fn from(link: Udp) -> Self {
        AnyLink::Udp(Box::new(link))
    }
}

impl From<Bpf> for AnyLink {
    fn from(link: Bpf) -> Self {
        AnyLink::Bpf(Box::new(link))
    }
}

impl From<Multihomed<AnyLink>> for AnyLink {
    fn from(link: Multihomed<AnyLink>) -> Self {
        AnyLink::Multihomed(Box::new(link))
    }
}

impl From<sim::Port> for AnyLink {
    fn from(link: sim::Port) -> Self {
        AnyLink::Sim(link)
    }
}

impl From<Fault<AnyLink>> for AnyLink {
    fn from(link: Fault<AnyLink>) -> Self {
        AnyLink::Fault(Box::new(link))
    }
}

impl From<Capture<AnyLink>> for AnyLink {
    fn from(link: Capture<AnyLink>) -> Self {
        AnyLink::Capture(Box::new(link))
    }
}

/// Calls the same method on any link.
macro_rules! on_link {
    ($any:expr, $link:ident => $call:expr) => {
        match $any {
            AnyLink::Udp($link) => $call,
            AnyLink::Bpf($link) => $call,
            AnyLink::Multihomed($link) => $call,
            AnyLink::Sim($link) => $call,
            AnyLink::Fault($link) => $call,
            AnyLink::Capture($link) => $call,
        }
    };
}

impl Link for AnyLink {
    fn caps(&self) -> Caps {
        on_link!(self, link => link.caps())
    }

    fn local(&self, class: Class) -> SocketAddr {
        on_link!(self, link => link.local(class))
    }

    fn locals(&self, class: Class) -> Vec<SocketAddr> {
        on_link!(self, link => link.locals(class))
    }

    fn is_in_use(&self, interface: usize) -> bool {
        on_link!(self, link => link.is_in_use(interface))
    }

    fn set_present(&mut self, present: &[IpAddr], destinations: &[IpAddr]) -> Option<Vec<IpAddr>> {
        on_link!(self, link => link.set_present(present, destinations))
    }

    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        on_link!(self, link => link.source(class, to))
    }

    #[inline]
    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        on_link!(self, link => link.send(now_ns, batch))
    }

    fn refuses_next(&self) -> bool {
        on_link!(self, link => link.refuses_next())
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        on_link!(self, link => link.poll(now_ns, class))
    }

    #[inline]
    fn message(&self, index: usize) -> Incoming<'_> {
        on_link!(self, link => link.message(index))
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        on_link!(self, link => link.next_deadline_ns())
    }

    fn arm(&mut self) -> bool {
        on_link!(self, link => link.arm())
    }

    fn disarm(&mut self) {
        on_link!(self, link => link.disarm());
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        on_link!(self, link => link.descriptors())
    }
}
