//! Answers other nodes' question where an endpoint of this node lives.
//!
//! Every process of a node that has a hosts file keeps one thread that waits,
//! blocked in the kernel, for the lock of `directory.lock`. Whoever holds it
//! binds the node's well-known UDP port and answers from the registry; when
//! that process dies the kernel passes the lock on. Nothing is remembered
//! between two questions, so nothing is lost in between.
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::FlockOperation;

use super::directory_wire::{Found, FoundStatus, Lookup, encode_found};
use super::folder::{failed, open_lock};
use super::probe::forbid_fragments;
use super::probe_wire::{MAX_PROBE_BYTES, Presence, Question, decode_question, encode_presence};
use super::{Registry, RegistryError};

/// How long to wait before a port that somebody else holds is tried again.
const REBIND: Duration = Duration::from_secs(2);

/// Keeps this process ready to answer for its node, until it is dropped.
#[derive(Debug)]
pub struct Directory {
    service: Arc<Service>,
}

/// What the directory of this process has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryCounters {
    /// Questions answered.
    pub answered: u64,
    /// Packets that were no question.
    pub malformed: u64,
    /// Questions that could not be answered: the registry or the socket failed.
    pub failed: u64,
}

#[derive(Debug)]
struct Service {
    key: Key,
    registry: Registry,
    wake: OwnedFd,
    bind: Mutex<SocketAddr>,
    answered: AtomicU64,
    malformed: AtomicU64,
    failed: AtomicU64,
}

/// A thread does not survive a fork, hence the pid.
type Key = (u32, PathBuf);

struct Entry {
    service: Arc<Service>,
    users: usize,
}

static SERVICES: Mutex<BTreeMap<Key, Entry>> = Mutex::new(BTreeMap::new());

/// No critical section here can leave the map half changed, so poison says nothing.
fn services() -> MutexGuard<'static, BTreeMap<Key, Entry>> {
    SERVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Stands by to answer at `bind` for the node of `registry`; returns at once.
    ///
    /// A port held by somebody else is reported by a warning and tried again.
    ///
    /// # Errors
    /// The lock file cannot be opened or no thread can be started.
    pub fn start(registry: &Registry, bind: SocketAddr) -> Result<Directory, RegistryError> {
        let key = (std::process::id(), registry.path().to_owned());
        let mut services = services();
        if let Some(entry) = services.get_mut(&key) {
            entry.users += 1;
            *entry
                .service
                .bind
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = bind;
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
            bind: Mutex::new(bind),
            answered: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
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

    /// What the thread of this process has done so far.
    #[must_use]
    pub fn counters(&self) -> DirectoryCounters {
        DirectoryCounters {
            answered: self.service.answered.load(Ordering::Relaxed),
            malformed: self.service.malformed.load(Ordering::Relaxed),
            failed: self.service.failed.load(Ordering::Relaxed),
        }
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
    loop {
        match rustix::fs::flock(lock, FlockOperation::LockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::INTR) => {}
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
    // Until nobody in this process wants it; then the lock goes to the next process.
    while serve(service) {}
    let _ = rustix::fs::flock(lock, FlockOperation::Unlock);
}

/// Answers until woken; false when the last user has gone.
fn serve(service: &Service) -> bool {
    let bind = *service.bind.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = match bound(bind) {
        Ok(socket) => Some(socket),
        Err(cause) => {
            tracing::warn!(
                node = %service.registry.node(),
                address = %bind,
                %cause,
                "cannot bind the directory port; other nodes cannot find this one's endpoints \
                 until it is free (`port=` in the hosts file chooses another)"
            );
            None
        }
    };
    // As of now: processes that were opened under another MTU keep theirs.
    let max_packet_bytes = dipole_link::udp::longest_frame_bytes(bind.ip())
        .ok()
        .and_then(|bytes| u16::try_from(bytes).ok())
        .unwrap_or(0);
    let retry = Timespec {
        tv_sec: REBIND.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    loop {
        let mut watched = vec![PollFd::new(&service.wake, PollFlags::IN)];
        if let Some(socket) = &socket {
            watched.push(PollFd::new(socket, PollFlags::IN));
        }
        // Without a socket there is only the next attempt to wait for.
        let timeout = socket.is_none().then_some(&retry);
        match poll(&mut watched, timeout) {
            Ok(0) => return true,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the directory cannot wait for questions");
                return true;
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
                return false;
            }
            // Someone came back meanwhile, maybe with another address.
            return true;
        }
        if let Some(socket) = &socket {
            answer_all(service, socket, max_packet_bytes);
        }
    }
}

fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    // A long answer shows whether its length gets through.
    forbid_fragments(&socket)?;
    Ok(socket)
}

fn answer_all(service: &Service, socket: &UdpSocket, max_packet_bytes: u16) {
    // One byte more than a question, so that an over-long one shows.
    let mut buffer = [0; MAX_PROBE_BYTES + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            // Nothing left, or a report about an answer that nobody awaited.
            Err(_) => return,
        };
        let Ok(question) = decode_question(&buffer[..length]) else {
            service.malformed.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let answer = match question {
            Question::Where(lookup) => {
                answer(&service.registry, &lookup).map(|found| encode_found(&found).to_vec())
            }
            Question::Who(probe) => {
                let presence = Presence {
                    nonce: probe.nonce,
                    node: service.registry.node(),
                    max_packet_bytes,
                    version: version(),
                };
                Some(encode_presence(&presence, probe.length_bytes))
            }
        };
        let answered = answer.is_some_and(|bytes| socket.send_to(&bytes, from).is_ok());
        let counter = if answered {
            &service.answered
        } else {
            &service.failed
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Version of this crate: major, minor, patch.
#[must_use]
pub fn version() -> [u16; 3] {
    let mut parts = env!("CARGO_PKG_VERSION").split(['.', '-', '+']);
    std::array::from_fn(|_| parts.next().and_then(|part| part.parse().ok()).unwrap_or(0))
}

fn answer(registry: &Registry, lookup: &Lookup) -> Option<Found> {
    if lookup.address.node != registry.node() {
        let mut address = lookup.address;
        address.node = registry.node();
        return Some(Found {
            nonce: lookup.nonce,
            address,
            status: FoundStatus::WrongNode,
        });
    }
    let status = match registry.lookup(lookup.address.endpoint) {
        Ok(Some(owner)) => FoundStatus::Found(owner.ports),
        Ok(None) => FoundStatus::NoSuchEndpoint,
        Err(error) => {
            tracing::warn!(%error, "a look-up of another node stays unanswered");
            return None;
        }
    };
    Some(Found {
        nonce: lookup.nonce,
        address: lookup.address,
        status,
    })
}
