//! Replies to queries from other nodes about endpoints and processes of this node.
//!
//! Every process of a node with a hosts file keeps one thread that blocks on the lock of
//! `directory.lock`. The holder binds the node's well-known UDP port and replies from the registry;
//! when that process dies, the kernel passes the lock on. The service has no state, so nothing is
//! lost in between.
//!
//! The node's agent takes precedence ([`DirectoryLock`](super::DirectoryLock)): the process that
//! serves hands over to it, and all processes wait until the agent ends.
//!
//! A thread that waits for the lock cannot be cancelled. It stays when the last [`Directory`] of
//! the process is dropped, and the next one for the same registry uses it again: at most one thread
//! per registry and process. A child forked without `exec` shares the port and the lock of a parent
//! that serves: if the parent dies, the node is not served until the child ends as well.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::FlockOperation;

use super::folder::{failed, flock, open_lock};
use super::messages::ProbeLength;
use super::responder::{Action, Responder, bind};
use super::{Registry, RegistryError, directory_lock, holder, is_shortage};
use crate::envelope::Authenticator;

/// Time between two attempts to bind a port that another process holds.
const REBIND: Duration = Duration::from_secs(2);

/// Time between two attempts while descriptors or memory are short.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Longest time between two warnings about that.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Keeps this process ready to serve its node, until it is dropped.
#[derive(Debug)]
pub struct Directory {
    service: Arc<Service>,
}

#[derive(Debug)]
struct Service {
    key: Key,
    registry: Registry,
    wake: OwnedFd,
    binds: Mutex<(Vec<SocketAddr>, Authenticator)>,
}

/// Process and registry. The process is included because threads survive neither a fork nor a
/// restoration from an image.
type Key = ((u32, u64), PathBuf);

fn own_process() -> (u32, u64) {
    (std::process::id(), dipole_link::fork::incarnation())
}

struct Entry {
    service: Arc<Service>,
    users: usize,
}

static SERVICES: Mutex<BTreeMap<Key, Entry>> = Mutex::new(BTreeMap::new());

/// The map is consistent after every statement, so poisoning is harmless.
fn services() -> MutexGuard<'static, BTreeMap<Key, Entry>> {
    SERVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Starts a thread that serves the node of `registry` at `binds`, one address per interface;
    /// returns at once.
    ///
    /// A port that another process holds is logged and tried again.
    ///
    /// # Errors
    /// The lock file cannot be opened, or no thread can be started.
    pub fn start(registry: &Registry, binds: Vec<SocketAddr>) -> Result<Directory, RegistryError> {
        let key = (own_process(), registry.path().to_owned());
        let mut services = services();
        if let Some(entry) = services.get_mut(&key) {
            entry.users += 1;
            *entry
                .service
                .binds
                .lock()
                .unwrap_or_else(PoisonError::into_inner) =
                (binds, registry.authenticator().clone());
            return Ok(Directory {
                service: Arc::clone(&entry.service),
            });
        }
        let path = registry.path().join("directory.lock");
        let lock = open_lock(&path)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed("making an event for", &path)(error.into()))?;
        let service = Arc::new(Service {
            key: key.clone(),
            registry: registry.clone(),
            wake,
            binds: Mutex::new((binds, registry.authenticator().clone())),
        });
        let for_thread = Arc::clone(&service);
        std::thread::Builder::new()
            .name("dipole-directory".to_owned())
            .spawn(move || run(&for_thread, &lock, &path))
            .map_err(failed("starting a thread for", registry.path()))?;
        services.insert(
            key,
            Entry {
                service: Arc::clone(&service),
                users: 1,
            },
        );
        Ok(Directory { service })
    }

    /// An interface has another address from now on: queries are answered there.
    pub fn move_address(&self, from: IpAddr, to: IpAddr) {
        let mut binds = self
            .service
            .binds
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for bind in binds.0.iter_mut().filter(|bind| bind.ip() == from) {
            bind.set_ip(to);
        }
        drop(binds);
        // The thread binds the addresses again.
        let _ = rustix::io::write(&self.service.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A forked child does not own the service.
        if self.service.key.0 != own_process() {
            return;
        }
        if let Some(entry) = services()
            .get_mut(&self.service.key)
            .filter(|entry| Arc::ptr_eq(&entry.service, &self.service))
        {
            entry.users -= 1;
            if entry.users == 0 {
                let _ = rustix::io::write(&self.service.wake, &1_u64.to_ne_bytes());
            }
        }
    }
}

fn run(service: &Service, lock: &File, path: &Path) {
    let mut warning = WarningInterval::default();
    loop {
        let waited = flock(lock, FlockOperation::LockExclusive).and_then(|()| {
            // The lock is held as long as this process serves; then the lock goes to the next process.
            let mut next = Next::Again;
            while next == Next::Again && !directory_lock::has_agent(&service.registry)? {
                next = serve(service, &mut warning);
            }
            flock(lock, FlockOperation::Unlock)?;
            if next != Next::End {
                directory_lock::wait_for_agent_end(&service.registry)?;
            }
            Ok(next)
        });
        match waited {
            Ok(Next::End) => return,
            Ok(Next::Again | Next::Yield) => {}
            // For instance there are no descriptors left for a moment.
            Err(error) => {
                if warning.is_due() {
                    tracing::warn!(
                        path = %path.display(),
                        %error,
                        "cannot lock; this process tries again, and does not answer other nodes' \
                         look-ups until then"
                    );
                }
                warning.logged();
                let _not_held = flock(lock, FlockOperation::Unlock);
                let mut watched = [PollFd::new(&service.wake, PollFlags::IN)];
                let woken = poll(&mut watched, Timespec::try_from(SHORTAGE).ok().as_ref());
                if woken.is_ok_and(|count| count > 0) && next_after_wake(service) == Next::End {
                    return;
                }
            }
        }
    }
}

/// Takes a wake-up: the last user has gone, or the addresses have changed.
fn next_after_wake(service: &Service) -> Next {
    let mut count = [0; 8];
    let _ = rustix::io::read(&service.wake, &mut count);
    let mut services = services();
    let entry = services.get(&service.key);
    if entry.is_none_or(|entry| entry.users == 0) {
        services.remove(&service.key);
        return Next::End;
    }
    // A user returned in the meantime, perhaps with another address.
    Next::Again
}

/// Action after serving for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Serve again, perhaps at another address.
    Again,
    /// Stop serving, so that the agent can.
    Yield,
    /// Stop: the last user has gone.
    End,
}

/// Limits warnings about a port that another user's program may hold forever.
#[derive(Debug, Default)]
struct WarningInterval {
    last: Option<Instant>,
    pause: Duration,
}

impl WarningInterval {
    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.pause)
    }

    /// Counts a logged warning.
    fn logged(&mut self) {
        if self.is_due() {
            self.last = Some(Instant::now());
            self.pause = (self.pause * 2).clamp(REBIND, LONGEST_PAUSE);
        }
    }
}

/// Serves until something else has to be done.
fn serve(service: &Service, warning: &mut WarningInterval) -> Next {
    // Cloned at once: the lock must not be held while serving.
    let (binds, authenticator) = service
        .binds
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let registry = Registry {
        authenticator,
        ..service.registry.clone()
    };
    let mut sockets = Vec::new();
    let mut pause = None;
    for address in &binds {
        match bind(*address) {
            Ok(socket) => sockets.push((socket, Responder::new(&registry, address.ip()))),
            Err(cause) => {
                if warning.is_due() {
                    tracing::warn!(
                        node = %service.registry.node(),
                        %address,
                        %cause,
                        "cannot bind the directory port{}; other nodes cannot find this one's \
                         endpoints at this address until it is free (`port=` in the hosts file \
                         chooses another)",
                        holder::suffix(*address)
                    );
                }
                let again = if is_shortage(&cause) {
                    SHORTAGE
                } else {
                    REBIND
                };
                pause = Some(pause.map_or(again, |pause: Duration| pause.min(again)));
            }
        }
    }
    warning.logged();
    let retry = pause.and_then(|pause| Timespec::try_from(pause).ok());
    loop {
        let mut watched = vec![PollFd::new(&service.wake, PollFlags::IN)];
        for (socket, _) in &sockets {
            watched.push(PollFd::new(socket, PollFlags::IN));
        }
        match poll(&mut watched, retry.as_ref()) {
            Ok(0) => return Next::Again,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the directory cannot wait for queries");
                return Next::Again;
            }
        }
        let woken = !watched[0].revents().is_empty();
        drop(watched);
        if woken {
            return next_after_wake(service);
        }
        for (socket, responder) in &sockets {
            if handle_all(service, socket, responder) {
                return Next::Yield;
            }
        }
    }
}

/// Handles all pending packets; true if the agent takes over.
fn handle_all(service: &Service, socket: &UdpSocket, responder: &Responder) -> bool {
    // One byte more than a query, so that a query that is too long is detected.
    let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            // No packet, or an ICMP error for a reply.
            Err(_) => return false,
        };
        let packet = &buffer[..length];
        match responder.handle(packet) {
            Ok(Action::Respond(reply) | Action::Refuse(reply)) => {
                // A lost reply is queried again.
                let _lost = socket.send_to(&reply, from);
            }
            // The lock shows whether the sender is the agent.
            Ok(Action::Yield) if directory_lock::has_agent(&service.registry).unwrap_or(false) => {
                return true;
            }
            Ok(Action::Ignore | Action::Yield) | Err(_) => {}
        }
    }
}
