//! The lock with which a node's agent serves look-ups in place of the node's processes.
//!
//! The agent takes `agent.lock`, then requests `directory.lock` from the process that serves. When
//! the agent ends, for whatever reason, the kernel releases both, and the processes serve again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::folder::{failed, flock, open_lock};
use super::messages::{QUERY_BYTES, Query};
use super::responder::{Action, Responder, bind, configured};
use super::{Registry, RegistryError, holder, is_locked, random_number};
use crate::envelope::Header;
use crate::key::KeyMismatch;

/// Processes that test the lock hold it for a moment.
const MOMENT: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_WARNING: Duration = Duration::from_secs(2);

/// Why a process cannot become the node's agent.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    /// The node has an agent.
    #[error("{} already; end it first", taken(*.pid))]
    Taken {
        /// Its process id, if it could be read.
        pid: Option<u32>,
    },
    /// The directory's port is not available.
    #[error(
        "cannot bind {address}: {cause}{}; end its process (`ss -ulpn`), or choose another \
         port with `port=` in the hosts file",
        holder::suffix(*.address)
    )]
    Port {
        /// Address of the directory that is in use.
        address: SocketAddr,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The process that serves belongs to another cluster, or only one of the two has a key.
    #[error(
        "the process that serves this node does not hand over to the agent: {mismatch}; \
         give all processes of the node the same DIPOLE_KEY, and end those with another"
    )]
    OtherCluster {
        /// How the keys differ.
        mismatch: KeyMismatch,
    },
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn taken(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid} is this node's agent"),
        None => "this node has an agent".to_owned(),
    }
}

/// Held by the node's agent until it is dropped or the process ends.
#[derive(Debug)]
pub struct DirectoryLock {
    sockets: Vec<(UdpSocket, Responder)>,
    refused: AtomicU64,
    /// Locks of the agent and of the directory, in this order.
    _locks: [File; 2],
}

impl DirectoryLock {
    /// Takes the lock, and the directory's port on each interface, from the process that has them.
    /// Waits for a process that is stopped, and logs that.
    ///
    /// `kept` are sockets that an earlier agent left with a service manager. Those bound to one of
    /// the addresses are used, so that packets queued in them are not lost.
    ///
    /// # Errors
    /// [`DirectoryLockError::Taken`] names the present agent.
    pub fn take(
        registry: &Registry,
        addresses: &[SocketAddr],
        kept: Vec<UdpSocket>,
    ) -> Result<DirectoryLock, DirectoryLockError> {
        let path = registry.path().join("agent.lock");
        let mut agent = open_lock(&path)?;
        let start = Instant::now();
        while let Err(error) = rustix::fs::flock(&agent, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(failed("locking", &path)(error.into()).into());
            }
            if start.elapsed() > MOMENT {
                let mut text = String::new();
                let _unknown = agent.read_to_string(&mut text);
                return Err(DirectoryLockError::Taken {
                    pid: text.trim().parse().ok(),
                });
            }
            std::thread::sleep(FIRST_PAUSE);
        }
        agent
            .set_len(0)
            .and_then(|()| writeln!(agent, "{}", std::process::id()))
            .map_err(failed("writing", &path))?;
        let directory = take_over(registry, addresses)?;
        let mut kept = kept;
        let mut open = |address: SocketAddr| {
            let at = |socket: &UdpSocket| socket.local_addr().is_ok_and(|at| at == address);
            match kept.iter().position(at) {
                Some(index) => configured(kept.swap_remove(index)),
                None => bind(address),
            }
        };
        let socket = |address: &SocketAddr| match open(*address) {
            Ok(socket) => Ok((socket, Responder::new(registry, address.ip()))),
            Err(cause) => Err(DirectoryLockError::Port {
                address: *address,
                cause,
            }),
        };
        Ok(DirectoryLock {
            sockets: addresses.iter().map(socket).collect::<Result<_, _>>()?,
            refused: AtomicU64::new(0),
            _locks: [agent, directory],
        })
    }

    /// The directory's sockets, one per interface. They do not block.
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> + Clone {
        self.sockets.iter().map(|(socket, _)| socket)
    }

    /// The reply to a packet that arrived at an interface; `None` if it is not a query or cannot be
    /// answered. Queries from outside the cluster are refused and counted.
    #[must_use]
    pub fn reply(&self, interface: usize, packet: &[u8]) -> Option<Vec<u8>> {
        let (_, responder) = self.sockets.get(interface)?;
        match responder.handle(packet) {
            Ok(Action::Respond(answer)) => Some(answer),
            Ok(Action::Refuse(refusal)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Some(refusal)
            }
            Ok(Action::Ignore | Action::Yield) | Err(_) => None,
        }
    }

    /// Number of queries refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Takes the lock of the directory from the process that serves.
fn take_over(registry: &Registry, addresses: &[SocketAddr]) -> Result<File, DirectoryLockError> {
    let path = registry.path().join("directory.lock");
    let lock = open_lock(&path)?;
    let start = Instant::now();
    let (mut pause, mut warn_after) = (FIRST_PAUSE, FIRST_WARNING);
    let mut has_requested = false;
    let nonce = random_number().map_err(failed("drawing a number for", &path))?;
    let header = Header {
        from: registry.node(),
        to: registry.node(),
        nonce,
    };
    let authenticator = registry.authenticator();
    let query = authenticator.seal_to_length(header, &Query::Yield, QUERY_BYTES);
    let mut sockets = Vec::new();
    for address in addresses {
        let from: (IpAddr, u16) = (address.ip(), 0);
        let socket = UdpSocket::bind(from).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        sockets.push(socket.map_err(|cause| DirectoryLockError::Port {
            address: *address,
            cause,
        })?);
    }
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                if has_requested {
                    let node = registry.node().0;
                    tracing::info!(
                        event = "directory-taken-over",
                        node,
                        "the agent took over the directory from a process"
                    );
                }
                return Ok(lock);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed("locking", &path)(error.into()).into()),
        }
        has_requested = true;
        // The process that serves has bound at least one of them.
        for (socket, address) in sockets.iter().zip(addresses) {
            if let Err(cause) = socket.send_to(&query, address) {
                return Err(DirectoryLockError::Port {
                    address: *address,
                    cause,
                });
            }
        }
        if start.elapsed() > warn_after {
            tracing::warn!(
                path = %path.display(),
                seconds = start.elapsed().as_secs(),
                "waiting for the process that serves this node to hand over; is it stopped? \
                 `fuser` names it"
            );
            warn_after *= 2;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
        for socket in &sockets {
            let mut buffer = [0; QUERY_BYTES + 1];
            // Errors are ignored: the holder of the lock may not have bound the port yet.
            while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                let refused = authenticator.refused(&buffer[..length], nonce);
                if let Some(mismatch) = refused {
                    return Err(DirectoryLockError::OtherCluster { mismatch });
                }
            }
        }
    }
}

/// True if the node has an agent.
pub(super) fn has_agent(registry: &Registry) -> io::Result<bool> {
    match File::open(registry.path().join("agent.lock")) {
        Ok(file) => is_locked(&file),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// Blocks until the node has no agent.
pub(super) fn wait_for_agent_end(registry: &Registry) -> io::Result<()> {
    match File::open(registry.path().join("agent.lock")) {
        Ok(file) => flock(&file, FlockOperation::LockShared),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(cause),
    }
}
