//! The link: a UDP link whose small packets use the fast path if there is one.
//!
//! Received packets are in the ring, sent ones leave as raw frames. Packets that the kernel's
//! program passes on, or that have no route on this interface, go through the UDP socket. So does
//! bulk traffic, except for runs that are cheaper as raw frames.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::fast_path::{FastPath, delegated_tx};
use super::grant::GrantEvent;
use super::rx_path::RxPath;
use super::tx_path::TxPath;
use crate::layout::MAX_PAYLOAD_BYTES;
use dipole_link::udp::Udp;
use dipole_link::{Caps, Class, Incoming, Link, Outgoing, Unsent};

/// A poll of the ring takes about 5 ns, a poll of a socket 150 to 300 ns.
const POLLS_PER_SYSCALL: u32 = 32;
/// Empty polls of the ring between two polls of the small socket.
const POLLS_PER_SOCKET_POLL: u32 = 32 * POLLS_PER_SYSCALL;

/// After this many packets at once the socket is polled next: the ring may have been full.
const BURST: usize = 32;
/// Small frames that are joined into one message at most, whatever the MTU.
const MOST_JOINED: usize = 32;

/// Counters of a bpf link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfStats {
    /// Small packets received from the ring.
    pub from_ring: u64,
    /// Small packets received through the UDP socket.
    pub from_socket: u64,
    /// Small packets sent as raw frames.
    pub raw: u64,
    /// Small packets sent one by one through the UDP socket.
    pub socket: u64,
    /// Small packets sent in runs, each run as one message of the UDP socket.
    pub joined: u64,
    /// Bulk packets sent as raw frames, in runs too short for the socket.
    pub raw_bulk: u64,
}

impl std::ops::Add for BpfStats {
    type Output = BpfStats;

    fn add(self, other: BpfStats) -> BpfStats {
        BpfStats {
            from_ring: self.from_ring + other.from_ring,
            from_socket: self.from_socket + other.from_socket,
            raw: self.raw + other.raw,
            socket: self.socket + other.socket,
            joined: self.joined + other.joined,
            raw_bulk: self.raw_bulk + other.raw_bulk,
        }
    }
}

/// A UDP link with a fast path.
#[derive(Debug)]
pub struct Bpf {
    udp: Udp,
    rx: Option<RxPath>,
    tx: Option<TxPath>,
    /// The packets of the last poll are in the fast path.
    from_ring: bool,
    /// Successive polls of the ring that found nothing.
    quiet: u32,
    /// Longest run of small frames that fits into a ring as one message.
    joined_frames: usize,
    stats: BpfStats,
}

impl Bpf {
    /// A UDP link with a fast path.
    #[must_use]
    pub fn new(udp: Udp, fast_path: FastPath) -> Bpf {
        let caps = udp.caps();
        let fits = MAX_PAYLOAD_BYTES / caps.max_frame_bytes;
        Bpf {
            joined_frames: caps.small_run_frames.min(fits.max(1)).min(MOST_JOINED),
            udp,
            rx: Some(fast_path.rx),
            tx: fast_path.tx,
            from_ring: false,
            quiet: 0,
            stats: BpfStats::default(),
        }
    }

    /// Counts on from the counters of the link that this one replaces.
    pub fn continue_counters(&mut self, former: BpfStats) {
        self.stats = self.stats + former;
    }

    /// The underlying UDP link.
    #[must_use]
    pub fn udp(&self) -> &Udp {
        &self.udp
    }

    /// Returns the counters since the link was opened.
    #[must_use]
    pub fn stats(&self) -> BpfStats {
        self.stats
    }

    /// Closes the receive path: from now on packets arrive at the socket.
    pub fn close_rx(&mut self) {
        self.rx = None;
        self.from_ring = false;
    }

    /// True if small packets are received from a ring.
    #[must_use]
    pub fn has_rx(&self) -> bool {
        self.rx.is_some()
    }

    /// True if small packets may leave as raw frames.
    #[must_use]
    pub fn sends_raw(&self) -> bool {
        self.tx.is_some()
    }

    #[inline]
    fn poll_small(&mut self, now_ns: u64) -> io::Result<usize> {
        let Some(rx) = &mut self.rx else {
            return self.udp.poll(now_ns, Class::Small);
        };
        match rx.poll() {
            Ok(0) => {}
            Ok(found) => {
                self.from_ring = true;
                // After a burst the ring may have been full: the rest is in the socket.
                self.quiet = if found < BURST {
                    0
                } else {
                    POLLS_PER_SOCKET_POLL
                };
                self.stats.from_ring += found as u64;
                return Ok(found);
            }
            Err(cause) => {
                tracing::warn!(
                    "the ring of {} is corrupt and no longer used, packets arrive at the socket: {cause}",
                    self.udp.local(Class::Small)
                );
                self.close_rx();
            }
        }
        self.from_ring = false;
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet < POLLS_PER_SOCKET_POLL {
            return Ok(0);
        }
        let found = self.udp.poll(now_ns, Class::Small)?;
        // Empty the socket's queue before the ring counts as idle again.
        self.quiet = if found == 0 { 0 } else { POLLS_PER_SOCKET_POLL };
        self.stats.from_socket += found as u64;
        if found == 0 {
            self.check_grant(now_ns);
        }
        Ok(found)
    }

    /// Tracks the broker as it disappears and returns: without it, its socket must not be used for
    /// sending.
    fn check_grant(&mut self, now_ns: u64) {
        let Some(rx) = &mut self.rx else { return };
        match rx.check_grant(now_ns) {
            GrantEvent::Unchanged => {}
            GrantEvent::Lost => self.tx = self.tx.take().filter(|tx| !tx.is_delegated()),
            GrantEvent::Restored if self.tx.is_some() => {}
            GrantEvent::Restored => {
                let grant = rx.grant();
                self.tx = grant.and_then(|grant| delegated_tx(grant, &self.udp));
            }
        }
    }
}

impl Link for Bpf {
    fn caps(&self) -> Caps {
        Caps {
            polls_per_syscall: POLLS_PER_SYSCALL,
            // Frames reach the ring before the kernel checks them.
            checks_frames: false,
            ..self.udp.caps()
        }
    }

    fn local(&self, class: Class) -> SocketAddr {
        self.udp.local(class)
    }

    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let Some(tx) = &mut self.tx else {
            return self.udp.send(now_ns, batch);
        };
        let mut taken = 0;
        let mut left = Unsent::new(batch);
        while let Some(first) = left.skip_to(taken) {
            let alike = || left.frames().take_while(|frame| frame.class == first.class);
            let (offered, sent) = match first.class {
                Class::Small => match joined_run(alike(), self.joined_frames) {
                    0 | 1 => {
                        let raw = tx.send(now_ns, self.udp.local(Class::Small), alike());
                        self.stats.raw += raw as u64;
                        match raw {
                            // The next frame has no route on this interface now.
                            0 => {
                                let sent = self.udp.send(now_ns, &[first.first(1)])?;
                                self.stats.socket += sent as u64;
                                (1, sent)
                            }
                            raw => (raw, raw),
                        }
                    }
                    // One message is cheaper than several frames, and fits into the ring as it is.
                    joined => {
                        let mut run = [first; MOST_JOINED];
                        for (place, frame) in run.iter_mut().zip(alike().take(joined)) {
                            *place = frame;
                        }
                        let sent = self.udp.send(now_ns, &run[..joined])?;
                        self.stats.joined += sent as u64;
                        (joined, sent)
                    }
                },
                Class::Bulk => {
                    let short = short_run(alike(), tx.bulk_frames());
                    let raw = match short == 0 || self.udp.has_bulk_queued() {
                        true => 0,
                        false => {
                            let own = self.udp.local(Class::Bulk);
                            tx.send(now_ns, own, alike().take(short))
                        }
                    };
                    self.stats.raw_bulk += raw as u64;
                    match raw {
                        0 => {
                            let rest = left.rest();
                            let bulk = rest.iter().take_while(|it| it.class == Class::Bulk);
                            let bulk = &rest[..bulk.count()];
                            let offered = bulk.iter().map(Outgoing::count).sum();
                            (offered, self.udp.send(now_ns, bulk)?)
                        }
                        raw => (raw, raw),
                    }
                }
            };
            taken += sent;
            if sent < offered {
                break;
            }
        }
        Ok(taken)
    }

    fn refuses_next(&self) -> bool {
        self.udp.refuses_next()
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        match class {
            Class::Small => self.poll_small(now_ns),
            Class::Bulk => {
                self.from_ring = false;
                self.udp.poll(now_ns, Class::Bulk)
            }
        }
    }

    #[inline]
    fn message(&self, index: usize) -> Incoming<'_> {
        match &self.rx {
            Some(rx) if self.from_ring => {
                let (from, bytes) = rx.packet(index);
                Incoming {
                    class: Class::Small,
                    from,
                    bytes,
                    frame_bytes: bytes.len(),
                }
            }
            _ => self.udp.message(index),
        }
    }

    fn arm(&mut self) -> bool {
        // After a sleep the socket is polled first.
        self.quiet = POLLS_PER_SOCKET_POLL;
        self.from_ring = false;
        self.rx.as_mut().is_none_or(RxPath::arm)
    }

    fn disarm(&mut self) {
        if let Some(rx) = &mut self.rx {
            rx.disarm();
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.udp.descriptors();
        all.extend(self.rx.iter().map(AsFd::as_fd));
        all
    }
}

/// Length of the leading run of frames that may be sent as one message of at most `longest`: all
/// to one destination and of the first one's length, except that the last may be shorter.
#[inline]
fn joined_run<'a>(mut frames: impl Iterator<Item = Outgoing<'a>>, longest: usize) -> usize {
    let Some(first) = frames.next() else {
        return 0;
    };
    let mut run = 1;
    for frame in frames.take(longest.saturating_sub(1)) {
        if frame.to != first.to || frame.bytes.len() > first.bytes.len() {
            break;
        }
        run += 1;
        if frame.bytes.len() < first.bytes.len() {
            break;
        }
    }
    run
}

/// Length of the leading run of bulk frames to one destination if it is short enough to be sent
/// as raw frames, otherwise 0.
#[inline]
fn short_run<'a>(frames: impl Iterator<Item = Outgoing<'a>>, longest: usize) -> usize {
    let mut frames = frames.take(longest + 1).peekable();
    let to = frames.peek().map(|first| first.to);
    let run = frames.take_while(|frame| Some(frame.to) == to).count();
    if run > longest { 0 } else { run }
}
