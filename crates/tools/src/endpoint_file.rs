//! The process behind a path of `/dev/dipole` that a program has opened under `dipole sockets`
//! (`docs/design/sockets.md` §6). The program holds one end of a pair of unix sockets; the other end is
//! this process's standard input. It relays between the socket and an endpoint.
//!
//! An empty message is the end of a stream, as an empty read is the end of a file.

use std::collections::HashMap;
use std::io::{self, stdin};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use dipole_node::{
    Address, Config, ConfigError, Edge, EndpointId, Node, OpenError, ReceiveError, SendError,
    TargetError,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};

use crate::output::Failure;

/// Serves a path of /dev/dipole that a program has opened; standard input is its socket
#[derive(Args, Debug)]
pub(crate) struct EndpointFileArgs {
    /// DPID to receive at, NID:DPID to send to
    place: String,
}

/// Length of one wait, after which the reader's and the senders' liveness is checked.
const LOOK: Duration = Duration::from_millis(100);
/// How long the last messages may take to reach their endpoint.
const LINGER: Duration = Duration::from_secs(30);
/// Most bytes that one read of the program returns: one kernel buffer.
const PIECE: usize = 32 << 10;
/// Longer than any write that the program's socket accepts.
const LONGEST: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("`{0}` is neither an endpoint (DPID) to receive at nor one (NID:DPID) to send to")]
    Place(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error("endpoint {from} is gone before it has sent the end: {cause}")]
    Gone { from: Address, cause: SendError },
    #[error("the program's socket: {0}")]
    Socket(#[from] Errno),
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Problem {
    /// errno of the program's open.
    fn errno(&self) -> Errno {
        match self {
            Problem::Place(_) | Problem::Config(_) => Errno::INVAL,
            Problem::Open(OpenError::Taken { .. }) => Errno::ADDRINUSE,
            Problem::Target(_) => Errno::HOSTUNREACH,
            _ => Errno::IO,
        }
    }
}

pub(crate) fn execute(args: &EndpointFileArgs) -> Result<ExitCode, Failure> {
    let told = |problem: Problem| {
        let text = format!("/dev/dipole/{}: {problem}", args.place);
        Failure::from(text)
    };
    let socket = stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| told(error.into()))?;
    let done = match Served::open(&args.place) {
        Ok(served) => answer(&socket, 0).and_then(|()| served.serve(&socket)),
        Err(problem) => {
            let _closed_already = answer(&socket, problem.errno().raw_os_error());
            Err(problem)
        }
    };
    done.map(|()| ExitCode::SUCCESS).map_err(told)
}

/// Reports the result of the program's open.
fn answer(socket: &OwnedFd, errno: i32) -> Result<(), Problem> {
    let told =
        retry_on_intr(|| rustix::net::send(socket, &errno.to_ne_bytes(), SendFlags::NOSIGNAL))?;
    assert_eq!(told, size_of::<i32>(), "nothing is before it");
    Ok(())
}

/// The node and endpoint opened for a file.
struct Served {
    node: Node,
    endpoint: dipole_node::Endpoint,
    sends: bool,
}

impl Served {
    fn open(place: &str) -> Result<Served, Problem> {
        let wrong = || Problem::Place(place.to_owned());
        let config = Config::from_env()?;
        if !place.contains(':') {
            let id: EndpointId = place.parse().map_err(|_| wrong())?;
            let node = Node::open(config)?;
            let endpoint = node.endpoint(id)?;
            let sends = false;
            return Ok(Served {
                node,
                endpoint,
                sends,
            });
        }
        let to: Address = place.parse().map_err(|_| wrong())?;
        let node = Node::open(config)?;
        let endpoint = node.endpoint(EndpointId::ANY)?;
        endpoint.target(to)?;
        let sends = true;
        Ok(Served {
            node,
            endpoint,
            sends,
        })
    }

    fn serve(self, socket: &OwnedFd) -> Result<(), Problem> {
        let done = match self.sends {
            true => self.send_all(socket),
            false => self.receive_all(socket),
        };
        drop(self.endpoint);
        // Close in order, so that peers do not take this process for killed.
        let _nothing_is_left = self.node.close(LINGER);
        done
    }

    /// Sends each packet of the program's socket as a message.
    fn send_all(&self, socket: &OwnedFd) -> Result<(), Problem> {
        let mut packet = vec![0; LONGEST];
        loop {
            let flags = RecvFlags::empty();
            let length = match rustix::net::recv(socket, &mut packet[..], flags) {
                Ok((0, _)) if is_at_end(socket.as_fd(), PollFlags::RDHUP) && is_empty(socket)? => {
                    break;
                }
                // The program wrote nothing; to a file that would have no effect either.
                Ok((0, _)) | Err(Errno::INTR) => continue,
                Ok((length, _)) => length,
                Err(error) => return Err(error.into()),
            };
            self.endpoint.send(&packet[..length])?;
        }
        self.endpoint.send(b"")?;
        Ok(self.endpoint.drain(LINGER)?)
    }

    fn receive_all(&self, socket: &OwnedFd) -> Result<(), Problem> {
        let reader = Reader::of(socket)?;
        let mut senders: HashMap<Address, Edge> = HashMap::new();
        loop {
            let message = match self.endpoint.receive_timeout(LOOK) {
                Ok(message) => message,
                Err(ReceiveError::TimedOut { .. }) => {
                    // Not RDHUP: reads go on after shutdown(SHUT_WR).
                    if is_at_end(socket.as_fd(), PollFlags::HUP) {
                        return Ok(());
                    }
                    watch(&senders)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let from = message.source();
            if message.is_empty() {
                senders.remove(&from);
                if senders.is_empty() {
                    return end(socket);
                }
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(place) = senders.entry(from) {
                place.insert(self.endpoint.edge(from)?);
            }
            if !reader.pass(&message)? {
                return Ok(());
            }
        }
    }
}

/// True if the program will never write again (`RDHUP`), or has closed the file (`HUP`).
fn is_at_end(socket: BorrowedFd<'_>, end: PollFlags) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(socket, end)];
    let now = Timespec::default();
    let found = retry_on_intr(|| poll(&mut asked, Some(&now)));
    found.is_ok_and(|count| count > 0)
}

/// True unless the program has written something that was not received.
fn is_empty(socket: &OwnedFd) -> Result<bool, Errno> {
    Ok(rustix::io::ioctl_fionread(socket)? == 0)
}

/// Checks whether senders have died.
fn watch(senders: &HashMap<Address, Edge>) -> Result<(), Problem> {
    for (from, edge) in senders {
        match edge.watch() {
            Ok(()) | Err(SendError::Full { .. }) => {}
            Err(cause) => return Err(Problem::Gone { from: *from, cause }),
        }
    }
    Ok(())
}

/// The program's socket, where the program reads.
struct Reader<'a> {
    socket: &'a OwnedFd,
    /// The kernel reports, once per message, that the program has read it completely.
    freed: OwnedFd,
}

impl Reader<'_> {
    fn of(socket: &OwnedFd) -> Result<Reader<'_>, Errno> {
        let freed = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let what = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&freed, socket, epoll::EventData::new_u64(0), what)?;
        Ok(Reader { socket, freed })
    }

    /// Writes a message and returns when it is read; false if no reader is left. The socket holds one kernel
    /// buffer at a time: so no read returns bytes of two messages, and the rest of one stays for the next
    /// read, even in programs without the library.
    fn pass(&self, message: &[u8]) -> Result<bool, Errno> {
        let mut done = 0;
        while done < message.len() {
            let piece = &message[done..message.len().min(done + PIECE)];
            // An earlier report is not about this piece.
            self.next(&Timespec::default())?;
            let sent = retry_on_intr(|| rustix::net::send(self.socket, piece, SendFlags::NOSIGNAL));
            match sent {
                Ok(count) => done += count,
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error),
            }
            loop {
                let said = self.next(&Timespec::try_from(LOOK).unwrap_or_default())?;
                if said.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    return Ok(false);
                }
                if said.contains(epoll::EventFlags::OUT) {
                    break;
                }
            }
        }
        Ok(true)
    }

    fn next(&self, most: &Timespec) -> Result<epoll::EventFlags, Errno> {
        let mut said = [MaybeUninit::<epoll::Event>::uninit(); 1];
        match epoll::wait(&self.freed, &mut said, Some(most)) {
            Ok((said, _)) => Ok(said
                .first()
                .map_or(epoll::EventFlags::empty(), |one| one.flags)),
            Err(Errno::INTR) => Ok(epoll::EventFlags::empty()),
            Err(error) => Err(error),
        }
    }
}

/// Ends in order: takes the byte that the library has left in the socket. Otherwise the program's next
/// read would fail with ECONNRESET, as it does when this process is killed.
fn end(socket: &OwnedFd) -> Result<(), Problem> {
    let mut byte = [0];
    retry_on_intr(|| rustix::net::recv(socket, &mut byte[..], RecvFlags::empty()))?;
    Ok(())
}
