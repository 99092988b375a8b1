//! `bare-bpf` and `bare-xdp`: one frame a message, beside the kernel's sockets, spinning.
//!
//! Work: `bare-bpf` has the kernel's program deposit each packet in a ring of the
//! process and sends raw frames by an AF_PACKET socket: just the parts of our bpf link,
//! without any protocol. `bare-xdp` has an AF_XDP socket for both ways. Fair: headers
//! and UDP checksums are written and the payload is copied once on each side; nothing
//! is acknowledged or repeated, so they are the limit for what is built on those ways.

use std::io;
use std::net::{IpAddr, SocketAddr};

use dipole_bpf::neighbours::Neighbours;
use dipole_bpf::raw::{RawFrame, Sent};
use dipole_bpf::xsk::{Xsk, XskHook, XskOptions};
use dipole_bpf::{Bpf, BpfOptions, FastPath, interface_of};
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{Class, Link, Outgoing};

use super::super::channel::{Channel, Manner, broken};

/// What a send takes at least, by which time goes on for the routes: reading a clock is no
/// part of what is measured.
const SEND_NS: u64 = 500;

pub(crate) struct Frames {
    way: Way,
    own: SocketAddr,
    other: SocketAddr,
    now_ns: u64,
}

enum Way {
    Ring(Box<Bpf>),
    Xdp(Box<Xdp>),
}

/// An AF_XDP socket, and the UDP socket whose port it has.
struct Xdp {
    xsk: Xsk,
    neighbours: Neighbours,
    udp: Udp,
    _hook: XskHook,
    /// Frames that went by it, each way.
    sent: u64,
    received: u64,
}

impl Frames {
    /// The kernel's ring, and raw frames.
    pub(crate) fn by_ring(own: IpAddr) -> io::Result<Self> {
        let udp = Udp::bind(own, &UdpOptions::default()).map_err(io::Error::other)?;
        let fast_path = FastPath::open(&udp, &BpfOptions::default()).map_err(io::Error::other)?;
        let link = Bpf::new(udp, fast_path);
        let own = link.local(Class::Small);
        Ok(Self {
            way: Way::Ring(Box::new(link)),
            own,
            other: own,
            now_ns: 0,
        })
    }

    /// One AF_XDP socket for both ways, in copy mode.
    pub(crate) fn by_xdp(ip: IpAddr) -> io::Result<Self> {
        let udp = Udp::bind(ip, &UdpOptions::default()).map_err(io::Error::other)?;
        let own = udp.local(Class::Small);
        let (interface, _) = interface_of(ip)?;
        let xsk = Xsk::open(&interface, &XskOptions::default())?;
        let hook = XskHook::attach(&interface, &xsk, own)?;
        let neighbours = Neighbours::open(&interface, ip)?;
        let xdp = Xdp {
            xsk,
            neighbours,
            udp,
            _hook: hook,
            sent: 0,
            received: 0,
        };
        Ok(Self {
            way: Way::Xdp(Box::new(xdp)),
            own,
            other: own,
            now_ns: 0,
        })
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        vec![self.own.port()]
    }

    pub(crate) fn connect(mut self, other: IpAddr, ports: &[u16]) -> io::Result<Self> {
        let &[port] = ports else {
            return Err(broken(format!(
                "one port expected from the other side, not {ports:?}"
            )));
        };
        self.other = SocketAddr::new(other, port);
        Ok(self)
    }
}

impl Channel for Frames {
    fn try_send(&mut self, payload: &[u8], _manner: Manner) -> io::Result<bool> {
        let frame = Outgoing {
            class: Class::Small,
            to: self.other,
            head: payload,
            any_port: true,
            payload: &[],
        };
        self.now_ns += SEND_NS;
        match &mut self.way {
            Way::Ring(link) => Ok(link.send(self.now_ns, &[frame])? == 1),
            Way::Xdp(xdp) => {
                xdp.neighbours.follow(self.now_ns);
                let Some(route) = xdp.neighbours.route(self.now_ns, self.other.ip()) else {
                    // The kernel looks for the neighbour.
                    return Ok(xdp.udp.send(self.now_ns, &[frame])? == 1);
                };
                let frame = RawFrame {
                    route: *route,
                    from: self.own,
                    to: self.other,
                    payload: [payload, &[]],
                };
                let is_taken = xdp.xsk.put(&frame) == Sent::Taken;
                xdp.xsk.flush()?;
                xdp.sent += u64::from(is_taken);
                Ok(is_taken)
            }
        }
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        let bytes = match &mut self.way {
            Way::Ring(link) => match link.poll(self.now_ns, Class::Small)? {
                0 => return Ok(None),
                _ => link.frame(0).bytes,
            },
            Way::Xdp(xdp) => match xdp.xsk.poll()? {
                0 => return Ok(None),
                count => {
                    xdp.received += count as u64;
                    xdp.xsk.frame(0).1
                }
            },
        };
        if bytes.len() != length {
            return Err(broken(format!(
                "a frame of {} bytes came, {length} were due",
                bytes.len()
            )));
        }
        Ok(Some(consume(bytes)))
    }

    fn finish(self) -> io::Result<Vec<String>> {
        match self.way {
            Way::Ring(link) => {
                let stats = link.stats();
                if stats.raw < stats.socket || stats.by_ring < stats.by_socket {
                    return Err(broken(format!(
                        "frames and rings were to carry the messages, but sockets did: {stats:?}"
                    )));
                }
            }
            Way::Xdp(xdp) => {
                let (sent, received) = (xdp.sent, xdp.received);
                if sent == 0 || received == 0 {
                    return Err(broken(format!(
                        "nothing went by AF_XDP: {sent} frames out, {received} in"
                    )));
                }
            }
        }
        Ok(Vec::new())
    }
}
