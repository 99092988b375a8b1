//! Answers other nodes' questions about endpoints and processes of this node.
//!
//! Every process of a node that has a hosts file keeps one thread that waits,
//! blocked in the kernel, for the lock of `directory.lock`. Its holder
//! binds the node's well-known UDP port and answers from the registry; when
//! that process dies the kernel passes the lock on. Nothing is remembered
//! between two questions, so nothing is lost in between.
//!
//! The node's agent takes precedence ([`DirectoryLock`](super::DirectoryLock)): the process that
//! answers hands over to it, and all processes wait for its end.
//!
//! A thread that waits for the lock cannot be called back, so it stays when
//! the last [`Directory`] of the process is dropped, and is used again by the
//! next one for the same registry: at most one thread per registry and process.
//! A child forked without `exec` shares the port and the lock of a parent that
//! answers: if the parent dies, nobody answers until the child ends as well.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::FlockOperation;

use super::answer::{Answers, Reply, bound};
use super::folder::{failed, flock, open_lock};
use super::messages::ProbeLength;
use super::{Registry, RegistryError, directory_lock, holder};
use crate::envelope::Authenticator;

/// How long to wait before a port that somebody else holds is tried again.
const REBIND: Duration = Duration::from_secs(2);

/// The longest time between two warnings about that.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Keeps this process ready to answer for its node, until it is dropped.
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

/// A thread does not survive a fork, hence the pid.
type Key = (u32, PathBuf);

struct Entry {
    service: Arc<Service>,
    users: usize,
}

static SERVICES: Mutex<BTreeMap<Key, Entry>> = Mutex::new(BTreeMap::new());

/// No critical section here can leave the map half changed, so poisoning is harmless.
fn services() -> MutexGuard<'static, BTreeMap<Key, Entry>> {
    SERVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Stands by to answer at `binds`, one for each interface, for the node of `registry`;
    /// returns at once.
    ///
    /// A port held by somebody else is reported by a warning and tried again.
    ///
    /// # Errors
    /// The lock file cannot be opened or no thread can be started.
    pub fn start(registry: &Registry, binds: Vec<SocketAddr>) -> Result<Directory, RegistryError> {
        let key = (std::process::id(), registry.path().to_owned());
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
}

impl Drop for Directory {
    fn drop(&mut self) {
        // In a forked child the key is another's: nothing happens.
        if self.service.key.0 != std::process::id() {
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
            // Until nobody in this process wants it; then the lock goes to the next process.
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
            Err(error) => {
                tracing::warn!(
                    path = %path.display(),
                    %error,
                    "cannot lock; this process will not answer other nodes' look-ups"
                );
                services().remove(&service.key);
                return;
            }
        }
    }
}

/// What comes after answering for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// More of it, maybe at another address.
    Again,
    /// The agent wants to answer.
    Yield,
    /// The last user has gone.
    End,
}

/// Limits warnings about a port that another user's program holds, possibly for ever.
#[derive(Debug, Default)]
struct WarningInterval {
    last: Option<Instant>,
    pause: Duration,
}

impl WarningInterval {
    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.pause)
    }

    /// A warning that was due has been logged.
    fn logged(&mut self) {
        if self.is_due() {
            self.last = Some(Instant::now());
            self.pause = (self.pause * 2).clamp(REBIND, LONGEST_PAUSE);
        }
    }
}

/// Answers until something else is to be done.
fn serve(service: &Service, warning: &mut WarningInterval) -> Next {
    // Cloned in one go: the lock must not be held while this answers.
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
    for bind in &binds {
        match bound(*bind) {
            Ok(socket) => sockets.push((socket, Answers::new(&registry, bind.ip()))),
            Err(cause) if warning.is_due() => tracing::warn!(
                node = %service.registry.node(),
                address = %bind,
                %cause,
                "cannot bind the directory port{}; other nodes cannot find this one's endpoints \
                 by this address until it is free (`port=` in the hosts file chooses another)",
                holder::suffix(*bind)
            ),
            Err(_) => {}
        }
    }
    warning.logged();
    let lacks_one = sockets.len() < binds.len();
    let retry = Timespec::try_from(REBIND).ok().filter(|_| lacks_one);
    loop {
        let mut watched = vec![PollFd::new(&service.wake, PollFlags::IN)];
        for (socket, _) in &sockets {
            watched.push(PollFd::new(socket, PollFlags::IN));
        }
        match poll(&mut watched, retry.as_ref()) {
            Ok(0) => return Next::Again,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the directory cannot wait for questions");
                return Next::Again;
            }
        }
        let woken = !watched[0].revents().is_empty();
        drop(watched);
        if woken {
            let mut word = [0; 8];
            let _ = rustix::io::read(&service.wake, &mut word);
            let mut services = services();
            if services
                .get(&service.key)
                .is_none_or(|entry| entry.users == 0)
            {
                services.remove(&service.key);
                return Next::End;
            }
            // Someone came back meanwhile, maybe with another address.
            return Next::Again;
        }
        for (socket, answers) in &sockets {
            if answer_all(service, socket, answers) {
                return Next::Yield;
            }
        }
    }
}

/// True if the agent wants to answer from now on.
fn answer_all(service: &Service, socket: &UdpSocket, answers: &Answers) -> bool {
    // One byte more than a question, so that an over-long one shows.
    let mut buffer = [0; ProbeLength::LONGEST.bytes() + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            // Nothing left, or a report about an answer that nobody awaited.
            Err(_) => return false,
        };
        let packet = &buffer[..length];
        match answers.reply(packet) {
            Ok(Reply::Answer(reply) | Reply::Refusal(reply)) => {
                // Who gets no answer asks again.
                let _lost = socket.send_to(&reply, from);
            }
            // The agent's lock shows whether it was the agent that asked.
            Ok(Reply::Yield) if directory_lock::has_agent(&service.registry).unwrap_or(false) => {
                return true;
            }
            Ok(Reply::Nothing | Reply::Yield) | Err(_) => {}
        }
    }
}
