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
pub mod pmix;
mod region;
pub mod segment;
pub mod shm;
pub mod signal;
pub mod sim;
pub mod successors;
pub mod sys;
pub mod udp;
mod unsent;
pub mod wait;
pub mod watch;
pub mod window;
pub mod word;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use any_hub::AnyHub;
pub use capture::{Capture, CaptureError};
pub use fault::Fault;
pub use multihomed::{Multihomed, present_addresses, source_address};
pub use region::{Region, RegionError};
pub use udp::Udp;
pub use unsent::Unsent;

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
    /// The kernel drops arriving frames whose UDP checksum is wrong.
    pub checks_frames: bool,
}

/// Frames to send to one destination: one, or several of equal length.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Port class that they are sent from.
    pub class: Class,
    /// Address of the destination.
    pub to: SocketAddr,
    /// The UDP payloads of the frames, one behind the other.
    pub bytes: &'a [u8],
    /// Length of each frame, not zero; the last one may be shorter.
    pub frame_bytes: usize,
    /// Any source port is acceptable, so the link may use a socket other than that of the
    /// class. A reply to that source port may be delayed or lost.
    pub any_port: bool,
    /// Never joined with other frames, because it tests which length the path carries: virtual devices
    /// forward joined frames whatever their MTU.
    pub alone: bool,
}

impl<'a> Outgoing<'a> {
    /// One frame, from the port of its class.
    #[must_use]
    #[inline]
    pub fn frame(class: Class, to: SocketAddr, bytes: &'a [u8]) -> Outgoing<'a> {
        Outgoing {
            class,
            to,
            bytes,
            frame_bytes: bytes.len().max(1),
            any_port: false,
            alone: false,
        }
    }

    /// Number of frames. An empty frame counts as one.
    #[must_use]
    #[inline]
    pub fn count(&self) -> usize {
        match self.bytes.len() <= self.frame_bytes {
            true => 1,
            false => self.bytes.len().div_ceil(self.frame_bytes),
        }
    }

    /// The frames without the first `count`.
    #[must_use]
    #[inline]
    pub fn after(&self, count: usize) -> Outgoing<'a> {
        let bytes = &self.bytes[(count * self.frame_bytes).min(self.bytes.len())..];
        Outgoing { bytes, ..*self }
    }

    /// The first `count` frames.
    #[must_use]
    #[inline]
    pub fn first(&self, count: usize) -> Outgoing<'a> {
        let bytes = &self.bytes[..(count * self.frame_bytes).min(self.bytes.len())];
        Outgoing { bytes, ..*self }
    }

    /// Each frame by itself.
    pub fn frames(self) -> impl Iterator<Item = Outgoing<'a>> {
        (0..self.count()).map(move |index| self.after(index).first(1))
    }
}

/// A received message: one frame, or several that the kernel has joined. Borrowed from the link until
/// the next `poll`.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Port class that it arrived at.
    pub class: Class,
    /// Address of the sender.
    pub from: SocketAddr,
    /// The UDP payloads, one behind the other.
    pub bytes: &'a [u8],
    /// Length of each frame; the last one may be shorter. If small frames were sent as one message,
    /// the link does not know their lengths, and this is the length of all.
    pub frame_bytes: usize,
}

impl<'a> Incoming<'a> {
    /// Each frame by itself.
    pub fn frames(self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.frame_bytes.max(1))
    }
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

    /// True if an interface, by its position in [`locals`](Self::locals), is in use.
    fn is_in_use(&self, interface: usize) -> bool {
        let _always = interface;
        true
    }

    /// Uses the interfaces whose addresses are `present`, and no others; those in use stay if none
    /// is. Returns which of the `destinations` are now reached through another interface than
    /// before, or not at all; `None` if that concerns none of them and the same interfaces are in
    /// use.
    fn set_present(&mut self, present: &[IpAddr], destinations: &[IpAddr]) -> Option<Vec<IpAddr>> {
        let _one_interface = (present, destinations);
        None
    }

    /// The local address from which a frame of this class to `to` would be sent, as far as known
    /// now. May query the kernel, so do not call it for every frame.
    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        let _one_interface = to;
        self.local(class)
    }

    /// Passes frames to the link, in order; returns the number of frames taken.
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
    /// messages available through [`message`](Self::message). Earlier ones are discarded.
    ///
    /// # Errors
    /// Only if the link itself is broken.
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize>;

    /// The `index`-th message of the last `poll`.
    ///
    /// # Panics
    /// If `index` is not below the number that `poll` returned.
    fn message(&self, index: usize) -> Incoming<'_>;

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
