//! Moves packets between the network link and the protocol, in batches and with trailers.

use std::io;
use std::net::IpAddr;

use arrayvec::ArrayVec;
use dipole_link::{Class, Link};
use dipole_proto::wire::{Address, LaneAddress, MAX_LANES};
use dipole_proto::{EdgeId, Instant, Seal, Transmit};
use dipole_record::RecordedTrain;

use super::arrivals::{Arrivals, TrainPayloads};
use super::batch::Batch;
use super::content::Content;
use super::core::Core;
use super::trailer::Trailers;
use super::{BATCH, Traffic};
use crate::frames::{FramePool, slot_of};
use crate::link::AnyLink;
use crate::net::to_wire;

/// Steps without bulk traffic after which its socket is polled less often.
const BULK_QUIET_STEPS: u32 = 256;
/// The interval of these polls, in steps.
const BULK_EVERY: u32 = 8;
/// Pause before the rest of a batch is offered to a full link again.
const LINK_RETRY_NS: u64 = 50_000;

/// The network side of the engine.
#[derive(Debug)]
pub(super) struct PacketPort {
    link: AnyLink,
    trailers: Trailers,
    /// Packets that the link has not accepted yet.
    batch: Batch,
    /// The decrypted packet being handled.
    plain: Vec<u8>,
    bulk_quiet: u32,
    /// Number of small packets found by [`spin_poll`](Self::spin_poll).
    polled: Option<usize>,
    polls_per_syscall: u32,
    /// Packets have been taken since the last sleep.
    woken: bool,
    traffic: Traffic,
}

impl PacketPort {
    pub(super) fn new(link: AnyLink, trailers: Trailers) -> PacketPort {
        PacketPort {
            polls_per_syscall: link.caps().polls_per_syscall,
            link,
            trailers,
            batch: Batch::default(),
            plain: Vec::new(),
            bulk_quiet: 0,
            polled: None,
            woken: false,
            traffic: Traffic::default(),
        }
    }

    /// Wipes the keys of sessions that have ended.
    #[inline]
    pub(super) fn forget_ended(&mut self, core: &mut Core) {
        while let Some((index, serial)) = core.machine.take_ended_session() {
            self.trailers.forget(index, serial);
        }
    }

    pub(super) fn link(&self) -> &AnyLink {
        &self.link
    }

    pub(super) fn link_mut(&mut self) -> &mut AnyLink {
        &mut self.link
    }

    /// See [`AnyLink::replace_interface`].
    pub(super) fn replace_interface(
        &mut self,
        interface: usize,
        link: AnyLink,
        destinations: &[IpAddr],
    ) -> Vec<IpAddr> {
        let moved = (self.link).replace_interface(interface, link, destinations);
        self.polled = None;
        self.polls_per_syscall = self.link.caps().polls_per_syscall;
        moved
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// True if packets are waiting for the link.
    #[inline]
    pub(super) fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Prepares for sleep; false if something has already arrived.
    pub(super) fn arm(&mut self) -> bool {
        self.woken = false;
        self.link.arm()
    }

    /// True once after packets were taken that should have woken a sleeping thread.
    #[inline]
    pub(super) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Polls for small packets with up to `calls` system calls. True if there are some and no bulk
    /// traffic is arriving.
    #[inline]
    pub(super) fn spin_poll(&mut self, now: Instant, calls: u32) -> io::Result<bool> {
        // Bulk traffic must not wait for the small-packet socket.
        let calls = if self.is_bulk_quiet() { calls } else { 1 };
        for _ in 0..calls * self.polls_per_syscall {
            let count = self.link.poll(now.0, Class::Small)?;
            if count > 0 {
                self.polled = Some(count);
                return Ok(self.is_bulk_quiet());
            }
        }
        Ok(false)
    }

    /// True while bulk traffic arrives.
    #[inline]
    pub(super) fn expects_bulk(&self) -> bool {
        !self.is_bulk_quiet()
    }

    /// Handles the packets that [`spin_poll`](Self::spin_poll) found.
    #[inline]
    pub(super) fn take_polled(&mut self, now: Instant, core: &mut Core) -> io::Result<bool> {
        self.receive(now, core, Class::Small)
    }

    #[inline]
    fn is_bulk_quiet(&self) -> bool {
        self.bulk_quiet > BULK_QUIET_STEPS
    }

    /// Handles all packets at hand; true if there were any.
    #[inline]
    pub(super) fn receive_all(
        &mut self,
        now: Instant,
        core: &mut Core,
        look_everywhere: bool,
    ) -> io::Result<bool> {
        let mut received = self.receive(now, core, Class::Small)?;
        self.bulk_quiet = self.bulk_quiet.wrapping_add(1);
        // A thread woken by a small packet does not poll the bulk socket at once; it does so
        // before it sleeps again.
        let due = !self.is_bulk_quiet() || self.bulk_quiet.is_multiple_of(BULK_EVERY);
        if due || look_everywhere && !received {
            received |= self.receive(now, core, Class::Bulk)?;
        }
        Ok(received)
    }

    fn receive(&mut self, now: Instant, core: &mut Core, class: Class) -> io::Result<bool> {
        let seen = match class {
            Class::Small => self.polled.take(),
            Class::Bulk => None,
        };
        let count = match seen {
            Some(count) => count,
            None => self.link.poll(now.0, class)?,
        };
        if count == 0 {
            return Ok(false);
        }
        self.woken = true;
        if class == Class::Bulk {
            self.bulk_quiet = 0;
        }
        let mut arrivals = Arrivals::new(&self.link, count);
        while let Some((from, packet)) = arrivals.next() {
            self.traffic.bytes_received += packet.len() as u64;
            self.traffic.packets_received += 1;
            let (trailers, plain) = (&mut self.trailers, &mut self.plain);
            let first = take_packet(trailers, plain, core, (now, from), packet);
            if let Some(first) = first {
                let taken = take_train(trailers, core, now, first, &mut arrivals);
                self.traffic.bytes_received += (packet.len() * taken) as u64;
                self.traffic.packets_received += taken as u64;
            }
        }
        Ok(true)
    }

    /// Sends a message at once on the fast path. False, and nothing has changed, if other packets
    /// are waiting.
    #[inline]
    pub(super) fn send_alone(
        &mut self,
        now: Instant,
        core: &mut Core,
        edge: EdgeId,
        content: Content<'_>,
    ) -> io::Result<bool> {
        if self.has_batch() {
            return Ok(false);
        }
        let Core {
            machine, packer, ..
        } = core;
        let Some(slot) = packer.pack_alone(machine, now, edge, content) else {
            return Ok(false);
        };
        match machine.transmit_alone(now, edge.peer, slot, &mut packer.frames) {
            Some(transmit) => self.send_one(now, core, transmit)?,
            None => {
                machine.queue(edge.peer, &[slot], false);
            }
        }
        Ok(true)
    }

    /// Adds a packet's trailer and offers it to the link; if that is full, the batch keeps it.
    #[inline]
    fn send_one(&mut self, now: Instant, core: &mut Core, transmit: Transmit) -> io::Result<()> {
        let frames = &mut core.packer.frames;
        let slot = slot_of(transmit.frame);
        (self.batch).push(&mut self.trailers, frames, transmit, &[slot]);
        if self.batch.is_empty() {
            return Ok(());
        }
        self.offer_once(now, core)
    }

    /// Sends everything that may be sent now.
    pub(super) fn transmit(&mut self, now: Instant, core: &mut Core) -> io::Result<()> {
        self.send_batch(now, core)?;
        core.packer.close_idle_frames(&mut core.machine, now);
        while self.batch.is_empty() {
            self.fill_batch(now, core);
            if self.batch.is_empty() {
                break;
            }
            self.send_batch(now, core)?;
            core.packer.close_idle_frames(&mut core.machine, now);
        }
        Ok(())
    }

    /// Fills the batch with packets that may be sent now.
    fn fill_batch(&mut self, now: Instant, core: &mut Core) {
        let mut like = None;
        while self.batch.room() > 0 && core.machine.has_transmit() {
            let (machine, frames) = (&mut core.machine, &mut core.packer.frames);
            let mut slots = [0; BATCH];
            let slots = &mut slots[..self.batch.room()];
            let train = like.and_then(|like| machine.transmit_train(now, &like, frames, slots));
            let train = train.or_else(|| {
                let transmit = machine.poll_transmit(now, frames)?;
                slots[0] = slot_of(transmit.frame);
                Some((transmit, 1))
            });
            let Some((transmit, count)) = train else {
                break;
            };
            like = Some(transmit);
            (self.batch).push(&mut self.trailers, frames, transmit, &slots[..count]);
        }
    }

    #[inline]
    fn send_batch(&mut self, now: Instant, core: &mut Core) -> io::Result<()> {
        match self.batch.is_empty() {
            true => Ok(()),
            false => self.offer_batch(now, core),
        }
    }

    fn offer_batch(&mut self, now: Instant, core: &mut Core) -> io::Result<()> {
        loop {
            self.offer_once(now, core)?;
            if self.batch.is_empty() || !self.link.refuses_next() {
                break;
            }
            // The packet is now too long for its interface: the protocol splits it.
            let Some(refused) = self.batch.refused(&mut core.packer.frames) else {
                break;
            };
            core.machine.packet_too_long(now, &refused);
            if self.batch.is_empty() {
                return Ok(());
            }
        }
        if !self.batch.is_empty() {
            self.traffic.link_full += 1;
        }
        Ok(())
    }

    fn offer_once(&mut self, now: Instant, core: &mut Core) -> io::Result<()> {
        let frames = &mut core.packer.frames;
        let taken = match self.batch.alone(frames) {
            Some(packet) => self.link.send(now.0, &[packet])?,
            None => offer(&mut self.link, now, &self.batch, frames)?,
        };
        self.traffic.packets_sent += taken as u64;
        self.traffic.bytes_sent += self.batch.taken(taken, frames);
        if frames.free() == 0 {
            core.ready.notify(dipole_driver::WaitKey::Frame);
        }
        Ok(())
    }

    /// When the link needs a call, or the rest of the batch must be offered again.
    pub(super) fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let retry = self.has_batch().then(|| now.after(LINK_RETRY_NS));
        let link = self.link.next_deadline_ns().map(Instant);
        [link, retry].into_iter().flatten().min()
    }
}

/// The first packet of a train, its source and its seal.
struct First<'a> {
    train: RecordedTrain<'a>,
    packet: &'a [u8],
    from: Address,
    seal: Seal,
}

/// Passes a packet to the protocol if its trailer is valid, unless it begins a train.
#[inline]
fn take_packet<'a>(
    trailers: &mut Trailers,
    plain: &mut Vec<u8>,
    core: &mut Core,
    (now, from): (Instant, Address),
    packet: &'a [u8],
) -> Option<First<'a>> {
    let mut addressed = core.machine.address(now, from, packet).ok()?;
    if let Err(reason) = trailers.check(&mut addressed, packet, plain) {
        core.machine.count(reason);
        return None;
    }
    let seal = addressed.seal;
    if let Some(train) = core.machine.begin_train(&addressed) {
        return Some(First {
            train,
            packet,
            from,
            seal,
        });
    }
    let (addressed, packet) = match addressed.seal {
        Seal::Session { encrypts: true, .. } => (addressed.decrypted(plain), &plain[..]),
        _ => (addressed, packet),
    };
    let _counted = core.machine.on_packet(now, from, &addressed);
    if let Some(agreement) = core.machine.take_agreement() {
        trailers.agree(&agreement);
    }
    match core.machine.take_assembled() {
        None => core.handle_events(packet),
        Some(whole) => core.handle_events(&whole[..]),
    }
    None
}

/// Passes a train to the protocol: its first packet, and those that follow it and have valid
/// trailers. Returns the number of the latter.
fn take_train<'a>(
    trailers: &mut Trailers,
    core: &mut Core,
    now: Instant,
    first: First<'a>,
    arrivals: &mut Arrivals<'a>,
) -> usize {
    let First {
        mut train,
        packet,
        from,
        seal,
    } = first;
    let mut payloads = TrainPayloads::new(packet, seal.bytes());
    while !payloads.is_full()
        && let Some((next, flags)) = arrivals.next_if(from, packet.len(), |next| {
            let flags = train.expects(next)?;
            trailers.is_intact(next, seal).then_some(flags)
        })
    {
        train.add(flags);
        payloads.push(next);
    }
    let followers = train.count() as usize - 1;
    core.machine.on_train(now, from, train);
    core.handle_events(&payloads);
    followers
}

/// Offers the packets to the link. Not inlined because of the stack space it needs.
#[inline(never)]
fn offer(link: &mut AnyLink, now: Instant, batch: &Batch, frames: &FramePool) -> io::Result<usize> {
    link.send(now.0, &batch.outgoing(frames))
}

/// Two lanes per interface, one for small packets and one for bulk.
pub(super) fn lanes(link: &AnyLink) -> ArrayVec<LaneAddress, MAX_LANES> {
    let small = link.locals(Class::Small).into_iter();
    let pairs = small.zip(link.locals(Class::Bulk));
    let addresses = pairs.flat_map(|(small, bulk)| [(small, false), (bulk, true)]);
    let lanes = (0..).zip(addresses).take(MAX_LANES);
    // A lane keeps its number while its interface is not in use.
    let in_use = lanes.filter(|(lane, _)| link.is_in_use(usize::from(*lane) / 2));
    let lanes = in_use.map(|(lane, (address, bulk))| LaneAddress {
        lane,
        bulk,
        address: to_wire(address),
    });
    lanes.collect()
}
