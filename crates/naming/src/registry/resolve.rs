//! Look-up of the ports of an endpoint, on this node or another.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::{self, QUERY_BYTES};
use super::{Ports, Registry, RegistryError, random_number};
use crate::address::{Address, NodeId};
use crate::envelope::{Authenticator, Header};
use crate::hosts::{Host, Hosts};
use crate::key::KeyMismatch;
use crate::net::any_like;

/// First pause between two attempts; doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// When a look-up first logs that it is still waiting, and how often after that.
const FIRST_WARNING: Duration = Duration::from_secs(1);
const WARNING_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait for a reply from one of a node's interfaces.
const INTERFACE_TIMEOUT: Duration = Duration::from_millis(100);

/// Source of the list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// Neither hosts file nor agent.
    Nothing,
    /// Nodes come from a hosts file.
    File,
    /// Nodes come from this node's agent.
    Agent {
        /// How long the look-up waited for the node.
        waited: Duration,
    },
}

/// Why an endpoint could not be found.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Neither the hosts file nor this node's agent knows the node.
    #[error("{}", unknown(.address.node, *.hosts))]
    UnknownNode {
        /// Endpoint that was looked up.
        address: Address,
        /// Source of the list of nodes.
        hosts: KnownBy,
    },
    /// The node replied, but no process opened the endpoint in time.
    #[error(
        "no process opened it within {:.1} s; is the program that opens it running, by the \
         same user and with the same runtime directory?",
        .waited.as_secs_f64()
    )]
    NoSuchEndpoint {
        /// Endpoint that was looked up.
        address: Address,
        /// How long the look-up waited.
        waited: Duration,
    },
    /// No reply from the node's directory port.
    #[error(
        "no reply from {directory} within {:.1} s{}; is a program with the hosts file \
         running there, and does UDP get through?",
        .waited.as_secs_f64(), in_brackets(.cause.as_ref())
    )]
    NoAnswer {
        /// Endpoint that was looked up.
        address: Address,
        /// The address that was queried.
        directory: SocketAddr,
        /// How long the look-up waited.
        waited: Duration,
        /// The last error of the network, if any.
        #[source]
        cause: Option<io::Error>,
    },
    /// A different node uses the address in the hosts file.
    #[error(
        "node {answered} replied from {directory}, not node {}; correct the hosts file or \
         DIPOLE_NID there",
        .address.node
    )]
    WrongNode {
        /// Endpoint that was looked up.
        address: Address,
        /// The address that was queried.
        directory: SocketAddr,
        /// The node that replied.
        answered: NodeId,
    },
    /// The node is not a member of our cluster.
    #[error(
        "node {} at {directory} refuses the look-up: {}",
        .address.node, .mismatch.explain(.fingerprint.as_deref())
    )]
    OtherCluster {
        /// Endpoint that was looked up.
        address: Address,
        /// The address that was queried.
        directory: SocketAddr,
        /// How the keys differ.
        mismatch: KeyMismatch,
        /// Fingerprint of our key, if we have one.
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
            "this node's agent did not find node {node} within {:.1} s; does an agent run \
             there, and here (`dipole agent status`)?",
            waited.as_secs_f64()
        ),
        KnownBy::File => format!("the hosts file has no node {node}; add a line `{node} ADDRESS`"),
    }
}

fn in_brackets(cause: Option<&io::Error>) -> String {
    cause.map_or(String::new(), |cause| format!(" ({cause})"))
}

/// Looks up `address`, waiting up to `timeout` until it is opened.
///
/// For the node of `registry` this reads the registry. The directory of another node is queried
/// over UDP with growing pauses. Logs a warning if it takes long.
///
/// # Errors
/// See [`ResolveError`]. Only [`ResolveError::UnknownNode`], `WrongNode`, `OtherCluster` and
/// `Registry` are returned before the timeout.
pub fn resolve(
    registry: &Registry,
    hosts: &Hosts,
    address: Address,
    timeout: Duration,
) -> Result<Ports, ResolveError> {
    let mut wait = Wait::new(timeout);
    if address.node == registry.node() {
        return resolve_local(registry, address, &mut wait);
    }
    let location = locate_node(registry, hosts, address, &mut wait)?;
    resolve_remote(registry, hosts, location, address, &mut wait)
}

/// Addresses of a node's directory.
#[derive(PartialEq, Eq)]
struct NodeLocation {
    host: Host,
    directories: Vec<SocketAddr>,
}

impl NodeLocation {
    fn of(registry: &Registry, hosts: &Hosts, node: NodeId) -> Option<NodeLocation> {
        let host = hosts.get(node)?;
        Some(NodeLocation {
            host: host.clone(),
            directories: hosts.directories_as_seen_from(registry.node(), host),
        })
    }
}

/// Locates the node of an address. Reads the hosts file again if the node is missing; if an agent
/// writes the file, repeatedly until the node appears or the time is over.
fn locate_node(
    registry: &Registry,
    hosts: &Hosts,
    address: Address,
    wait: &mut Wait,
) -> Result<NodeLocation, ResolveError> {
    let mut found = NodeLocation::of(registry, hosts, address.node);
    loop {
        found = found.or_else(|| NodeLocation::of(registry, &hosts.reload()?, address.node));
        if let Some(location) = found {
            return Ok(location);
        }
        if !hosts.is_from_agent() || wait.is_over() {
            return Err(ResolveError::UnknownNode {
                address,
                hosts: match (hosts.is_local_only(), hosts.is_from_agent()) {
                    (true, _) => KnownBy::Nothing,
                    (_, true) => KnownBy::Agent {
                        waited: wait.elapsed(),
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

fn resolve_local(
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
                waited: wait.elapsed(),
            });
        }
        wait.warn(|seconds| {
            tracing::warn!(%address, seconds, "waiting for the endpoint to be opened on this node");
        });
        std::thread::sleep(wait.next_pause());
    }
}

fn resolve_remote(
    registry: &Registry,
    hosts: &Hosts,
    mut location: NodeLocation,
    address: Address,
    wait: &mut Wait,
) -> Result<Ports, ResolveError> {
    let mut lookup =
        PendingLookup::new(registry, address).map_err(|cause| ResolveError::NoAnswer {
            address,
            directory: location.host.directory(),
            waited: wait.elapsed(),
            cause: Some(cause),
        })?;
    let mut last_cause = None;
    let mut has_replied = false;
    let mut attempts = 0;
    loop {
        // Any interface of the node will do.
        let directory = location.directories[attempts % location.directories.len()];
        attempts += 1;
        let attempt_ends = Instant::now() + wait.next_pause();
        let reply = lookup
            .send(directory)
            .and_then(|()| lookup.wait(attempt_ends));
        match reply {
            Ok(Some(reply)) => match ports(registry, &location, address, reply)? {
                Some(ports) => return Ok(ports),
                None => has_replied = true,
            },
            Ok(None) => {}
            Err(cause) => last_cause = Some(cause),
        }
        if wait.is_over() {
            let waited = wait.elapsed();
            return Err(if has_replied {
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
            let state = if has_replied {
                "not opened yet"
            } else {
                "no response yet"
            };
            tracing::warn!(%address, %directory, seconds, state, "waiting for another node's endpoint");
            // The node may have moved to another address.
            moved = hosts.reload();
        });
        if let Some(now) = moved.and_then(|hosts| NodeLocation::of(registry, &hosts, address.node))
            && now != location
        {
            location = now;
            attempts = 0;
            // Replies from the old address no longer matter.
            lookup.sockets.clear();
        }
        // Do not repeat the query immediately after an early negative reply.
        std::thread::sleep(attempt_ends.saturating_duration_since(Instant::now()));
    }
}

/// The ports in a reply; `None` if the endpoint is not open.
fn ports(
    registry: &Registry,
    location: &NodeLocation,
    address: Address,
    (directory, result): Reply,
) -> Result<Option<Ports>, ResolveError> {
    match result {
        Ok(LookupResult::Ports(ports)) => {
            let interface = match location.host.control == Some(directory.ip()) {
                true => interface_that_replies(registry, location, address),
                false => directory.ip(),
            };
            Ok(Some(reachable(ports, location.host.address, interface)))
        }
        Ok(LookupResult::NotOpen) => Ok(None),
        Ok(LookupResult::WrongNode(answered)) => Err(ResolveError::WrongNode {
            address,
            directory,
            answered,
        }),
        Err(mismatch) => Err(ResolveError::OtherCluster {
            address,
            directory,
            mismatch,
            fingerprint: registry.authenticator().fingerprint(),
        }),
    }
}

/// The interface of a node that replies first, after its control network has reported the ports:
/// messages use interfaces only. The first interface if there is no other, or none replies.
fn interface_that_replies(
    registry: &Registry,
    location: &NodeLocation,
    address: Address,
) -> IpAddr {
    let first = location.host.address;
    if location.host.interfaces.is_empty() {
        return first;
    }
    let Ok(mut lookup) = PendingLookup::new(registry, address) else {
        return first;
    };
    let is_interface = |at: &&SocketAddr| location.host.control != Some(at.ip());
    for interface in location.directories.iter().filter(is_interface) {
        if let Err(cause) = lookup.send(*interface) {
            tracing::debug!(%interface, %cause, "cannot query an interface");
        }
    }
    match lookup.wait(Instant::now() + INTERFACE_TIMEOUT) {
        Ok(Some((interface, _))) => interface.ip(),
        _ => first,
    }
}

/// Result of a look-up at a directory.
enum LookupResult {
    Ports(Ports),
    /// No process has it open.
    NotOpen,
    /// The directory belongs to this other node.
    WrongNode(NodeId),
}

/// Reply of a directory and its address; an error if the keys differ.
type Reply = (SocketAddr, Result<LookupResult, KeyMismatch>);

/// A look-up in progress, with a socket for each directory: a reply may take longer than the pause
/// before the query is repeated.
struct PendingLookup<'a> {
    address: Address,
    own: NodeId,
    nonce: u64,
    authenticator: &'a Authenticator,
    sockets: Vec<(SocketAddr, UdpSocket)>,
}

impl PendingLookup<'_> {
    fn new(registry: &Registry, address: Address) -> io::Result<PendingLookup<'_>> {
        Ok(PendingLookup {
            address,
            own: registry.node(),
            nonce: random_number()?,
            authenticator: registry.authenticator(),
            sockets: Vec::new(),
        })
    }

    fn send(&mut self, directory: SocketAddr) -> io::Result<()> {
        let known = self.sockets.iter().position(|(at, _)| *at == directory);
        let index = match known {
            Some(index) => index,
            None => {
                let socket = UdpSocket::bind((any_like(directory), 0))?;
                // Connected, so that only packets of the directory arrive, and "port unreachable"
                // is reported.
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
        let query = messages::Query::Lookup(self.address.endpoint);
        let packet = self
            .authenticator
            .seal_to_length(header, &query, QUERY_BYTES);
        self.sockets[index].1.send(&packet)?;
        Ok(())
    }

    /// Waits for a reply to any of the queries sent so far; `None` if no reply arrives in time.
    fn wait(&self, until: Instant) -> io::Result<Option<Reply>> {
        let mut failed = None;
        loop {
            for (directory, socket) in &self.sockets {
                match self.read(*directory, socket) {
                    Ok(Some(answer)) => return Ok(Some((*directory, answer))),
                    Ok(None) => {}
                    // Another interface may still reply.
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
    ) -> io::Result<Option<Result<LookupResult, KeyMismatch>>> {
        let mut buffer = [0; QUERY_BYTES + 1];
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
            match self.decode(packet) {
                Some(found) => return Ok(Some(Ok(found))),
                None => tracing::debug!(%directory, "not a response to our query"),
            }
        }
    }

    fn decode(&self, packet: &[u8]) -> Option<LookupResult> {
        let opened = self.authenticator.open(packet).ok()?;
        if opened.header.nonce != self.nonce {
            return None;
        }
        let (from, is_expected) = (opened.header.from, opened.header.from == self.address.node);
        match opened.read().ok()? {
            messages::Response::Found(ports) if is_expected => Some(LookupResult::Ports(ports)),
            messages::Response::NoSuchEndpoint if is_expected => Some(LookupResult::NotOpen),
            messages::Response::WrongNode if !is_expected => Some(LookupResult::WrongNode(from)),
            _ => None,
        }
    }
}

/// Replaces the node's first address, or the unspecified one, with the interface that replied. The
/// ports are the same on all interfaces.
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

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn is_over(&self) -> bool {
        self.elapsed() >= self.timeout
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (self.pause * 2).min(LAST_PAUSE);
        // Wait at least the first pause, so that a reply can arrive even with a timeout of zero.
        pause.min(self.timeout.saturating_sub(self.elapsed()).max(FIRST_PAUSE))
    }

    fn warn(&mut self, log: impl FnOnce(u64)) {
        let so_far = self.elapsed();
        if so_far >= self.next_warning {
            log(so_far.as_secs());
            self.next_warning = so_far + WARNING_INTERVAL;
        }
    }
}
