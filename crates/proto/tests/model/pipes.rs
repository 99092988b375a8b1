//! Two processes of one node and the rings between them: records in order, bounded, never
//! lost. A step takes the next record of a ring, lets an application call, or copies a long
//! message; then everything is pushed that has room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use dipole_proto::wire::{PipeKind, PipeTag};
use dipole_proto::{BeginError, Config, Delivery, EdgeId, Event, Instant, Machine, PeerId, config};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::action::Action;
use super::explore::{GONE, System};
use super::memory::{ANSWERS, Answer, Ask, Asking, Concluded, Owner, data_byte};

/// Bytes of a message that goes whole, of one that is offered, and of a piece of that.
const WHOLE_BYTES: u64 = 2;
const LONG_BYTES: u64 = 6;
const PIECE_BYTES: u64 = 4;
/// There are no timers: a moment is as good as another.
const NOW: Instant = Instant(1 << 20);

/// Messages of which it was compared what a reader who has them at once leaves.
pub static READ_AT_ONCE: AtomicU64 = AtomicU64::new(0);

/// What one application does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sends a message from endpoint 1 to this one; long if so said.
    Send {
        target: u32,
        long: bool,
    },
    /// Closes the edge to this endpoint, once everything sent was taken over.
    CloseEdge {
        target: u32,
    },
    /// Reads so many messages of this endpoint, one by one.
    Read {
        endpoint: u32,
        count: u8,
    },
    /// Opens or closes an endpoint; what it holds is dropped.
    Open {
        endpoint: u32,
    },
    Close {
        endpoint: u32,
    },
    /// Asks for an operation on the region of this endpoint.
    Ask {
        target: u32,
        ask: Ask,
    },
    /// Closes the region; its endpoint stays open.
    Revoke,
}

/// What the two processes do, and within which bounds.
#[derive(Clone)]
pub struct Exchange {
    /// Records that a ring holds.
    pub slots: usize,
    /// Messages, long ones, that an edge may have under way before any is read.
    pub credit_bytes: u64,
    pub pool_bytes: u64,
    /// Threads of each process: their calls in order; the last flag says that it need not end.
    pub threads: [Vec<(Vec<Call>, bool)>; 2],
    /// Fetches that fail at most.
    pub refused_fetches: u8,
    /// Which long messages to an endpoint, bit by bit, come in pieces unasked, unless an
    /// earlier one is offered.
    pub announced: u8,
    /// A send that cannot go on reads an endpoint instead (thesis §5.3, first rule).
    pub reads_when_blocked: Option<u32>,
}

impl Exchange {
    pub fn new(threads: [Vec<(Vec<Call>, bool)>; 2]) -> Exchange {
        Exchange {
            slots: 2,
            credit_bytes: 2 * charge(LONG_BYTES),
            pool_bytes: 16 * charge(LONG_BYTES),
            threads,
            refused_fetches: 0,
            announced: 0,
            reads_when_blocked: None,
        }
    }
}

pub fn charge(bytes: u64) -> u64 {
    config::charge(bytes)
}

#[derive(Clone, Debug, Hash)]
struct Record {
    tag: u64,
    bytes: Vec<u8>,
}

/// A long message where its sender keeps it.
#[derive(Clone, Debug, Hash)]
struct Kept {
    edge: EdgeId,
    sequence: u64,
    mark: [u8; 2],
    /// Of an operation: its data go, and its id is the mark.
    operation: bool,
    /// How much has gone in pieces; `None` while it may be copied.
    streamed: Option<u64>,
}

/// A long message that is to be copied.
#[derive(Clone, Copy, Debug, Hash)]
struct Fetch {
    edge: EdgeId,
    sequence: u64,
    number: u32,
    total: u64,
    address: u64,
}

/// A message of which pieces have come.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Held {
    target: u32,
    mark: [u8; 2],
    got: u64,
    total: u64,
}

#[derive(Clone)]
struct Process {
    machine: Machine,
    peer: PeerId,
    /// The next call of each thread, and how much of it is done.
    progress: Vec<(usize, u8)>,
    edges: BTreeMap<u32, EdgeId>,
    sent: BTreeMap<u32, u8>,
    kept: Vec<Kept>,
    fetches: VecDeque<Fetch>,
    /// Messages that are not complete or not next.
    held: BTreeMap<(u32, u64), Held>,
    /// Read next: edge, length, and which message of the sender.
    inbox: BTreeMap<u32, VecDeque<(EdgeId, u64, u8)>>,
    /// The message expected next at each endpoint, or later after a refusal.
    expected: BTreeMap<u32, u8>,
    /// Endpoints that are not always open: messages to them may be missing.
    lossy: BTreeSet<u32>,
    /// It was told of a refusal.
    told: bool,
    owner: Owner,
    asking: Asking,
}

/// See the module.
#[derive(Clone)]
pub struct Pipes {
    exchange: Rc<Exchange>,
    processes: [Process; 2],
    /// From each process to the other.
    rings: [VecDeque<(Record, u8)>; 2],
    refused_fetches: u8,
}

impl Pipes {
    pub fn new(exchange: Exchange) -> Pipes {
        let machine = |index: u64| {
            let config = Config {
                node: 1,
                frames: 1,
                max_peers: 2,
                pool_bytes: exchange.pool_bytes,
                pool_reserve_bytes: charge(LONG_BYTES),
                initial_credit_bytes: exchange.credit_bytes as u32,
                edge_window_bytes: exchange.credit_bytes,
                ..Config::default()
            };
            Machine::new(config, 1000 + index, [index, 7], &[])
        };
        let mut machines = [machine(0), machine(1)];
        let greetings = [machines[0].greeting(), machines[1].greeting()];
        let mut index = 0;
        let processes = machines.each_mut().map(|machine| {
            let peer = machine.open_pipe(greetings[1 - index]).expect("room");
            while machine.poll_event().is_some() {}
            let process = Process {
                machine: machine.clone(),
                peer,
                progress: vec![(0, 0); exchange.threads[index].len()],
                edges: BTreeMap::new(),
                sent: BTreeMap::new(),
                kept: Vec::new(),
                fetches: VecDeque::new(),
                held: BTreeMap::new(),
                inbox: BTreeMap::new(),
                expected: BTreeMap::new(),
                lossy: BTreeSet::new(),
                told: false,
                owner: Owner::default(),
                asking: Asking::default(),
            };
            index += 1;
            process
        });
        let mut world = Pipes {
            refused_fetches: exchange.refused_fetches,
            exchange: Rc::new(exchange),
            processes,
            rings: [VecDeque::new(), VecDeque::new()],
        };
        for index in 0..2 {
            let calls = world.exchange.threads[index].iter();
            let calls: Vec<Call> = calls.flat_map(|(calls, _)| calls.clone()).collect();
            let asked = world.exchange.threads[1 - index].iter();
            let mut asked = asked.flat_map(|(calls, _)| calls);
            let process = &mut world.processes[index];
            if let Some(Call::Ask { target, .. }) =
                asked.find(|call| matches!(call, Call::Ask { .. }))
            {
                process.owner.open_region(*target);
            }
            for call in &calls {
                let Call::Read { endpoint, .. } = *call else {
                    continue;
                };
                // Unless it is opened later, it is open from the start.
                if calls.contains(&Call::Open { endpoint }) {
                    process.lossy.insert(endpoint);
                } else {
                    process.machine.open_endpoint(endpoint);
                }
            }
        }
        world
    }

    /// What was sent has arrived, or its sender was told.
    fn check_end(&self) -> Result<(), String> {
        for (index, process) in self.processes.iter().enumerate() {
            let other = &self.processes[1 - index];
            for (target, sent) in &process.sent {
                let arrived = other.expected.get(target).copied().unwrap_or(0);
                if arrived < *sent && !process.told {
                    return Err(format!(
                        "{arrived} of {sent} messages arrived at endpoint {target}, and their \
                         sender was never told"
                    ));
                }
            }
            let (added, counter) = (process.asking.added(), other.owner.counter());
            if added != counter {
                return Err(format!(
                    "{added} additions were done, the counter says {counter}"
                ));
            }
        }
        Ok(())
    }

    /// Pushes what has room, records before pieces.
    fn pump(&mut self, index: usize) {
        let slots = self.exchange.slots;
        let process = &mut self.processes[index];
        let ring = &mut self.rings[index];
        while ring.len() < slots
            && let Some(record) = process.machine.poll_record(process.peer)
        {
            process.machine.pop_record(process.peer);
            let bytes = record.bytes().to_vec();
            let tag = record.tag;
            ring.push_back((Record { tag, bytes }, GONE));
        }
        let mut done = None;
        for (at, kept) in process.kept.iter_mut().enumerate() {
            let Some(streamed) = &mut kept.streamed else {
                continue;
            };
            while *streamed < LONG_BYTES && ring.len() < slots {
                let length = PIECE_BYTES.min(LONG_BYTES - *streamed);
                let mut bytes = vec![0; length as usize];
                match kept.operation {
                    true => bytes.fill(data_byte(kept.mark[1].into())),
                    false => bytes[..2].copy_from_slice(&kept.mark),
                }
                let tag = Machine::piece_tag(kept.edge, false);
                ring.push_back((Record { tag, bytes }, GONE));
                *streamed += length;
            }
            if *streamed == LONG_BYTES {
                done = Some(at);
            }
            break;
        }
        if let Some(at) = done {
            let kept = process.kept.remove(at);
            process.machine.streamed(kept.edge, kept.sequence);
            return self.pump(index);
        }
        if process.push_answer(ring, slots) {
            self.pump(index);
        }
    }

    fn take(&mut self, index: usize, record: &Record) -> Result<(), String> {
        let process = &mut self.processes[index];
        let tag = PipeTag::from_word(record.tag).map_err(|error| format!("{error:?}"))?;
        let length = record.bytes.len();
        if tag.kind == PipeKind::Message {
            let before = process.machine.clone();
            let delivery = process
                .machine
                .on_pipe_message(NOW, process.peer, tag.number, length)
                .map_err(|why| format!("cut off: {why}"))?;
            if let Some(delivery) = delivery {
                process.compare_reading(before, (tag.number, length), delivery)?;
                let (source, target) = delivery.key.ends();
                process.arrived(
                    delivery.edge,
                    (source, target),
                    WHOLE_BYTES,
                    record.bytes[1],
                )?;
            }
            return process.events(&record.bytes);
        }
        let control: &[u8] = match tag.kind {
            PipeKind::Piece | PipeKind::Unreliable | PipeKind::Operation => &[],
            _ => &record.bytes,
        };
        process
            .machine
            .on_pipe_record(NOW, process.peer, tag, control, length)
            .map_err(|why| format!("cut off: {why}"))?;
        process.events(&record.bytes)
    }

    fn fetch(&mut self, index: usize, refused: bool) -> Result<(), String> {
        let Some(fetch) = self.processes[index].fetches.pop_front() else {
            return Ok(());
        };
        let Fetch {
            edge,
            sequence,
            number,
            total,
            address,
        } = fetch;
        let marks: Vec<[u8; 2]> = (self.processes[1 - index].kept.iter())
            .map(|kept| kept.mark)
            .collect();
        let process = &mut self.processes[index];
        if refused {
            process.machine.cannot_fetch(edge, number, sequence, total);
            return process.events(&[]);
        }
        let of = (edge.index, sequence);
        if process.owner.is_arriving(of) {
            process.owner.fetched(of, (address as u8).into());
        }
        // What its endpoint no longer wants is not copied.
        if let Some(held) = process.held.get_mut(&(edge.index, sequence)) {
            let mark = [(address >> 8) as u8, address as u8];
            if !marks.contains(&mark) {
                return Err("a long message is copied that its sender no longer keeps".into());
            }
            (held.mark, held.got) = (mark, total);
        }
        process.machine.fetched(NOW, edge, number, sequence);
        process.events(&[])
    }

    fn call(&mut self, index: usize, thread: usize) {
        let exchange = Rc::clone(&self.exchange);
        let process = &mut self.processes[index];
        let ring = &mut self.rings[index];
        let (position, done) = process.progress[thread];
        let Some(call) = exchange.threads[index][thread].0.get(position) else {
            return;
        };
        let is_over = match *call {
            Call::Send { target, long } => {
                let sent = process.send(target, long, ring, &exchange, index);
                if !sent && let Some(endpoint) = exchange.reads_when_blocked {
                    process.read(endpoint);
                }
                sent
            }
            Call::Ask { target, ask } => process.ask((target, ask), ring, &exchange, index),
            Call::Revoke => {
                process.owner.revoke();
                true
            }
            Call::CloseEdge { target } => {
                if let Some(edge) = process.edges.remove(&target) {
                    process.machine.close_edge(edge);
                }
                true
            }
            Call::Read { endpoint, count } => {
                let read = process.read(endpoint);
                process.progress[thread].1 += u8::from(read);
                done + u8::from(read) >= count
            }
            Call::Open { endpoint } => {
                process.machine.open_endpoint(endpoint);
                true
            }
            Call::Close { endpoint } => {
                process.inbox.remove(&endpoint);
                process.owner.close_endpoint();
                process.lossy.insert(endpoint);
                process.machine.close_endpoint(NOW, endpoint);
                process.held.retain(|_, held| held.target != endpoint);
                true
            }
        };
        if is_over {
            process.progress[thread] = (position + 1, 0);
        }
    }

    /// What must hold in every state.
    fn check(&self) -> Result<(), String> {
        for process in &self.processes {
            let unread: u64 = process
                .inbox
                .values()
                .flatten()
                .map(|(_, length, _)| charge(*length))
                .sum();
            let held: u64 = process.held.values().map(|held| charge(held.total)).sum();
            let operations = process.owner.charged() * charge(0);
            let used = process.machine.pool_used();
            if used != unread + held + operations {
                return Err(format!(
                    "the pool counts {used} bytes, {unread} are unread, {held} held, {operations} \
                     are of operations"
                ));
            }
            process.owner.check()?;
            // Beside the messages of a life that has ended credit is reserved for the next.
            let threads = self.exchange.threads.iter().flatten();
            let mut calls = threads.flat_map(|(calls, _)| calls);
            let lives = calls.any(|call| matches!(call, Call::CloseEdge { .. }));
            let edges = process.machine.edges().1 as u64 + u64::from(lives);
            let bound = edges * self.exchange.credit_bytes;
            let granted = process.machine.credit_committed();
            if granted > bound {
                return Err(format!(
                    "{granted} bytes are granted, at most {bound} may be"
                ));
            }
        }
        Ok(())
    }

    /// Nothing that a process sent is still to be taken.
    fn is_quiet(&self, index: usize) -> bool {
        let process = &self.processes[index];
        process.kept.is_empty()
            && process.owner.is_quiet()
            && process.asking.is_quiet()
            && process.fetches.is_empty()
            && process.machine.is_acknowledged(process.peer)
    }

    fn is_finished(&self, index: usize) -> bool {
        let threads = self.exchange.threads[index].iter();
        let progress = self.processes[index].progress.iter();
        let over = |(calls, is_optional): &(Vec<Call>, bool), position: usize| {
            *is_optional || position == calls.len()
        };
        threads
            .zip(progress)
            .all(|(thread, (position, _))| over(thread, *position))
    }
}

impl Process {
    /// The edge to an endpoint, made when it is first used.
    fn edge(&mut self, target: u32) -> Option<EdgeId> {
        if let Some(edge) = self.edges.get(&target) {
            return Some(*edge);
        }
        let source = if target == ANSWERS { ANSWERS } else { 1 };
        let edge = self.machine.edge(self.peer, source, target).ok()?;
        Some(*self.edges.entry(target).or_insert(edge))
    }

    /// Pushes the records that go before; true if there is room for one more.
    fn push_records(&mut self, ring: &mut VecDeque<(Record, u8)>, slots: usize) -> bool {
        while ring.len() < slots {
            let Some(record) = self.machine.poll_record(self.peer) else {
                return true;
            };
            self.machine.pop_record(self.peer);
            let (tag, bytes) = (record.tag, record.bytes().to_vec());
            ring.push_back((Record { tag, bytes }, GONE));
        }
        false
    }

    /// True if the question is on its way; nothing was begun if not.
    fn ask(
        &mut self,
        (target, ask): (u32, Ask),
        ring: &mut VecDeque<(Record, u8)>,
        exchange: &Exchange,
        index: usize,
    ) -> bool {
        let Some(edge) = self.edge(target) else {
            return false;
        };
        let id = self.asking.next_id();
        let head = ask.head(id).to_bytes();
        let begun = match self.machine.begin(NOW, edge, 0) {
            Ok(begun) => begun,
            Err(why) => {
                if matches!(why, BeginError::Refused(_)) {
                    self.machine.forgive(edge);
                    self.told = true;
                }
                return false;
            }
        };
        if ask.is_long() {
            let mark = [index as u8 + 1, id as u8];
            let address = u64::from(mark[0]) << 8 | u64::from(mark[1]);
            let mut kept = self.kept.iter();
            let is_offered = kept.any(|kept| kept.edge == edge && kept.streamed.is_none());
            let announced = exchange.announced >> id & 1 == 1 && !is_offered;
            match announced {
                true => self.machine.announce(edge, begun, LONG_BYTES, Some(&head)),
                false => {
                    let place = (LONG_BYTES, address);
                    self.machine.offer(edge, begun, place, Some(&head));
                }
            }
            self.kept.push(Kept {
                edge,
                sequence: begun.sequence,
                mark,
                operation: true,
                streamed: announced.then_some(0),
            });
        } else {
            if !self.push_records(ring, exchange.slots) {
                self.machine.retract(edge, 0);
                return false;
            }
            let data = vec![data_byte(id); ask.data_bytes()];
            let bytes = [&head[..], &data].concat();
            let tag = Machine::message_tag(edge, true);
            ring.push_back((Record { tag, bytes }, GONE));
        }
        self.asking.asked(ask);
        true
    }

    /// Pushes the oldest answer, if there is one and there is room; then what it holds is given
    /// back.
    fn push_answer(&mut self, ring: &mut VecDeque<(Record, u8)>, slots: usize) -> bool {
        if self.owner.answers.is_empty() {
            return false;
        }
        let Some(edge) = self.edge(ANSWERS) else {
            return false;
        };
        if self.machine.begin(NOW, edge, 0).is_err() {
            return false;
        }
        if !self.push_records(ring, slots) {
            self.machine.retract(edge, 0);
            return false;
        }
        let Some(Answer { head, data, charge }) = self.owner.answers.pop_front() else {
            return false;
        };
        let bytes = [&head.to_bytes()[..], &data].concat();
        let tag = Machine::message_tag(edge, true);
        ring.push_back((Record { tag, bytes }, GONE));
        if let Some(edge) = charge {
            self.machine.consumed(NOW, edge, 0);
        }
        true
    }

    /// An operation is done; what it was of may be given back.
    fn concluded(&mut self, target: u32, concluded: Concluded) {
        match concluded {
            Concluded::Answered(edge) => self.machine.consumed(NOW, edge, 0),
            Concluded::Notice(edge) => {
                let inbox = self.inbox.entry(target).or_default();
                inbox.push_back((edge, 0, 0));
            }
            Concluded::Asked => {}
        }
    }

    /// True if the message is on its way; nothing was begun if not.
    fn send(
        &mut self,
        target: u32,
        long: bool,
        ring: &mut VecDeque<(Record, u8)>,
        exchange: &Exchange,
        index: usize,
    ) -> bool {
        let Some(edge) = self.edge(target) else {
            return false;
        };
        let number = *self.sent.entry(target).or_default();
        let mark = [index as u8 + 1, target as u8 * 16 + number];
        let total = if long { LONG_BYTES } else { WHOLE_BYTES };
        let begun = match self.machine.begin(NOW, edge, total) {
            Ok(begun) => begun,
            Err(BeginError::Refused(_)) => {
                // It goes on after it has been told, and counts the message as dealt with.
                self.machine.forgive(edge);
                self.told = true;
                *self.sent.entry(target).or_default() += 1;
                return true;
            }
            Err(_) => return false,
        };
        if long {
            let address = u64::from(mark[0]) << 8 | u64::from(mark[1]);
            let mut kept = self.kept.iter();
            let is_offered = kept.any(|kept| kept.edge == edge && kept.streamed.is_none());
            let announced = exchange.announced >> number & 1 == 1 && !is_offered;
            match announced {
                true => self.machine.announce(edge, begun, total, None),
                false => self.machine.offer(edge, begun, (total, address), None),
            }
            self.kept.push(Kept {
                edge,
                sequence: begun.sequence,
                mark,
                operation: false,
                streamed: announced.then_some(0),
            });
        } else {
            if !self.push_records(ring, exchange.slots) {
                self.machine.retract(edge, total);
                return false;
            }
            let tag = Machine::message_tag(edge, false);
            let bytes = mark.to_vec();
            ring.push_back((Record { tag, bytes }, GONE));
        }
        *self.sent.entry(target).or_default() += 1;
        true
    }

    /// A reader who has a message at once leaves the same as one who takes it and then reads it.
    fn compare_reading(
        &self,
        mut before: Machine,
        (number, length): (u32, usize),
        delivery: Delivery,
    ) -> Result<(), String> {
        let reader = delivery.key.target;
        if before
            .on_pipe_message_read(NOW, self.peer, number, length, reader + 1)
            .is_some()
        {
            return Err("a message was read at an endpoint it is not for".into());
        }
        let read = before.on_pipe_message_read(NOW, self.peer, number, length, reader);
        let Some(read) = read else {
            return Ok(());
        };
        READ_AT_ONCE.fetch_add(1, Ordering::Relaxed);
        let mut after = self.machine.clone();
        after.consumed(NOW, delivery.edge, length as u64);
        let [short, long] = [before, after].map(|mut machine| {
            let mut hasher = SipHasher13::new();
            machine.hash_shared(&mut hasher);
            machine.hash_pipe(self.peer, &mut hasher);
            let events: Vec<_> = core::iter::from_fn(|| machine.poll_event()).collect();
            let ready = machine.poll_ready_pipe();
            let counters = format!("{:?}", machine.stats());
            (
                hasher.finish128().as_u128(),
                format!("{events:?}"),
                ready,
                counters,
            )
        });
        match read == delivery && short == long {
            true => Ok(()),
            false => Err(format!("read at once {short:?}, taken and read {long:?}")),
        }
    }

    fn read(&mut self, endpoint: u32) -> bool {
        let inbox = self.inbox.entry(endpoint).or_default();
        let Some((edge, length, _)) = inbox.pop_front() else {
            return false;
        };
        self.machine.consumed(NOW, edge, length);
        true
    }

    fn arrived(
        &mut self,
        edge: EdgeId,
        (source, target): (u32, u32),
        length: u64,
        mark: u8,
    ) -> Result<(), String> {
        let expected = self.expected.entry(target).or_default();
        let number = mark.wrapping_sub(target as u8 * 16);
        let may_skip = self.lossy.contains(&target);
        if source != 1 || number < *expected || number > *expected && !may_skip {
            return Err(format!(
                "message {expected} expected at endpoint {target}, {number} came"
            ));
        }
        *expected = number + 1;
        let inbox = self.inbox.entry(target).or_default();
        inbox.push_back((edge, length, number));
        Ok(())
    }

    fn events(&mut self, record: &[u8]) -> Result<(), String> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Hold {
                    edge,
                    target,
                    sequence,
                    offset,
                    bytes,
                    total,
                    operation,
                } => {
                    if operation || self.owner.is_arriving((edge.index, sequence)) {
                        let of = (edge.index, sequence, target);
                        let bytes = &record[bytes];
                        self.owner.hold(of, (offset, total), operation, bytes)?;
                        continue;
                    }
                    let held = self.held.entry((edge.index, sequence)).or_default();
                    (held.target, held.total) = (target, total);
                    held.got += bytes.len() as u64;
                    if bytes.len() >= 2 {
                        held.mark.copy_from_slice(&record[bytes][..2]);
                    }
                    if held.got > total {
                        return Err("more pieces than the message has bytes".into());
                    }
                }
                Event::Complete {
                    edge,
                    source,
                    target,
                    sequence,
                } => {
                    if self.owner.is_arriving((edge.index, sequence)) {
                        let of = (edge, source);
                        let concluded = self.owner.complete(&mut self.asking, of, sequence)?;
                        self.concluded(target, concluded);
                        continue;
                    }
                    let held = self.held.remove(&(edge.index, sequence));
                    let held = held.ok_or("a message is complete that never came")?;
                    self.arrived(edge, (source, target), held.got, held.mark[1])?;
                }
                Event::Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    address,
                } => self.fetches.push_back(Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    address,
                }),
                Event::Taken { edge, sequence } => self
                    .kept
                    .retain(|kept| (kept.edge, kept.sequence) != (edge, sequence)),
                Event::StreamWanted { edge, sequence } => {
                    let mut kept = self.kept.iter_mut();
                    let kept = kept.find(|it| (it.edge, it.sequence) == (edge, sequence));
                    kept.ok_or("a stream of no message")?.streamed = Some(0);
                }
                Event::Operation {
                    edge,
                    source,
                    target,
                    bytes,
                } => {
                    let of = (edge, source, target);
                    let whole = &record[bytes];
                    let concluded = self.owner.whole(&mut self.asking, of, whole)?;
                    self.concluded(target, concluded);
                }
                Event::Refused { .. } => self.told = true,
                Event::Credit { .. } | Event::EdgeForgotten { .. } => {}
                other => return Err(format!("unexpected event {other:?}")),
            }
        }
        Ok(())
    }
}

impl System for Pipes {
    fn actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        let first = self.rings[0].len();
        if first > 0 {
            actions.push(Action::Deliver(0));
        }
        if !self.rings[1].is_empty() {
            actions.push(Action::Deliver(first as u8));
        }
        for host in 0..2_u8 {
            let process = &self.processes[usize::from(host)];
            if !process.fetches.is_empty() {
                actions.push(Action::Fetch(host));
                if self.refused_fetches > 0 {
                    actions.push(Action::FetchRefused(host));
                }
            }
            for thread in 0..process.progress.len() {
                actions.push(Action::Call(host, thread as u8));
            }
        }
    }

    fn apply(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Deliver(token) => {
                let from = usize::from(usize::from(token) >= self.rings[0].len());
                if let Some((record, _)) = self.rings[from].pop_front() {
                    self.take(1 - from, &record)?;
                }
            }
            Action::Fetch(host) => self.fetch(usize::from(host), false)?,
            Action::FetchRefused(host) => {
                self.refused_fetches -= 1;
                self.fetch(usize::from(host), true)?;
            }
            Action::Call(host, thread) => self.call(usize::from(host), usize::from(thread)),
            _ => return Err("no step of shared memory".into()),
        }
        self.pump(0);
        self.pump(1);
        self.check()?;
        match self.is_done() && (0..2).all(|index| self.is_quiet(index)) {
            true => self.check_end(),
            false => Ok(()),
        }
    }

    fn normalize(&mut self) -> u128 {
        let mut hasher = SipHasher13::new();
        for (process, ring) in self.processes.iter().zip(&self.rings) {
            process.machine.hash_shared(&mut hasher);
            process.machine.hash_pipe(process.peer, &mut hasher);
            process.progress.hash(&mut hasher);
            (&process.edges, &process.sent, &process.kept).hash(&mut hasher);
            (&process.fetches, &process.held, &process.inbox).hash(&mut hasher);
            (&process.expected, &process.lossy, process.told).hash(&mut hasher);
            (&process.owner, &process.asking).hash(&mut hasher);
            for (record, _) in ring {
                record.hash(&mut hasher);
            }
            ring.len().hash(&mut hasher);
        }
        self.refused_fetches.hash(&mut hasher);
        hasher.finish128().as_u128()
    }

    fn tokens(&self) -> usize {
        self.rings[0].len() + self.rings[1].len()
    }

    fn deliverable(&self) -> u8 {
        let first = u8::from(!self.rings[0].is_empty());
        let second = u8::from(!self.rings[1].is_empty()) << self.rings[0].len();
        first | second
    }

    fn mark_tokens(&mut self) {
        let tokens = self.rings.iter_mut().flatten();
        for (index, (_, was)) in tokens.enumerate() {
            *was = index as u8;
        }
    }

    fn moved(&self) -> u32 {
        let mut moved = u32::MAX;
        for (index, (_, was)) in self.rings.iter().flatten().enumerate() {
            if *was != GONE {
                let shift = 4 * u32::from(*was);
                moved = moved & !(15 << shift) | (index as u32) << shift;
            }
        }
        moved
    }

    fn is_done(&self) -> bool {
        let mut threads = self.exchange.threads.iter().flatten();
        let optional = threads.any(|(_, is_optional)| *is_optional);
        (0..2).all(|index| self.is_finished(index) && (optional || self.is_quiet(index)))
            && self.rings.iter().all(VecDeque::is_empty)
    }

    fn describe(&self, action: Action) -> String {
        let name = |host: usize| char::from(b'A' + host as u8);
        match action {
            Action::Deliver(token) => {
                let from = usize::from(usize::from(token) >= self.rings[0].len());
                let record = self.rings[from].front().map(|(record, _)| record);
                let tag = record.map(|record| PipeTag::from_word(record.tag));
                format!("{}->{} takes {tag:?}", name(from), name(1 - from))
            }
            Action::Call(host, thread) => {
                let (host, thread) = (usize::from(host), usize::from(thread));
                let (position, done) = self.processes[host].progress[thread];
                let call = self.exchange.threads[host][thread].0.get(position);
                format!("{}    calls {call:?} ({done} done)", name(host))
            }
            Action::Fetch(host) | Action::FetchRefused(host) => {
                format!("{}    {action}", name(usize::from(host)))
            }
            other => other.to_string(),
        }
    }

    fn tell_state(&self) -> String {
        let mut lines = String::new();
        for (index, process) in self.processes.iter().enumerate() {
            lines += &format!(
                "       {}: progress {:?}, {} records in its ring, {} long messages kept, \
                 pool {}, edges {:?}\n",
                char::from(b'A' + index as u8),
                process.progress,
                self.rings[index].len(),
                process.kept.len(),
                process.machine.pool_used(),
                process.machine.edges(),
            );
        }
        lines
    }
}
