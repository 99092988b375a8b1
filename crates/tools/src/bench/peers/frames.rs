//! `bare-bpf` and `bare-xdp`: one frame a message, beside the kernel's sockets, spinning.
//!
//! Work: `bare-bpf` has the kernel's program deposit each packet in a ring of the
//! process and sends raw frames by an AF_PACKET socket: just the parts of our bpf link,
//! without any protocol. `bare-xdp` has an AF_XDP socket for both ways. Fair: headers
//! and UDP checksums are written and the payload is copied once on each side; nothing
//! is acknowledged or repeated, so they are the limit for what is built on those ways.

use std::io;
use std::net::{IpAddr, SocketAddr};

use dipole_link::bpf::{Bpf, BpfOptions, Shortcuts};
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{Class, Link, Outgoing};

use super::super::channel::{Channel, Manner, broken};

pub(crate) struct Frames {
    link: Bpf,
    other: SocketAddr,
}

impl Frames {
    /// The kernel's ring, and raw frames.
    pub(crate) fn by_ring(own: IpAddr) -> io::Result<Self> {
        let udp = Udp::bind(own, &UdpOptions::default()).map_err(io::Error::other)?;
        let shortcuts = Shortcuts::open(&udp, &BpfOptions::default()).map_err(io::Error::other)?;
        let link = Bpf::new(udp, shortcuts);
        let other = link.local(Class::Small);
        Ok(Self { link, other })
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        vec![self.link.local(Class::Small).port()]
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
            bytes: payload,
            any_port: true,
        };
        Ok(self.link.send(0, &[frame])? == 1)
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        if self.link.poll(0, Class::Small)? == 0 {
            return Ok(None);
        }
        let frame = self.link.frame(0);
        if frame.bytes.len() != length {
            return Err(broken(format!(
                "a frame of {} bytes came, {length} were due",
                frame.bytes.len()
            )));
        }
        Ok(Some(consume(frame.bytes)))
    }

    fn finish(self) -> io::Result<Vec<String>> {
        let stats = self.link.stats();
        if stats.raw < stats.socket || stats.by_ring < stats.by_socket {
            return Err(broken(format!(
                "frames and rings were to carry the messages, but sockets did: {stats:?}"
            )));
        }
        Ok(Vec::new())
    }
}
