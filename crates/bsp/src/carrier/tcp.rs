//! Messages between ranks over plain TCP, for comparison and for networks that block everything else.
//!
//! Each pair of ranks has one connection, made by the rank with the higher number. Ranks identify
//! themselves in the clear and without proof, so use another link on an untrusted network.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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
use crate::slow_wait::SlowWaitLog;

/// Environment variable with the port of rank 0. Rank r uses this port plus r.
const PORT_VARIABLE: &str = "DIPOLE_TCP_PORT";
/// Default ports, chosen by job number. They lie below the usual ephemeral ports.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Bytes that may be queued for all connections.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Polls for messages before a rank sleeps.
const SPINS: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// First bytes of a connection.
const MARK: u64 = u64::from_le_bytes(*b"dipoleT2");
/// Set in the length of a remote write. The key of the memory and an offset follow the length.
const WRITE: u64 = 1 << 63;
/// Bytes of the header of a message, and of a remote write.
const HEAD_BYTES: usize = 8;
const WRITE_HEAD_BYTES: usize = 24;

/// Carrier that sends messages over TCP.
#[derive(Debug)]
pub struct Tcp {
    rank: u32,
    peers: Vec<Option<Connection>>,
    /// Bytes queued for all connections.
    queued: usize,
    /// Number of remote writes among the pieces to send.
    pending_writes: usize,
    /// The rank whose connection is polled first.
    next: usize,
    /// Memory that other ranks may write.
    open: FxHashMap<u64, RegionMemory>,
    last_key: u64,
}

/// The connection to another rank.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Data to send, and the bytes of the first piece that have been sent.
    out: VecDeque<Piece>,
    sent: usize,
    /// The header being received, and its bytes received so far.
    head: [u8; WRITE_HEAD_BYTES],
    head_filled: usize,
    /// The body being received, and its bytes received so far.
    incoming: Incoming,
    filled: usize,
    /// Why the connection has ended, if it has.
    ended: Option<String>,
}

/// Bytes that wait to be sent.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    is_write: bool,
}

/// Where the body being received belongs.
#[derive(Debug)]
enum Incoming {
    Message(Vec<u8>),
    Write {
        memory: RegionMemory,
        at: usize,
        length: usize,
    },
}

/// Amounts removed from a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Departed {
    bytes: usize,
    writes: usize,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    Failure::system(what)
}

fn port(job: &Job, rank: u32) -> Result<u16, Failure> {
    let given = std::env::var(PORT_VARIABLE).ok();
    let wrong = || {
        io::Error::new(
            ErrorKind::InvalidInput,
            format!("{PORT_VARIABLE} is not a valid port"),
        )
    };
    if let Some(first) = given.filter(|given| !given.is_empty()) {
        let first: u16 = (first.parse().map_err(|_| wrong())).map_err(system("the TCP link"))?;
        let port = u32::from(first).checked_add(rank);
        let port = port.and_then(|port| u16::try_from(port).ok());
        return port.ok_or_else(wrong).map_err(system("the TCP link"));
    }
    let count = u64::from(PORTS.end - PORTS.start);
    // The multiplier gives consecutive jobs ports that are far apart.
    let first = job.id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let offset = (first + u64::from(rank)) % count;
    Ok(PORTS.start + u16::try_from(offset).unwrap_or(0))
}

/// Where a rank listens.
fn address(job: &Job, config: &Config, rank: u32) -> Result<SocketAddr, Failure> {
    let port = port(job, rank)?;
    let host = config.hosts.get(job.addresses[rank as usize].node);
    Ok(match host {
        Some(host) => host.socket_address(host.address, port),
        None => SocketAddr::new(config.bind, port),
    })
}

impl Tcp {
    /// Connects all ranks.
    ///
    /// # Errors
    /// The port is in use, or a rank cannot be reached.
    pub fn connect(job: &Job, config: &Config) -> Result<Tcp, Failure> {
        let (rank, size) = (job.rank, job.size);
        let own = address(job, config, rank)?;
        let listener = TcpListener::bind(own).map_err(|cause| {
            let text = format!("{own}: {cause}; set another first port with {PORT_VARIABLE}");
            Failure::System {
                what: "the TCP link cannot listen",
                cause: io::Error::new(cause.kind(), text),
            }
        })?;
        let mut tcp = Tcp {
            rank,
            peers: (0..size).map(|_| None).collect(),
            queued: 0,
            pending_writes: 0,
            next: 0,
            open: FxHashMap::default(),
            last_key: 0,
        };
        for other in 0..rank {
            let there = address(job, config, other)?;
            let stream = connect(there, config.connect_timeout, rank, other)?;
            tcp.send_hello(job.id, other, stream)?;
        }
        tcp.accept_all(job.id, &listener)?;
        Ok(tcp)
    }

    /// Identifies this rank on a connection that it has made.
    fn send_hello(&mut self, job: u64, to: u32, mut stream: TcpStream) -> Result<(), Failure> {
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
            head: [0; WRITE_HEAD_BYTES],
            head_filled: 0,
            incoming: Incoming::Message(Vec::new()),
            filled: 0,
            ended: None,
        });
        Ok(())
    }

    /// Accepts the connections of all ranks with higher numbers.
    fn accept_all(&mut self, job: u64, listener: &TcpListener) -> Result<(), Failure> {
        let what = "the TCP link cannot listen";
        listener.set_nonblocking(true).map_err(system(what))?;
        let size = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        let mut slow_wait = SlowWaitLog::new();
        loop {
            let missing = |rank: &u32| self.peers[*rank as usize].is_none();
            let missing: Vec<u32> = (self.rank + 1..size).filter(missing).collect();
            if missing.is_empty() {
                return Ok(());
            }
            match listener.accept() {
                Ok((stream, from)) => match read_hello(&stream, job, self.rank) {
                    Ok(rank) if missing.contains(&rank) => self.add(rank, stream)?,
                    Ok(_) => {}
                    Err(cause) => {
                        tracing::warn!(%from, %cause, "closed a TCP connection that no rank made");
                    }
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let rank = self.rank;
                    if let Some(waited) = slow_wait.due() {
                        let waited = waited.as_secs();
                        eprintln!(
                            "bsp: rank {rank} has waited {waited} s in bsp_begin for connections of ranks {missing:?}"
                        );
                    }
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(system(what)(error)),
            }
        }
    }

    /// Sends whatever the connections accept.
    fn flush(&mut self) {
        if self.queued == 0 {
            return;
        }
        let (peers, mut departed) = (self.peers.iter_mut().flatten(), Departed::default());
        peers.for_each(|peer| peer.flush(&mut departed));
        self.remove(departed);
    }

    fn remove(&mut self, departed: Departed) {
        self.queued -= departed.bytes;
        self.pending_writes -= departed.writes;
    }

    /// Queues pieces that must stay together, and sends what the connection accepts.
    fn post(&mut self, to: u32, pieces: impl IntoIterator<Item = Piece>) -> Result<(), Failure> {
        let Some(peer) = &mut self.peers[to as usize] else {
            return Ok(());
        };
        if let Some(cause) = &peer.ended {
            let cause = cause.clone();
            return Err(Failure::Gone { rank: to, cause });
        }
        for piece in pieces {
            self.queued += piece.bytes.len();
            self.pending_writes += usize::from(piece.is_write);
            peer.out.push_back(piece);
        }
        let mut departed = Departed::default();
        peer.flush(&mut departed);
        self.remove(departed);
        Ok(())
    }

    /// A message that has arrived completely, and its sender.
    fn poll_message(&mut self) -> Option<(u32, Vec<u8>)> {
        let count = self.peers.len();
        for step in 0..count {
            let index = (self.next + step) % count;
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            if let Some(message) = peer.read(&self.open) {
                // Long data come from one rank in many messages, so its connection stays first.
                self.next = index;
                return Some((u32::try_from(index).unwrap_or(u32::MAX), message));
            }
        }
        None
    }

    /// Sleeps until a connection can be read, or written if data are queued for it.
    fn sleep(&self, timeout: Duration) {
        let peers = self.peers.iter().flatten();
        let mut ready: Vec<_> = peers
            .filter(|peer| peer.ended.is_none())
            .map(|peer| {
                let mut events = PollFlags::IN;
                events.set(PollFlags::OUT, !peer.out.is_empty());
                PollFd::from_borrowed_fd(peer.stream.as_fd(), events)
            })
            .collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // The result does not matter, because all connections are polled next.
        let _ready = poll(&mut ready, Some(&timeout));
    }
}

/// Connects to a rank that may not listen yet.
fn connect(
    there: SocketAddr,
    timeout: Duration,
    rank: u32,
    other: u32,
) -> Result<TcpStream, Failure> {
    let begun = Instant::now();
    let mut slow_wait = SlowWaitLog::new();
    loop {
        match TcpStream::connect_timeout(&there, Duration::from_secs(5)) {
            Ok(stream) => return Ok(stream),
            Err(cause) if begun.elapsed() >= timeout => {
                return Err(Failure::Unreachable {
                    rank: other,
                    cause: format!("{there} over TCP: {cause}"),
                });
            }
            Err(cause) => {
                // Rank 0 may be waiting for input.
                if other > 0
                    && let Some(waited) = slow_wait.due()
                {
                    let waited = waited.as_secs();
                    eprintln!(
                        "bsp: rank {rank} has waited {waited} s in bsp_begin for rank {other} at {there}: {cause}"
                    );
                }
                thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}

/// Reads which rank has made a connection.
fn read_hello(mut stream: &TcpStream, job: u64, own: u32) -> io::Result<u32> {
    stream.set_nonblocking(false)?;
    // A stranger that sends nothing must not delay the ranks for long.
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
            "it belongs to another job",
        ));
    }
    Ok(u32::try_from(word(16) >> 32).unwrap_or(u32::MAX))
}

impl Connection {
    /// Sends whatever the connection accepts.
    fn flush(&mut self, departed: &mut Departed) {
        while let Some(first) = self.out.front() {
            match self.stream.write(&first.bytes[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    if self.sent == first.bytes.len() {
                        self.sent = 0;
                        self.drop_front(1, departed);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.ended.get_or_insert(error.to_string());
                    self.drop_front(self.out.len(), departed);
                    self.sent = 0;
                }
            }
        }
    }

    /// Drops the first `count` pieces.
    fn drop_front(&mut self, count: usize, departed: &mut Departed) {
        for piece in self.out.drain(..count) {
            departed.bytes += piece.bytes.len();
            departed.writes += usize::from(piece.is_write);
        }
    }

    /// Reads missing bytes of the header, or of the body if the header is complete.
    fn read_some(&mut self, head_bytes: usize) -> io::Result<usize> {
        if self.head_filled < head_bytes {
            return self
                .stream
                .read(&mut self.head[self.head_filled..head_bytes]);
        }
        match &mut self.incoming {
            Incoming::Message(body) => self.stream.read(&mut body[self.filled..]),
            Incoming::Write { memory, at, length } => {
                let (at, left) = (*at + self.filled, *length - self.filled);
                let read = memory.fill(at, left, |into| self.stream.read(into));
                read.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
            }
        }
    }

    /// Prepares for the body that a complete header announces.
    fn begin_body(&mut self, open: &FxHashMap<u64, RegionMemory>) -> Result<(), String> {
        let word = |at: usize| {
            let word = self.head[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let length = usize::try_from(word(0) & !WRITE).unwrap_or(usize::MAX);
        self.filled = 0;
        self.incoming = if word(0) & WRITE == 0 {
            let mut body = Vec::new();
            let reserved = body.try_reserve_exact(length);
            reserved.map_err(|_| format!("a message of {length} bytes"))?;
            body.resize(length, 0);
            Incoming::Message(body)
        } else {
            let memory = open.get(&word(8)).cloned();
            Incoming::Write {
                memory: memory.ok_or("bytes for memory that is not open")?,
                at: usize::try_from(word(16)).unwrap_or(usize::MAX),
                length,
            }
        };
        Ok(())
    }

    /// The next message, if it has arrived completely. Remote writes before it take effect.
    fn read(&mut self, open: &FxHashMap<u64, RegionMemory>) -> Option<Vec<u8>> {
        while self.ended.is_none() {
            let is_write = self.head_filled >= HEAD_BYTES && self.head[HEAD_BYTES - 1] & 0x80 != 0;
            let head_bytes = match is_write {
                true => WRITE_HEAD_BYTES,
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
                let is_whole = match is_write {
                    true => self.head_filled == WRITE_HEAD_BYTES,
                    false => {
                        self.head_filled == HEAD_BYTES && self.head[HEAD_BYTES - 1] & 0x80 == 0
                    }
                };
                if !is_whole {
                    continue;
                }
                if let Err(why) = self.begin_body(open) {
                    self.ended = Some(why);
                    return None;
                }
            } else {
                self.filled += bytes;
            }
            match &mut self.incoming {
                Incoming::Message(body) if self.filled == body.len() => {
                    self.head_filled = 0;
                    return Some(std::mem::take(body));
                }
                Incoming::Write { length, .. } if self.filled == *length => self.head_filled = 0,
                Incoming::Message(_) | Incoming::Write { .. } => {}
            }
        }
        None
    }
}

impl Carrier for Tcp {
    type Message = Vec<u8>;

    fn has_room(&mut self) -> Result<bool, Failure> {
        self.flush();
        Ok(self.queued < MAX_QUEUED_BYTES)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let length = (message.len() as u64).to_le_bytes();
        let pieces = match message.len() {
            0..4096 => vec![[&length[..], &message].concat()],
            _ => vec![length.to_vec(), message],
        };
        let pieces = pieces.into_iter().map(|bytes| Piece {
            bytes: bytes.into(),
            is_write: false,
        });
        self.post(to, pieces)
    }

    fn open_memory(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        self.last_key += 1;
        self.open.insert(self.last_key, memory.clone());
        Ok(Some(self.last_key))
    }

    fn close_memory(&mut self, key: u64) {
        self.open.remove(&key);
    }

    fn write_remote(
        &mut self,
        to: u32,
        key: u64,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), Failure> {
        let words = [bytes.len() as u64 | WRITE, key, offset];
        let head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let head = Piece {
            bytes: head.into(),
            is_write: false,
        };
        let is_write = true;
        self.post(to, [head, Piece { bytes, is_write }])
    }

    fn has_pending_writes(&self) -> bool {
        self.pending_writes > 0
    }

    fn reclaim_memory(&mut self) {
        // Nothing else can be sent in the middle of a write, so its connection ends with the job.
        for peer in self.peers.iter_mut().flatten() {
            if peer.out.iter().any(|piece| piece.is_write) {
                let mut departed = Departed::default();
                peer.drop_front(peer.out.len(), &mut departed);
                self.queued -= departed.bytes;
                self.pending_writes -= departed.writes;
                peer.ended
                    .get_or_insert_with(|| "the program ends".to_owned());
            }
        }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        let (had_room, was_writing) = (self.queued < MAX_QUEUED_BYTES, self.has_pending_writes());
        let until = Instant::now() + timeout;
        loop {
            for _ in 0..SPINS {
                self.flush();
                if let Some(found) = self.poll_message() {
                    return Ok(Some(found));
                }
                let has_written = was_writing && !self.has_pending_writes();
                if has_written || !had_room && self.queued < MAX_QUEUED_BYTES {
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

    fn progress(&mut self) -> Result<bool, Failure> {
        self.flush();
        Ok(self.queued == 0)
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

    fn close(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        while self.queued > 0 && Instant::now() < until {
            self.flush();
            thread::sleep(Duration::from_micros(100));
        }
        self.peers.clear();
    }
}
