//! `bare-bpf` and `bare-xdp`: one raw frame per message, bypassing the kernel's sockets, spinning.
//!
//! Work: for `bare-bpf` the kernel's program deposits each packet in a ring of the process, and raw
//! frames are sent through an AF_PACKET socket: the parts of our bpf link without a protocol.
//! `bare-xdp` has an AF_XDP socket for both directions. Headers and UDP checksums are written, and the
//! payload is copied into the frame and out of the ring. There are no acknowledgements and
//! retransmissions, so these are limits for protocols over such links.

use std::io;
use std::net::{IpAddr, SocketAddr};

use dipole_bpf::neighbours::Neighbours;
use dipole_bpf::raw::{RawFrame, Sent};
use dipole_bpf::xsk::{Xsk, XskHook, XskOptions};
use dipole_bpf::{Bpf, BpfOptions, FastPath, interface_of};
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{Class, Link, Outgoing};

use super::{Meet, only_port};
use crate::channel::{Channel, SendMode, broken};
use crate::control::{Job, Outcome};
use crate::subject::Subject;

/// Assumed minimum duration of a send, which advances the clock of routes. Reading the real clock
/// would be part of the measurement.
const SEND_NS: u64 = 500;

pub(crate) struct Frames {
    way: Way,
    own: SocketAddr,
    other: SocketAddr,
    now_ns: u64,
    /// The last received message.
    message: Vec<u8>,
}

enum Way {
    Ring(Box<Bpf>),
    Xdp(Box<Xdp>),
}

/// An AF_XDP socket and the UDP socket that reserves its port.
struct Xdp {
    xsk: Xsk,
    neighbours: Neighbours,
    udp: Udp,
    _hook: XskHook,
    /// Frames sent and received.
    sent: u64,
    received: u64,
}

impl Frames {
    pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Self> {
        let udp = Udp::bind(job.own, &UdpOptions::default()).map_err(io::Error::other)?;
        let own = udp.local(Class::Small);
        let way = match job.subject {
            Subject::BareBpf => by_ring(udp)?,
            _ => by_xdp(udp, job.own)?,
        };
        let port = only_port(&meet(vec![own.port()])?)?;
        Ok(Self {
            way,
            own,
            other: SocketAddr::new(job.other, port),
            now_ns: 0,
            message: Vec::new(),
        })
    }
}

/// The kernel's ring and raw frames.
fn by_ring(udp: Udp) -> io::Result<Way> {
    let fast_path = FastPath::open(&udp, &BpfOptions::default()).map_err(io::Error::other)?;
    Ok(Way::Ring(Box::new(Bpf::new(udp, fast_path))))
}

/// One AF_XDP socket for both directions, in copy mode.
fn by_xdp(udp: Udp, ip: IpAddr) -> io::Result<Way> {
    let (interface, _) = interface_of(ip)?;
    let xsk = Xsk::open(&interface, &XskOptions::default())?;
    let hook = XskHook::attach(&interface, &xsk, udp.local(Class::Small))?;
    let neighbours = Neighbours::open(&interface, ip)?;
    Ok(Way::Xdp(Box::new(Xdp {
        xsk,
        neighbours,
        udp,
        _hook: hook,
        sent: 0,
        received: 0,
    })))
}

impl Channel for Frames {
    fn try_send(&mut self, payload: &[u8], _manner: SendMode) -> io::Result<bool> {
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
                    // The kernel resolves the neighbour.
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
        self.message.clear();
        self.message.extend_from_slice(bytes);
        Ok(Some(consume(&self.message)))
    }

    fn finish(self, _: &mut Outcome) -> io::Result<()> {
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
        Ok(())
    }
}
