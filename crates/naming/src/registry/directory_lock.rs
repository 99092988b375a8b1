//! The lock by which a node's agent answers other nodes in place of the node's processes.
//!
//! The agent holds `agent.lock`, then asks the process that answers now to release
//! `directory.lock`. When the agent ends, for whatever reason, the kernel frees both, and the
//! processes of the node answer again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::answer::{Answers, Reply, bound, settled};
use super::folder::{failed, flock, open_lock};
use super::messages::{QUESTION_BYTES, Question};
use super::{Registry, RegistryError, holder, is_locked, random_number};
use crate::envelope::Header;
use crate::key::KeyMismatch;

/// Readers of the lock hold it for a moment.
const MOMENT: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Why a process cannot become the node's agent.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    /// There is one.
    #[error("{} already; end it first", taken(*.pid))]
    Taken {
        /// Its process id, if it could be read.
        pid: Option<u32>,
    },
    /// The port at which the node is asked cannot be had.
    #[error(
        "cannot bind {address}: {cause}{}; end its process (`ss -ulpn`), or choose another \
         port by `port=` in the hosts file",
        holder::suffix(*.address)
    )]
    Port {
        /// Which.
        address: SocketAddr,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The process that answers now is of another cluster, or only one of the two has a key.
    #[error(
        "the process that answers for this node does not hand over to the agent: {mismatch}; \
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
    sockets: Vec<(UdpSocket, Answers)>,
    refused: AtomicU64,
    /// Of the agent, then of the directory; none beside an agent that holds them.
    _locks: Option<[File; 2]>,
}

impl DirectoryLock {
    /// Takes the lock, and the port at which the node is asked on each of its interfaces, from the
    /// process that has them. Waits for one that is stopped, and logs that.
    ///
    /// `kept` are sockets that an earlier agent left with a service manager; those bound to one of
    /// the addresses are used, so packets queued in them are not lost.
    ///
    /// # Errors
    /// [`DirectoryLockError::Taken`] names the agent there is.
    pub fn take(
        registry: &Registry,
        addresses: &[SocketAddr],
        kept: Vec<UdpSocket>,
    ) -> Result<DirectoryLock, DirectoryLockError> {
        let path = registry.path().join("agent.lock");
        let mut agent = open_lock(&path)?;
        let begun = Instant::now();
        while let Err(error) = rustix::fs::flock(&agent, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(failed("locking", &path)(error.into()).into());
            }
            if begun.elapsed() > MOMENT {
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
        let mut bound = |address: SocketAddr| {
            let at = |socket: &UdpSocket| socket.local_addr().is_ok_and(|at| at == address);
            match kept.iter().position(at) {
                Some(index) => settled(kept.swap_remove(index)),
                None => bound(address),
            }
        };
        let socket = |address: &SocketAddr| match bound(*address) {
            Ok(socket) => Ok((socket, Answers::new(registry, address.ip()))),
            Err(cause) => Err(DirectoryLockError::Port {
                address: *address,
                cause,
            }),
        };
        Ok(DirectoryLock {
            sockets: addresses.iter().map(socket).collect::<Result<_, _>>()?,
            refused: AtomicU64::new(0),
            _locks: Some([agent, directory]),
        })
    }

    /// For a process that shares the sockets of the agent, which holds the locks.
    ///
    /// # Errors
    /// They are no bound sockets.
    pub fn beside(registry: &Registry, sockets: Vec<UdpSocket>) -> io::Result<DirectoryLock> {
        let answering = |socket: UdpSocket| {
            let address = socket.local_addr()?.ip();
            Ok((socket, Answers::new(registry, address)))
        };
        let sockets: io::Result<_> = sockets.into_iter().map(answering).collect();
        Ok(DirectoryLock {
            sockets: sockets?,
            refused: AtomicU64::new(0),
            _locks: None,
        })
    }

    /// The sockets at which the node is asked, by interface; reading them does not block.
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> + Clone {
        self.sockets.iter().map(|(socket, _)| socket)
    }

    /// The answer to another node's question that arrived at an interface; `None` if the packet is
    /// no question or cannot be answered. Questions of strangers are refused and counted.
    #[must_use]
    pub fn reply(&self, interface: usize, packet: &[u8]) -> Option<Vec<u8>> {
        let (_, answers) = self.sockets.get(interface)?;
        match answers.reply(packet) {
            Ok(Reply::Answer(answer)) => Some(answer),
            Ok(Reply::Refusal(refusal)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Some(refusal)
            }
            Ok(Reply::Nothing | Reply::Yield) | Err(_) => None,
        }
    }

    /// Questions of strangers refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Takes the lock of the directory from the process that answers now.
fn take_over(registry: &Registry, addresses: &[SocketAddr]) -> Result<File, DirectoryLockError> {
    let path = registry.path().join("directory.lock");
    let lock = open_lock(&path)?;
    let begun = Instant::now();
    let (mut pause, mut word) = (FIRST_PAUSE, FIRST_WORD);
    let mut asked_somebody = false;
    let nonce = random_number().map_err(failed("drawing a number for", &path))?;
    let header = Header {
        from: registry.node(),
        to: registry.node(),
        nonce,
    };
    let authenticator = registry.authenticator();
    let question = authenticator.seal_to_length(header, &Question::Yield, QUESTION_BYTES);
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
                if asked_somebody {
                    let node = registry.node().0;
                    tracing::info!(
                        event = "yielded",
                        node,
                        "a process handed the directory over to the agent"
                    );
                }
                return Ok(lock);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed("locking", &path)(error.into()).into()),
        }
        asked_somebody = true;
        // The process that answers has bound at least one of them.
        for (socket, address) in sockets.iter().zip(addresses) {
            if let Err(cause) = socket.send_to(&question, address) {
                return Err(DirectoryLockError::Port {
                    address: *address,
                    cause,
                });
            }
        }
        if begun.elapsed() > word {
            tracing::warn!(
                path = %path.display(),
                seconds = begun.elapsed().as_secs(),
                "waiting for the process that answers for this node to hand over; is it stopped? \
                 `fuser` names it"
            );
            word *= 2;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
        for socket in &sockets {
            let mut buffer = [0; QUESTION_BYTES + 1];
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

/// Returns when the node has no agent.
pub(super) fn wait_for_agent_end(registry: &Registry) -> io::Result<()> {
    match File::open(registry.path().join("agent.lock")) {
        Ok(file) => flock(&file, FlockOperation::LockShared),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(cause),
    }
}
