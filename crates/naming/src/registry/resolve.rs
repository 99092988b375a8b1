//! Finds the ports of an endpoint, here or on another node.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::{self, QUESTION_BYTES};
use super::{Ports, Registry, RegistryError, random_number};
use crate::address::{Address, NodeId};
use crate::envelope::{Authenticator, Header};
use crate::hosts::{Host, Hosts};
use crate::key::KeyMismatch;
use crate::net::any_like;

/// First pause between two attempts; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// When a look-up first logs that it is still waiting, and how often after that.
const FIRST_WARNING: Duration = Duration::from_secs(1);
const WARNING_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait for an answer from one of a node's interfaces.
const INTERFACE_PATIENCE: Duration = Duration::from_millis(100);

/// Where the list of nodes comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// Neither hosts file nor agent.
    Nothing,
    /// A hosts file.
    File,
    /// This node's agent.
    Agent {
        /// How long the node was waited for.
        waited: Duration,
    },
}

/// Why an endpoint could not be found.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Neither the hosts file nor this node's agent knows the node.
    #[error("{}", unknown(.address.node, *.hosts))]
    UnknownNode {
        /// The endpoint that was looked for.
        address: Address,
        /// Where it was looked for.
        hosts: KnownBy,
    },
    /// The node answers, but nobody opened the endpoint in time.
    #[error(
        "nobody opened it within {:.1} s; is the program that opens it running, by the \
         same user and with the same runtime directory?",
        .waited.as_secs_f64()
    )]
    NoSuchEndpoint {
        /// The endpoint that was looked for.
        address: Address,
        /// How long it was tried.
        waited: Duration,
    },
    /// Nobody answered at the node's directory port.
    #[error(
        "nobody answered at {directory} within {:.1} s{}; is a program with the hosts file \
         running there, and does UDP get through?",
        .waited.as_secs_f64(), in_brackets(.cause.as_ref())
    )]
    NoAnswer {
        /// The endpoint that was looked for.
        address: Address,
        /// The address that was asked.
        directory: SocketAddr,
        /// How long it was tried.
        waited: Duration,
        /// What the network last said, if anything.
        #[source]
        cause: Option<io::Error>,
    },
    /// Another node answers there.
    #[error(
        "at {directory} node {answered} answers, not node {}; correct the hosts file or \
         DIPOLE_NID there",
        .address.node
    )]
    WrongNode {
        /// The endpoint that was looked for.
        address: Address,
        /// The address that was asked.
        directory: SocketAddr,
        /// The node that answered.
        answered: NodeId,
    },
    /// The node is not of our cluster.
    #[error(
        "node {} at {directory} tells this process nothing: {}",
        .address.node, .mismatch.explain(.fingerprint.as_deref())
    )]
    OtherCluster {
        /// The endpoint that was looked for.
        address: Address,
        /// The address that was asked.
        directory: SocketAddr,
        /// How the keys differ.
        mismatch: KeyMismatch,
        /// Our key's fingerprint, if we have one.
        fingerprint: Option<String>,
    },
    /// The registry of this node cannot be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn unknown(node: NodeId, hosts: KnownBy) -> String {
    match hosts {
        KnownBy::Nothing => format!(
            "node {node} is not this one and there is no hosts file; name one (DIPOLE_HOSTS), or \
             let an agent of this node find the others (`dipole agent --discover`)"
        ),
        KnownBy::Agent { waited } => format!(
            "this node's agent did not hear of node {node} within {:.1} s; does an agent run \
             there, and here (`dipole agent status`)?",
            waited.as_secs_f64()
        ),
        KnownBy::File => format!("the hosts file has no node {node}; add a line `{node} ADDRESS`"),
    }
}

fn in_brackets(cause: Option<&io::Error>) -> String {
    cause.map_or(String::new(), |cause| format!(" ({cause})"))
}

/// Finds where `address` is, waiting up to `timeout` for it to be opened.
///
/// On the node of `registry` the registry is read; another node's directory is
/// asked over UDP, again and again with growing pauses. Warns when it lasts.
///
/// # Errors
/// See [`ResolveError`]; only [`ResolveError::UnknownNode`], `WrongNode`, `OtherCluster` and
/// `Registry` come before the time is over.
pub fn resolve(
    registry: &Registry,
    hosts: &Hosts,
    address: Address,
    timeout: Duration,
) -> Result<Ports, ResolveError> {
    let mut wait = Wait::new(timeout);
    if address.node == registry.node() {
        return resolve_here(registry, address, &mut wait);
    }
    let host = place(registry, hosts, address, &mut wait)?;
    resolve_there(registry, hosts, host, address, &mut wait)
}

/// Where a node is asked.
#[derive(PartialEq, Eq)]
struct Place {
    host: Host,
    directories: Vec<SocketAddr>,
}

impl Place {
    fn of(registry: &Registry, hosts: &Hosts, node: NodeId) -> Option<Place> {
        let host = hosts.get(node)?;
        Some(Place {
            host: host.clone(),
            directories: hosts.directories_as_seen_from(registry.node(), host),
        })
    }
}

/// Where the node of an address is. A file of hosts is read again if it lacks the node;
/// where an agent keeps it, until the node is there or the time is over.
fn place(
    registry: &Registry,
    hosts: &Hosts,
    address: Address,
    wait: &mut Wait,
) -> Result<Place, ResolveError> {
    let mut found = Place::of(registry, hosts, address.node);
    loop {
        found = found.or_else(|| Place::of(registry, &hosts.again()?, address.node));
        if let Some(place) = found {
            return Ok(place);
        }
        if !hosts.is_of_agent() || wait.is_over() {
            return Err(ResolveError::UnknownNode {
                address,
                hosts: match (hosts.is_local_only(), hosts.is_of_agent()) {
                    (true, _) => KnownBy::Nothing,
                    (_, true) => KnownBy::Agent {
                        waited: wait.so_far(),
                    },
                    _ => KnownBy::File,
                },
            });
        }
        wait.warn(|seconds| {
            tracing::warn!(%address, seconds, "waiting for the node to join the cluster");
        });
        std::thread::sleep(wait.next_pause());
    }
}

fn resolve_here(
    registry: &Registry,
    address: Address,
    wait: &mut Wait,
) -> Result<Ports, ResolveError> {
    loop {
        if let Some(owner) = registry.lookup(address.endpoint)? {
            return Ok(owner.ports);
        }
        if wait.is_over() {
            return Err(ResolveError::NoSuchEndpoint {
                address,
                waited: wait.so_far(),
            });
        }
        wait.warn(|seconds| {
            tracing::warn!(%address, seconds, "waiting for the endpoint to be opened on this node");
        });
        std::thread::sleep(wait.next_pause());
    }
}

fn resolve_there(
    registry: &Registry,
    hosts: &Hosts,
    mut place: Place,
    address: Address,
    wait: &mut Wait,
) -> Result<Ports, ResolveError> {
    let authenticator = registry.authenticator();
    let mut question =
        Question::new(registry, address).map_err(|cause| ResolveError::NoAnswer {
            address,
            directory: place.host.directory(),
            waited: wait.so_far(),
            cause: Some(cause),
        })?;
    let mut last_cause = None;
    let mut answered = false;
    let mut attempts = 0;
    loop {
        // Any interface of the node will do.
        let directory = place.directories[attempts % place.directories.len()];
        attempts += 1;
        let attempt_ends = Instant::now() + wait.next_pause();
        let answer = question
            .ask(directory)
            .and_then(|()| question.answer(attempt_ends));
        match answer {
            Ok(Some((directory, Err(mismatch)))) => {
                return Err(ResolveError::OtherCluster {
                    address,
                    directory,
                    mismatch,
                    fingerprint: authenticator.fingerprint(),
                });
            }
            Ok(Some((directory, Ok(found)))) => match found {
                Found::At(ports) => {
                    let interface = match place.host.control == Some(directory.ip()) {
                        true => interface_that_answers(registry, &place, address),
                        false => directory.ip(),
                    };
                    return Ok(reachable(ports, place.host.address, interface));
                }
                Found::WrongNode(answered) => {
                    return Err(ResolveError::WrongNode {
                        address,
                        directory,
                        answered,
                    });
                }
                Found::Nowhere => answered = true,
            },
            Ok(None) => {}
            Err(cause) => last_cause = Some(cause),
        }
        if wait.is_over() {
            let waited = wait.so_far();
            return Err(if answered {
                ResolveError::NoSuchEndpoint { address, waited }
            } else {
                ResolveError::NoAnswer {
                    address,
                    directory,
                    waited,
                    cause: last_cause,
                }
            });
        }
        let mut moved = None;
        wait.warn(|seconds| {
            let state = if answered {
                "not opened yet"
            } else {
                "no answer yet"
            };
            tracing::warn!(%address, %directory, seconds, state, "waiting for another node's endpoint");
            // It may be at another address by now.
            moved = hosts.again();
        });
        if let Some(now) = moved.and_then(|hosts| Place::of(registry, &hosts, address.node))
            && now != place
        {
            place = now;
            attempts = 0;
            // What it was asked where it was is of no interest.
            question.sockets.clear();
        }
        // An early "no" is no reason to ask at once again.
        std::thread::sleep(attempt_ends.saturating_duration_since(Instant::now()));
    }
}

/// The interface of a node that answers first, when its control network has told where the endpoint
/// is: messages go by interfaces only. The first one if there is no other, or none answers.
fn interface_that_answers(registry: &Registry, place: &Place, address: Address) -> IpAddr {
    let first = place.host.address;
    if place.host.interfaces.is_empty() {
        return first;
    }
    let Ok(mut question) = Question::new(registry, address) else {
        return first;
    };
    let is_interface = |at: &&SocketAddr| place.host.control != Some(at.ip());
    for interface in place.directories.iter().filter(is_interface) {
        if let Err(cause) = question.ask(*interface) {
            tracing::debug!(%interface, %cause, "an interface cannot be asked");
        }
    }
    match question.answer(Instant::now() + INTERFACE_PATIENCE) {
        Ok(Some((interface, _))) => interface.ip(),
        _ => first,
    }
}

/// What a directory knows of an endpoint.
enum Found {
    At(Ports),
    /// Nobody has it open.
    Nowhere,
    /// This node is another one.
    WrongNode(NodeId),
}

/// A directory's answer, and where it came from; an error if we are strangers there.
type Answer = (SocketAddr, Result<Found, KeyMismatch>);

/// A look-up under way, on a socket for each directory: an answer may take longer than the pause
/// before it is asked again.
struct Question<'a> {
    address: Address,
    own: NodeId,
    nonce: u64,
    authenticator: &'a Authenticator,
    sockets: Vec<(SocketAddr, UdpSocket)>,
}

impl Question<'_> {
    fn new(registry: &Registry, address: Address) -> io::Result<Question<'_>> {
        Ok(Question {
            address,
            own: registry.node(),
            nonce: random_number()?,
            authenticator: registry.authenticator(),
            sockets: Vec::new(),
        })
    }

    fn ask(&mut self, directory: SocketAddr) -> io::Result<()> {
        let known = self.sockets.iter().position(|(at, _)| *at == directory);
        let index = match known {
            Some(index) => index,
            None => {
                let socket = UdpSocket::bind((any_like(directory), 0))?;
                // Connected: only the directory's packets arrive, and "port unreachable" is
                // reported.
                socket.connect(directory)?;
                socket.set_nonblocking(true)?;
                self.sockets.push((directory, socket));
                self.sockets.len() - 1
            }
        };
        let header = Header {
            from: self.own,
            to: self.address.node,
            nonce: self.nonce,
        };
        let lookup = messages::Question::Lookup(self.address.endpoint);
        let packet = self
            .authenticator
            .seal_to_length(header, &lookup, QUESTION_BYTES);
        self.sockets[index].1.send(&packet)?;
        Ok(())
    }

    /// Waits for an answer to whichever time it was asked; `None` if there is none until then.
    fn answer(&self, until: Instant) -> io::Result<Option<Answer>> {
        let mut failed = None;
        loop {
            for (directory, socket) in &self.sockets {
                match self.read(*directory, socket) {
                    Ok(Some(answer)) => return Ok(Some((*directory, answer))),
                    Ok(None) => {}
                    // Another interface may still answer.
                    Err(cause) => failed = Some(cause),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return failed.map_or(Ok(None), Err);
            }
            let timeout = Timespec::try_from(left).ok();
            let sockets = self.sockets.iter();
            let mut watched: Vec<PollFd<'_>> = sockets
                .map(|(_, socket)| PollFd::new(socket, PollFlags::IN))
                .collect();
            match poll(&mut watched, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read(
        &self,
        directory: SocketAddr,
        socket: &UdpSocket,
    ) -> io::Result<Option<Result<Found, KeyMismatch>>> {
        let mut buffer = [0; QUESTION_BYTES + 1];
        loop {
            let length = match socket.recv(&mut buffer) {
                Ok(length) => length,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(cause) => return Err(cause),
            };
            let packet = &buffer[..length];
            if let Some(mismatch) = self.authenticator.refused(packet, self.nonce) {
                return Ok(Some(Err(mismatch)));
            }
            match self.found(packet) {
                Some(found) => return Ok(Some(Ok(found))),
                None => tracing::debug!(%directory, "not an answer to our question"),
            }
        }
    }

    fn found(&self, packet: &[u8]) -> Option<Found> {
        let opened = self.authenticator.open(packet).ok()?;
        if opened.header.nonce != self.nonce {
            return None;
        }
        let (from, is_asked) = (opened.header.from, opened.header.from == self.address.node);
        match opened.read().ok()? {
            messages::Answer::Found(ports) if is_asked => Some(Found::At(ports)),
            messages::Answer::NoSuchEndpoint if is_asked => Some(Found::Nowhere),
            messages::Answer::WrongNode if !is_asked => Some(Found::WrongNode(from)),
            _ => None,
        }
    }
}

/// A process is reached by the interface by which its node answered, one bound to "any address"
/// as well; its ports are the same on all.
fn reachable(mut ports: Ports, first: IpAddr, answered: IpAddr) -> Ports {
    for socket in [&mut ports.small, &mut ports.bulk] {
        if socket.ip().is_unspecified() || socket.ip() == first {
            socket.set_ip(answered);
        }
    }
    ports
}

/// Deadline, pauses and warnings of one look-up.
struct Wait {
    started: Instant,
    timeout: Duration,
    pause: Duration,
    next_warning: Duration,
}

impl Wait {
    fn new(timeout: Duration) -> Wait {
        Wait {
            started: Instant::now(),
            timeout,
            pause: FIRST_PAUSE,
            next_warning: FIRST_WARNING,
        }
    }

    fn so_far(&self) -> Duration {
        self.started.elapsed()
    }

    fn is_over(&self) -> bool {
        self.so_far() >= self.timeout
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (self.pause * 2).min(LAST_PAUSE);
        // At least something, so that even a timeout of zero lets an answer arrive.
        pause.min(self.timeout.saturating_sub(self.so_far()).max(FIRST_PAUSE))
    }

    fn warn(&mut self, log: impl FnOnce(u64)) {
        let so_far = self.so_far();
        if so_far >= self.next_warning {
            log(so_far.as_secs());
            self.next_warning = so_far + WARNING_INTERVAL;
        }
    }
}
