//! The broker's loop: one thread that accepts connections, handles requests and detects
//! disconnects.
//!
//! It never waits for a client: a connection without a request within two seconds is closed, and so
//! is one that does not read its reply. [`super::quota`] has the limits per user.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use dipole_bpf::grant::channel::{self, Received};
use dipole_bpf::grant::ownership::Caller;
use dipole_bpf::grant::wire::{Reason, Refusal, Reply, Request, WireError};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::Sockets;
use super::grants::{GrantReply, GrantTable, refusal};
use super::quota::UserQuotas;

const LISTENER: u64 = 0;
const SHUTDOWN: u64 = 1;
const STATUS: u64 = 2;
const FIRST_CONNECTION: u64 = 3;
/// Maximum number of events handled, or connections accepted, at once.
const MAX_EVENTS: usize = 64;
/// Maximum number of connections of all users.
const MAX_CONNECTIONS: usize = 8192;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How often grants are revalidated.
const REVALIDATE_EVERY: Duration = Duration::from_secs(1);
/// Pause after accepting failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Server {
    epoll: OwnedFd,
    listener: OwnedFd,
    status: UnixListener,
    path: String,
    /// Readable after a signal to stop.
    _shutdown: UnixStream,
    grants: GrantTable,
    quotas: UserQuotas,
    connections: HashMap<u64, Connection>,
    next: u64,
    accepts_again_at: Option<Instant>,
}

struct Connection {
    socket: OwnedFd,
    caller: Caller,
    /// Deadline of its request; `None` after the request.
    until: Option<Instant>,
}

impl Server {
    pub(super) fn new(
        sockets: &Sockets,
        shutdown: UnixStream,
        grants: GrantTable,
        path: &Path,
    ) -> io::Result<Server> {
        let listener = sockets.clients.try_clone()?;
        let status = sockets.status.try_clone()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |file: &dyn AsFd, token| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&epoll, file.as_fd(), data, epoll::EventFlags::IN)
        };
        watch(&listener, LISTENER)?;
        watch(&shutdown, SHUTDOWN)?;
        watch(&status, STATUS)?;
        Ok(Server {
            epoll,
            listener,
            status,
            path: path.display().to_string(),
            _shutdown: shutdown,
            grants,
            quotas: UserQuotas::default(),
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            accepts_again_at: None,
        })
    }

    /// Runs until a signal stops the broker.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut revalidate_at = Instant::now();
        loop {
            let now = Instant::now();
            if now >= revalidate_at {
                self.revalidate(now);
                revalidate_at = now + REVALIDATE_EVERY;
            }
            let mut timeout = revalidate_at.saturating_duration_since(now);
            if let Some(until) = self.accepts_again_at {
                timeout = timeout.min(until.saturating_duration_since(now));
            }
            for token in self.wait(timeout)? {
                match token {
                    LISTENER => self.accept(),
                    SHUTDOWN => return Ok(()),
                    STATUS => self.send_status(),
                    connection => self.receive(connection),
                }
            }
            if self
                .accepts_again_at
                .is_some_and(|until| until <= Instant::now())
            {
                self.accepts_again_at = None;
                let data = epoll::EventData::new_u64(LISTENER);
                epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN)?;
            }
        }
    }

    fn wait(&self, timeout: Duration) -> io::Result<Vec<u64>> {
        let mut ready = Vec::with_capacity(MAX_EVENTS);
        // At least 1 ms, so that the loop does not spin until an imminent deadline.
        let timeout = timeout.max(Duration::from_millis(1));
        let timeout = Timespec::try_from(timeout).ok();
        let into = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&self.epoll, into, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(ready.iter().map(|event| event.data.u64()).collect())
    }

    /// Sends the status to one reader, without waiting for it: what does not fit its socket is
    /// lost, and the reader reports a truncated status.
    fn send_status(&self) {
        let Ok((mut reader, _)) = self.status.accept() else {
            return;
        };
        let bytes = self.grants.status(self.path.clone()).encode();
        let sent = reader
            .set_nonblocking(true)
            .and_then(|()| reader.write_all(&bytes));
        if let Err(cause) = sent {
            tracing::debug!(%cause, "cannot send the status");
        }
    }

    fn accept(&mut self) {
        for _ in 0..MAX_EVENTS {
            let socket = match channel::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(cause) => {
                    tracing::warn!(event = "accept-failed", %cause, "cannot accept clients that request rings");
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.accepts_again_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            self.admit(socket);
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let now = Instant::now();
        let caller = match Caller::of(socket.as_fd()) {
            Ok(caller) => caller,
            Err(cause) => {
                tracing::warn!(%cause, "cannot find out which process requests a ring");
                return;
            }
        };
        let admitted = match self.connections.len() {
            MAX_CONNECTIONS.. => Err("too many processes have rings".to_owned()),
            _ => self.quotas.admit(caller.uid, now),
        };
        if let Err(text) = admitted {
            tracing::debug!(
                uid = caller.uid,
                pid = caller.pid,
                "connection refused: {text}"
            );
            refuse(&socket, Reason::Busy, text);
            self.quotas.close(caller.uid, vec![socket], now);
            return;
        }
        let token = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(token);
        let watched = epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN);
        let connection = Connection {
            socket,
            caller,
            until: Some(now + REQUEST_TIMEOUT),
        };
        self.connections.insert(token, connection);
        if let Err(cause) = watched {
            tracing::warn!(%cause, "cannot watch the connection of a client");
            self.disconnect(token, Vec::new());
        }
    }

    fn receive(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let (bytes, mut files) = match channel::recv(connection.socket.as_fd()) {
            Received::Nothing => return,
            Received::Closed => return self.disconnect(token, Vec::new()),
            Received::Message(bytes, files) => (bytes, files),
        };
        if connection.until.take().is_none() {
            // A client with a grant has nothing more to request.
            return self.disconnect(token, files);
        }
        let now = Instant::now();
        let caller = connection.caller.clone();
        self.quotas.has_requested(caller.uid);
        let allowed = self.quotas.take_request(caller.uid, now);
        let answer = match (allowed, Request::decode(&bytes)) {
            (Err(text), _) => Err(refusal(Reason::Busy, text)),
            (Ok(()), Err(error)) => Err(misunderstood(error)),
            (Ok(()), Ok(request)) => self.grants.grant(token, &caller, request, &mut files),
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(refusal) => {
                let (uid, pid) = (caller.uid, caller.pid);
                tracing::debug!(event = "ring-refused", uid, pid, "{}", refusal.text);
                self.grants.count_refusal();
                if let Some(connection) = self.connections.get(&token) {
                    let answer = Reply::Refused(refusal);
                    let _hung_up = channel::send(connection.socket.as_fd(), &answer.encode(), &[]);
                }
                return self.disconnect(token, files);
            }
        };
        self.quotas.close(caller.uid, files, now);
        let sent = self.send_grant(token, &reply);
        if let Some(replaced) = reply.replaces {
            self.disconnect(replaced, Vec::new());
        }
        if !sent || reply.dry {
            self.disconnect(token, Vec::new());
        }
    }

    /// Sends a grant with its descriptors; false if that failed.
    fn send_grant(&self, token: u64, reply: &GrantReply) -> bool {
        let Some(connection) = self.connections.get(&token) else {
            return false;
        };
        let files: Vec<_> = [&reply.ring, &reply.sender]
            .into_iter()
            .filter_map(|file| file.as_ref().map(AsFd::as_fd))
            .collect();
        let answer = Reply::Granted(reply.granted.clone()).encode();
        channel::send(connection.socket.as_fd(), &answer, &files).is_ok()
    }

    /// Closes a connection and revokes its grant.
    fn disconnect(&mut self, token: u64, mut files: Vec<OwnedFd>) {
        let Some(connection) = self.connections.remove(&token) else {
            return;
        };
        if connection.until.is_some() {
            self.quotas.has_requested(connection.caller.uid);
        }
        files.extend(self.grants.revoke(token));
        // The socket stays open, and would be reported, until the closing thread closes it.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        files.push(connection.socket);
        self.quotas
            .close(connection.caller.uid, files, Instant::now());
    }

    /// Revokes invalid grants and closes connections whose request is overdue.
    fn revalidate(&mut self, now: Instant) {
        let ended = self.grants.revalidate(now);
        for token in ended {
            self.disconnect(token, Vec::new());
        }
        let late = |one: &Connection| one.until.is_some_and(|until| until <= now);
        let late = self.connections.iter().filter(|(_, one)| late(one));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            self.disconnect(token, Vec::new());
        }
        self.quotas.tidy(now);
    }
}

fn misunderstood(error: WireError) -> Refusal {
    match error {
        WireError::Version { found } => refusal(
            Reason::Version,
            format!(
                "the request has version {found}; install the same version of Dipole as the broker's"
            ),
        ),
        WireError::Malformed => refusal(Reason::Malformed, "the request is malformed"),
    }
}

/// Sends a refusal, if the socket takes it at once.
fn refuse(socket: &OwnedFd, reason: Reason, text: String) {
    let answer = Reply::Refused(refusal(reason, text));
    let _not_taken = channel::send(socket.as_fd(), &answer.encode(), &[]);
}
