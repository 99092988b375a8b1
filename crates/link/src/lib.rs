//! Ways to move frames between processes.
//!
//! A [`Link`] moves datagrams and knows nothing of what they mean: no protocol
//! header is read here, no peer is remembered. It does, it never decides.
//! Time is nanoseconds of a clock the caller chooses, given as an argument.

mod any_hub;
pub mod arena;
pub mod busy_poll;
mod capture;
mod chance;
pub mod clock;
pub mod cpu;
pub mod crc32c;
pub mod fault;
pub mod fork;
pub mod membarrier;
mod multihomed;
mod region;
pub mod segment;
pub mod shm;
pub mod signal;
pub mod sim;
pub mod sys;
pub mod udp;
pub mod wait;
pub mod watch;
pub mod window;
pub mod word;

use std::io;
use std::net::SocketAddr;

pub use any_hub::AnyHub;
pub use capture::{Capture, CaptureError};
pub use fault::Fault;
pub use multihomed::{Multihomed, source_address};
pub use region::{Region, RegionError};
pub use udp::Udp;

/// Which of a process's two ports a frame uses (`docs/design/protocol.md` §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Latency matters: single packets.
    Small,
    /// Throughput matters: long runs of packets to one destination.
    Bulk,
}

/// What a link is, reported once when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Longest frame in bytes (the UDP payload) that this link carries in one packet.
    pub max_frame_bytes: usize,
    /// How many full frames the receiving side can hold before it must drop.
    pub receive_frames: usize,
    /// Looks for small frames that take about as long as one system call.
    pub looks_per_call: u32,
    /// Longest run of small frames to one destination that travels as one message. They may
    /// [arrive](Incoming::bytes) so, too.
    pub small_run_frames: usize,
}

/// One frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The port it leaves from.
    pub class: Class,
    /// Where it goes.
    pub to: SocketAddr,
    /// The first part of the UDP payload.
    pub head: &'a [u8],
    /// The rest of it, which may lie elsewhere; often empty.
    pub payload: &'a [u8],
    /// Any source port will do, so the link may send from another socket than that of
    /// the class. A reply to that source port may be delayed or lost.
    pub any_port: bool,
}

impl Outgoing<'_> {
    /// Bytes of the whole frame.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// True for a frame without bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the whole frame.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.head);
        bytes.extend_from_slice(self.payload);
    }
}

/// One frame that came in; borrowed from the link until the next `poll`.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The port it arrived at.
    pub class: Class,
    /// Who sent it, as the network says.
    pub from: SocketAddr,
    /// The UDP payload; of small frames that travelled as one message, all of theirs, one after
    /// the other.
    pub bytes: &'a [u8],
}

/// A way to move frames: at most once, maybe late, maybe never, maybe damaged.
pub trait Link {
    /// What this link can do.
    fn caps(&self) -> Caps;

    /// The local address of a class, as peers should use it.
    fn local(&self, class: Class) -> SocketAddr;

    /// The local addresses of a class, one for each interface; the first is [`local`](Self::local).
    fn locals(&self, class: Class) -> Vec<SocketAddr> {
        vec![self.local(class)]
    }

    /// The local address from which a frame of this class to `to` leaves, as far as is
    /// known now. May ask the kernel: not for every frame.
    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        let _one_interface = to;
        self.local(class)
    }

    /// Hands frames over, in order; returns how many were taken.
    ///
    /// Fewer than given means that the link is full, or that it
    /// [refuses the next](Self::refuses_next): if not, offer the rest again
    /// later. A frame that cannot reach its destination counts as taken and
    /// lost. The bytes are copied before the call returns.
    ///
    /// # Errors
    /// Only when the link itself is broken; then nothing more will work.
    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize>;

    /// True if the last `send` stopped before a frame that is longer than the link's own
    /// interface takes. It will not be taken later either. What others on the way
    /// take is unknown to the link: such frames are lost.
    fn refuses_next(&self) -> bool {
        false
    }

    /// Fetches what has arrived on one class without waiting; returns how many
    /// frames [`frame`](Self::frame) now offers. The former ones are gone.
    ///
    /// # Errors
    /// Only when the link itself is broken.
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize>;

    /// The `index`-th frame of the last `poll`.
    ///
    /// # Panics
    /// When `index` is not below what `poll` returned.
    fn frame(&self, index: usize) -> Incoming<'_>;

    /// When the link next has something to do by itself (a delayed frame).
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Before sleeping on the [`descriptors`](Self::descriptors): from now on what arrives
    /// makes them readable. False, and not so, if something is there. Gives back what the last
    /// `poll` offered.
    fn arm(&mut self) -> bool {
        true
    }

    /// After sleeping: what arrives need not make the descriptors readable.
    fn disarm(&mut self) {}

    /// Descriptors that become readable when `poll` would return frames, while the link is
    /// armed.
    fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        Vec::new()
    }
}
