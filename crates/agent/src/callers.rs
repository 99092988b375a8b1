//! Who calls the agent to have work started: a caller gets a greeting and two seconds to prove
//! that it holds the cluster key; then a process of its own tends it.
//!
//! Nothing here waits. At most [`MOST_UNPROVEN`] callers are heard at once, the oldest gives way
//! to a new one; at most [`MOST_SESSIONS`] are tended.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::ClusterKey;

use super::session::hexadecimal;
use dipole_launch::call::{Greeting, PROOF_BYTES, proves};

const MOST_UNPROVEN: usize = 32;
const MOST_SESSIONS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(2);
/// How long nobody is accepted after that failed, for want of descriptors or memory.
const REST: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Callers {
    node: u32,
    key: ClusterKey,
    listeners: Vec<TcpListener>,
    unproven: VecDeque<Caller>,
    sessions: Vec<Child>,
    rests_until: Option<Instant>,
    /// The program and what all its sessions are told.
    program: PathBuf,
    arguments: Vec<std::ffi::OsString>,
}

struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    greeting: Greeting,
    proof: [u8; PROOF_BYTES],
    heard: usize,
    until: Instant,
}

/// What has come of hearing a caller.
enum Heard {
    More,
    Proof,
    Nothing(&'static str),
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
            rests_until: None,
            // Asked for now: a program that is replaced has another name then.
            program: std::env::current_exe()?,
            arguments,
        })
    }

    /// Where work is asked for.
    pub(super) fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// What to watch: the listeners, then the callers, as [`attend`](Self::attend) wants it.
    pub(super) fn sockets(&self) -> (&[TcpListener], impl Iterator<Item = &TcpStream>) {
        let listeners = match self.rests_until {
            Some(_) => &[],
            None => &self.listeners[..],
        };
        (listeners, self.unproven.iter().map(|caller| &caller.stream))
    }

    /// When [`attend`](Self::attend) has something to do without anybody being ready.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.unproven.front().map(|caller| caller.until);
        oldest.into_iter().chain(self.rests_until).min()
    }

    /// Does what there is to do; what was [watched](Self::sockets) is ready or not, in order.
    pub(super) fn attend(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let listeners = self.sockets().0.len().min(ready.len());
        let (listeners, callers) = ready.split_at(listeners);
        self.hear(callers, now);
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
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
                    tracing::warn!(event = "deaf", node = self.node, %cause, "cannot accept callers");
                    self.rests_until = Some(now + REST);
                }
                return;
            }
        };
        let greeting = match self.sessions.len() {
            MOST_SESSIONS.. => Ok(Greeting::busy()),
            _ => Greeting::draw(),
        };
        // A new connection has room for it.
        let greeted = greeting.and_then(|greeting| {
            stream.set_nonblocking(true)?;
            stream.write_all(greeting.bytes())?;
            Ok(greeting)
        });
        let greeting = match greeted {
            Ok(greeting) if greeting != Greeting::busy() => greeting,
            Ok(_) => return self.refused(peer, "too many callers are tended already"),
            Err(_) => return self.refused(peer, "it could not be greeted"),
        };
        if self.unproven.len() == MOST_UNPROVEN
            && let Some(oldest) = self.unproven.pop_front()
        {
            self.refused(oldest.peer, "it gave way to a later caller");
        }
        self.unproven.push_back(Caller {
            stream,
            peer,
            greeting,
            proof: [0; PROOF_BYTES],
            heard: 0,
            until: now + PATIENCE,
        });
    }

    fn hear(&mut self, ready: &[bool], now: Instant) {
        let callers = std::mem::take(&mut self.unproven);
        for (index, mut caller) in callers.into_iter().enumerate() {
            let heard = match ready.get(index) {
                Some(true) => caller.hear(),
                _ => Heard::More,
            };
            match heard {
                Heard::More if caller.until > now => self.unproven.push_back(caller),
                Heard::More => self.refused(caller.peer, "it proved nothing in time"),
                Heard::Nothing(why) => self.refused(caller.peer, why),
                Heard::Proof if proves(&self.key, &caller.greeting, &caller.proof) => {
                    self.tend(caller);
                }
                Heard::Proof => self.refused(caller.peer, "it holds another cluster key"),
            }
        }
    }

    fn tend(&mut self, caller: Caller) {
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
    fn hear(&mut self) -> Heard {
        loop {
            match self.stream.read(&mut self.proof[self.heard..]) {
                Ok(0) => return Heard::Nothing("it hung up without a proof"),
                Ok(length) => self.heard += length,
                Err(cause) => match cause.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Heard::More,
                    _ => return Heard::Nothing("its connection broke"),
                },
            }
            if self.heard == PROOF_BYTES {
                return Heard::Proof;
            }
        }
    }
}
