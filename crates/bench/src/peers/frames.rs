//! `bare-bpf`: one raw frame per message, bypassing the kernel's sockets, spinning.
//!
//! Work: the kernel's program deposits each packet in a ring of the process, and raw frames are sent
//! through an AF_PACKET socket: the parts of our bpf link without a protocol. Headers and UDP
//! checksums are written, and the payload is copied into the frame and out of the ring. There are no
//! acknowledgements and retransmissions, so this is the limit for protocols over such a link.

use std::io;
use std::net::SocketAddr;

use dipole_bpf::{Bpf, BpfOptions, FastPath};
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{Class, Link, Outgoing};

use super::{Meet, only_port};
use crate::channel::{Channel, SendMode, broken};
use crate::control::{Job, Outcome};

/// Assumed minimum duration of a send, which advances the clock of routes. Reading the real clock
/// would be part of the measurement.
const SEND_NS: u64 = 500;

pub(crate) struct Frames {
    link: Bpf,
    other: SocketAddr,
    now_ns: u64,
    /// The last received message.
    message: Vec<u8>,
}

impl Frames {
    pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Self> {
        let udp = Udp::bind(job.own, &UdpOptions::default()).map_err(io::Error::other)?;
        let own = udp.local(Class::Small);
        let fast_path = FastPath::open(&udp, &BpfOptions::default()).map_err(io::Error::other)?;
        let port = only_port(&meet(vec![own.port()])?)?;
        Ok(Self {
            link: Bpf::new(udp, fast_path),
            other: SocketAddr::new(job.other, port),
            now_ns: 0,
            message: Vec::new(),
        })
    }
}

impl Channel for Frames {
    fn try_send(&mut self, payload: &[u8], _manner: SendMode) -> io::Result<bool> {
        let frame = Outgoing {
            any_port: true,
            ..Outgoing::frame(Class::Small, self.other, payload)
        };
        self.now_ns += SEND_NS;
        Ok(self.link.send(self.now_ns, &[frame])? == 1)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        if self.link.poll(self.now_ns, Class::Small)? == 0 {
            return Ok(None);
        }
        let bytes = self.link.message(0).bytes;
        if bytes.len() != length {
            return Err(broken(format!(
                "received a frame of {} bytes, expected {length}",
                bytes.len()
            )));
        }
        self.message.clear();
        self.message.extend_from_slice(bytes);
        Ok(Some(consume(&self.message)))
    }

    fn finish(self, _: &mut Outcome) -> io::Result<()> {
        let stats = self.link.stats();
        if stats.raw < stats.socket || stats.from_ring < stats.from_socket {
            return Err(broken(format!(
                "frames and rings were to carry the messages, but sockets did: {stats:?}"
            )));
        }
        Ok(())
    }
}
