//! The shared memory of one node under virtual time, determined by a seed.
//!
//! [`SharedMemory`] is what the processes of a node share; [`SimHub`] is one process's side of
//! it, with the interface of [`Hub`](crate::shm::Hub). Rings fill up, records without a wake-up
//! are seen late, handshakes take time, connection tables fill up, reads from other processes
//! fail, processes exit. Nothing happens on its own: the time is that of the last
//! [`SharedMemory::advance`].

mod hub;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

pub use hub::SimHub;

use crate::chance::happens;
use crate::shm::{CloseReason, ConnId, PeerInfo, ShmError, ShmEvent, ShmOptions, ShmStats};

/// Content of memory that its owner has reused, as seen by a pull.
const OVERWRITTEN: u8 = 0xDD;
/// Gap between simulated regions, so that an address never falls into a neighbour.
const GUARD_BYTES: u64 = 4096;

/// Behaviour of a node's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedMemoryConfig {
    /// Records that a ring holds.
    pub ring_slots: usize,
    /// Payload bytes that a ring holds; a single record always fits.
    pub ring_bytes: usize,
    /// Maximum delay until a record without a wake-up is seen.
    pub visible_ns: u64,
    /// Maximum delay of a handshake, a wake-up or a close.
    pub socket_ns: u64,
    /// Probability that a poll returns only some of the records.
    pub short_polls: f64,
    /// Probability that one side of a connection may not read the other's memory.
    pub fetches_refused: f64,
    /// Probability that a pull fails midway.
    pub fetches_failing: f64,
}

impl Default for SharedMemoryConfig {
    fn default() -> SharedMemoryConfig {
        SharedMemoryConfig {
            ring_slots: 1024,
            ring_bytes: 1 << 20,
            visible_ns: 0,
            socket_ns: 0,
            short_polls: 0.0,
            fetches_refused: 0.0,
            fetches_failing: 0.0,
        }
    }
}

/// An event on a connection's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketEvent {
    /// A process has connected.
    Hello,
    /// The other process has accepted the connection.
    Answer,
    /// The other process rejects the connection: its table is full.
    Full,
    Wake,
    HungUp,
}

/// An event in flight to a process, about one side of a pair.
#[derive(Debug)]
struct PendingEvent {
    at_ns: u64,
    side: Side,
    event: SocketEvent,
}

/// One of the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    pair: usize,
    end: usize,
}

impl Side {
    fn other(self) -> Side {
        Side {
            end: 1 - self.end,
            ..self
        }
    }
}

#[derive(Debug)]
struct Record {
    visible_ns: u64,
    is_notice: bool,
    tag: u64,
    payload: Vec<u8>,
}

/// Records on their way to one side.
#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<Record>,
    bytes: usize,
    /// The producer waits for room.
    wanted: bool,
    /// Something was taken since then, which has not been reported to the producer.
    room_available: bool,
    /// Number of answers that the consumer has made.
    answers: u64,
}

#[derive(Debug)]
struct End {
    process: usize,
    /// Greeting that the process sends to its peers.
    greeting: Vec<u8>,
    /// Entry in the process's table; `None` before it was accepted and after it was closed.
    conn: Option<ConnId>,
    open: bool,
    peer_is_full: bool,
    hung_up: bool,
    can_fetch: bool,
    /// Records on their way to this side.
    ring: Ring,
}

#[derive(Debug)]
struct Process {
    path: PathBuf,
    greeting: Vec<u8>,
    max_connections: usize,
    connections: Vec<Option<Side>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    pending: VecDeque<PendingEvent>,
    asleep: bool,
    /// It has been woken since it went to sleep.
    wake_pending: bool,
    woken: bool,
    regions: Vec<Region>,
    /// No process may read them at present.
    pulls_blocked: bool,
    next_address: u64,
    stats: ShmStats,
}

impl Process {
    /// The sides of its connections.
    fn sides(&self) -> Vec<Side> {
        self.connections.iter().flatten().copied().collect()
    }
}

/// Memory of a process whose address was given to others.
#[derive(Debug)]
struct Region {
    address: u64,
    length: usize,
    /// Its real address, to recognise it.
    local_address: usize,
    /// `None` once the owner has reused it.
    contents: Option<Vec<u8>>,
}

#[derive(Debug)]
struct State {
    config: SharedMemoryConfig,
    rng: ChaCha8Rng,
    now_ns: u64,
    processes: Vec<Option<Process>>,
    pairs: Vec<[End; 2]>,
    listeners: FxHashMap<PathBuf, usize>,
}

/// The shared memory of one node; clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    state: Arc<Mutex<State>>,
}

impl SharedMemory {
    /// A node without processes.
    #[must_use]
    pub fn new(seed: u64, config: SharedMemoryConfig) -> SharedMemory {
        SharedMemory {
            state: Arc::new(Mutex::new(State {
                config,
                rng: ChaCha8Rng::seed_from_u64(seed),
                now_ns: 0,
                processes: Vec::new(),
                pairs: Vec::new(),
                listeners: FxHashMap::default(),
            })),
        }
    }

    /// Adds a process; like [`Hub::open`](crate::shm::Hub::open).
    ///
    /// # Errors
    /// [`ShmError::Socket`] if another process listens there.
    pub fn open(
        &self,
        socket: &Path,
        greeting: &[u8],
        options: &ShmOptions,
    ) -> Result<SimHub, ShmError> {
        let mut state = self.lock();
        if state.listeners.contains_key(socket) {
            return Err(ShmError::Socket {
                path: socket.to_owned(),
                cause: io::ErrorKind::AddrInUse.into(),
            });
        }
        let process = state.processes.len();
        state.listeners.insert(socket.to_owned(), process);
        state.processes.push(Some(Process {
            path: socket.to_owned(),
            greeting: greeting.to_vec(),
            max_connections: options.max_connections,
            connections: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            pending: VecDeque::new(),
            asleep: false,
            wake_pending: false,
            woken: false,
            regions: Vec::new(),
            pulls_blocked: false,
            next_address: GUARD_BYTES,
            stats: ShmStats::default(),
        }));
        Ok(SimHub::new(self.clone(), process))
    }

    /// Advances the time to `now_ns`.
    pub fn advance(&self, now_ns: u64) {
        let mut state = self.lock();
        state.now_ns = state.now_ns.max(now_ns);
    }

    /// Changes the configuration while the simulation runs.
    pub fn change(&self, change: impl FnOnce(&mut SharedMemoryConfig)) {
        change(&mut self.lock().config);
    }

    /// When the descriptor of the process at `socket` becomes readable.
    #[must_use]
    pub fn readable_ns(&self, socket: &Path) -> Option<u64> {
        let state = self.lock();
        let process = *state.listeners.get(socket)?;
        let pending = &state.processes[process].as_ref()?.pending;
        pending.iter().map(|pending| pending.at_ns).min()
    }

    /// Marks bytes of the process at `socket` as reused: a later pull of a region that contains
    /// them finds other content.
    pub fn overwrite(&self, socket: &Path, bytes: &[u8]) {
        let mut state = self.lock();
        let Some(&process) = state.listeners.get(socket) else {
            return;
        };
        let regions = state.processes[process].iter_mut();
        for region in regions.flat_map(|process| &mut process.regions) {
            let begin = bytes.as_ptr().addr();
            let end = begin + bytes.len();
            if begin <= region.local_address && region.local_address + region.length <= end {
                region.contents = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The side that belongs to a connection of a process.
    fn side(&self, process: usize, conn: ConnId) -> Option<Side> {
        let side = (*self.processes[process]
            .as_ref()?
            .connections
            .get(conn.index())?)?;
        (self.end(side).conn == Some(conn)).then_some(side)
    }

    fn open_side(&self, process: usize, conn: ConnId) -> Option<Side> {
        self.side(process, conn).filter(|side| self.end(*side).open)
    }

    fn end(&self, side: Side) -> &End {
        &self.pairs[side.pair][side.end]
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.pairs[side.pair][side.end]
    }

    fn process(&mut self, process: usize) -> Option<&mut Process> {
        self.processes[process].as_mut()
    }

    /// The process of a hub, which exists as long as the hub.
    fn own(&mut self, process: usize) -> &mut Process {
        self.process(process).expect("its hub generations")
    }

    fn within(&mut self, most_ns: u64) -> u64 {
        match most_ns {
            0 => 0,
            most => self.rng.random_range(0..=most),
        }
    }

    /// Sends an event to the process of a side. Events of one side stay in order, and a close is
    /// never seen after a connection that was opened later.
    fn post(&mut self, side: Side, event: SocketEvent) {
        let most_ns = self.config.socket_ns;
        let at_ns = self.now_ns + self.within(most_ns);
        let process = self.end(side).process;
        let Some(process) = self.process(process) else {
            return;
        };
        let comes = matches!(event, SocketEvent::Hello | SocketEvent::Answer);
        let before = process.pending.iter().filter(|pending| {
            pending.side == side || comes && pending.event == SocketEvent::HungUp
        });
        let at_ns = before.map(|pending| pending.at_ns).fold(at_ns, u64::max);
        process
            .pending
            .push_back(PendingEvent { at_ns, side, event });
    }

    /// Adds a side to its process's table; `None` if it is full.
    fn enter(&mut self, side: Side) -> Option<ConnId> {
        let process = self.end(side).process;
        let process = self.process(process)?;
        if process.connections.len() - process.free.len() >= process.max_connections {
            return None;
        }
        let index = process.free.pop().unwrap_or_else(|| {
            process.connections.push(None);
            process.generations.push(0);
            u32::try_from(process.connections.len() - 1).expect("connections are few")
        });
        let at = index as usize;
        process.generations[at] += 1;
        process.connections[at] = Some(side);
        let conn = ConnId::new(index, process.generations[at]);
        self.end_mut(side).conn = Some(conn);
        Some(conn)
    }

    /// Closes a side from its own process; the other side gets an event.
    fn close(&mut self, side: Side) {
        let end = self.end_mut(side);
        end.open = false;
        let (conn, process) = (end.conn.take(), end.process);
        if let (Some(conn), Some(process)) = (conn, self.process(process)) {
            process.connections[conn.index()] = None;
            process.free.push(u32::try_from(conn.index()).expect("few"));
        }
        self.post(side.other(), SocketEvent::HungUp);
    }

    /// Wakes the process of a side if it sleeps; true if it did.
    fn wake(&mut self, side: Side) -> bool {
        let process = self.end(side).process;
        let Some(process) = self.process(process) else {
            return false;
        };
        if !process.asleep || process.wake_pending {
            return false;
        }
        process.wake_pending = true;
        self.post(side, SocketEvent::Wake);
        true
    }

    /// Opens one side and returns the event with the other's greeting.
    fn opened(&mut self, side: Side) -> Option<ShmEvent> {
        let can_fetch = !happens(&mut self.rng, self.config.fetches_refused);
        let other = self.end(side.other());
        let (other, greeting) = (other.process, other.greeting.clone());
        let end = self.end_mut(side);
        end.open = true;
        end.can_fetch = can_fetch;
        Some(ShmEvent::Opened {
            conn: end.conn?,
            peer: PeerInfo {
                pid: i32::try_from(other).unwrap_or(0) + 1,
                uid: 0,
                gid: 0,
                greeting,
            },
        })
    }

    fn read(&mut self, process: usize, side: Side, event: SocketEvent, events: &mut Vec<ShmEvent>) {
        match event {
            SocketEvent::Hello => {
                if self.enter(side).is_none() {
                    self.own(process).stats.rejected += 1;
                    self.post(side.other(), SocketEvent::Full);
                    self.post(side.other(), SocketEvent::HungUp);
                    return;
                }
                events.extend(self.opened(side));
                self.post(side.other(), SocketEvent::Answer);
            }
            SocketEvent::Answer if self.end(side).conn.is_some() => {
                events.extend(self.opened(side))
            }
            SocketEvent::Full => self.end_mut(side).peer_is_full = true,
            SocketEvent::Wake => self.own(process).woken = true,
            SocketEvent::HungUp => {
                let now_ns = self.now_ns;
                let end = self.end_mut(side);
                end.hung_up = true;
                for record in &mut end.ring.records {
                    record.visible_ns = record.visible_ns.min(now_ns);
                }
            }
            SocketEvent::Answer => {}
        }
    }

    /// True if a closed connection has unread records.
    fn has_rest(&self, process: usize) -> bool {
        let connections = self.processes[process]
            .iter()
            .flat_map(|it| &it.connections);
        connections.flatten().any(|side| {
            let end = self.end(*side);
            end.hung_up && end.open && !end.ring.records.is_empty()
        })
    }

    /// A closed connection whose records have all been read.
    fn ended(&self, process: usize) -> Option<(Side, ConnId)> {
        let connections = self.processes[process].as_ref()?.connections.iter();
        connections.flatten().find_map(|side| {
            let end = self.end(*side);
            let over = end.hung_up && (!end.open || end.ring.records.is_empty());
            Some((*side, end.conn.filter(|_| over)?))
        })
    }

    fn report_closed(&mut self, process: usize, events: &mut Vec<ShmEvent>) {
        while let Some((side, conn)) = self.ended(process) {
            let reason = match self.end(side).peer_is_full {
                true => CloseReason::Full,
                false => CloseReason::HungUp,
            };
            let ring = &self.end(side.other()).ring;
            let (all_read, answers) = (ring.records.is_empty(), ring.answers);
            events.push(ShmEvent::Closed {
                conn,
                reason,
                all_read,
                answers,
            });
            self.close(side);
        }
    }

    fn fetch(&mut self, side: Side, address: u64, into: &mut [u8]) -> io::Result<()> {
        let fails = happens(&mut self.rng, self.config.fetches_failing);
        let other = self.end(side.other()).process;
        let Some(owner) = &self.processes[other] else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let inside = |region: &&Region| {
            let end = region.address + region.length as u64;
            region.address <= address && address + into.len() as u64 <= end
        };
        let region = owner.regions.iter().find(inside);
        let region = region.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let from = usize::try_from(address - region.address).map_err(io::Error::other)?;
        match &region.contents {
            Some(bytes) => into.copy_from_slice(&bytes[from..from + into.len()]),
            None => into.fill(OVERWRITTEN),
        }
        if fails || owner.pulls_blocked {
            let half = into.len() / 2;
            into[half..].fill(OVERWRITTEN);
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(())
    }
}
