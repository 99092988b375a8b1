//! The shared memory of one node under virtual time, decided by a seed.
//!
//! [`SharedMemory`] is what the processes of a node have in common; [`SimHub`] is one
//! process's end of it, with the interface of [`Hub`](crate::shm::Hub). Rings fill up,
//! records that nobody rang for are seen late, greetings take time, accept tables are
//! full, fetches from another process fail, processes end. Nothing happens by itself: time
//! is what [`SharedMemory::advance`] was told last.

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
use crate::shm::{Closing, ConnId, PeerFacts, ShmError, ShmEvent, ShmOptions, ShmStats};

/// What a fetch finds where a message lay that its sender no longer keeps.
const OVERWRITTEN: u8 = 0xDD;
/// Simulated addresses lie this far apart, so that none is taken for its neighbour.
const GUARD_BYTES: u64 = 4096;

/// How the memory of a node behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedMemoryConfig {
    /// Records that a ring holds.
    pub ring_slots: usize,
    /// Bytes of payload that a ring holds; a record alone always fits.
    pub ring_bytes: usize,
    /// Longest time until a record is seen that nobody rang for.
    pub visible_ns: u64,
    /// Longest time that a greeting, a wake-up or the end of a connection takes.
    pub socket_ns: u64,
    /// Probability that a poll ends before it has shown everything.
    pub short_polls: f64,
    /// Probability that one side of a connection may not read the other's memory.
    pub fetches_refused: f64,
    /// Probability that a fetch fails in the middle.
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

/// What comes by a connection's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// Somebody has connected.
    Hello,
    /// The process that was connected to has answered.
    Answer,
    /// It has no room.
    Full,
    Wake,
    HungUp,
}

/// News under way to a process, about one side of a pair.
#[derive(Debug)]
struct Letter {
    at_ns: u64,
    side: Side,
    news: News,
}

/// One of the two ends of a connection.
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

/// Records on their way to one end.
#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<Record>,
    bytes: usize,
    /// The producer waits for room.
    wanted: bool,
    /// Something was taken since, and the producer has not been told.
    room_came: bool,
}

#[derive(Debug)]
struct End {
    process: usize,
    /// What that process tells of itself.
    greeting: Vec<u8>,
    /// Of the process's table; `None` before it was let in, and after it was closed.
    conn: Option<ConnId>,
    open: bool,
    was_full: bool,
    hung_up: bool,
    can_fetch: bool,
    /// What comes to this end.
    ring: Ring,
}

#[derive(Debug)]
struct Process {
    path: PathBuf,
    greeting: Vec<u8>,
    max_connections: usize,
    conns: Vec<Option<Side>>,
    lives: Vec<u32>,
    free: Vec<u32>,
    letters: VecDeque<Letter>,
    asleep: bool,
    /// It has been woken since it went to sleep.
    rung: bool,
    woken: bool,
    regions: Vec<Region>,
    /// Nobody can read them just now.
    hides: bool,
    next_address: u64,
    stats: ShmStats,
}

impl Process {
    /// Its ends of its connections.
    fn sides(&self) -> Vec<Side> {
        self.conns.iter().flatten().copied().collect()
    }
}

/// Memory of a process that others were told of.
#[derive(Debug)]
struct Region {
    address: u64,
    length: usize,
    /// Where it really lies, to recognise it.
    lies_at: usize,
    /// `None` once it is no longer kept.
    contents: Option<Vec<u8>>,
}

#[derive(Debug)]
struct State {
    config: SharedMemoryConfig,
    dice: ChaCha8Rng,
    now_ns: u64,
    processes: Vec<Option<Process>>,
    pairs: Vec<[End; 2]>,
    listeners: FxHashMap<PathBuf, usize>,
}

/// What the processes of one node share; clones are the same memory.
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
                dice: ChaCha8Rng::seed_from_u64(seed),
                now_ns: 0,
                processes: Vec::new(),
                pairs: Vec::new(),
                listeners: FxHashMap::default(),
            })),
        }
    }

    /// Lets a process begin; like [`Hub::open`](crate::shm::Hub::open).
    ///
    /// # Errors
    /// [`ShmError::Socket`] when another process listens there.
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
            conns: Vec::new(),
            lives: Vec::new(),
            free: Vec::new(),
            letters: VecDeque::new(),
            asleep: false,
            rung: false,
            woken: false,
            regions: Vec::new(),
            hides: false,
            next_address: GUARD_BYTES,
            stats: ShmStats::default(),
        }));
        Ok(SimHub::new(self.clone(), process))
    }

    /// Time passes.
    pub fn advance(&self, now_ns: u64) {
        let mut state = self.lock();
        state.now_ns = state.now_ns.max(now_ns);
    }

    /// Changes how the memory behaves.
    pub fn change(&self, change: impl FnOnce(&mut SharedMemoryConfig)) {
        change(&mut self.lock().config);
    }

    /// When the descriptor of the process at `socket` becomes readable.
    #[must_use]
    pub fn readable_ns(&self, socket: &Path) -> Option<u64> {
        let state = self.lock();
        let process = *state.listeners.get(socket)?;
        let letters = &state.processes[process].as_ref()?.letters;
        letters.iter().map(|letter| letter.at_ns).min()
    }

    /// The process at `socket` no longer keeps these bytes, of which it may have told
    /// others: a later fetch finds something else there.
    pub fn overwrite(&self, socket: &Path, bytes: &[u8]) {
        let mut state = self.lock();
        let Some(&process) = state.listeners.get(socket) else {
            return;
        };
        let regions = state.processes[process].iter_mut();
        for region in regions.flat_map(|process| &mut process.regions) {
            let begin = bytes.as_ptr().addr();
            let end = begin + bytes.len();
            if begin <= region.lies_at && region.lies_at + region.length <= end {
                region.contents = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whom a connection of a process belongs to.
    fn side(&self, process: usize, conn: ConnId) -> Option<Side> {
        let side = (*self.processes[process].as_ref()?.conns.get(conn.index())?)?;
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

    /// The process of a hub, which is there as long as the hub.
    fn own(&mut self, process: usize) -> &mut Process {
        self.process(process).expect("its hub lives")
    }

    fn within(&mut self, most_ns: u64) -> u64 {
        match most_ns {
            0 => 0,
            most => self.dice.random_range(0..=most),
        }
    }

    /// Sends news to the process of a side. News of one side stay in order, and nobody seems
    /// to come before one who had gone by then.
    fn post(&mut self, side: Side, news: News) {
        let most_ns = self.config.socket_ns;
        let at_ns = self.now_ns + self.within(most_ns);
        let process = self.end(side).process;
        let Some(process) = self.process(process) else {
            return;
        };
        let comes = matches!(news, News::Hello | News::Answer);
        let before = process
            .letters
            .iter()
            .filter(|letter| letter.side == side || comes && letter.news == News::HungUp);
        let at_ns = before.map(|letter| letter.at_ns).fold(at_ns, u64::max);
        process.letters.push_back(Letter { at_ns, side, news });
    }

    /// A place in a process's table for one side; `None` if it is full.
    fn enter(&mut self, side: Side) -> Option<ConnId> {
        let process = self.end(side).process;
        let process = self.process(process)?;
        if process.conns.len() - process.free.len() >= process.max_connections {
            return None;
        }
        let index = process.free.pop().unwrap_or_else(|| {
            process.conns.push(None);
            process.lives.push(0);
            u32::try_from(process.conns.len() - 1).expect("connections are few")
        });
        let at = index as usize;
        process.lives[at] += 1;
        process.conns[at] = Some(side);
        let conn = ConnId::new(index, process.lives[at]);
        self.end_mut(side).conn = Some(conn);
        Some(conn)
    }

    /// A side is closed by its own process; the other learns of it.
    fn close(&mut self, side: Side) {
        let end = self.end_mut(side);
        end.open = false;
        let (conn, process) = (end.conn.take(), end.process);
        if let (Some(conn), Some(process)) = (conn, self.process(process)) {
            process.conns[conn.index()] = None;
            process.free.push(u32::try_from(conn.index()).expect("few"));
        }
        self.post(side.other(), News::HungUp);
    }

    /// Wakes the process of a side if it sleeps; true if it did.
    fn wake(&mut self, side: Side) -> bool {
        let process = self.end(side).process;
        let Some(process) = self.process(process) else {
            return false;
        };
        if !process.asleep || process.rung {
            return false;
        }
        process.rung = true;
        self.post(side, News::Wake);
        true
    }

    /// Opens one side and says who is at the other.
    fn opened(&mut self, side: Side) -> Option<ShmEvent> {
        let can_fetch = !happens(&mut self.dice, self.config.fetches_refused);
        let other = self.end(side.other());
        let (other, greeting) = (other.process, other.greeting.clone());
        let end = self.end_mut(side);
        end.open = true;
        end.can_fetch = can_fetch;
        Some(ShmEvent::Opened {
            conn: end.conn?,
            facts: PeerFacts {
                pid: i32::try_from(other).unwrap_or(0) + 1,
                uid: 0,
                gid: 0,
                greeting,
            },
        })
    }

    fn read(&mut self, process: usize, side: Side, news: News, events: &mut Vec<ShmEvent>) {
        match news {
            News::Hello => {
                if self.enter(side).is_none() {
                    self.own(process).stats.turned_away += 1;
                    self.post(side.other(), News::Full);
                    self.post(side.other(), News::HungUp);
                    return;
                }
                events.extend(self.opened(side));
                self.post(side.other(), News::Answer);
            }
            News::Answer if self.end(side).conn.is_some() => events.extend(self.opened(side)),
            News::Full => self.end_mut(side).was_full = true,
            News::Wake => self.own(process).woken = true,
            News::HungUp => {
                let now_ns = self.now_ns;
                let end = self.end_mut(side);
                end.hung_up = true;
                for record in &mut end.ring.records {
                    record.visible_ns = record.visible_ns.min(now_ns);
                }
            }
            News::Answer => {}
        }
    }

    /// True if a connection whose other side has hung up has records left.
    fn has_rest(&self, process: usize) -> bool {
        let conns = self.processes[process].iter().flat_map(|it| &it.conns);
        conns.flatten().any(|side| {
            let end = self.end(*side);
            end.hung_up && end.open && !end.ring.records.is_empty()
        })
    }

    /// A connection whose other side has hung up and of which everything was taken.
    fn ended(&self, process: usize) -> Option<(Side, ConnId)> {
        let conns = self.processes[process].as_ref()?.conns.iter();
        conns.flatten().find_map(|side| {
            let end = self.end(*side);
            let over = end.hung_up && (!end.open || end.ring.records.is_empty());
            Some((*side, end.conn.filter(|_| over)?))
        })
    }

    fn tell_ends(&mut self, process: usize, events: &mut Vec<ShmEvent>) {
        while let Some((side, conn)) = self.ended(process) {
            let why = match self.end(side).was_full {
                true => Closing::Full,
                false => Closing::HungUp,
            };
            let all_read = self.end(side.other()).ring.records.is_empty();
            events.push(ShmEvent::Closed {
                conn,
                why,
                all_read,
            });
            self.close(side);
        }
    }

    fn fetch(&mut self, side: Side, address: u64, into: &mut [u8]) -> io::Result<()> {
        let fails = happens(&mut self.dice, self.config.fetches_failing);
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
        if fails || owner.hides {
            let half = into.len() / 2;
            into[half..].fill(OVERWRITTEN);
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(())
    }
}
