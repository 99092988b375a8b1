//! What a process without privileges borrows: a ring that somebody who has them (`dipole agent`)
//! keeps filled, and perhaps a socket for raw frames.
//!
//! A process hands over its bound UDP socket, which proves that packets for that address and
//! port are its own, and gets the descriptor of a ring. The connection stays open: when one end
//! is gone, however it ends, the other sees it hang up. Then the lender takes the ring out of
//! the card's program, and the process is served by its socket, and asks again now and then.
//! It offers the ring that it holds, so that this stays the same for as long as the loan lasts.

pub mod channel;
pub mod proof;
mod ring;
pub mod wire;

use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::CardId;
use channel::Heard;
pub use dipole_link::sys::tie_port;
pub use ring::{RingFacts, ring_facts};
use wire::{Answer, Granted, Question, Refusal, WireError};

/// Where the lender listens, unless `DIPOLE_BROKER` says otherwise.
pub const DEFAULT_PATH: &str = "/run/dipole/broker";

/// How long a lender may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);
/// How soon a lender that has gone is looked for again.
const AGAIN_NS: u64 = 1_000_000_000;
/// How soon one that refused is asked again.
const REFUSED_AGAIN_NS: u64 = 10_000_000_000;
const PATIENCE_NS: u64 = 2_000_000_000;

/// Why there is no loan.
#[derive(Debug)]
pub enum LoanError {
    /// Nobody lends there.
    NoLender {
        /// Where.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The lender does not want to.
    Refused(Refusal),
    /// Whoever listens there does not speak as a lender does.
    Nonsense {
        /// Where.
        path: PathBuf,
    },
    /// The lender does not answer.
    Silent {
        /// Where.
        path: PathBuf,
    },
    /// The socket cannot be offered.
    Socket(io::Error),
}

impl fmt::Display for LoanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoanError::NoLender { path, cause } => write!(
                f,
                "nobody lends rings at {}: {cause}; an administrator can let `dipole agent` do so \
                 (/etc/dipole/interfaces.toml), or DIPOLE_BROKER names another place",
                path.display()
            ),
            LoanError::Refused(refusal) => {
                write!(f, "the lender of rings refuses: {}", refusal.text)
            }
            LoanError::Nonsense { path } => write!(
                f,
                "what listens at {} is no lender of rings of this version; does DIPOLE_BROKER name \
                 the right place?",
                path.display()
            ),
            LoanError::Silent { path } => write!(
                f,
                "the lender of rings at {} does not answer within {} s; is its agent stopped?",
                path.display(),
                PATIENCE.as_secs()
            ),
            LoanError::Socket(cause) => {
                write!(f, "a socket cannot be offered to the lender: {cause}")
            }
        }
    }
}

impl std::error::Error for LoanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoanError::NoLender { cause, .. } | LoanError::Socket(cause) => Some(cause),
            _ => None,
        }
    }
}

/// What [`Loan::check`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// All is as it was.
    Nothing,
    /// The lender has gone. No packets are put into the ring from now on (what lies in it is
    /// good), and the socket for raw frames is to be used no more: nobody checks its frames.
    Lost,
    /// A lender fills the same ring again; [`Loan::take_sender`] may have a new socket.
    Back,
}

/// A ring that a lender keeps filled; given back when this is dropped.
#[derive(Debug)]
pub struct Loan {
    path: PathBuf,
    /// The proof, to be shown again.
    socket: OwnedFd,
    ring: OwnedFd,
    sender: Option<OwnedFd>,
    granted: Granted,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    Lent(OwnedFd),
    Asked {
        connection: OwnedFd,
        until_ns: u64,
    },
    /// Until somebody is asked again.
    Alone {
        until_ns: Option<u64>,
    },
}

/// Borrows a ring of so many bytes (a power of two and of pages) for the packets that come to a
/// bound UDP socket, whose port must be [tied](tie_port) to it. Waits two seconds at most.
///
/// # Errors
/// [`LoanError`]; nothing has changed then.
pub fn ask(path: &Path, small_socket: BorrowedFd<'_>, ring_bytes: u32) -> Result<Loan, LoanError> {
    let socket = small_socket
        .try_clone_to_owned()
        .map_err(LoanError::Socket)?;
    let question = Question {
        dry: false,
        ring_bytes,
    };
    let (connection, answer) = converse(path, question, &[small_socket])?;
    let lent = understood(path, answer)?;
    let ring = lent.ring.ok_or_else(|| nonsense(path))?;
    Ok(Loan {
        path: path.to_owned(),
        socket,
        ring,
        sender: lent.sender,
        granted: lent.granted,
        standing: Standing::Lent(connection),
    })
}

/// What a lender would lend for a socket at an address of this machine.
///
/// # Errors
/// [`LoanError`].
pub fn opinion(path: &Path, address: IpAddr, ring_bytes: u32) -> Result<Granted, LoanError> {
    let socket = UdpSocket::bind((address, 0)).map_err(LoanError::Socket)?;
    tie_port(socket.as_fd()).map_err(LoanError::Socket)?;
    let question = Question {
        dry: true,
        ring_bytes,
    };
    let (_, answer) = converse(path, question, &[socket.as_fd()])?;
    Ok(understood(path, answer)?.granted)
}

fn nonsense(path: &Path) -> LoanError {
    LoanError::Nonsense {
        path: path.to_owned(),
    }
}

/// Asks, and waits for what is said.
fn converse(
    path: &Path,
    question: Question,
    files: &[BorrowedFd<'_>],
) -> Result<(OwnedFd, Heard), LoanError> {
    let begun = Instant::now();
    let none = |cause| LoanError::NoLender {
        path: path.to_owned(),
        cause,
    };
    let connection = loop {
        match channel::connect(path) {
            Ok(connection) => break connection,
            Err(cause)
                if cause.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(PAUSE);
            }
            Err(cause) => return Err(none(cause)),
        }
    };
    // A lender that is full says so and hangs up before it is asked.
    let said = channel::say(connection.as_fd(), &question.encode(), files);
    loop {
        match channel::hear(connection.as_fd()) {
            Heard::Nothing => {}
            Heard::End => {
                return match said {
                    Err(cause) => Err(none(cause)),
                    Ok(()) => Err(none(io::ErrorKind::ConnectionReset.into())),
                };
            }
            heard @ Heard::Message(..) => return Ok((connection, heard)),
        }
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(LoanError::Silent {
                path: path.to_owned(),
            });
        }
        let left = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        // An interrupted wait is looked at again.
        let _woken = poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&left));
    }
}

struct Lent {
    granted: Granted,
    ring: Option<OwnedFd>,
    sender: Option<OwnedFd>,
}

/// What the lender has said, if it makes sense.
fn understood(path: &Path, heard: Heard) -> Result<Lent, LoanError> {
    let Heard::Message(bytes, files) = heard else {
        return Err(nonsense(path));
    };
    let answer = match Answer::decode(&bytes) {
        Ok(answer) => answer,
        Err(WireError::Nonsense | WireError::Version { .. }) => return Err(nonsense(path)),
    };
    match answer {
        Answer::Refused(refusal) => Err(LoanError::Refused(refusal)),
        Answer::Granted(granted) => {
            let mut files = files.into_iter();
            let ring = files.next();
            let sender = files.next().filter(|_| granted.sender);
            Ok(Lent {
                granted,
                ring,
                sender,
            })
        }
    }
}

impl Loan {
    /// The ring; the same for as long as this lasts.
    #[must_use]
    pub fn ring(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// How long the ring is.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.granted.ring_bytes
    }

    /// The card whose packets come.
    #[must_use]
    pub fn card(&self) -> &CardId {
        &self.granted.card
    }

    /// The socket for raw frames, if one was lent and has not been taken yet.
    pub fn take_sender(&mut self) -> Option<OwnedFd> {
        self.sender.take()
    }

    /// The connection to the lender, if it stands: readable when that has gone.
    #[must_use]
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        match &self.standing {
            Standing::Lent(connection) | Standing::Asked { connection, .. } => {
                Some(connection.as_fd())
            }
            Standing::Alone { .. } => None,
        }
    }

    /// Looks whether the lender is still there, and for another one if not. Never waits; costs
    /// one system call, less while nobody is to be asked. Call it now and then.
    pub fn check(&mut self, now_ns: u64) -> News {
        match &self.standing {
            Standing::Lent(connection) => match channel::hear(connection.as_fd()) {
                Heard::Nothing => News::Nothing,
                // It says nothing more, so whatever this is, it is no lender any more.
                Heard::Message(..) | Heard::End => {
                    self.sender = None;
                    self.standing = Standing::Alone { until_ns: None };
                    News::Lost
                }
            },
            Standing::Asked {
                connection,
                until_ns,
            } => match channel::hear(connection.as_fd()) {
                Heard::Nothing if now_ns < *until_ns => News::Nothing,
                Heard::Nothing | Heard::End => self.wait(now_ns, AGAIN_NS),
                heard @ Heard::Message(..) => self.answered(now_ns, heard),
            },
            Standing::Alone { until_ns: None } => self.wait(now_ns, AGAIN_NS),
            Standing::Alone {
                until_ns: Some(until_ns),
            } if now_ns < *until_ns => News::Nothing,
            Standing::Alone { .. } => self.offer(now_ns),
        }
    }

    fn wait(&mut self, now_ns: u64, pause_ns: u64) -> News {
        self.standing = Standing::Alone {
            until_ns: Some(now_ns.saturating_add(pause_ns)),
        };
        News::Nothing
    }

    /// Asks with the ring that there is.
    fn offer(&mut self, now_ns: u64) -> News {
        let question = Question {
            dry: false,
            ring_bytes: self.granted.ring_bytes,
        };
        let files = [self.socket.as_fd(), self.ring.as_fd()];
        let asked = channel::connect(&self.path).and_then(|connection| {
            channel::say(connection.as_fd(), &question.encode(), &files)?;
            Ok(connection)
        });
        match asked {
            Ok(connection) => {
                self.standing = Standing::Asked {
                    connection,
                    until_ns: now_ns.saturating_add(PATIENCE_NS),
                };
                News::Nothing
            }
            Err(_) => self.wait(now_ns, AGAIN_NS),
        }
    }

    fn answered(&mut self, now_ns: u64, heard: Heard) -> News {
        let alone = Standing::Alone { until_ns: None };
        let Standing::Asked { connection, .. } = std::mem::replace(&mut self.standing, alone)
        else {
            return News::Nothing;
        };
        match understood(&self.path, heard) {
            Ok(lent) => {
                // The ring that came along is the one that was offered.
                self.sender = lent.sender;
                self.granted = lent.granted;
                self.standing = Standing::Lent(connection);
                tracing::info!(card = %self.granted.card.name, "the lender fills the ring again");
                News::Back
            }
            Err(error) => {
                tracing::debug!(%error, "the ring is not filled again");
                self.wait(now_ns, REFUSED_AGAIN_NS)
            }
        }
    }
}

#[cfg(test)]
mod tests;
