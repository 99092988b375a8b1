//! Incoming requests for work: a caller gets a greeting and has two seconds to prove that it holds
//! the cluster key; then a session process serves it.
//!
//! Nothing here blocks. At most [`MAX_UNPROVEN`] callers from addresses of members are pending at
//! once, and as many from other addresses, so that strangers cannot displace members. If there are
//! too many, the oldest caller of the address with the most callers gets a "busy" reply,
//! so a flood displaces itself. At most [`MAX_SESSIONS`] sessions run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::ClusterKey;

use super::session::hexadecimal;
use dipole_launch::call::{Greeting, PROOF_BYTES, verify};

const MAX_UNPROVEN: usize = 32;
const MAX_SESSIONS: usize = 256;
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that the kernel queues for us, and how many are accepted in one call.
const BACKLOG: i32 = 4096;
const MAX_ACCEPTED: usize = 64;
/// Refusals logged per second and reason; further ones are counted.
const MAX_LOGGED: u64 = 10;
/// Pause after accepting failed because descriptors or memory ran out.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Callers {
    node: u32,
    key: ClusterKey,
    listeners: Vec<TcpListener>,
    unproven: VecDeque<Caller>,
    sessions: Vec<Child>,
    accepts_again_at: Option<Instant>,
    /// Addresses of the nodes that are up.
    known: BTreeSet<IpAddr>,
    refusals: Refusals,
    /// The program, and the arguments that all its sessions get.
    program: PathBuf,
    arguments: Vec<std::ffi::OsString>,
}

/// Refusals of the current second.
struct Refusals {
    since: Instant,
    by_reason: BTreeMap<&'static str, u64>,
}

struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    is_known: bool,
    greeting: Greeting,
    proof: [u8; PROOF_BYTES],
    received: usize,
    until: Instant,
}

/// Result of reading from a caller.
enum Progress {
    Incomplete,
    Proof,
    Failed(&'static str),
}

impl Callers {
    /// `listeners` must not block.
    pub(super) fn new(
        node: u32,
        key: ClusterKey,
        listeners: Vec<TcpListener>,
        arguments: Vec<std::ffi::OsString>,
    ) -> io::Result<Callers> {
        for listener in &listeners {
            rustix::net::listen(listener, BACKLOG)?;
        }
        Ok(Callers {
            node,
            key,
            listeners,
            unproven: VecDeque::new(),
            sessions: Vec::new(),
            accepts_again_at: None,
            known: BTreeSet::new(),
            refusals: Refusals {
                since: Instant::now(),
                by_reason: BTreeMap::new(),
            },
            // Determined now: the path changes when the program is replaced on disk.
            program: std::env::current_exe()?,
            arguments,
        })
    }

    /// The same callers and sessions with other listeners, which must not block.
    pub(super) fn at(mut self, listeners: Vec<TcpListener>) -> io::Result<Callers> {
        for listener in &listeners {
            rustix::net::listen(listener, BACKLOG)?;
        }
        self.listeners = listeners;
        Ok(self)
    }

    /// Sets the addresses of the nodes that are up, whose callers strangers cannot displace.
    pub(super) fn set_known_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        self.known = addresses.map(|ip| ip.to_canonical()).collect();
    }

    /// Sockets at which callers connect.
    pub(super) fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// Sockets to poll: the listeners, then the callers, in the order that [`poll`](Self::poll)
    /// expects.
    pub(super) fn sockets(&self) -> (&[TcpListener], impl Iterator<Item = &TcpStream>) {
        let listeners = match self.accepts_again_at {
            Some(_) => &[],
            None => &self.listeners[..],
        };
        (listeners, self.unproven.iter().map(|caller| &caller.stream))
    }

    /// When [`poll`](Self::poll) must be called even if no socket is ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.unproven.front().map(|caller| caller.until);
        oldest.into_iter().chain(self.accepts_again_at).min()
    }

    /// Serves sockets and timeouts. `ready` has a flag for each of the [sockets](Self::sockets).
    pub(super) fn poll(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let listeners = self.sockets().0.len().min(ready.len());
        let (listeners, callers) = ready.split_at(listeners);
        self.read_proofs(callers, now);
        if self.accepts_again_at.is_some_and(|until| until <= now) {
            self.accepts_again_at = None;
        }
        for (index, _) in listeners.iter().enumerate().filter(|(_, ready)| **ready) {
            for _ in 0..MAX_ACCEPTED {
                if !self.accept(index, now) {
                    break;
                }
            }
        }
        self.sessions
            .retain_mut(|session| !matches!(session.try_wait(), Ok(Some(_))));
    }

    /// False if no connection is pending.
    fn accept(&mut self, index: usize, now: Instant) -> bool {
        let (mut stream, peer) = match self.listeners[index].accept() {
            Ok(accepted) => accepted,
            Err(cause) => {
                use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
                if !matches!(cause.kind(), ConnectionAborted | Interrupted | WouldBlock) {
                    tracing::warn!(event = "accept-failed", node = self.node, %cause, "cannot accept connections of callers");
                    self.accepts_again_at = Some(now + ACCEPT_PAUSE);
                }
                return false;
            }
        };
        let greeting = match self.sessions.len() {
            MAX_SESSIONS.. => Ok(Greeting::busy()),
            _ => Greeting::draw(),
        };
        // The send buffer of a new connection has room for it.
        let sent = greeting.and_then(|greeting| {
            stream.set_nonblocking(true)?;
            stream.write_all(greeting.bytes())?;
            Ok(greeting)
        });
        let greeting = match sent {
            Ok(greeting) if greeting != Greeting::busy() => greeting,
            Ok(_) => {
                self.refused(now, peer, "too many sessions are running");
                return true;
            }
            Err(_) => {
                self.refused(now, peer, "the greeting could not be sent");
                return true;
            }
        };
        let is_known = self.known.contains(&peer.ip().to_canonical());
        self.unproven.push_back(Caller {
            stream,
            peer,
            is_known,
            greeting,
            proof: [0; PROOF_BYTES],
            received: 0,
            until: now + PROOF_TIMEOUT,
        });
        if let Some(caller) = self.take_displaced(is_known) {
            caller.send_reason(Greeting::busy());
            self.refused(now, caller.peer, "it was displaced by a later caller");
        }
        true
    }

    /// The caller that is displaced if there are too many: the oldest of the address with the most.
    fn take_displaced(&mut self, is_known: bool) -> Option<Caller> {
        let alike = |caller: &&Caller| caller.is_known == is_known;
        if self.unproven.iter().filter(alike).count() <= MAX_UNPROVEN {
            return None;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for caller in self.unproven.iter().filter(alike) {
            *counts.entry(source(caller.peer)).or_default() += 1;
        }
        let max = counts.values().copied().max();
        let is_displaced =
            |caller: &Caller| alike(&caller) && counts.get(&source(caller.peer)).copied() == max;
        let index = self.unproven.iter().position(is_displaced)?;
        self.unproven.remove(index)
    }

    fn read_proofs(&mut self, ready: &[bool], now: Instant) {
        let callers = std::mem::take(&mut self.unproven);
        for (index, mut caller) in callers.into_iter().enumerate() {
            let progress = match ready.get(index) {
                Some(true) => caller.read_proof(),
                _ => Progress::Incomplete,
            };
            match progress {
                Progress::Incomplete if caller.until > now => self.unproven.push_back(caller),
                Progress::Incomplete => self.refused(now, caller.peer, "it sent no proof in time"),
                Progress::Failed(why) => self.refused(now, caller.peer, why),
                Progress::Proof if verify(&self.key, &caller.greeting, &caller.proof) => {
                    self.start_session(caller);
                }
                Progress::Proof => {
                    caller.send_reason(Greeting::other_key());
                    self.refused(now, caller.peer, "it holds another cluster key");
                }
            }
        }
    }

    fn start_session(&mut self, caller: Caller) {
        let peer = caller.peer;
        let spawned = caller.stream.set_nonblocking(false).and_then(|()| {
            let mut command = Command::new(&self.program);
            command.args(&self.arguments);
            command.args(["--peer", &peer.to_string()]);
            command.args(["--greeting", &hexadecimal(caller.greeting.bytes())]);
            command.args(["--proof", &hexadecimal(&caller.proof)]);
            command.stdin(OwnedFd::from(caller.stream));
            command.stdout(Stdio::null());
            command.spawn()
        });
        match spawned {
            Ok(session) => self.sessions.push(session),
            Err(cause) => {
                tracing::error!(
                    event = "failed", node = self.node, %peer, %cause,
                    "cannot start `{}`", self.program.display()
                );
            }
        }
    }

    fn refused(&mut self, now: Instant, peer: SocketAddr, reason: &'static str) {
        let (node, refusals) = (self.node, &mut self.refusals);
        if now >= refusals.since + Duration::from_secs(1) {
            refusals.since = now;
            for (reason, count) in std::mem::take(&mut refusals.by_reason) {
                let others = count.saturating_sub(MAX_LOGGED);
                if others > 0 {
                    tracing::warn!(
                        event = "callers-refused",
                        node,
                        others,
                        reason,
                        "more callers were refused in a second"
                    );
                }
            }
        }
        let count = refusals.by_reason.entry(reason).or_default();
        *count += 1;
        if *count <= MAX_LOGGED {
            tracing::info!(event = "caller-refused", node, %peer, reason, "caller refused");
        }
    }
}

/// The address that callers are counted by; for IPv6 the /64 prefix, which one host may own.
fn source(peer: SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

impl Caller {
    /// Sends the reason for ending the connection, as far as the send buffer takes it.
    fn send_reason(&self, why: Greeting) {
        let _may_be_gone = (&self.stream).write_all(why.bytes());
    }

    fn read_proof(&mut self) -> Progress {
        loop {
            match self.stream.read(&mut self.proof[self.received..]) {
                Ok(0) => return Progress::Failed("it disconnected without a proof"),
                Ok(length) => self.received += length,
                Err(cause) => match cause.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Progress::Incomplete,
                    _ => return Progress::Failed("its connection broke"),
                },
            }
            if self.received == PROOF_BYTES {
                return Progress::Proof;
            }
        }
    }
}
