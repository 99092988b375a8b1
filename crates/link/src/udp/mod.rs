//! Frames over two UDP sockets: one for small packets, one for bulk.
//!
//! The small socket is tuned for latency: an empty poll is one plain system call. The bulk
//! socket is tuned for throughput: runs of frames to one destination leave as one message that
//! the kernel or the interface splits (`UDP_SEGMENT`), and arrive joined (`UDP_GRO`). Packets
//! are never fragmented. Nothing is allocated after opening.

mod memory;
mod open;
mod ports;
mod receive;
mod routes;
mod send;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;

pub use open::{MAX_FRAME_BYTES, OpenError, longest_frame_bytes};
pub use ports::{PortRange, PortRangeError};

use crate::busy_poll::BusyPolling;
use crate::{Caps, Class, Incoming, Link, Outgoing, Unsent, sys};
use receive::Receiver;
use routes::Routes;
use send::{Progress, Sender};

/// Messages fetched per call on the small socket once they queue up.
const SMALL_SLOTS: usize = 32;
/// Buffer size for each; enough for a jumbo frame.
const SMALL_SLOT_BYTES: usize = 9216;
/// Slots when small frames may arrive joined: fewer, so that they stay in the cache, each with
/// room for the longest message that the kernel joins. The size is not a power of two, so that
/// the slots do not map to the same cache sets.
const JOINED_SLOTS: usize = 8;
const JOINED_SLOT_BYTES: usize = 65_536 + 4096 + 192;
/// Longest run of small frames sent as one message; later packets wait behind it. 16 KiB in
/// packets of 1472 bytes.
const SMALL_RUN_BYTES: usize = 12 * 1472;
/// Messages fetched per call on the bulk socket; they fit the L2 cache.
const BULK_SLOTS: usize = 4;
/// Buffer size for each: the longest message that the kernel joins.
const BULK_SLOT_BYTES: usize = 65_536;
/// Lower bound for the reported receive capacity.
const MIN_RECEIVE_FRAMES: usize = 16;

/// How to open a UDP link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Port of the small socket; 0 lets the kernel choose.
    pub small_port: u16,
    /// Port of the bulk socket; 0 lets the kernel choose.
    pub bulk_port: u16,
    /// Replaces the kernel's choice: ports are taken from this range, and frames use no others.
    pub ports: Option<PortRange>,
    /// Requested queue size of each socket and direction in bytes. Without privileges the kernel
    /// grants at most `net.core.rmem_max`.
    pub buffer_bytes: usize,
    /// True if runs may pass through the kernel as one message (GSO, GRO).
    pub segmentation: bool,
    /// True if an empty poll of a socket busy-polls the interface's receive queue. Runs then
    /// arrive as single frames.
    pub busy_poll: bool,
    /// True if runs of small frames are joined, too. They are delivered joined, so the caller
    /// must know the frames' lengths.
    pub join_small: bool,
    /// True if the address may be missing; frames arrive once it exists.
    pub may_be_absent: bool,
}

impl Default for UdpOptions {
    /// Any ports, 4 MiB, segmentation of bulk frames if available, no busy polling.
    fn default() -> Self {
        UdpOptions {
            small_port: 0,
            bulk_port: 0,
            ports: None,
            buffer_bytes: 4 << 20,
            segmentation: true,
            busy_poll: false,
            join_small: false,
            may_be_absent: false,
        }
    }
}

/// Counters of a UDP link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Frames accepted by the kernel.
    pub sent_frames: u64,
    /// Frames returned by polls.
    pub received_frames: u64,
    /// Messages sent that contained several frames.
    pub gso_batches: u64,
    /// Messages received that contained several frames.
    pub gro_batches: u64,
    /// Frames refused because they exceed the interface's MTU.
    pub too_long: u64,
    /// Frames lost because the kernel has no route to their destination.
    pub unreachable: u64,
    /// Empty frames, which are neither sent nor delivered.
    pub empty: u64,
    /// Messages dropped because they are longer than any frame may be.
    pub truncated: u64,
    /// Calls of `send` that stopped early because a socket was full.
    pub full: u64,
    /// Runs that the kernel refused as one message and that were sent frame by frame.
    pub gso_refused: u64,
}

/// The socket for small packets, tuned for latency.
struct SmallPort {
    socket: OwnedFd,
    receiver: Receiver,
    /// Connected sockets for the most frequent destinations.
    routes: Routes,
    /// Successive polls that found something.
    streak: u32,
    /// Successive polls that found nothing.
    quiet: u32,
}

impl SmallPort {
    #[inline]
    fn poll(&mut self, stats: &mut UdpStats) -> io::Result<usize> {
        let socket = self.socket.as_fd();
        // Two successive hits indicate a queue; a single packet should not pay for looking for a
        // second one.
        let found = if self.streak < 2 {
            self.receiver.one(socket, stats)
        } else {
            self.receiver.many(socket, stats)
        };
        let mut found = found.inspect_err(|_| self.receiver.clear())?;
        self.quiet = if found == 0 { self.quiet + 1 } else { 0 };
        if self.quiet == ROUTE_LOOK_POLLS {
            self.quiet = 0;
            if let Some(socket) = self.routes.next() {
                found = self.receiver.one(socket, stats)?;
            }
        }
        self.streak = match found {
            0 => 0,
            1 if self.streak >= 2 => 0,
            _ => self.streak.saturating_add(1),
        };
        Ok(found)
    }
}

/// The socket for bulk packets, tuned for throughput.
struct BulkPort {
    socket: OwnedFd,
    receiver: Receiver,
    /// Cleared when the kernel reports that no sent data is queued.
    is_queued: bool,
}

/// True if runs of frames are sent as one message.
#[derive(Clone, Copy)]
struct Joining {
    /// Cleared permanently if the kernel or the interface cannot split messages.
    is_on: bool,
    /// True if it is also used for small frames.
    small: bool,
}

/// Progress of one call of `send`.
#[derive(Default)]
struct SendProgress {
    taken: usize,
    /// Frames before this index are sent one by one, since the kernel refused them joined.
    single_until: usize,
    /// The kernel gave a reason that could mean the joining or the destination.
    is_unclear: bool,
    /// Count of unreachable frames when that happened.
    unreachable_before: u64,
}

/// A link over UDP sockets.
pub struct Udp {
    small: SmallPort,
    bulk: BulkPort,
    local: [SocketAddr; 2],
    caps: Caps,
    joining: Joining,
    busy_polling: BusyPolling,
    sender: Sender,
    /// Class of the frames of the last poll.
    polled: Class,
    /// Frames may be sent from the ports of connected sockets.
    any_port: bool,
    refuses_next: bool,
    stats: UdpStats,
}

/// Empty polls of the small socket between two polls of a connected one.
const ROUTE_LOOK_POLLS: u32 = 64;

impl Udp {
    /// Opens both sockets on a local address.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing stays open.
    pub fn bind(ip: IpAddr, options: &UdpOptions) -> Result<Udp, OpenError> {
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(OpenError::NotUnicast { ip });
        }
        let (mtu_bytes, scope_id) = open::interface(ip)?;
        let small = open::open(ip, scope_id, Class::Small, options)?;
        let bulk = open::open(ip, scope_id, Class::Bulk, options)?;
        // Kernels without UDP GRO deliver single datagrams: slower, but correct.
        let join = |socket: BorrowedFd<'_>| {
            sys::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1_i32).is_ok()
        };
        // With busy polling and deferred interrupts, the kernel holds back packets that it might
        // join for up to one clock tick (4 ms).
        let may_join = options.segmentation && !options.busy_poll;
        let gro = may_join && join(bulk.socket.as_fd());
        let join_small = gro && options.join_small && join(small.socket.as_fd());
        let busy_polling = match options.busy_poll {
            true => {
                let _as_the_other = BusyPolling::start(bulk.socket.as_fd());
                BusyPolling::start(small.socket.as_fd())
            }
            false => BusyPolling::Off,
        };
        let max_frame_bytes = open::frame_bytes(mtu_bytes, ip);
        let caps = Caps {
            max_frame_bytes,
            receive_frames: receive_frames(bulk.socket.as_fd(), max_frame_bytes),
            polls_per_syscall: 1,
            small_run_frames: match join_small {
                true => SMALL_RUN_BYTES.div_ceil(max_frame_bytes),
                false => 1,
            },
            checks_frames: true,
        };
        Ok(Udp {
            local: [small.local, bulk.local],
            small: SmallPort {
                socket: small.socket,
                receiver: match join_small {
                    true => Receiver::new(JOINED_SLOTS, JOINED_SLOT_BYTES),
                    false => Receiver::new(SMALL_SLOTS, SMALL_SLOT_BYTES),
                },
                routes: Routes::default(),
                streak: 0,
                quiet: 0,
            },
            bulk: BulkPort {
                socket: bulk.socket,
                receiver: Receiver::new(BULK_SLOTS, BULK_SLOT_BYTES),
                is_queued: false,
            },
            caps,
            joining: Joining {
                is_on: options.segmentation,
                small: join_small,
            },
            busy_polling,
            sender: Sender::new(),
            polled: Class::Small,
            any_port: options.ports.is_none(),
            refuses_next: false,
            stats: UdpStats::default(),
        })
    }

    /// Returns the counters since the link was opened.
    #[must_use]
    pub fn stats(&self) -> UdpStats {
        self.stats
    }

    /// True while runs are sent as one message.
    #[must_use]
    pub fn uses_segmentation(&self) -> bool {
        self.joining.is_on
    }

    /// The outcome of [`UdpOptions::busy_poll`].
    #[must_use]
    pub fn busy_polling(&self) -> &BusyPolling {
        &self.busy_polling
    }

    /// The counter for frames that are lost at once, if they are.
    #[inline]
    fn loss(&mut self, frames: &Outgoing<'_>) -> Option<&mut u64> {
        if frames.bytes.is_empty() {
            Some(&mut self.stats.empty)
        } else if frames.to.is_ipv4() != self.local[0].is_ipv4() {
            Some(&mut self.stats.unreachable)
        } else {
            None
        }
    }

    /// True if the frames are short enough for the interface.
    #[inline]
    fn fits(&self, frames: &Outgoing<'_>) -> bool {
        frames.frame_bytes.min(frames.bytes.len()) <= self.caps.max_frame_bytes
    }

    /// Sends the first of these small frames, and those that may be joined to it, through a
    /// socket connected to its destination. Returns the number of frames taken; 0 if the
    /// socket does not exist or is not usable now.
    #[inline]
    fn send_connected(&mut self, batch: &[Outgoing<'_>]) -> usize {
        let to = batch[0].to;
        let Some(socket) = self.small.routes.to(self.local[0], to) else {
            return 0;
        };
        let most = self.caps.max_frame_bytes;
        let alike = batch.iter().take_while(|frames| {
            let is_fit = !frames.bytes.is_empty() && frames.frame_bytes <= most;
            frames.class == Class::Small && frames.any_port && frames.to == to && is_fit
        });
        let alike = &batch[..alike.count()];
        let is_run = alike.len() > 1 || alike.first().is_some_and(|first| first.count() > 1);
        if is_run && self.joining.small && self.joining.is_on {
            return match self.sender.run_connected(socket, alike, &mut self.stats) {
                Progress::Taken(taken)
                | Progress::Full(taken)
                | Progress::Refused { taken, .. } => taken,
            };
        }
        let sent = routes::send(socket, &batch[0].first(1)).is_ok();
        self.stats.sent_frames += u64::from(sent);
        usize::from(sent)
    }

    /// Stops before a frame that is too long, after `taken` frames.
    #[cold]
    fn refuse(&mut self, taken: usize) -> usize {
        self.stats.too_long += 1;
        self.refuses_next = true;
        taken
    }

    /// True if bulk data may still be queued in this machine, so that a raw frame would overtake
    /// it. Queries the kernel only after bulk data was sent.
    #[inline]
    pub fn has_bulk_queued(&mut self) -> bool {
        if self.bulk.is_queued {
            let queued = sys::queued_bytes(self.bulk.socket.as_fd());
            self.bulk.is_queued = queued.is_none_or(|bytes| bytes > 0);
        }
        self.bulk.is_queued
    }

    /// The socket bound to the small port.
    #[must_use]
    pub fn small_socket(&self) -> BorrowedFd<'_> {
        self.small.socket.as_fd()
    }

    /// Handles a run that the kernel refused as one message: its frames are sent one by one, or are
    /// lost.
    #[cold]
    fn refused_run(
        &mut self,
        progress: &mut SendProgress,
        frames: usize,
        error: Errno,
    ) -> ControlFlow<io::Result<usize>> {
        self.stats.gso_refused += 1;
        match error {
            // No such option, or an interface without checksum offload.
            Errno::IO | Errno::NOPROTOOPT | Errno::OPNOTSUPP => self.joining.is_on = false,
            // A frame is too long for the path, or the error is unknown: sending one by one shows which.
            Errno::INVAL | Errno::MSGSIZE => {
                progress.is_unclear = error == Errno::INVAL;
                progress.unreachable_before = self.stats.unreachable;
            }
            error if is_destination_error(error) => {
                self.stats.unreachable += frames as u64;
                progress.taken += frames;
                return ControlFlow::Continue(());
            }
            error => return ControlFlow::Break(partial_or_error(progress.taken, error)),
        }
        progress.single_until = progress.taken + frames;
        ControlFlow::Continue(())
    }

    /// Handles a single frame that the kernel refused: it is too long or lost.
    #[cold]
    fn refused_frame(
        &mut self,
        progress: &mut SendProgress,
        error: Errno,
    ) -> ControlFlow<io::Result<usize>> {
        match error {
            Errno::MSGSIZE => return ControlFlow::Break(Ok(self.refuse(progress.taken))),
            error if is_destination_error(error) => self.stats.unreachable += 1,
            error => return ControlFlow::Break(partial_or_error(progress.taken, error)),
        }
        progress.taken += 1;
        ControlFlow::Continue(())
    }

    /// The leading entries of `batch` that may be sent in one call.
    fn alike<'a, 'b>(&mut self, batch: &'a [Outgoing<'b>]) -> &'a [Outgoing<'b>] {
        let class = batch.first().map(|first| first.class);
        let alike = batch.iter().take_while(|frames| {
            Some(frames.class) == class && self.fits(frames) && self.loss(frames).is_none()
        });
        let count = alike.count();
        &batch[..count]
    }

    /// Sends the leading frames of a batch in one call, or with `singly` only the first.
    fn send_some(&mut self, rest: &[Outgoing<'_>], singly: bool) -> Progress {
        let class = rest[0].class;
        let may_join = class == Class::Bulk || self.joining.small;
        let first = [rest[0].first(1)];
        let run = match singly {
            true => &first[..],
            false => self.alike(rest),
        };
        let socket = match class {
            Class::Small => self.small.socket.as_fd(),
            Class::Bulk => {
                self.bulk.is_queued = true;
                self.bulk.socket.as_fd()
            }
        };
        let join = self.joining.is_on && !singly && may_join;
        self.sender.run(socket, run, join, &mut self.stats)
    }
}

impl Link for Udp {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn local(&self, class: Class) -> SocketAddr {
        self.local[class as usize]
    }

    fn send(&mut self, _now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut progress = SendProgress::default();
        self.refuses_next = false;
        let mut left = Unsent::new(batch);
        while let Some(first) = left.skip_to(progress.taken) {
            if !self.fits(&first) {
                return Ok(self.refuse(progress.taken));
            }
            if let Some(counter) = self.loss(&first) {
                *counter += 1;
                progress.taken += 1;
                continue;
            }
            let singly = progress.taken < progress.single_until;
            let any_port = self.any_port && first.any_port;
            if first.class == Class::Small && any_port && !singly {
                let sent = self.send_connected(left.rest());
                progress.taken += sent;
                if sent > 0 {
                    continue;
                }
            }
            match self.send_some(left.rest(), singly) {
                Progress::Taken(count) => progress.taken += count,
                Progress::Full(count) => {
                    self.stats.full += 1;
                    return Ok(progress.taken + count);
                }
                Progress::Refused {
                    taken,
                    frames,
                    error,
                } => {
                    progress.taken += taken;
                    let outcome = match frames {
                        1 => self.refused_frame(&mut progress, error),
                        _ => self.refused_run(&mut progress, frames, error),
                    };
                    if let ControlFlow::Break(result) = outcome {
                        return result;
                    }
                }
            }
            if progress.is_unclear && progress.taken >= progress.single_until {
                // All frames were accepted singly, so the kernel rejects the joining.
                self.joining.is_on &= progress.unreachable_before != self.stats.unreachable;
                progress.is_unclear = false;
            }
        }
        Ok(progress.taken)
    }

    fn refuses_next(&self) -> bool {
        self.refuses_next
    }

    #[inline]
    fn poll(&mut self, _now_ns: u64, class: Class) -> io::Result<usize> {
        self.polled = class;
        match class {
            Class::Small => self.small.poll(&mut self.stats),
            Class::Bulk => {
                let socket = self.bulk.socket.as_fd();
                self.bulk.receiver.many(socket, &mut self.stats)
            }
        }
    }

    #[inline]
    fn message(&self, index: usize) -> Incoming<'_> {
        match self.polled {
            Class::Small => self.small.receiver.message(index, Class::Small),
            Class::Bulk => self.bulk.receiver.message(index, Class::Bulk),
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.small.socket.as_fd(), self.bulk.socket.as_fd()]
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Udp")
            .field("local", &self.local)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

/// True for errors that concern one destination, not the socket.
fn is_destination_error(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNREFUSED
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::NODEV
            | Errno::NXIO
            | Errno::PERM
            | Errno::ACCESS
            | Errno::INVAL
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT
            | Errno::DESTADDRREQ
            | Errno::NOENT
            | Errno::SRCH
            | Errno::TIMEDOUT
    )
}

/// Handles a broken socket: reports the frames taken before, and the error on the next call.
fn partial_or_error(taken: usize, error: Errno) -> io::Result<usize> {
    if taken > 0 {
        Ok(taken)
    } else {
        Err(error.into())
    }
}

/// Number of full frames that a socket's queue holds: the kernel charges each with a power of
/// two plus its own bookkeeping.
fn receive_frames(socket: BorrowedFd<'_>, frame_bytes: usize) -> usize {
    let queue_bytes = sockopt::socket_recv_buffer_size(socket).unwrap_or(0);
    let charged_bytes = (frame_bytes + 400).next_power_of_two() + 256;
    (queue_bytes / charged_bytes).max(MIN_RECEIVE_FRAMES)
}

#[cfg(test)]
mod tests;
