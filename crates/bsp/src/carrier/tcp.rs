//! Messages of ranks over plain TCP, for comparison and for networks that let nothing else through.
//!
//! Each two ranks have one connection, which the one with the higher number makes. Connections say which job
//! and rank they are of, in the clear and without proof: whoever must not trust the network uses
//! another link.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dipole_link::cpu;
use dipole_node::job::Job;
use dipole_node::{Config, RegionMemory};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Carrier;
use crate::failure::Failure;
use crate::patience::Patience;

/// Variable with the port of rank 0; rank r has the r-th above.
const PORT_VARIABLE: &str = "DIPOLE_TCP_PORT";
/// Ports that jobs get by their numbers, below those that systems give to clients.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Bytes that may wait for a connection.
const WAITING_BYTES: usize = 1 << 20;
/// Looks for messages before a rank sleeps.
const SPINS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// First bytes of a connection.
const MARK: u64 = u64::from_le_bytes(*b"dipoleT2");
/// Set in the length of bytes that are placed in memory; its key and an offset follow the length.
const PLACED: u64 = 1 << 63;
/// Bytes of the head of a message, and of bytes that are placed.
const HEAD_BYTES: usize = 8;
const PLACED_HEAD_BYTES: usize = 24;

/// See the module.
#[derive(Debug)]
pub struct Tcp {
    rank: u32,
    peers: Vec<Option<Connection>>,
    /// Bytes that wait in all connections.
    waiting: usize,
    /// Pieces among them that are to be placed.
    placing: usize,
    /// The rank that is looked at first next time.
    turn: usize,
    /// Memory in which others place bytes.
    open: FxHashMap<u64, RegionMemory>,
    last_key: u64,
}

/// The connection with another rank.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// What waits to be sent, and how much of the first has been.
    out: VecDeque<Piece>,
    sent: usize,
    /// The length of what comes, and where it belongs if it is placed.
    head: [u8; PLACED_HEAD_BYTES],
    head_filled: usize,
    coming: Coming,
    filled: usize,
    /// Why nothing comes any more.
    ended: Option<String>,
}

/// Bytes that wait to be sent.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    is_placed: bool,
}

/// Where what comes belongs.
#[derive(Debug)]
enum Coming {
    Message(Vec<u8>),
    Placed {
        memory: RegionMemory,
        at: usize,
        length: usize,
    },
}

/// What has left: bytes, and pieces that were to be placed.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    bytes: usize,
    placed: usize,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    Failure::system(what)
}

/// The port of a rank.
fn port(job: &Job, rank: u32) -> Result<u16, Failure> {
    let told = std::env::var(PORT_VARIABLE).ok();
    let wrong = || {
        io::Error::new(
            ErrorKind::InvalidInput,
            format!("{PORT_VARIABLE} is no port"),
        )
    };
    if let Some(first) = told.filter(|told| !told.is_empty()) {
        let first: u16 = (first.parse().map_err(|_| wrong())).map_err(system("the TCP link"))?;
        let port = u32::from(first).checked_add(rank);
        let port = port.and_then(|port| u16::try_from(port).ok());
        return port.ok_or_else(wrong).map_err(system("the TCP link"));
    }
    let count = u64::from(PORTS.end - PORTS.start);
    // Jobs with neighbouring numbers get ports far from each other.
    let first = job.id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let offset = (first + u64::from(rank)) % count;
    Ok(PORTS.start + u16::try_from(offset).unwrap_or(0))
}

/// The address of a rank's node.
fn address(job: &Job, config: &Config, rank: u32) -> IpAddr {
    let host = config.hosts.get(job.addresses[rank as usize].node);
    host.map_or(config.bind, |host| host.address)
}

impl Tcp {
    /// Connects all ranks.
    ///
    /// # Errors
    /// A port is taken, or a rank cannot be reached.
    pub fn connect(job: &Job, config: &Config) -> Result<Tcp, Failure> {
        let (rank, size) = (job.rank, job.size);
        let own = SocketAddr::new(address(job, config, rank), port(job, rank)?);
        let listener = TcpListener::bind(own).map_err(|cause| {
            let text = format!("{own}: {cause}; another first port can be set by {PORT_VARIABLE}");
            Failure::System {
                what: "the TCP link cannot listen",
                cause: io::Error::new(cause.kind(), text),
            }
        })?;
        let mut tcp = Tcp {
            rank,
            peers: (0..size).map(|_| None).collect(),
            waiting: 0,
            placing: 0,
            turn: 0,
            open: FxHashMap::default(),
            last_key: 0,
        };
        for other in 0..rank {
            let there = SocketAddr::new(address(job, config, other), port(job, other)?);
            let stream = reach(there, config.connect_timeout, rank, other)?;
            tcp.greet(job.id, other, stream)?;
        }
        tcp.accept_all(job.id, &listener)?;
        Ok(tcp)
    }

    /// Says who this is on a connection that it has made.
    fn greet(&mut self, job: u64, to: u32, mut stream: TcpStream) -> Result<(), Failure> {
        let words = [MARK, job, (u64::from(self.rank) << 32) | u64::from(to)];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        (stream.write_all(&bytes)).map_err(system("a TCP connection"))?;
        self.add(to, stream)
    }

    fn add(&mut self, rank: u32, stream: TcpStream) -> Result<(), Failure> {
        let ready = stream.set_nodelay(true);
        let ready = ready.and_then(|()| stream.set_nonblocking(true));
        ready.map_err(system("a TCP connection"))?;
        self.peers[rank as usize] = Some(Connection {
            stream,
            out: VecDeque::new(),
            sent: 0,
            head: [0; PLACED_HEAD_BYTES],
            head_filled: 0,
            coming: Coming::Message(Vec::new()),
            filled: 0,
            ended: None,
        });
        Ok(())
    }

    /// Waits for the ranks above this one.
    fn accept_all(&mut self, job: u64, listener: &TcpListener) -> Result<(), Failure> {
        let told = "the TCP link cannot listen";
        listener.set_nonblocking(true).map_err(system(told))?;
        let size = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        let mut patience = Patience::new();
        loop {
            let missing = |rank: &u32| self.peers[*rank as usize].is_none();
            let missing: Vec<u32> = (self.rank + 1..size).filter(missing).collect();
            if missing.is_empty() {
                return Ok(());
            }
            match listener.accept() {
                Ok((stream, from)) => match greeted(&stream, job, self.rank) {
                    Ok(rank) if missing.contains(&rank) => self.add(rank, stream)?,
                    Ok(_) => {}
                    Err(cause) => {
                        tracing::warn!(%from, %cause, "a TCP connection that is of no rank");
                    }
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let rank = self.rank;
                    if let Some(waited) = patience.word() {
                        let waited = waited.as_secs();
                        eprintln!(
                            "bsp: rank {rank} has waited {waited} s in bsp_begin for connections of ranks {missing:?}"
                        );
                    }
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(system(told)(error)),
            }
        }
    }

    /// Sends what the connections take.
    fn flush(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let (peers, mut left) = (self.peers.iter_mut().flatten(), Left::default());
        peers.for_each(|peer| peer.flush(&mut left));
        self.note(left);
    }

    fn note(&mut self, left: Left) {
        self.waiting -= left.bytes;
        self.placing -= left.placed;
    }

    /// Sends pieces, which stay together.
    fn post(&mut self, to: u32, pieces: impl IntoIterator<Item = Piece>) -> Result<(), Failure> {
        let Some(peer) = &mut self.peers[to as usize] else {
            return Ok(());
        };
        if let Some(cause) = &peer.ended {
            let cause = cause.clone();
            return Err(Failure::Gone { rank: to, cause });
        }
        for piece in pieces {
            self.waiting += piece.bytes.len();
            self.placing += usize::from(piece.is_placed);
            peer.out.push_back(piece);
        }
        let mut left = Left::default();
        peer.flush(&mut left);
        self.note(left);
        Ok(())
    }

    /// A message that has come whole.
    fn look(&mut self) -> Option<(u32, Vec<u8>)> {
        let count = self.peers.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            if let Some(message) = peer.read(&self.open) {
                // The same first: a long parcel comes from one rank.
                self.turn = index;
                return Some((u32::try_from(index).unwrap_or(u32::MAX), message));
            }
        }
        None
    }

    /// Sleeps until a connection can be read, or written if something waits.
    fn sleep(&self, most: Duration) {
        let peers = self.peers.iter().flatten();
        let mut ready: Vec<_> = peers
            .filter(|peer| peer.ended.is_none())
            .map(|peer| {
                let mut wanted = PollFlags::IN;
                wanted.set(PollFlags::OUT, !peer.out.is_empty());
                PollFd::from_borrowed_fd(peer.stream.as_fd(), wanted)
            })
            .collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        // Whatever it says, everything is looked at next.
        let _ready = poll(&mut ready, Some(&timeout));
    }
}

/// Connects to a rank that may not listen yet.
fn reach(
    there: SocketAddr,
    patience: Duration,
    rank: u32,
    other: u32,
) -> Result<TcpStream, Failure> {
    let begun = Instant::now();
    let mut word = Patience::new();
    loop {
        match TcpStream::connect_timeout(&there, Duration::from_secs(5)) {
            Ok(stream) => return Ok(stream),
            Err(cause) if begun.elapsed() >= patience => {
                return Err(Failure::Unreachable {
                    rank: other,
                    cause: format!("{there} by TCP: {cause}"),
                });
            }
            Err(cause) => {
                if let Some(waited) = word.word() {
                    let waited = waited.as_secs();
                    eprintln!(
                        "bsp: rank {rank} has waited {waited} s in bsp_begin for rank {other} at {there}: {cause}"
                    );
                }
                thread::sleep(PAUSE);
            }
        }
    }
}

/// The rank that a connection is of.
fn greeted(mut stream: &TcpStream, job: u64, own: u32) -> io::Result<u32> {
    stream.set_nonblocking(false)?;
    // A stranger that says nothing must not keep the others waiting for long.
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut bytes = [0; 24];
    stream.read_exact(&mut bytes)?;
    let word = |at: usize| {
        let word = bytes[at..].first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(word)
    };
    if word(0) != MARK || word(8) != job || word(16) & 0xFFFF_FFFF != u64::from(own) {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "it is of another job",
        ));
    }
    Ok(u32::try_from(word(16) >> 32).unwrap_or(u32::MAX))
}

impl Connection {
    /// Sends what can be sent.
    fn flush(&mut self, left: &mut Left) {
        while let Some(first) = self.out.front() {
            match self.stream.write(&first.bytes[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    if self.sent == first.bytes.len() {
                        self.sent = 0;
                        self.let_go(1, left);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.ended.get_or_insert(error.to_string());
                    self.let_go(self.out.len(), left);
                    self.sent = 0;
                }
            }
        }
    }

    /// Drops the first pieces.
    fn let_go(&mut self, count: usize, left: &mut Left) {
        for piece in self.out.drain(..count) {
            left.bytes += piece.bytes.len();
            left.placed += usize::from(piece.is_placed);
        }
    }

    /// What the head, or the bytes behind it, still lack.
    fn read_some(&mut self, head_bytes: usize) -> io::Result<usize> {
        if self.head_filled < head_bytes {
            return self
                .stream
                .read(&mut self.head[self.head_filled..head_bytes]);
        }
        match &mut self.coming {
            Coming::Message(body) => self.stream.read(&mut body[self.filled..]),
            Coming::Placed { memory, at, length } => {
                let (at, left) = (*at + self.filled, *length - self.filled);
                let read = memory.fill(at, left, |place| self.stream.read(place));
                read.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
            }
        }
    }

    /// The head is there: makes room for what follows.
    fn begin(&mut self, open: &FxHashMap<u64, RegionMemory>) -> Result<(), String> {
        let word = |at: usize| {
            let word = self.head[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let length = usize::try_from(word(0) & !PLACED).unwrap_or(usize::MAX);
        self.filled = 0;
        self.coming = if word(0) & PLACED == 0 {
            let mut body = Vec::new();
            let reserved = body.try_reserve_exact(length);
            reserved.map_err(|_| format!("a message of {length} bytes"))?;
            body.resize(length, 0);
            Coming::Message(body)
        } else {
            let memory = open.get(&word(8)).cloned();
            Coming::Placed {
                memory: memory.ok_or("bytes for memory that is not open")?,
                at: usize::try_from(word(16)).unwrap_or(usize::MAX),
                length,
            }
        };
        Ok(())
    }

    /// The next message, if it has come whole; what comes before to be placed is.
    fn read(&mut self, open: &FxHashMap<u64, RegionMemory>) -> Option<Vec<u8>> {
        while self.ended.is_none() {
            let is_placed = self.head_filled >= HEAD_BYTES && self.head[HEAD_BYTES - 1] & 0x80 != 0;
            let head_bytes = match is_placed {
                true => PLACED_HEAD_BYTES,
                false => HEAD_BYTES,
            };
            let is_head = self.head_filled < head_bytes;
            let bytes = match self.read_some(head_bytes) {
                Ok(0) => {
                    self.ended = Some("its connection has been closed".to_owned());
                    return None;
                }
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => {
                    self.ended = Some(error.to_string());
                    return None;
                }
            };
            if is_head {
                self.head_filled += bytes;
                let is_whole = match is_placed {
                    true => self.head_filled == PLACED_HEAD_BYTES,
                    false => {
                        self.head_filled == HEAD_BYTES && self.head[HEAD_BYTES - 1] & 0x80 == 0
                    }
                };
                if !is_whole {
                    continue;
                }
                if let Err(why) = self.begin(open) {
                    self.ended = Some(why);
                    return None;
                }
            } else {
                self.filled += bytes;
            }
            match &mut self.coming {
                Coming::Message(body) if self.filled == body.len() => {
                    self.head_filled = 0;
                    return Some(std::mem::take(body));
                }
                Coming::Placed { length, .. } if self.filled == *length => self.head_filled = 0,
                Coming::Message(_) | Coming::Placed { .. } => {}
            }
        }
        None
    }
}

impl Carrier for Tcp {
    type Message = Vec<u8>;

    fn has_room(&mut self) -> Result<bool, Failure> {
        self.flush();
        Ok(self.waiting < WAITING_BYTES)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let length = (message.len() as u64).to_le_bytes();
        let pieces = match message.len() {
            0..4096 => vec![[&length[..], &message].concat()],
            _ => vec![length.to_vec(), message],
        };
        let pieces = pieces.into_iter().map(|bytes| Piece {
            bytes: bytes.into(),
            is_placed: false,
        });
        self.post(to, pieces)
    }

    fn open(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        self.last_key += 1;
        self.open.insert(self.last_key, memory.clone());
        Ok(Some(self.last_key))
    }

    fn close_memory(&mut self, key: u64) {
        self.open.remove(&key);
    }

    fn place(&mut self, to: u32, key: u64, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let words = [bytes.len() as u64 | PLACED, key, offset];
        let head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let head = Piece {
            bytes: head.into(),
            is_placed: false,
        };
        let is_placed = true;
        self.post(to, [head, Piece { bytes, is_placed }])
    }

    fn is_placing(&self) -> bool {
        self.placing > 0
    }

    fn take_back(&mut self) {
        // In the middle of a piece nothing else can be sent: the connection ends, as the job does.
        for peer in self.peers.iter_mut().flatten() {
            if peer.out.iter().any(|piece| piece.is_placed) {
                let mut left = Left::default();
                peer.let_go(peer.out.len(), &mut left);
                self.waiting -= left.bytes;
                self.placing -= left.placed;
                peer.ended
                    .get_or_insert_with(|| "the program ends".to_owned());
            }
        }
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        let (had_room, was_placing) = (self.waiting < WAITING_BYTES, self.is_placing());
        let until = Instant::now() + patience;
        loop {
            for _ in 0..SPINS {
                self.flush();
                if let Some(found) = self.look() {
                    return Ok(Some(found));
                }
                let has_placed = was_placing && !self.is_placing();
                if has_placed || !had_room && self.waiting < WAITING_BYTES {
                    return Ok(None);
                }
                cpu::yield_core();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(left);
        }
    }

    fn has_left(&mut self) -> Result<bool, Failure> {
        self.flush();
        Ok(self.waiting == 0)
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        for &rank in ranks {
            let peer = self.peers.get(rank as usize).and_then(Option::as_ref);
            if let Some(cause) = peer.and_then(|peer| peer.ended.clone()) {
                return Err(Failure::Gone { rank, cause });
            }
        }
        Ok(())
    }

    fn close(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.waiting > 0 && Instant::now() < until {
            self.flush();
            thread::sleep(Duration::from_micros(100));
        }
        self.peers.clear();
    }
}
