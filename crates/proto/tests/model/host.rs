//! One process of the model: the real machine, its frames, and an application with blocking threads
//! that respects or violates the first rule of the thesis.

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use dipole_proto::wire::{self, Address, LaneAddress, Payloads};
use dipole_proto::{
    Config, DropReason, EdgeId, Event, Frame, Frames, GoneReason, Instant, Machine, MessageStart,
    PeerId, Seal, Slot, Transmit, UnitState, View, config,
};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::scenario::{Scenario, Thread};
use super::shared::Part;

/// Payload of every message: its sender and its number.
pub const PAYLOAD_BYTES: u64 = 2;

/// Timers beyond this never fire in a model. They concern silent peers only.
pub const FAR_NS: u64 = 1 << 40;

/// Pool and credit of one message.
pub fn message_charge() -> u64 {
    config::charge(PAYLOAD_BYTES)
}

/// Frames with fixed slots; the lowest free one is used.
#[derive(Clone)]
pub struct Slots {
    space: Vec<Vec<u8>>,
    pub ends: Vec<usize>,
    pub used: Vec<bool>,
    scratch: Vec<u8>,
}

impl Slots {
    fn new(count: usize, bytes: usize) -> Slots {
        Slots {
            space: vec![vec![0; bytes]; count],
            ends: vec![0; count],
            used: vec![false; count],
            scratch: vec![0; bytes],
        }
    }

    fn free_slot(&self) -> Option<usize> {
        self.used.iter().position(|used| !used)
    }

    /// The records in a frame, which identify a unit independently of its slot.
    pub fn records(&self, slot: Slot) -> &[u8] {
        let slot = slot as usize;
        &self.space[slot][wire::HEADER_BYTES..self.ends[slot]]
    }
}

impl Frames for Slots {
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        (&mut self.space[slot as usize], self.ends[slot as usize])
    }

    fn scratch(&mut self) -> Option<(Slot, &mut [u8])> {
        Some((Slot::MAX, &mut self.scratch))
    }

    fn allocate(&mut self) -> Option<(Slot, &mut [u8])> {
        let slot = self.free_slot()?;
        self.used[slot] = true;
        Some((slot as Slot, &mut self.space[slot]))
    }

    fn part(&mut self, slot: Slot, bytes: Range<usize>) -> Option<(Slot, &mut [u8])> {
        let from = &self.space[slot as usize][bytes];
        self.scratch[wire::HEADER_BYTES..][..from.len()].copy_from_slice(from);
        Some((Slot::MAX, &mut self.scratch))
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.ends[slot as usize] = end;
    }
}

/// The buffers of the thesis: one pool for sending and receiving, and those that are ready for the
/// next arriving packets.
#[derive(Clone, Hash)]
pub struct Buffers {
    pub free: usize,
    pub ready: usize,
}

impl Buffers {
    const READY: usize = 1;

    fn give(&mut self) {
        if self.ready < Buffers::READY {
            self.ready += 1;
        } else {
            self.free += 1;
        }
    }

    /// An arrival keeps its buffer; a free one replaces it if possible.
    fn keep(&mut self) {
        self.ready -= 1;
        if self.free > 0 {
            self.free -= 1;
            self.ready += 1;
        }
    }
}

/// Progress of a thread.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    pub sent: u8,
    pub read: u8,
}

/// The state of a machine, without what differs between states that behave alike.
pub struct Observed {
    /// The session, if one exists.
    pub view: Option<View>,
    /// Hash of the rest.
    pub digest: u128,
}

#[derive(Clone)]
pub struct Host {
    pub index: u8,
    pub machine: Machine,
    pub frames: Slots,
    pub now: Instant,
    pub peer: Option<PeerId>,
    pub buffers: Option<Buffers>,
    pub progress: Vec<Progress>,
    /// Received and unread, per endpoint: incoming edge and number.
    pub inbox: BTreeMap<u32, VecDeque<(EdgeId, u8)>>,
    /// Messages that arrived out of order.
    pub held: BTreeMap<(u32, u64), u8>,
    /// Outgoing edges, by their endpoints.
    pub edges: BTreeMap<(u32, u32), EdgeId>,
    /// The number expected next on each incoming edge, by its endpoints.
    pub expected: BTreeMap<(u32, u32), u8>,
    pub incarnation: u64,
    /// Sessions that have begun and ended, to check the handshake.
    pub gone: u8,
    pub open: bool,
    /// Derived from the rest when it is needed.
    observed: OnceCell<Rc<Observed>>,
    due: OnceCell<Option<bool>>,
}

impl Part for Host {
    fn forget_derived(&mut self) {
        self.observed.take();
        self.due.take();
    }
}

pub fn home(index: u8) -> Address {
    let mut ip = [0; 16];
    (ip[10], ip[11], ip[12], ip[15]) = (0xFF, 0xFF, 10, index + 1);
    Address { ip, port: 1 }
}

impl Host {
    pub fn new(index: u8, incarnation: u64, scenario: &Scenario) -> Host {
        let config = Config {
            node: u32::from(index) + 1,
            ..scenario.config.clone()
        };
        let lanes = [LaneAddress {
            lane: 0,
            bulk: false,
            address: home(index),
        }];
        let secret = [incarnation ^ 0x5EC2E7, 77];
        let mut machine = Machine::new(config, incarnation, secret, &lanes);
        for endpoint in &scenario.endpoints {
            machine.open_endpoint(*endpoint);
        }
        Host {
            index,
            machine,
            frames: Slots::new(
                scenario.config.frames as usize,
                scenario.config.packet_bytes,
            ),
            now: Instant(1 << 20),
            peer: None,
            buffers: scenario.one_pool.map(|free| Buffers {
                free,
                ready: Buffers::READY,
            }),
            progress: vec![Progress::default(); scenario.threads[usize::from(index)].len()],
            inbox: BTreeMap::new(),
            held: BTreeMap::new(),
            edges: BTreeMap::new(),
            expected: BTreeMap::new(),
            incarnation,
            gone: 0,
            open: false,
            observed: OnceCell::new(),
            due: OnceCell::new(),
        }
    }

    pub fn connect(&mut self) {
        let peer = self.machine.connect(self.now, home(1 - self.index), 0);
        self.peer = Some(peer.expect("room for one peer"));
    }

    /// True if the link has a buffer for an arrival.
    pub fn can_receive(&self) -> bool {
        self.buffers
            .as_ref()
            .is_none_or(|buffers| buffers.ready > 0)
    }

    pub fn take(&mut self, from: Address, bytes: &[u8]) -> Result<(), String> {
        if let Ok(addressed) = self.machine.address(self.now, from, bytes) {
            // Refused packets are counted; the counters are checked.
            let _counted = self.machine.on_packet(self.now, from, &addressed);
        }
        let whole = self.machine.take_assembled();
        self.events(whole.as_deref().unwrap_or(bytes))
    }

    /// The link refuses a packet of the maximum length.
    pub fn narrow(&mut self) -> Result<(), String> {
        let refused = Transmit {
            to: home(1 - self.index),
            bulk: false,
            frame: Frame::Scratch(Slot::MAX),
            length: self.machine.config().packet_bytes - wire::CRC_BYTES,
            seal: Seal::OPEN,
            peer: self.peer,
            any_port: true,
            alone: false,
        };
        self.machine.packet_too_long(self.now, &refused);
        self.events(&[])
    }

    /// Time of the next timer, immediate or later; `None` if no timer runs.
    pub fn due(&self) -> Option<bool> {
        *self.due.get_or_init(|| {
            let deadline = self.machine.clone().next_deadline()?;
            (deadline.since(self.now) < FAR_NS).then_some(deadline <= self.now)
        })
    }

    pub fn observed(&self) -> &Observed {
        self.observed.get_or_init(|| {
            let mut hasher = SipHasher13::new();
            self.machine.hash_shared(&mut hasher);
            let view = |peer| self.machine.view(self.now, peer, &mut hasher);
            let view = self.peer.and_then(view);
            let digest = hasher.finish128().as_u128();
            Rc::new(Observed { view, digest })
        })
    }

    /// Waits until the next timer. Returns false if none runs.
    pub fn tick(&mut self) -> Result<bool, String> {
        let Some(deadline) = self.machine.next_deadline() else {
            return Ok(false);
        };
        self.now = self.now.max(deadline);
        self.machine.on_timers(self.now);
        self.events(&[])?;
        Ok(true)
    }

    pub fn poll(&mut self) -> Option<Rc<[u8]>> {
        let transmit = self.machine.poll_transmit(self.now, &mut self.frames)?;
        let space = match transmit.frame {
            Frame::Unit(slot) | Frame::Loose(slot) => &self.frames.space[slot as usize],
            Frame::Scratch(_) => &self.frames.scratch,
        };
        let mut bytes = space[..transmit.length].to_vec();
        bytes.extend([0xEE; wire::CRC_BYTES]);
        Some(bytes.into())
    }

    fn events(&mut self, packet: &[u8]) -> Result<(), String> {
        while let Some(slot) = self.machine.poll_released() {
            let used = &mut self.frames.used[slot as usize];
            if !std::mem::take(used) {
                return Err(format!("frame {slot} released twice"));
            }
            if let Some(buffers) = &mut self.buffers {
                buffers.give();
            }
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Connected { peer, .. } => {
                    if self.open {
                        return Err("a second session while one is open".into());
                    }
                    self.open = true;
                    self.peer = Some(peer);
                }
                Event::Gone { peer, reason, .. } => self.on_gone(peer, reason)?,
                Event::Suspected { .. } => return Err("silence is not modelled".into()),
                Event::Paths { .. } => {}
                Event::Deliver {
                    edge,
                    source,
                    target,
                    bytes,
                } => {
                    self.keep_buffer();
                    self.arrived(edge, (source, target), &packet[bytes])?;
                }
                Event::DeliverRun {
                    edge,
                    source,
                    target,
                    records,
                } => {
                    for message in Payloads::new(&packet[records]) {
                        self.keep_buffer();
                        self.arrived(edge, (source, target), message)?;
                    }
                }
                Event::Hold {
                    edge,
                    sequence,
                    bytes,
                    ..
                } => {
                    self.keep_buffer();
                    let held = self.held.insert((edge.index, sequence), packet[bytes][1]);
                    if held.is_some() {
                        return Err(format!("message {sequence} was held already"));
                    }
                }
                Event::Complete {
                    edge,
                    source,
                    target,
                    sequence,
                } => {
                    let number = self.held.remove(&(edge.index, sequence));
                    let number = number.ok_or("a message is complete that never arrived")?;
                    self.arrived(edge, (source, target), &[1 - self.index, number])?;
                }
                Event::Credit { .. } | Event::EdgeForgotten { .. } => {}
                other => return Err(format!("unexpected event {other:?}")),
            }
        }
        Ok(())
    }

    fn on_gone(&mut self, peer: PeerId, _reason: GoneReason) -> Result<(), String> {
        if self.frames.used.contains(&true) {
            return Err("a session ended but kept a frame".into());
        }
        self.gone = self.gone.saturating_add(1);
        self.open = false;
        if self.peer == Some(peer) {
            self.peer = None;
        }
        // The application restarts from the beginning.
        self.progress.fill(Progress::default());
        self.edges.clear();
        self.expected.clear();
        self.inbox.clear();
        self.held.clear();
        Ok(())
    }

    fn keep_buffer(&mut self) {
        if let Some(buffers) = &mut self.buffers {
            buffers.keep();
        }
    }

    fn arrived(&mut self, edge: EdgeId, ends: (u32, u32), payload: &[u8]) -> Result<(), String> {
        let expected = self.expected.entry(ends).or_default();
        if payload != [1 - self.index, *expected] {
            return Err(format!("message {expected} expected, {payload:?} arrived"));
        }
        *expected += 1;
        let inbox = self.inbox.entry(ends.1).or_default();
        inbox.push_back((edge, payload[1]));
        Ok(())
    }

    /// The thread's next call: a send or a read. With the first rule, it reads when a send has
    /// failed.
    pub fn call(&mut self, thread: usize, scenario: &Scenario) {
        let plan = &scenario.threads[usize::from(self.index)][thread];
        let left = self.progress[thread].sent < plan.count;
        if left && self.send(thread, plan) {
            return;
        }
        if !left || scenario.first_rule {
            self.read(thread, plan);
        }
    }

    fn send(&mut self, thread: usize, plan: &Thread) -> bool {
        let Some(peer) = self.peer.filter(|peer| self.machine.is_open(*peer)) else {
            return false;
        };
        let Some(slot) = self.frames.free_slot() else {
            return false;
        };
        if self
            .buffers
            .as_ref()
            .is_some_and(|buffers| buffers.free == 0)
        {
            return false;
        }
        let ends = (plan.source, plan.target);
        let edge = *self.edges.entry(ends).or_insert_with(|| {
            let edge = self.machine.edge(peer, plan.source, plan.target);
            edge.expect("the session is open")
        });
        let Ok(MessageStart { key, sequence, .. }) =
            self.machine.begin(self.now, edge, PAYLOAD_BYTES)
        else {
            return false;
        };
        let number = self.progress[thread].sent;
        let at = wire::HEADER_BYTES;
        let frame = &mut self.frames.space[slot];
        wire::emit_message(&mut frame[at..], key, sequence as u32, 2, false, false);
        let at = at + wire::MESSAGE_BYTES;
        frame[at..at + 2].copy_from_slice(&[self.index, number]);
        self.frames.ends[slot] = at + 2;
        self.frames.used[slot] = true;
        if let Some(buffers) = &mut self.buffers {
            buffers.free -= 1;
        }
        assert!(self.machine.queue(peer, &[slot as Slot], false));
        self.progress[thread].sent += 1;
        if plan.closes {
            self.edges.remove(&ends);
            self.machine.close_edge(edge);
        }
        true
    }

    fn read(&mut self, thread: usize, plan: &Thread) {
        let Some(endpoint) = plan.reads else {
            return;
        };
        let Some((edge, _)) = self.inbox.entry(endpoint).or_default().pop_front() else {
            return;
        };
        self.machine.consumed(self.now, edge, PAYLOAD_BYTES);
        if let Some(buffers) = &mut self.buffers {
            buffers.give();
        }
        self.progress[thread].read += 1;
    }

    /// Invariants of every state.
    pub fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let stats = self.machine.stats();
        for reason in [
            DropReason::Malformed,
            DropReason::Violation,
            DropReason::Damaged,
        ] {
            if stats.dropped(reason) > 0 {
                return Err(format!(
                    "host {} dropped a packet as {reason:?}",
                    self.index
                ));
            }
        }
        let unread: usize = self.inbox.values().map(VecDeque::len).sum();
        let kept = (unread + self.held.len()) as u64 * message_charge();
        let (used, granted) = (self.machine.pool_used(), self.machine.credit_committed());
        if used != kept || used > scenario.config.pool_bytes {
            return Err(format!("the pool counts {used} bytes, {kept} are kept"));
        }
        let edges = self.machine.edges().1 as u64;
        if granted < kept || granted > edges * scenario.edge_bound() {
            return Err(format!("{granted} bytes of credit are out, {kept} kept"));
        }
        if self.machine.peers().count() > 1 {
            return Err("two sessions with one peer".into());
        }
        if self.peer.is_none() {
            return Ok(());
        }
        let Some(view) = &self.observed().view else {
            return Err("the session was forgotten without an event".into());
        };
        let on_way = view
            .units
            .iter()
            .filter(|unit| unit.state != UnitState::Arrived);
        let held = on_way.count() + view.waiting.len();
        let used = self.frames.used.iter().filter(|used| **used).count();
        if held != used {
            return Err(format!("{used} frames are out, the machine has {held}"));
        }
        Ok(())
    }

    /// All calls of the application are done, and the peer has everything.
    pub fn is_finished(&self, scenario: &Scenario) -> bool {
        let plans = &scenario.threads[usize::from(self.index)];
        let all = |(plan, done): (&Thread, &Progress)| {
            plan.optional || done.sent == plan.count && done.read == plan.expects
        };
        plans.iter().zip(&self.progress).all(all)
    }
}
