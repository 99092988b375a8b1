//! Links that move frames between processes.
//!
//! A [`Link`] moves datagrams without interpreting them: it parses no protocol header and
//! remembers no peer. Timestamps are nanoseconds of a clock that the caller chooses, passed as
//! arguments.

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
pub mod handlers;
pub mod membarrier;
mod multihomed;
pub mod netlink;
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

/// Traffic class of a frame, which selects one of the process's two ports (`docs/design/protocol.md` §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Latency matters: single packets.
    Small,
    /// Throughput matters: long runs of packets to one destination.
    Bulk,
}

/// Capabilities of a link, reported once when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Longest frame in bytes (the UDP payload) that fits into one packet.
    pub max_frame_bytes: usize,
    /// Number of full frames that the receiving side can queue before it drops.
    pub receive_frames: usize,
    /// Polls for small frames that take about as long as one system call.
    pub polls_per_syscall: u32,
    /// Longest run of small frames to one destination that is sent as one message. Such runs
    /// may also [arrive](Incoming::bytes) as one.
    pub small_run_frames: usize,
}

/// One frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Port class that it is sent from.
    pub class: Class,
    /// Address of the destination.
    pub to: SocketAddr,
    /// The first part of the UDP payload.
    pub head: &'a [u8],
    /// The rest of the payload, in separate memory; often empty.
    pub payload: &'a [u8],
    /// Any source port is acceptable, so the link may use a socket other than that of the
    /// class. A reply to that source port may be delayed or lost.
    pub any_port: bool,
}

impl Outgoing<'_> {
    /// Length of the whole frame in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// True for an empty frame.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the whole frame to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.head);
        bytes.extend_from_slice(self.payload);
    }
}

/// A received frame; borrowed from the link until the next `poll`.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Port class that it arrived at.
    pub class: Class,
    /// Address of the sender.
    pub from: SocketAddr,
    /// The UDP payload. If small frames were sent as one message: their payloads, concatenated.
    pub bytes: &'a [u8],
}

/// A way to move frames: unreliable, unordered, possibly corrupting.
pub trait Link {
    /// Returns the capabilities of the link.
    fn caps(&self) -> Caps;

    /// The local address of a class, as peers should use it.
    fn local(&self, class: Class) -> SocketAddr;

    /// The local addresses of a class, one for each interface; the first is [`local`](Self::local).
    fn locals(&self, class: Class) -> Vec<SocketAddr> {
        vec![self.local(class)]
    }

    /// The local address from which a frame of this class to `to` would be sent, as far as known
    /// now. May query the kernel, so do not call it for every frame.
    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        let _one_interface = to;
        self.local(class)
    }

    /// Passes frames to the link, in order; returns the number taken.
    ///
    /// Fewer than given means that the link is full, or that it
    /// [refuses the next](Self::refuses_next): if not, offer the rest again later. A frame that
    /// cannot reach its destination counts as taken and is lost. The bytes are copied before
    /// the call returns.
    ///
    /// # Errors
    /// Only if the link itself is broken; then all later calls fail, too.
    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize>;

    /// True if the last `send` stopped before a frame that is too long for the link's own
    /// interface; it will not be taken later either. Limits of other hops are unknown to the
    /// link: frames that exceed them are lost.
    fn refuses_next(&self) -> bool {
        false
    }

    /// Fetches frames that have arrived on one class, without waiting; returns the number of
    /// frames available through [`frame`](Self::frame). Earlier frames are discarded.
    ///
    /// # Errors
    /// Only if the link itself is broken.
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize>;

    /// The `index`-th frame of the last `poll`.
    ///
    /// # Panics
    /// If `index` is not below the number that `poll` returned.
    fn frame(&self, index: usize) -> Incoming<'_>;

    /// When the link next has work of its own (a delayed frame).
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Prepares to sleep on the [`descriptors`](Self::descriptors): from now on arriving frames
    /// make them readable. Returns false, and is not armed, if frames are pending. Discards
    /// the frames of the last `poll`.
    fn arm(&mut self) -> bool {
        true
    }

    /// Ends the armed state: arriving frames need not make the descriptors readable.
    fn disarm(&mut self) {}

    /// Descriptors that become readable when `poll` would return frames, while the link is
    /// armed.
    fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        Vec::new()
    }
}
