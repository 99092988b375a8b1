//! Grants of a privileged broker (`dipole-broker`) to unprivileged processes: a ring that the
//! broker's program fills, and perhaps a socket for raw frames.
//!
//! The client passes its bound UDP socket, which proves that packets to that address and port
//! are its own, and gets the descriptor of a ring. The connection stays open, so each end notices
//! when the other is gone. The broker then removes the ring from the interface's program. The
//! client receives by its UDP socket, and requests again now and then; it passes the ring it has,
//! so the ring stays the same as long as the grant exists.

pub mod channel;
pub mod ownership;
mod ring;
pub mod status;
pub mod wire;

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::InterfaceId;
use channel::Received;
pub use dipole_link::sys::pin_port;
pub use ring::{RingInfo, ring_info};
use wire::{Granted, Refusal, Reply, Request, WireError};

/// Default socket of the broker; `DIPOLE_BROKER` overrides it.
pub const DEFAULT_PATH: &str = "/run/dipole/broker";

/// How long a broker may take to reply.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to connect to a busy broker.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// How soon a broker that has gone is contacted again.
const RETRY_NS: u64 = 1_000_000_000;
/// How soon a broker that refused is contacted again.
const REFUSED_RETRY_NS: u64 = 10_000_000_000;
const TIMEOUT_NS: u64 = 2_000_000_000;

/// Reason for the missing grant.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// No broker listens there.
    #[error(
        "no broker grants rings at {path}: {cause}; an administrator can start `dipole-broker` \
         (/etc/dipole/interfaces.toml), or DIPOLE_BROKER names another place"
    )]
    NoBroker {
        /// Path of the socket.
        path: PathBuf,
        /// Error returned by the kernel.
        #[source]
        cause: io::Error,
    },
    /// The broker refused the request.
    #[error("the broker refuses a ring: {}", .0.text)]
    Refused(Refusal),
    /// The listening process does not follow the protocol.
    #[error(
        "the process that listens at {path} is not a broker of this version; check DIPOLE_BROKER"
    )]
    Malformed {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The broker does not reply.
    #[error(
        "the broker at {path} does not reply within {} s; is it stopped?",
        TIMEOUT.as_secs()
    )]
    Silent {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The socket or the ring cannot be duplicated or mapped.
    #[error("cannot request a ring from the broker: {0}")]
    Socket(#[source] io::Error),
}

/// Result of [`Grant::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantEvent {
    /// The grant is still valid.
    Unchanged,
    /// The broker is gone. The ring is no longer filled (its content remains valid), and the socket
    /// for raw frames must not be used any more: nothing checks its frames.
    Lost,
    /// A broker fills the same ring again; [`Grant::take_sender`] may have a new socket.
    Restored,
}

/// A ring that a broker fills; dropping this ends the grant.
#[derive(Debug)]
pub struct Grant {
    path: PathBuf,
    /// The UDP socket, passed again with every request.
    socket: OwnedFd,
    ring: OwnedFd,
    sender: Option<OwnedFd>,
    granted: Granted,
    state: State,
}

#[derive(Debug)]
enum State {
    Granted(OwnedFd),
    Requested {
        connection: OwnedFd,
        until_ns: u64,
    },
    /// No ring is granted; the next request is sent later.
    Lost {
        until_ns: Option<u64>,
    },
}

/// Requests a ring of `ring_bytes` (a power of two, whole pages) for the packets to a bound UDP
/// socket, whose port must be [pinned](pin_port) to it. Waits two seconds at most.
///
/// # Errors
/// [`GrantError`]; nothing has changed then.
pub fn request(
    path: &Path,
    small_socket: BorrowedFd<'_>,
    ring_bytes: u32,
) -> Result<Grant, GrantError> {
    let socket = small_socket
        .try_clone_to_owned()
        .map_err(GrantError::Socket)?;
    let request = Request {
        dry: false,
        ring_bytes,
    };
    let (connection, reply) = exchange(path, request, &[small_socket])?;
    let accepted = accepted(path, reply)?;
    let ring = accepted.ring.ok_or_else(|| malformed(path))?;
    Ok(Grant {
        path: path.to_owned(),
        socket,
        ring,
        sender: accepted.sender,
        granted: accepted.granted,
        state: State::Granted(connection),
    })
}

/// Queries the grant that a broker would give to a socket at an address of this machine.
///
/// # Errors
/// [`GrantError`].
pub fn preview(path: &Path, address: IpAddr, ring_bytes: u32) -> Result<Granted, GrantError> {
    let socket = UdpSocket::bind((address, 0)).map_err(GrantError::Socket)?;
    pin_port(socket.as_fd()).map_err(GrantError::Socket)?;
    let request = Request {
        dry: true,
        ring_bytes,
    };
    let (_, reply) = exchange(path, request, &[socket.as_fd()])?;
    Ok(accepted(path, reply)?.granted)
}

fn malformed(path: &Path) -> GrantError {
    GrantError::Malformed {
        path: path.to_owned(),
    }
}

/// Sends a request and waits for the reply.
fn exchange(
    path: &Path,
    request: Request,
    files: &[BorrowedFd<'_>],
) -> Result<(OwnedFd, Received), GrantError> {
    let begun = Instant::now();
    let none = |cause| GrantError::NoBroker {
        path: path.to_owned(),
        cause,
    };
    let connection = loop {
        match channel::connect(path) {
            Ok(connection) => break connection,
            Err(cause)
                if cause.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < TIMEOUT =>
            {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(cause) => return Err(none(cause)),
        }
    };
    // An overloaded broker refuses and hangs up before it reads the request.
    let sent = channel::send(connection.as_fd(), &request.encode(), files);
    loop {
        match channel::recv(connection.as_fd()) {
            Received::Nothing => {}
            Received::Closed => {
                return match sent {
                    Err(cause) => Err(none(cause)),
                    Ok(()) => Err(none(io::ErrorKind::ConnectionReset.into())),
                };
            }
            message @ Received::Message(..) => return Ok((connection, message)),
        }
        let left = TIMEOUT.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(GrantError::Silent {
                path: path.to_owned(),
            });
        }
        let left = Timespec::try_from(left).ok();
        // After an interrupted wait the loop looks again.
        let _woken = poll(
            &mut [PollFd::new(&connection, PollFlags::IN)],
            left.as_ref(),
        );
    }
}

struct Accepted {
    granted: Granted,
    ring: Option<OwnedFd>,
    sender: Option<OwnedFd>,
}

/// The broker's reply, if it is well-formed and grants a ring.
fn accepted(path: &Path, received: Received) -> Result<Accepted, GrantError> {
    let Received::Message(bytes, files) = received else {
        return Err(malformed(path));
    };
    let reply = match Reply::decode(&bytes) {
        Ok(reply) => reply,
        Err(WireError::Malformed | WireError::Version { .. }) => return Err(malformed(path)),
    };
    match reply {
        Reply::Refused(refusal) => Err(GrantError::Refused(refusal)),
        Reply::Granted(granted) => {
            let mut files = files.into_iter();
            let ring = files.next();
            let sender = files.next().filter(|_| granted.sender);
            Ok(Accepted {
                granted,
                ring,
                sender,
            })
        }
    }
}

impl Grant {
    /// The ring; it stays the same as long as the grant exists.
    #[must_use]
    pub fn ring(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.granted.ring_bytes
    }

    /// The interface whose packets are put into the ring.
    #[must_use]
    pub fn interface(&self) -> &InterfaceId {
        &self.granted.interface
    }

    /// The socket for raw frames, if one was granted and has not been taken yet.
    pub fn take_sender(&mut self) -> Option<OwnedFd> {
        self.sender.take()
    }

    /// The connection to the broker, if there is one: readable when the broker is gone.
    #[must_use]
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Granted(connection) | State::Requested { connection, .. } => {
                Some(connection.as_fd())
            }
            State::Lost { .. } => None,
        }
    }

    /// Checks whether the broker is still there, and requests again if not. Never waits; costs
    /// one system call at most. To be called now and then.
    pub fn check(&mut self, now_ns: u64) -> GrantEvent {
        match &self.state {
            State::Granted(connection) => match channel::recv(connection.as_fd()) {
                Received::Nothing => GrantEvent::Unchanged,
                // A broker sends nothing after its reply, so this is not a broker any more.
                Received::Message(..) | Received::Closed => {
                    self.sender = None;
                    self.state = State::Lost { until_ns: None };
                    GrantEvent::Lost
                }
            },
            State::Requested {
                connection,
                until_ns,
            } => match channel::recv(connection.as_fd()) {
                Received::Nothing if now_ns < *until_ns => GrantEvent::Unchanged,
                Received::Nothing | Received::Closed => self.wait(now_ns, RETRY_NS),
                message @ Received::Message(..) => self.answered(now_ns, message),
            },
            State::Lost { until_ns: None } => self.wait(now_ns, RETRY_NS),
            State::Lost {
                until_ns: Some(until_ns),
            } if now_ns < *until_ns => GrantEvent::Unchanged,
            State::Lost { .. } => self.renew(now_ns),
        }
    }

    fn wait(&mut self, now_ns: u64, pause_ns: u64) -> GrantEvent {
        self.state = State::Lost {
            until_ns: Some(now_ns.saturating_add(pause_ns)),
        };
        GrantEvent::Unchanged
    }

    /// Requests again, with the ring that there is.
    fn renew(&mut self, now_ns: u64) -> GrantEvent {
        let request = Request {
            dry: false,
            ring_bytes: self.granted.ring_bytes,
        };
        let files = [self.socket.as_fd(), self.ring.as_fd()];
        let requested = channel::connect(&self.path).and_then(|connection| {
            channel::send(connection.as_fd(), &request.encode(), &files)?;
            Ok(connection)
        });
        match requested {
            Ok(connection) => {
                self.state = State::Requested {
                    connection,
                    until_ns: now_ns.saturating_add(TIMEOUT_NS),
                };
                GrantEvent::Unchanged
            }
            Err(_) => self.wait(now_ns, RETRY_NS),
        }
    }

    fn answered(&mut self, now_ns: u64, received: Received) -> GrantEvent {
        let lost = State::Lost { until_ns: None };
        let State::Requested { connection, .. } = std::mem::replace(&mut self.state, lost) else {
            return GrantEvent::Unchanged;
        };
        match accepted(&self.path, received) {
            Ok(accepted) => {
                // The received ring is the one that was passed.
                self.sender = accepted.sender;
                self.granted = accepted.granted;
                self.state = State::Granted(connection);
                tracing::info!(interface = %self.granted.interface.name, "a broker fills the ring again");
                GrantEvent::Restored
            }
            Err(error) => {
                tracing::debug!(%error, "no broker fills the ring again");
                self.wait(now_ns, REFUSED_RETRY_NS)
            }
        }
    }
}

#[cfg(test)]
mod tests;
