//! The seat of a node's agent: one process that answers for the node whatever the others do.
//!
//! It holds `agent.lock`; then it asks whoever answers to make way. When it ends, however
//! it ends, the kernel frees the lock, and the processes of the node answer again.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::answer::{Answers, Reply, bound, settled};
use super::folder::{failed, flock, open_lock};
use super::holder::Holder;
use super::messages::{QUESTION_BYTES, Question};
use super::{Registry, RegistryError, is_locked, random_number};
use crate::envelope::Header;
use crate::key::KeyMismatch;

/// Readers of the lock hold it for a moment.
const MOMENT: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Why a process cannot be the node's agent.
#[derive(Debug)]
pub enum SeatError {
    /// There is one.
    Taken {
        /// Its process id, if it could be read.
        pid: Option<u32>,
    },
    /// The port at which the node is asked cannot be had.
    Port {
        /// Which.
        address: SocketAddr,
        /// What the system says.
        cause: io::Error,
    },
    /// The process that answers now is of another cluster, or only one of the two has a key.
    OtherCluster {
        /// How the keys differ.
        mismatch: KeyMismatch,
    },
    /// The registry cannot be used.
    Registry(RegistryError),
}

impl fmt::Display for SeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SeatError::Taken { pid: Some(pid) } => {
                write!(
                    f,
                    "process {pid} is this node's agent already; end it first"
                )
            }
            SeatError::Taken { pid: None } => {
                f.write_str("this node has an agent already; end it first")
            }
            SeatError::Port { address, cause } => write!(
                f,
                "cannot bind {address}: {cause}{}; end who has it (`ss -ulpn`), or choose another \
                 port by `port=` in the hosts file",
                Holder::told(*address)
            ),
            SeatError::OtherCluster { mismatch } => write!(
                f,
                "a process of this node that answers for it does not make way: {mismatch}; give \
                 all of the node the same DIPOLE_KEY, and end the processes with another"
            ),
            SeatError::Registry(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SeatError {}

impl From<RegistryError> for SeatError {
    fn from(error: RegistryError) -> SeatError {
        SeatError::Registry(error)
    }
}

/// Being the node's agent, until it is dropped or the process ends.
#[derive(Debug)]
pub struct AgentSeat {
    sockets: Vec<(UdpSocket, Answers)>,
    refused: AtomicU64,
    _agent: File,
    _directory: File,
}

impl AgentSeat {
    /// Takes the seat and the port at which the node is asked, on each of its cards, from
    /// whichever of its processes has it. Waits for one that is stopped, and says so.
    ///
    /// `kept` are sockets that an earlier agent left with a service manager; those that are bound
    /// to one of the addresses are used, with what waits in them.
    ///
    /// # Errors
    /// [`SeatError::Taken`] names the agent there is.
    pub fn take(
        registry: &Registry,
        addresses: &[SocketAddr],
        kept: Vec<UdpSocket>,
    ) -> Result<AgentSeat, SeatError> {
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
                return Err(SeatError::Taken {
                    pid: text.trim().parse().ok(),
                });
            }
            std::thread::sleep(FIRST_PAUSE);
        }
        agent
            .set_len(0)
            .and_then(|()| writeln!(agent, "{}", std::process::id()))
            .map_err(failed("writing", &path))?;
        let directory = make_way(registry, addresses)?;
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
            Err(cause) => Err(SeatError::Port {
                address: *address,
                cause,
            }),
        };
        Ok(AgentSeat {
            sockets: addresses.iter().map(socket).collect::<Result<_, _>>()?,
            refused: AtomicU64::new(0),
            _agent: agent,
            _directory: directory,
        })
    }

    /// The ports at which the node is asked, by card; reading them does not block.
    pub fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.sockets.iter().map(|(socket, _)| socket)
    }

    /// The answer to another node's question that came to a card; `None` if it is none, or
    /// cannot be answered. A question of a stranger is refused, and counted.
    #[must_use]
    pub fn reply(&self, card: usize, packet: &[u8]) -> Option<Vec<u8>> {
        let (_, answers) = self.sockets.get(card)?;
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

/// Takes the lock of the directory from whoever answers now.
fn make_way(registry: &Registry, addresses: &[SocketAddr]) -> Result<File, SeatError> {
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
        sockets.push(socket.map_err(|cause| SeatError::Port {
            address: *address,
            cause,
        })?);
    }
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                if asked_somebody {
                    let node = registry.node().0;
                    tracing::info!(event = "yielded", node, "a program made way for the agent");
                }
                return Ok(lock);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed("locking", &path)(error.into()).into()),
        }
        asked_somebody = true;
        // Whoever answers has one of them at least.
        for (socket, address) in sockets.iter().zip(addresses) {
            if let Err(cause) = socket.send_to(&question, address) {
                return Err(SeatError::Port {
                    address: *address,
                    cause,
                });
            }
        }
        if begun.elapsed() > word {
            tracing::warn!(
                path = %path.display(),
                seconds = begun.elapsed().as_secs(),
                "waiting for the process that answers for this node to make way; is it stopped? \
                 `fuser` names it"
            );
            word *= 2;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
        for socket in &sockets {
            let mut buffer = [0; QUESTION_BYTES + 1];
            // An error is no answer: whoever has the lock may not have the port yet.
            while let Ok((length, _)) = socket.recv_from(&mut buffer) {
                let refused = authenticator.refused(&buffer[..length], nonce);
                if let Some(mismatch) = refused {
                    return Err(SeatError::OtherCluster { mismatch });
                }
            }
        }
    }
}

/// True if the node has an agent.
pub(super) fn lives(registry: &Registry) -> io::Result<bool> {
    match File::open(registry.path().join("agent.lock")) {
        Ok(file) => is_locked(&file),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// Returns when the node has no agent.
pub(super) fn wait_for_its_end(registry: &Registry) -> io::Result<()> {
    match File::open(registry.path().join("agent.lock")) {
        Ok(file) => flock(&file, FlockOperation::LockShared),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(cause),
    }
}
