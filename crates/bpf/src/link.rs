//! The link: a UDP link whose small packets take shorter ways where there are some.
//!
//! What comes in lies in the ring, what goes out leaves as a raw frame; what the kernel's
//! part passes on, or has no route here, takes the socket as ever. Bulk does too, but for runs
//! too short to be worth it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::borrow::borrowed_outlet;
use super::inlet::Inlet;
use super::loan::News;
use super::open::Shortcuts;
use super::outlet::Outlet;
use dipole_link::udp::Udp;
use dipole_link::{Caps, Class, Incoming, Link, Outgoing};

/// A look at the ring takes some 5 ns, one at a socket 150 to 300.
const LOOKS_PER_CALL: u32 = 32;
/// Empty looks at the ring between two looks at the small socket.
const LOOKS_PER_SOCKET: u32 = 32 * LOOKS_PER_CALL;

/// Packets at once after which the socket is looked at next.
const BURST: usize = 32;

/// What a bpf link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfStats {
    /// Small packets that came by the ring.
    pub by_ring: u64,
    /// Small packets that came by the socket all the same.
    pub by_socket: u64,
    /// Small packets that left as raw frames.
    pub raw: u64,
    /// Small packets that left by the socket.
    pub socket: u64,
    /// Bulk packets that left as raw frames: runs too short for the socket.
    pub raw_bulk: u64,
}

impl std::ops::Add for BpfStats {
    type Output = BpfStats;

    fn add(self, other: BpfStats) -> BpfStats {
        BpfStats {
            by_ring: self.by_ring + other.by_ring,
            by_socket: self.by_socket + other.by_socket,
            raw: self.raw + other.raw,
            socket: self.socket + other.socket,
            raw_bulk: self.raw_bulk + other.raw_bulk,
        }
    }
}

/// See the module.
pub struct Bpf {
    udp: Udp,
    inlet: Option<Inlet>,
    outlet: Option<Outlet>,
    /// Whose packets the last poll offers.
    by_ring: bool,
    /// Looks at the ring in a row that found nothing.
    quiet: u32,
    stats: BpfStats,
}

impl Bpf {
    /// A UDP link with short ways.
    #[must_use]
    pub fn new(udp: Udp, shortcuts: Shortcuts) -> Bpf {
        Bpf {
            udp,
            inlet: Some(shortcuts.inlet),
            outlet: shortcuts.outlet,
            by_ring: false,
            quiet: 0,
            stats: BpfStats::default(),
        }
    }

    /// The UDP link beneath.
    #[must_use]
    pub fn udp(&self) -> &Udp {
        &self.udp
    }

    /// Counters since opening.
    #[must_use]
    pub fn stats(&self) -> BpfStats {
        self.stats
    }

    /// Takes the ring away: what comes takes the socket from now on.
    pub fn close_ring(&mut self) {
        self.inlet = None;
        self.by_ring = false;
    }

    /// True if small packets come by an AF_XDP socket, and if they leave by one.
    #[must_use]
    pub fn uses_queue(&self) -> [bool; 2] {
        [
            self.inlet.as_ref().is_some_and(Inlet::is_queue),
            self.outlet.as_ref().is_some_and(Outlet::is_queue),
        ]
    }

    /// True if small packets come by a ring or an AF_XDP socket.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.inlet.is_some()
    }

    /// True if small packets may leave as raw frames.
    #[must_use]
    pub fn sends_raw(&self) -> bool {
        self.outlet.is_some()
    }

    #[inline]
    fn poll_small(&mut self, now_ns: u64) -> io::Result<usize> {
        let Some(inlet) = &mut self.inlet else {
            return self.udp.poll(now_ns, Class::Small);
        };
        match inlet.poll() {
            Ok(0) => {}
            Ok(found) => {
                self.by_ring = true;
                // More than a ring holds may have come: the rest lies in the socket.
                self.quiet = if found < BURST { 0 } else { LOOKS_PER_SOCKET };
                self.stats.by_ring += found as u64;
                return Ok(found);
            }
            Err(cause) => {
                tracing::warn!(
                    "the ring of {} is given up, its packets take the socket: {cause}",
                    self.udp.local(Class::Small)
                );
                self.close_ring();
            }
        }
        self.by_ring = false;
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet < LOOKS_PER_SOCKET {
            return Ok(0);
        }
        let found = self.udp.poll(now_ns, Class::Small)?;
        // What waits there is fetched before the ring is waited for again.
        self.quiet = if found == 0 { 0 } else { LOOKS_PER_SOCKET };
        self.stats.by_socket += found as u64;
        if found == 0 {
            self.look_after_loan(now_ns);
        }
        Ok(found)
    }

    /// A lender that has gone, or is back: nothing is sent by its socket meanwhile.
    fn look_after_loan(&mut self, now_ns: u64) {
        let Some(inlet) = &mut self.inlet else { return };
        match inlet.news(now_ns) {
            News::Nothing => {}
            News::Lost => self.outlet = self.outlet.take().filter(|outlet| !outlet.is_borrowed()),
            News::Back if self.outlet.is_some() => {}
            News::Back => {
                let loan = inlet.loan();
                self.outlet = loan.and_then(|loan| borrowed_outlet(loan, &self.udp));
            }
        }
    }
}

impl Link for Bpf {
    fn caps(&self) -> Caps {
        Caps {
            looks_per_call: LOOKS_PER_CALL,
            ..self.udp.caps()
        }
    }

    fn local(&self, class: Class) -> SocketAddr {
        self.udp.local(class)
    }

    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let Some(outlet) = &mut self.outlet else {
            return self.udp.send(now_ns, batch);
        };
        let own = self.udp.local(Class::Small);
        let mut taken = 0;
        while taken < batch.len() {
            let rest = &batch[taken..];
            let small = rest.iter().take_while(|frame| frame.class == Class::Small);
            let small = small.count();
            if small > 0 {
                let raw = outlet.send(now_ns, own, &rest[..small]);
                self.stats.raw += raw as u64;
                taken += raw;
                if raw == small {
                    continue;
                }
                // The next has no way of its own now.
                let sent = self.udp.send(now_ns, &batch[taken..=taken])?;
                self.stats.socket += sent as u64;
                taken += sent;
                if sent == 0 {
                    break;
                }
                continue;
            }
            let bulk = rest.iter().take_while(|frame| frame.class == Class::Bulk);
            let bulk = &rest[..bulk.count()];
            let raw = short_run(bulk, outlet.bulk_frames());
            if raw > 0 && !self.udp.has_bulk_queued() {
                let own = self.udp.local(Class::Bulk);
                let sent = outlet.send(now_ns, own, &bulk[..raw]);
                self.stats.raw_bulk += sent as u64;
                taken += sent;
                if sent > 0 {
                    continue;
                }
            }
            let sent = self.udp.send(now_ns, bulk)?;
            taken += sent;
            if sent < bulk.len() {
                break;
            }
        }
        Ok(taken)
    }

    #[inline]
    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        match class {
            Class::Small => self.poll_small(now_ns),
            Class::Bulk => {
                self.by_ring = false;
                self.udp.poll(now_ns, Class::Bulk)
            }
        }
    }

    #[inline]
    fn frame(&self, index: usize) -> Incoming<'_> {
        match &self.inlet {
            Some(inlet) if self.by_ring => {
                let (from, bytes) = inlet.packet(index);
                Incoming {
                    class: Class::Small,
                    from,
                    bytes,
                }
            }
            _ => self.udp.frame(index),
        }
    }

    fn arm(&mut self) -> bool {
        // Whoever has slept looks at the socket first.
        self.quiet = LOOKS_PER_SOCKET;
        self.by_ring = false;
        self.inlet.as_mut().is_none_or(Inlet::arm)
    }

    fn disarm(&mut self) {
        if let Some(inlet) = &mut self.inlet {
            inlet.disarm();
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.udp.descriptors();
        all.extend(self.inlet.iter().map(AsFd::as_fd));
        all
    }
}

/// How many frames at the begin of a batch of bulk are a run to one destination that is too
/// short for one message of the socket; 0 if it is long enough.
#[inline]
fn short_run(batch: &[Outgoing<'_>], longest: usize) -> usize {
    let Some(first) = batch.first() else { return 0 };
    let run = batch.iter().take(longest + 1);
    let run = run.take_while(|frame| frame.to == first.to).count();
    if run > longest { 0 } else { run }
}

impl fmt::Debug for Bpf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bpf")
            .field("udp", &self.udp)
            .field("has_ring", &self.has_ring())
            .field("sends_raw", &self.sends_raw())
            .finish_non_exhaustive()
    }
}
