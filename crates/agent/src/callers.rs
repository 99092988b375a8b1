//! Incoming calls that request work: a caller gets a greeting and two seconds to prove that it
//! holds the cluster key; then a session process of its own serves it.
//!
//! Nothing here blocks. At most [`MAX_UNPROVEN`] callers are pending at once, the oldest of which
//! gives way to a new one; at most [`MAX_SESSIONS`] sessions run.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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
/// How long no connection is accepted after that failed, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Callers {
    node: u32,
    key: ClusterKey,
    listeners: Vec<TcpListener>,
    unproven: VecDeque<Caller>,
    sessions: Vec<Child>,
    accepts_again_at: Option<Instant>,
    /// The program and the arguments that all its sessions get.
    program: PathBuf,
    arguments: Vec<std::ffi::OsString>,
}

struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    greeting: Greeting,
    proof: [u8; PROOF_BYTES],
    received: usize,
    until: Instant,
}

/// What reading from a caller led to.
enum Progress {
    Incomplete,
    Proof,
    Failed(&'static str),
}

impl Callers {
    /// `listeners` do not block.
    pub(super) fn new(
        node: u32,
        key: ClusterKey,
        listeners: Vec<TcpListener>,
        arguments: Vec<std::ffi::OsString>,
    ) -> io::Result<Callers> {
        Ok(Callers {
            node,
            key,
            listeners,
            unproven: VecDeque::new(),
            sessions: Vec::new(),
            accepts_again_at: None,
            // Looked up now: once the program is replaced on disk, the path is another.
            program: std::env::current_exe()?,
            arguments,
        })
    }

    /// Where work is requested.
    pub(super) fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// What to watch: the listeners, then the callers, in the order that [`poll`](Self::poll) expects.
    pub(super) fn sockets(&self) -> (&[TcpListener], impl Iterator<Item = &TcpStream>) {
        let listeners = match self.accepts_again_at {
            Some(_) => &[],
            None => &self.listeners[..],
        };
        (listeners, self.unproven.iter().map(|caller| &caller.stream))
    }

    /// When [`poll`](Self::poll) has something to do even if no socket is ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.unproven.front().map(|caller| caller.until);
        oldest.into_iter().chain(self.accepts_again_at).min()
    }

    /// Serves sockets and time-outs; `ready` tells, in order, which of the [sockets](Self::sockets) are ready.
    pub(super) fn poll(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let listeners = self.sockets().0.len().min(ready.len());
        let (listeners, callers) = ready.split_at(listeners);
        self.read_proofs(callers, now);
        if self.accepts_again_at.is_some_and(|until| until <= now) {
            self.accepts_again_at = None;
        }
        for (index, _) in listeners.iter().enumerate().filter(|(_, ready)| **ready) {
            self.accept(index, now);
        }
        self.sessions
            .retain_mut(|session| !matches!(session.try_wait(), Ok(Some(_))));
    }

    fn accept(&mut self, index: usize, now: Instant) {
        let (mut stream, peer) = match self.listeners[index].accept() {
            Ok(accepted) => accepted,
            Err(cause) => {
                use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
                if !matches!(cause.kind(), ConnectionAborted | Interrupted | WouldBlock) {
                    tracing::warn!(event = "accept-failed", node = self.node, %cause, "cannot accept callers");
                    self.accepts_again_at = Some(now + ACCEPT_PAUSE);
                }
                return;
            }
        };
        let greeting = match self.sessions.len() {
            MAX_SESSIONS.. => Ok(Greeting::busy()),
            _ => Greeting::draw(),
        };
        // The send buffer of a new connection has room for it.
        let greeted = greeting.and_then(|greeting| {
            stream.set_nonblocking(true)?;
            stream.write_all(greeting.bytes())?;
            Ok(greeting)
        });
        let greeting = match greeted {
            Ok(greeting) if greeting != Greeting::busy() => greeting,
            Ok(_) => return self.refused(peer, "too many sessions are running"),
            Err(_) => return self.refused(peer, "the greeting could not be sent"),
        };
        if self.unproven.len() == MAX_UNPROVEN
            && let Some(oldest) = self.unproven.pop_front()
        {
            self.refused(oldest.peer, "it gave way to a later caller");
        }
        self.unproven.push_back(Caller {
            stream,
            peer,
            greeting,
            proof: [0; PROOF_BYTES],
            received: 0,
            until: now + PROOF_TIMEOUT,
        });
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
                Progress::Incomplete => self.refused(caller.peer, "it sent no proof in time"),
                Progress::Failed(why) => self.refused(caller.peer, why),
                Progress::Proof if verify(&self.key, &caller.greeting, &caller.proof) => {
                    self.start_session(caller);
                }
                Progress::Proof => self.refused(caller.peer, "it holds another cluster key"),
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

    fn refused(&self, peer: SocketAddr, reason: &str) {
        tracing::info!(event = "caller-refused", node = self.node, %peer, reason, "caller refused");
    }
}

impl Caller {
    fn read_proof(&mut self) -> Progress {
        loop {
            match self.stream.read(&mut self.proof[self.received..]) {
                Ok(0) => return Progress::Failed("it hung up without a proof"),
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
