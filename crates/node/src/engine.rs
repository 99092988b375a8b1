//! The loop: the one place that calls both the protocol and a link.
//!
//! [`Engine::step`] takes what the link has, feeds the protocol, hands messages
//! over and sends what may go. It never waits and starts no thread; whoever waits
//! steps it. `engine/deliver.rs` is what happens with events, `engine/pack.rs`
//! how messages get into frames.

mod deliver;
mod departures;
mod exports;
mod local;
mod pack;
mod paths;
mod peer;
mod rooms;
mod stepper;
mod trailer;
mod way;
mod witness;

use std::net::SocketAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dipole_link::{Class, Link, Outgoing};
use dipole_proto::wire::{LaneAddress, MAX_LANES};
use dipole_proto::{Drop, Instant, Machine, PathChange, PeerId, Transmit};

use crate::control::Commands;
use crate::driver::{Ready, WaitKey};
use crate::frames::{FramePool, slot_of};
use crate::inbox::Buffers;
use crate::key::ClusterKey;
use crate::links::AnyLink;
use crate::liveness::LivenessProber;
use crate::net::{from_wire, to_wire};
use departures::Departures;
pub use departures::{Departure, MAX_DEPARTURES};
use exports::Exports;
pub(crate) use local::LocalCharge;
pub use local::{Local, LocalEdge};
pub use pack::{Blocked, EdgeOut};
pub use paths::{Path, PathState, Paths};
use peer::Peer;
use rooms::Rooms;
use trailer::Trailers;
pub(crate) use way::{Target, Way};

/// Packets handed to the link in one call: two full runs of segmentation offload
/// (44 packets of 1472 bytes fill 64 KiB).
const BATCH: usize = 88;
/// Steps without bulk traffic after which the bulk port is looked at less often.
const BULK_QUIET_STEPS: u32 = 256;
/// How often then, in steps.
const BULK_EVERY: u32 = 8;
/// How often, in steps, a spinning waiter looks for connections of this node.
const ATTEND_EVERY: u32 = 16;
/// How often it looks at the network while it has no session there.
const STRANGERS_EVERY: u32 = 16;

/// Counters of the engine, beside those of the protocol and the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets handed to the link.
    pub packets_sent: u64,
    /// Packets taken from the link.
    pub packets_received: u64,
    /// Bytes of those packets, sent.
    pub bytes_sent: u64,
    /// Bytes of those packets, received.
    pub bytes_received: u64,
    /// Times that the link could not take all it was offered.
    pub link_full: u64,
    /// Unreliable messages dropped because their endpoint held too many.
    pub loose_dropped: u64,
}

/// The engine's parts, borrowed apart.
struct Parts<'a> {
    link: &'a AnyLink,
    machine: &'a mut Machine,
    trailers: &'a Trailers,
    local: Option<&'a mut Local>,
    receivers: deliver::Receivers<'a>,
}

/// A process's protocol, link and endpoints, driven by its caller.
///
/// This is a seam for tests and for callers with a loop of their own; programs
/// use [`Node`](crate::Node).
#[derive(Debug)]
pub struct Engine {
    link: AnyLink,
    machine: Machine,
    trailers: Trailers,
    incarnation: u64,
    /// Processes of this node.
    local: Option<Local>,
    /// Something came by it since the last look at the network.
    came_locally: bool,
    steps: u32,
    /// There is no session by the network.
    alone: bool,
    /// Descriptors of endpoints.
    exports: Option<Exports>,
    /// Endpoints with a descriptor that got a message since the last turn.
    fresh: Vec<u32>,
    frames: FramePool,
    /// By [`PeerId::index`].
    peers: Vec<Option<Peer>>,
    rooms: Rooms,
    buffers: Arc<Buffers>,
    /// Peers with a frame being filled.
    open_frames: usize,
    /// Packets the link did not take yet.
    batch: ArrayVec<Transmit, BATCH>,
    bulk_quiet: u32,
    /// Small frames that [`look`](Self::look) has found.
    looked: Option<usize>,
    looks_per_call: u32,
    traffic: Traffic,
    departures: Departures,
    /// Peers that are silent though they owe an answer, and who asks about them.
    quiet: Vec<PeerId>,
    witness: Option<LivenessProber<PeerId>>,
    /// What has become known of the ways to peers and is to be told.
    path_changes: Vec<(PeerId, PathChange)>,
    /// Packets were taken since the last sleep.
    woken: bool,
    /// What waiting threads may wait for and has happened.
    ready: Ready,
    /// What is to be done outside the lock goes there.
    control: Option<Commands>,
}

impl Engine {
    /// An engine on a link. `incarnation` must be random and `secret` known to
    /// nobody else; with a `key` only who holds it too gets a session.
    #[must_use]
    pub fn new(
        link: AnyLink,
        mut config: dipole_proto::Config,
        incarnation: u64,
        secret: [u64; 2],
        key: Option<&ClusterKey>,
    ) -> Engine {
        let caps = link.caps();
        config.packet_bytes = config.packet_bytes.min(caps.max_frame_bytes);
        let arriving = u32::try_from(caps.receive_frames).unwrap_or(u32::MAX);
        config.window_packets = config.window_packets.min(arriving).max(4);
        config.key = key.map(trailer::session_key);
        let lanes = lanes(&link);
        Engine {
            trailers: Trailers::new(key),
            frames: FramePool::new(config.frames as usize, config.packet_bytes),
            machine: Machine::new(config, incarnation, secret, &lanes),
            link,
            incarnation,
            local: None,
            came_locally: false,
            steps: 0,
            alone: false,
            exports: None,
            fresh: Vec::new(),
            peers: Vec::new(),
            rooms: Rooms::default(),
            buffers: Arc::default(),
            open_frames: 0,
            batch: ArrayVec::new(),
            bulk_quiet: 0,
            looked: None,
            looks_per_call: caps.looks_per_call,
            traffic: Traffic::default(),
            departures: Departures::default(),
            quiet: Vec::new(),
            witness: None,
            path_changes: Vec::new(),
            woken: false,
            ready: Ready::default(),
            control: None,
        }
    }

    /// Looks at the small port for as long as so many system calls take, until something
    /// is there: the tightest way to wait while spinning. [`step`](Self::step) must follow.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn look(&mut self, now: Instant, calls: u32) -> std::io::Result<()> {
        // While bulk comes, its port shall not wait for the small one.
        let calls = if self.is_bulk_quiet() { calls } else { 1 };
        for _ in 0..calls * self.looks_per_call {
            let count = self.link.poll(now.0, Class::Small)?;
            if count > 0 {
                self.looked = Some(count);
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn is_bulk_quiet(&self) -> bool {
        self.bulk_quiet > BULK_QUIET_STEPS
    }

    /// Before sleeping: false if something is there.
    pub fn arm(&mut self) -> bool {
        self.woken = false;
        if !self.local.as_mut().is_none_or(Local::arm) {
            self.ready.notify(WaitKey::RingSpace);
            return false;
        }
        if !self.link.arm() {
            self.disarm();
            return false;
        }
        true
    }

    /// After sleeping.
    pub fn disarm(&mut self) {
        if let Some(local) = &mut self.local {
            local.disarm();
            // The wake-up may have been for room in a ring.
            self.ready.notify(WaitKey::RingSpace);
        }
        self.link.disarm();
    }

    /// One turn: receive, let time act, send. True if anything came in.
    /// `look_everywhere` also looks where it has long been quiet.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub fn step(&mut self, now: Instant, look_everywhere: bool) -> std::io::Result<bool> {
        let came_locally = self.poll_local();
        self.steps = self.steps.wrapping_add(1);
        if look_everywhere || self.steps.is_multiple_of(ATTEND_EVERY) {
            self.attend_local()?;
        }
        if look_everywhere {
            self.attend_exports()?;
        }
        // Without a session only strangers can come by the network.
        self.alone = self.local.is_some() && self.machine.peers().next().is_none();
        if self.alone && !look_everywhere && !self.steps.is_multiple_of(STRANGERS_EVERY) {
            return Ok(came_locally);
        }
        Ok(self.step_network(now, look_everywhere)? | came_locally)
    }

    fn step_network(&mut self, now: Instant, look_everywhere: bool) -> std::io::Result<bool> {
        let mut received = self.receive(now, Class::Small)?;
        self.bulk_quiet = self.bulk_quiet.wrapping_add(1);
        let quiet = self.is_bulk_quiet();
        // A waiter woken by a small packet shall not pay for a look at the bulk port;
        // it looks there before it sleeps again.
        let due = !quiet || self.bulk_quiet.is_multiple_of(BULK_EVERY);
        if due || look_everywhere && !received {
            received |= self.receive(now, Class::Bulk)?;
        }
        if received {
            self.came_locally = false;
        }
        self.machine.on_timers(now);
        if self.machine.has_event() {
            self.handle_events();
        }
        self.attend_witness(now);
        if self.has_transmit() || !self.batch.is_empty() || self.open_frames > 0 {
            self.transmit(now)?;
        }
        self.tell_paths();
        Ok(received)
    }

    /// Sends everything that may go now.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub fn transmit(&mut self, now: Instant) -> std::io::Result<()> {
        self.send_batch(now)?;
        self.close_idle_frames();
        while self.batch.is_empty() {
            while !self.batch.is_full() && self.machine.has_transmit() {
                let Some(transmit) = self.machine.poll_transmit(now, &mut self.frames) else {
                    break;
                };
                self.seal(&transmit);
                self.frames.pin(transmit.frame);
                self.batch.push(transmit);
            }
            if self.batch.is_empty() {
                break;
            }
            self.send_batch(now)?;
            self.close_idle_frames();
        }
        Ok(())
    }

    /// True if some session may have something to send.
    #[inline]
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.machine.has_transmit()
    }

    /// When [`step`](Self::step) has something to do though nothing arrived.
    #[must_use]
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let retry = (!self.batch.is_empty()).then(|| now.after(LINK_RETRY_NS));
        let link = self.link.next_deadline_ns().map(Instant);
        let witness = self.witness.as_ref();
        let witness = witness.and_then(LivenessProber::next_deadline_ns);
        let witness = witness.map(Instant);
        [self.machine.next_deadline(), link, retry, witness]
            .into_iter()
            .flatten()
            .min()
    }

    /// The protocol, for its counters and configuration.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> &AnyLink {
        &self.link
    }

    /// Counters.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Frames that can be filled now.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.frames.free()
    }

    /// Peers that are gone since the last call, in order; the latest [`MAX_DEPARTURES`] if
    /// there were more.
    pub fn take_departures(&mut self) -> Vec<Departure> {
        self.departures.take()
    }

    fn receive(&mut self, now: Instant, class: Class) -> std::io::Result<bool> {
        let seen = match class {
            Class::Small => self.looked.take(),
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
        let Parts {
            link,
            machine,
            trailers,
            mut receivers,
            ..
        } = self.parts();
        for index in 0..count {
            let frame = link.frame(index);
            receivers.traffic.packets_received += 1;
            receivers.traffic.bytes_received += frame.bytes.len() as u64;
            let from = to_wire(frame.from);
            let Ok(mut addressed) = machine.address(now, from, frame.bytes) else {
                continue;
            };
            if !trailers.check(&mut addressed, frame.bytes) {
                machine.count(Drop::Damaged);
                continue;
            }
            let _counted = machine.on_packet(now, from, &addressed);
            match machine.take_assembled() {
                None => deliver::handle(machine, &mut receivers, frame.bytes),
                Some(whole) => deliver::handle(machine, &mut receivers, &whole),
            }
        }
        Ok(true)
    }

    /// Handles events that refer to no packet.
    fn handle_events(&mut self) {
        let mut parts = self.parts();
        deliver::handle(parts.machine, &mut parts.receivers, &[]);
    }

    /// Link, protocol, processes of this node, and what events change.
    #[inline]
    fn parts(&mut self) -> Parts<'_> {
        let receivers = deliver::Receivers {
            frames: &mut self.frames,
            peers: &mut self.peers,
            rooms: &mut self.rooms,
            buffers: &self.buffers,
            traffic: &mut self.traffic,
            departures: &mut self.departures,
            quiet: &mut self.quiet,
            path_changes: &mut self.path_changes,
            ready: &mut self.ready,
            open_frames: &mut self.open_frames,
            fresh: &mut self.fresh,
        };
        Parts {
            link: &self.link,
            machine: &mut self.machine,
            trailers: &self.trailers,
            local: self.local.as_mut(),
            receivers,
        }
    }

    /// Appends the trailer to a packet that is about to leave.
    #[inline]
    fn seal(&mut self, transmit: &Transmit) {
        let space = self.frames.space(slot_of(transmit.frame));
        self.trailers.append(space, transmit.length, transmit.seal);
    }

    #[inline]
    fn send_batch(&mut self, now: Instant) -> std::io::Result<()> {
        match self.batch.is_empty() {
            true => Ok(()),
            false => self.offer_batch(now),
        }
    }

    fn offer_batch(&mut self, now: Instant) -> std::io::Result<()> {
        loop {
            self.offer_once(now)?;
            if self.batch.is_empty() || !self.link.refuses_next() {
                break;
            }
            // Too long for its interface by now: the protocol cuts it.
            let refused = self.batch.remove(0);
            self.frames.sent(refused.frame);
            self.machine.refused(now, &refused);
            if self.batch.is_empty() {
                return Ok(());
            }
        }
        if !self.batch.is_empty() {
            self.traffic.link_full += 1;
        }
        Ok(())
    }

    fn offer_once(&mut self, now: Instant) -> std::io::Result<()> {
        let taken = match &self.batch[..] {
            [alone] => {
                let outgoing = [outgoing(alone, &self.frames)];
                self.link.send(now.0, &outgoing)?
            }
            batch => send_run(&mut self.link, now, batch, &self.frames)?,
        };
        self.traffic.packets_sent += taken as u64;
        for transmit in &self.batch[..taken] {
            self.traffic.bytes_sent += packet_bytes(transmit) as u64;
        }
        if self.frames.free() == 0 {
            self.ready.notify(WaitKey::Frame);
        }
        for transmit in self.batch.drain(..taken) {
            self.frames.sent(transmit.frame);
        }
        Ok(())
    }
}

/// Offers several packets; apart from a lone one for the room that this takes.
#[inline(never)]
fn send_run(
    link: &mut AnyLink,
    now: Instant,
    batch: &[Transmit],
    frames: &FramePool,
) -> std::io::Result<usize> {
    let outgoing = batch.iter().map(|one| outgoing(one, frames));
    let outgoing: ArrayVec<Outgoing<'_>, BATCH> = outgoing.collect();
    link.send(now.0, &outgoing)
}

/// A packet as the link takes it.
#[inline]
fn outgoing<'a>(transmit: &Transmit, frames: &'a FramePool) -> Outgoing<'a> {
    Outgoing {
        class: if transmit.bulk {
            Class::Bulk
        } else {
            Class::Small
        },
        to: from_wire(transmit.to),
        // Letters are answered to where they come from, packets of a session
        // to where the handshake said.
        any_port: transmit.peer.is_some(),
        head: frames.bytes(slot_of(transmit.frame), packet_bytes(transmit)),
        payload: &[],
    }
}

#[inline]
fn packet_bytes(transmit: &Transmit) -> usize {
    transmit.length + transmit.seal.bytes()
}

/// For each card a lane for small packets and one for bulk.
fn lanes(link: &AnyLink) -> ArrayVec<LaneAddress, MAX_LANES> {
    let cards = link.locals(Class::Small).into_iter();
    let cards = cards.zip(link.locals(Class::Bulk));
    let addresses = cards.flat_map(|(small, bulk)| [(small, false), (bulk, true)]);
    let lanes = (0..).zip(addresses).take(MAX_LANES);
    let lanes = lanes.map(|(lane, (address, bulk))| LaneAddress {
        lane,
        bulk,
        address: to_wire(address),
    });
    lanes.collect()
}

/// Pause before a full link is offered the rest of a batch again.
const LINK_RETRY_NS: u64 = 50_000;

/// How to reach a process: its small port, and which process is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where its small port is.
    pub small: SocketAddr,
    /// Its incarnation, zero for whoever is there.
    pub incarnation: u64,
}
