//! The state of the network: frames in flight, queues, randomness. A single lock guards it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::bus::{Bus, Outcome};
use super::{AttachError, DropReason, NetworkConfig, NetworkStats};
use crate::chance::{corrupt, happens};
use crate::{Class, Outgoing};

/// Maximum number of spare buffers.
const SPARE_BUFFERS: usize = 4096;
/// Maximum frames returned by one poll.
const POLL_FRAMES: usize = 64;

/// Approximate maximum size of joined frames.
const MAX_JOINED_BYTES: usize = 9000;

/// A frame in flight, or queued in a socket.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Arrival at the switch's queue for the receiver's interface.
    Switch,
    /// Arrival at the receiver's socket.
    Socket,
}

struct Event {
    at_ns: u64,
    stage: Stage,
    /// Extra delay for reordering.
    late_ns: u64,
    frame: Frame,
}

#[derive(Default)]
struct PathState {
    bad: bool,
    /// Arrival of the last frame; the next one must not overtake it.
    last_arrival_ns: u64,
}

#[derive(Default)]
struct Interface {
    transmit_free_ns: u64,
    switch_free_ns: u64,
}

struct Socket {
    port: u64,
    queue: VecDeque<Frame>,
    /// It is in the list of arrivals.
    is_listed: bool,
}

/// The interface that a frame leaves through: the one on the network of its destination.
pub(super) fn source(interfaces: &[[SocketAddr; 2]], class: Class, to: SocketAddr) -> SocketAddr {
    let network = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => (ip.octets()[0], ip.octets()[1]),
        IpAddr::V6(ip) => (ip.octets()[0], ip.octets()[1]),
    };
    let class = class as usize;
    let near = |interface: &&[SocketAddr; 2]| network(interface[class]) == network(to);
    interfaces.iter().find(near).unwrap_or(&interfaces[0])[class]
}

pub(super) struct State {
    pub(super) config: NetworkConfig,
    pub(super) stats: NetworkStats,
    rng: ChaCha8Rng,
    now_ns: u64,
    next_number: u64,
    next_port: u64,
    /// Events by time; those with equal times are in sending order.
    events: BTreeMap<(u64, u64), Event>,
    sockets: FxHashMap<SocketAddr, Socket>,
    /// Sockets that frames have reached since the last query, each once.
    arrivals: Vec<SocketAddr>,
    paths: FxHashMap<(IpAddr, IpAddr), PathState>,
    interfaces: FxHashMap<IpAddr, Interface>,
    bus: Option<Bus<Frame>>,
    spare: Vec<Vec<u8>>,
}

impl State {
    pub(super) fn new(seed: u64, config: NetworkConfig) -> State {
        State {
            bus: config.bus.map(Bus::new),
            config,
            stats: NetworkStats::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            now_ns: 0,
            next_number: 0,
            next_port: 1,
            events: BTreeMap::new(),
            sockets: FxHashMap::default(),
            arrivals: Vec::new(),
            paths: FxHashMap::default(),
            interfaces: FxHashMap::default(),
            spare: Vec::new(),
        }
    }

    pub(super) fn attach(&mut self, addresses: &[SocketAddr]) -> Result<u64, AttachError> {
        for (index, &address) in addresses.iter().enumerate() {
            if addresses[..index].contains(&address) {
                return Err(AttachError::SameAddress { address });
            }
            if self.sockets.contains_key(&address) {
                return Err(AttachError::Taken { address });
            }
        }
        let port = self.next_port;
        self.next_port += 1;
        for &address in addresses {
            self.sockets.insert(
                address,
                Socket {
                    port,
                    queue: VecDeque::new(),
                    is_listed: false,
                },
            );
        }
        Ok(port)
    }

    /// Closes the sockets of a port; frames queued in them are dropped.
    pub(super) fn detach(&mut self, port: u64) {
        let own = self.sockets.extract_if(|_, socket| socket.port == port);
        let waiting: Vec<Frame> = own.flat_map(|(_, socket)| socket.queue).collect();
        let sockets = &self.sockets;
        self.arrivals
            .retain(|address| sockets.contains_key(address));
        for frame in waiting {
            self.drop_frame(frame, DropReason::Detached);
        }
    }

    /// The port that owns the socket at an address.
    pub(super) fn port_at(&self, address: SocketAddr) -> Option<u64> {
        self.sockets.get(&address).map(|socket| socket.port)
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        let first = self.events.keys().next().map(|(at_ns, _)| *at_ns);
        first.into_iter().chain(self.bus_event_ns()).min()
    }

    fn bus_event_ns(&self) -> Option<u64> {
        self.bus.as_ref()?.next_event_ns()
    }

    /// Processes all events due by `now_ns`. Time never goes back: an earlier `now_ns` counts
    /// as the latest time seen.
    pub(super) fn advance(&mut self, now_ns: u64) {
        while let Some(at_ns) = self.next_event_ns()
            && at_ns <= now_ns
        {
            if self.bus_event_ns() == Some(at_ns) {
                self.now_ns = self.now_ns.max(at_ns);
                self.step_bus();
                continue;
            }
            let Some((_, event)) = self.events.pop_first() else {
                break;
            };
            self.now_ns = self.now_ns.max(event.at_ns);
            match event.stage {
                Stage::Switch => self.pass_switch(event),
                Stage::Socket => self.arrive(event.frame),
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Takes frames from a process; returns their number and, if its interface is full, when it
    /// has room again. Otherwise it took all frames, or refuses the next.
    pub(super) fn send(
        &mut self,
        interfaces: &[[SocketAddr; 2]],
        batch: &[Outgoing<'_>],
    ) -> (usize, Option<u64>) {
        let frames = batch.iter().flat_map(|entry| entry.frames());
        let mut taken = 0;
        for outgoing in frames {
            if outgoing.bytes.len() > self.config.max_frame_bytes {
                return (taken, None);
            }
            let from = source(interfaces, outgoing.class, outgoing.to);
            let free_ns = match &self.bus {
                Some(bus) => self.now_ns + bus.queued_ns(from.ip()),
                None => {
                    let interface = self.interfaces.entry(from.ip()).or_default();
                    interface.transmit_free_ns
                }
            };
            let backlog_ns = free_ns.saturating_sub(self.now_ns);
            let backlog_bytes = self.config.wire_bytes(backlog_ns);
            // An idle interface takes any frame, whatever the size of its queue.
            if backlog_ns > 0 && backlog_bytes >= self.config.transmit_queue_bytes {
                return (taken, Some(free_ns));
            }
            self.send_one(from, &outgoing);
            taken += 1;
        }
        (taken, None)
    }

    fn send_one(&mut self, from: SocketAddr, outgoing: &Outgoing<'_>) {
        self.stats.sent += 1;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(outgoing.bytes);
        let frame = Frame {
            from,
            to: outgoing.to,
            bytes,
        };
        if frame.bytes.is_empty() {
            return self.drop_frame(frame, DropReason::Empty);
        }
        let wire_ns = self.config.wire_ns(frame.bytes.len());
        if let Some(bus) = &mut self.bus {
            return bus.push(self.now_ns, frame.from.ip(), frame, wire_ns);
        }
        let interface = self.interfaces.entry(frame.from.ip()).or_default();
        interface.transmit_free_ns = interface.transmit_free_ns.max(self.now_ns) + wire_ns;
        let left_ns = interface.transmit_free_ns;
        self.leave(frame, left_ns);
    }

    fn step_bus(&mut self) {
        let Some(bus) = &mut self.bus else {
            return;
        };
        let outcomes = bus.step(&mut self.rng);
        (self.stats.attempts, self.stats.collisions) = (bus.attempts, bus.collisions);
        for outcome in outcomes {
            match outcome {
                Outcome::Passed(frame) => self.leave(frame, self.now_ns),
                Outcome::GivenUp(frame) => self.drop_frame(frame, DropReason::Collisions),
            }
        }
    }

    /// Moves a frame from its interface onto the path.
    fn leave(&mut self, mut frame: Frame, left_ns: u64) {
        let (source, target) = (frame.from.ip(), frame.to.ip());
        if self.config.is_dead(source) {
            return self.drop_frame(frame, DropReason::DeadInterface);
        }
        if self.config.is_cut(source, target) {
            return self.drop_frame(frame, DropReason::Cut);
        }
        if frame.bytes.len() > self.config.switch_frame_bytes {
            return self.drop_frame(frame, DropReason::TooLong);
        }
        let config = *self.config.path_between(source, target);
        let path = self.paths.entry((source, target)).or_default();
        let turns = if path.bad {
            config.bursts.end
        } else {
            config.bursts.begin
        };
        path.bad ^= happens(&mut self.rng, turns);
        if path.bad && happens(&mut self.rng, config.bursts.loss) {
            return self.drop_frame(frame, DropReason::Burst);
        }
        if happens(&mut self.rng, config.loss) {
            return self.drop_frame(frame, DropReason::Loss);
        }
        let jitter_ns = match config.jitter_ns {
            0 => 0,
            most => self.rng.random_range(0..=most),
        };
        let arrival_ns = left_ns
            .saturating_add(config.latency_ns)
            .saturating_add(jitter_ns);
        let arrival_ns = arrival_ns.max(path.last_arrival_ns);
        path.last_arrival_ns = arrival_ns;
        let mut late_ns = 0;
        if config.reorder_ns > 0 && happens(&mut self.rng, config.reorder) {
            late_ns = self.rng.random_range(1..=config.reorder_ns);
            self.stats.reordered += 1;
        }
        if happens(&mut self.rng, config.corrupt) {
            corrupt(&mut self.rng, &mut frame.bytes, config.corrupt_bits);
            self.stats.corrupted += 1;
            if self.config.checks_frames {
                self.spare.push(frame.bytes);
                return;
            }
        }
        if happens(&mut self.rng, config.duplicate) {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clone_from(&frame.bytes);
            self.stats.duplicated += 1;
            self.schedule(arrival_ns, 0, Frame { bytes, ..frame });
        }
        self.schedule(arrival_ns, late_ns, frame);
    }

    fn schedule(&mut self, at_ns: u64, late_ns: u64, frame: Frame) {
        // Neither a bus nor a switch of unlimited speed has a queue.
        let has_queue = self.bus.is_none() && self.config.bytes_per_second > 0;
        let (stage, at_ns, late_ns) = match has_queue {
            false => (Stage::Socket, at_ns.saturating_add(late_ns), 0),
            true => (Stage::Switch, at_ns, late_ns),
        };
        self.push(Event {
            at_ns,
            stage,
            late_ns,
            frame,
        });
    }

    fn push(&mut self, event: Event) {
        self.events.insert((event.at_ns, self.next_number), event);
        self.next_number += 1;
    }

    fn pass_switch(&mut self, event: Event) {
        let bytes = event.frame.bytes.len();
        let wire_ns = self.config.wire_ns(bytes);
        let interface = self.interfaces.entry(event.frame.to.ip()).or_default();
        let start_ns = interface.switch_free_ns.max(event.at_ns);
        let waiting_bytes = self.config.wire_bytes(start_ns - event.at_ns);
        // An idle switch forwards any frame.
        if start_ns > event.at_ns && waiting_bytes + bytes as u64 > self.config.switch_queue_bytes {
            return self.drop_frame(event.frame, DropReason::SwitchQueue);
        }
        interface.switch_free_ns = start_ns + wire_ns;
        let at_ns = interface.switch_free_ns.saturating_add(event.late_ns);
        self.push(Event {
            at_ns,
            stage: Stage::Socket,
            late_ns: 0,
            ..event
        });
    }

    fn arrive(&mut self, frame: Frame) {
        // Receivers that died or were cut off meanwhile get nothing that was in flight.
        if self.config.is_dead(frame.to.ip()) {
            return self.drop_frame(frame, DropReason::DeadInterface);
        }
        if self.config.is_cut(frame.from.ip(), frame.to.ip()) {
            return self.drop_frame(frame, DropReason::Cut);
        }
        let most = self.config.receive_queue_frames;
        match self.sockets.get_mut(&frame.to) {
            None => self.drop_frame(frame, DropReason::NoSocket),
            Some(socket) if socket.queue.len() >= most => {
                self.drop_frame(frame, DropReason::ReceiveQueue);
            }
            Some(socket) => {
                if !std::mem::replace(&mut socket.is_listed, true) {
                    self.arrivals.push(frame.to);
                }
                socket.queue.push_back(frame);
            }
        }
    }

    /// Moves frames queued in a socket to a port's list.
    pub(super) fn poll(
        &mut self,
        address: SocketAddr,
        class: Class,
        into: &mut Vec<(Class, Frame)>,
    ) {
        let Some(socket) = self.sockets.get_mut(&address) else {
            return;
        };
        let count = socket.queue.len().min(POLL_FRAMES);
        self.stats.delivered += count as u64;
        let first = into.len();
        // Frame length within the last joined message, and whether another frame may follow.
        let (mut length, mut is_open) = (0, false);
        for frame in socket.queue.drain(..count) {
            let bytes = frame.bytes.len();
            if class == Class::Small
                && is_open
                && bytes <= length
                && let Some((_, piece)) = into[first..].last_mut()
                && piece.from == frame.from
                && happens(&mut self.rng, self.config.join)
            {
                piece.bytes.extend_from_slice(&frame.bytes);
                is_open = bytes == length && piece.bytes.len() < MAX_JOINED_BYTES;
                self.stats.joined += 1;
                self.spare.push(frame.bytes);
            } else {
                (length, is_open) = (bytes, true);
                into.push((class, frame));
            }
        }
    }

    pub(super) fn take_arrivals(&mut self) -> Vec<SocketAddr> {
        for address in &self.arrivals {
            if let Some(socket) = self.sockets.get_mut(address) {
                socket.is_listed = false;
            }
        }
        std::mem::take(&mut self.arrivals)
    }

    pub(super) fn waiting(&self, address: SocketAddr) -> usize {
        self.sockets
            .get(&address)
            .map_or(0, |socket| socket.queue.len())
    }

    /// Takes back buffers that have been read.
    pub(super) fn recycle(&mut self, frames: impl Iterator<Item = Frame>) {
        let room = SPARE_BUFFERS.saturating_sub(self.spare.len());
        self.spare
            .extend(frames.take(room).map(|frame| frame.bytes));
    }

    fn drop_frame(&mut self, frame: Frame, reason: DropReason) {
        self.stats.dropped[reason as usize] += 1;
        self.recycle(std::iter::once(frame));
    }
}
