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

use dipole_link::cpu;
use dipole_node::Config;
use dipole_node::job::Job;
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
const MARK: u64 = u64::from_le_bytes(*b"dipoleT1");

/// See the module.
#[derive(Debug)]
pub struct Tcp {
    rank: u32,
    peers: Vec<Option<Connection>>,
    /// Bytes that wait in all connections.
    waiting: usize,
    /// The rank that is looked at first next time.
    turn: usize,
}

/// The connection with another rank.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// What waits to be sent, and how much of the first has been.
    out: VecDeque<Vec<u8>>,
    sent: usize,
    /// The length of the message that comes.
    head: [u8; 8],
    head_filled: usize,
    body: Vec<u8>,
    filled: usize,
    /// Why nothing comes any more.
    ended: Option<String>,
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
            turn: 0,
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
            head: [0; 8],
            head_filled: 0,
            body: Vec::new(),
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
        for peer in self.peers.iter_mut().flatten() {
            self.waiting -= peer.flush();
        }
    }

    /// A message that has come whole.
    fn look(&mut self) -> Option<(u32, Vec<u8>)> {
        let count = self.peers.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            if let Some(message) = peer.read() {
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
    /// Sends what can be sent; how many bytes of messages are done.
    fn flush(&mut self) -> usize {
        let mut done = 0;
        while let Some(first) = self.out.front() {
            match self.stream.write(&first[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    if self.sent == first.len() {
                        done += first.len();
                        self.sent = 0;
                        self.out.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return done,
                Err(error) => {
                    self.ended.get_or_insert(error.to_string());
                    done += self.out.drain(..).map(|left| left.len()).sum::<usize>();
                    self.sent = 0;
                }
            }
        }
        done
    }

    /// The next message, if it has come whole.
    fn read(&mut self) -> Option<Vec<u8>> {
        while self.ended.is_none() {
            let is_head = self.head_filled < self.head.len();
            let place = match is_head {
                true => &mut self.head[self.head_filled..],
                false => &mut self.body[self.filled..],
            };
            let bytes = match self.stream.read(place) {
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
                if self.head_filled < self.head.len() {
                    continue;
                }
                let length = usize::try_from(u64::from_le_bytes(self.head)).unwrap_or(usize::MAX);
                self.filled = 0;
                self.body = Vec::new();
                if self.body.try_reserve_exact(length).is_err() {
                    self.ended = Some(format!("a message of {length} bytes"));
                    return None;
                }
                self.body.resize(length, 0);
            } else {
                self.filled += bytes;
            }
            if self.filled == self.body.len() {
                self.head_filled = 0;
                return Some(std::mem::take(&mut self.body));
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
        let Some(peer) = &mut self.peers[to as usize] else {
            return Ok(());
        };
        if let Some(cause) = &peer.ended {
            let cause = cause.clone();
            return Err(Failure::Gone { rank: to, cause });
        }
        let length = (message.len() as u64).to_le_bytes();
        let messages = match message.len() {
            0..4096 => vec![[&length[..], &message].concat()],
            _ => vec![length.to_vec(), message],
        };
        for bytes in messages {
            self.waiting += bytes.len();
            peer.out.push_back(bytes);
        }
        self.waiting -= peer.flush();
        Ok(())
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        let had_room = self.waiting < WAITING_BYTES;
        let until = Instant::now() + patience;
        loop {
            for _ in 0..SPINS {
                self.flush();
                if let Some(found) = self.look() {
                    return Ok(Some(found));
                }
                if !had_room && self.waiting < WAITING_BYTES {
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
