//! Two processes of one node and the rings between them: records in order, bounded, never lost. A
//! step handles the next record of a ring, performs a call of an application, or copies a long
//! message. Then everything is pushed for which there is room.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::Hash;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use dipole_proto::wire::{PipeKind, PipeTag};
use dipole_proto::{Config, Instant, Machine, config};
use siphasher::sip128::{Hasher128, SipHasher13};

mod process;

use super::action::Action;
use super::explore::{GONE, System};
use super::memory::{Ask, Asking, Owner, data_byte};
use super::shared::Shared;
use process::{Fetch, Process, Record};

/// Bytes of a message sent as one record, of an offered message, and of a piece of that.
const WHOLE_BYTES: u64 = 2;
const LONG_BYTES: u64 = 6;
const PIECE_BYTES: u64 = 4;
/// There are no timers, so the time does not matter.
const NOW: Instant = Instant(1 << 20);

/// Messages for which a read at once was compared with a separate read.
pub static READ_AT_ONCE: AtomicU64 = AtomicU64::new(0);

/// The calls of an application, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sends a message from endpoint 1 to this one; a long one if the flag is set.
    Send {
        target: u32,
        long: bool,
    },
    /// Closes the edge to this endpoint once everything sent has been accepted.
    CloseEdge {
        target: u32,
    },
    /// Reads this many messages of this endpoint, one by one.
    Read {
        endpoint: u32,
        count: u8,
    },
    /// Opens or closes an endpoint; its messages are dropped.
    Open {
        endpoint: u32,
    },
    Close {
        endpoint: u32,
    },
    /// Requests an operation on the region of this endpoint.
    Ask {
        target: u32,
        ask: Ask,
    },
    /// Closes the region; its endpoint stays open.
    Revoke,
}

/// Actions of the two processes, and limits.
#[derive(Clone)]
pub struct Exchange {
    /// Records that fit a ring.
    pub slots: usize,
    /// Unread short and long messages that fit the credit of an edge.
    pub credit_bytes: u64,
    pub pool_bytes: u64,
    /// Threads of each process: their calls in order, and whether a thread may stay unfinished.
    pub threads: [Vec<(Vec<Call>, bool)>; 2],
    /// Most copies that fail.
    pub refused_fetches: u8,
    /// A bit for each long message to an endpoint: it is announced in pieces, unless an earlier one
    /// is on offer.
    pub announced: u8,
    /// A send that cannot continue reads an endpoint instead (thesis §5.3, first rule).
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

/// State of two processes and their rings.
#[derive(Clone)]
pub struct Pipes {
    exchange: Rc<Exchange>,
    processes: [Shared<Process>; 2],
    /// Rings from each process to the other.
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
            let process = Shared::new(Process {
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
                was_refused: false,
                owner: Owner::default(),
                asking: Asking::default(),
                digest: OnceCell::new(),
            });
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
            let process = &mut *world.processes[index];
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

    /// Checks that everything sent has arrived, or its sender was notified.
    fn check_end(&self) -> Result<(), String> {
        for (index, process) in self.processes.iter().enumerate() {
            let other = &self.processes[1 - index];
            for (target, sent) in &process.sent {
                let arrived = other.expected.get(target).copied().unwrap_or(0);
                if arrived < *sent && !process.was_refused {
                    return Err(format!(
                        "{arrived} of {sent} messages arrived at endpoint {target}, and their \
                         sender was never notified"
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

    /// Pushes everything that fits, records before pieces.
    fn pump(&mut self, index: usize) {
        let slots = self.exchange.slots;
        let process = &mut *self.processes[index];
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
            process.machine.pieces_sent(kept.edge, kept.sequence);
            return self.pump(index);
        }
        if process.push_answer(ring, slots) {
            self.pump(index);
        }
    }

    fn take(&mut self, index: usize, record: &Record) -> Result<(), String> {
        let process = &mut *self.processes[index];
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
        let process = &mut *self.processes[index];
        if refused {
            process.machine.fetch_failed(edge, number, sequence, total);
            return process.events(&[]);
        }
        let of = (edge.index, sequence);
        if process.owner.is_arriving(of) {
            process.owner.fetched(of, (address as u8).into());
        }
        // A message that its endpoint does not accept any more is not copied.
        if let Some(held) = process.held.get_mut(&(edge.index, sequence)) {
            let mark = [(address >> 8) as u8, address as u8];
            if !marks.contains(&mark) {
                return Err("a long message is copied that its sender has released".into());
            }
            (held.mark, held.got) = (mark, total);
        }
        process.machine.fetch_completed(NOW, edge, number, sequence);
        process.events(&[])
    }

    fn call(&mut self, index: usize, thread: usize) {
        let exchange = Rc::clone(&self.exchange);
        let process = &mut *self.processes[index];
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

    /// Invariants of every state.
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
            // Credit for the next life is reserved in addition to unread messages of an ended one.
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

    /// True if everything sent has been handled.
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
            _ => return Err("not a step of shared memory".into()),
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
            process.digest().hash(&mut hasher);
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

    fn describe_state(&self) -> String {
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
