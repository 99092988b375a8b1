//! Looks up endpoints on this node and on others, many at once and without blocking.
//!
//! All look-ups share one socket per address family. A node is queried for one of its endpoints
//! until its directory replies, and then for all of them, so a thousand endpoints of a node that is
//! down cost one query at a time and do not delay look-ups of other nodes.
//!
//! The hosts file is read again while a node is missing from it, does not reply, or another node
//! replies at its address: the node may have moved.

mod reloader;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::{self, QUERY_BYTES};
use super::resolve::{KnownBy, ResolveError};
use super::{Ports, Registry, folder, random_number};
use crate::address::{Address, EndpointId, NodeId};
use crate::envelope::Header;
use crate::hosts::{Host, Hosts};
use crate::key::KeyMismatch;
use crate::net::any_like;
use reloader::Reloader;

/// First pause between two attempts; doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// When a wait for a node is first logged, and how often after that.
const FIRST_WARNING: Duration = Duration::from_secs(1);
const WARNING_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait for a reply from one of a node's interfaces.
const INTERFACE_TIMEOUT: Duration = Duration::from_millis(100);
/// A node that has not replied for this long gets one query at a time.
const SILENCE: Duration = Duration::from_millis(500);
/// Queries to one node that may be unanswered at a time.
const MAX_UNANSWERED: usize = 64;
/// How long another node, or one of another cluster, may reply at an address of the hosts file
/// before the look-up fails: the file may be about to change. At an address of the agents' list they
/// may do so until the look-up ends.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// Addresses of a node's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    fn has(&self, from: SocketAddr) -> bool {
        let is_it = |at: &SocketAddr| (at.ip(), at.port()) == (from.ip(), from.port());
        self.directories.iter().any(is_it)
    }
}

/// An endpoint that is being looked up.
#[derive(Debug)]
struct Target {
    started: Instant,
    deadline: Instant,
    due: Instant,
    pause: Duration,
    /// Nonce of its queries.
    nonce: u64,
    /// A query was sent and not answered yet.
    unanswered: bool,
    /// The node has replied that the endpoint is not open.
    not_open: bool,
    /// Ports that the control network has reported. Interfaces are queried until this time; the
    /// first that replies is used.
    found: Option<(Ports, Instant)>,
}

impl Target {
    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(LAST_PAUSE);
        pause
    }
}

/// The reply of a host that is not the node.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Node(NodeId),
    Cluster(KeyMismatch),
}

/// A node whose endpoints are being looked up.
#[derive(Debug)]
struct NodeSearch {
    location: Option<NodeLocation>,
    targets: BTreeMap<EndpointId, Target>,
    started: Instant,
    next_warning: Duration,
    attempts: usize,
    /// When the next query is due while the node does not reply.
    due: Instant,
    pause: Duration,
    /// When the node last replied; `None` while it does not.
    replied: Option<Instant>,
    /// Since when another node has replied at which directory.
    refused: Option<(Instant, SocketAddr, Refusal)>,
    last_error: Option<(io::ErrorKind, Option<i32>, String)>,
    /// Number of readings of the hosts file after which the node is unknown if it is missing.
    needs_readings: u64,
}

impl NodeSearch {
    /// Begins again with another location.
    fn relocate(&mut self, location: NodeLocation, now: Instant) {
        self.location = Some(location);
        (self.attempts, self.due, self.pause) = (0, now, FIRST_PAUSE);
        (self.replied, self.refused, self.last_error) = (None, None, None);
    }

    /// The next of the node's directories. Any interface will do.
    fn next_directory(&mut self) -> Option<SocketAddr> {
        let directories = &self.location.as_ref()?.directories;
        let at = directories.get(self.attempts % directories.len().max(1));
        self.attempts += 1;
        at.copied()
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.replied.is_none() && now.saturating_duration_since(self.started) >= SILENCE
    }
}

/// Result of the look-up of an endpoint.
pub type Found = (Address, Result<Ports, ResolveError>);

/// Look-ups in progress. The owner calls [`step`](Self::step) whenever [`wait`](Self::wait) returns.
#[derive(Debug)]
pub struct Search {
    registry: Registry,
    reloader: Reloader,
    nodes: BTreeMap<NodeId, NodeSearch>,
    /// One per address family, opened for the first query.
    sockets: [Option<UdpSocket>; 2],
    results: Vec<Found>,
}

impl Search {
    /// Looks up endpoints in this registry, and in the directories of these nodes.
    #[must_use]
    pub fn new(registry: Registry, hosts: Hosts) -> Search {
        Search {
            registry,
            reloader: Reloader::new(hosts),
            nodes: BTreeMap::new(),
            sockets: [None, None],
            results: Vec::new(),
        }
    }

    /// True if there is nothing to look up.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.nodes.is_empty() && self.results.is_empty()
    }

    /// The nodes as last read.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.reloader.hosts
    }

    /// Begins to look up an endpoint. Its result arrives until `deadline`; if it is being looked
    /// up already, until the earlier deadline.
    pub fn add(&mut self, address: Address, deadline: Instant) {
        let now = Instant::now();
        let (registry, reloader) = (&self.registry, &self.reloader);
        let node = (self.nodes.entry(address.node)).or_insert_with(|| NodeSearch {
            location: NodeLocation::of(registry, &reloader.hosts, address.node),
            targets: BTreeMap::new(),
            started: now,
            next_warning: FIRST_WARNING,
            attempts: 0,
            due: now,
            pause: FIRST_PAUSE,
            replied: None,
            refused: None,
            last_error: None,
            needs_readings: reloader.needed(),
        });
        let known = node.targets.get_mut(&address.endpoint);
        if let Some(target) = known {
            target.deadline = target.deadline.min(deadline);
            return;
        }
        let nonce = match random_number() {
            Ok(nonce) => nonce,
            Err(_) => rand::random(),
        };
        let target = Target {
            started: now,
            deadline,
            due: now,
            pause: FIRST_PAUSE,
            nonce,
            unanswered: false,
            not_open: false,
            found: None,
        };
        node.targets.insert(address.endpoint, target);
    }

    /// Receives replies, sends queries that are due, and returns the results.
    pub fn step(&mut self) -> Vec<Found> {
        self.receive();
        let now = Instant::now();
        if self.reloader.poll() {
            self.relocate(now);
        }
        let own = self.registry.node();
        let mut wants_reload = false;
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in nodes {
            match node == own {
                true => self.read_registry(now),
                false => wants_reload |= self.query_node(node, now),
            }
        }
        if wants_reload {
            self.reloader.begin(now);
        }
        self.nodes.retain(|_, node| !node.targets.is_empty());
        std::mem::take(&mut self.results)
    }

    /// Applies a new reading of the hosts file.
    fn relocate(&mut self, now: Instant) {
        for (id, node) in &mut self.nodes {
            let location = NodeLocation::of(&self.registry, &self.reloader.hosts, *id);
            if let Some(location) = location
                && node.location.as_ref() != Some(&location)
            {
                node.relocate(location, now);
            }
        }
    }

    /// Looks up the endpoints of this node that are due.
    fn read_registry(&mut self, now: Instant) {
        let own = self.registry.node();
        let Some(node) = self.nodes.get_mut(&own) else {
            return;
        };
        let (registry, results) = (&self.registry, &mut self.results);
        node.targets.retain(|endpoint, target| {
            let is_over = now >= target.deadline;
            if target.due > now && !is_over {
                return true;
            }
            target.due = now + target.next_pause();
            let address = Address {
                node: own,
                endpoint: *endpoint,
            };
            let found = match registry.lookup(*endpoint) {
                Ok(Some(owner)) => Ok(owner.ports),
                Err(error) if is_over || !error.is_shortage() => Err(error.into()),
                Ok(None) if is_over => Err(ResolveError::NoSuchEndpoint {
                    address,
                    waited: now.saturating_duration_since(target.started),
                }),
                Ok(None) | Err(_) => return true,
            };
            results.push((address, found));
            false
        });
        warn_about(own, node, now);
    }

    /// Sends the queries to a node that are due; true if the hosts file should be read again.
    fn query_node(&mut self, id: NodeId, now: Instant) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        // The agents correct their list themselves; a user must correct a hosts file.
        let refusal_time = match &self.reloader.hosts {
            hosts if hosts.is_from_agent() => Duration::MAX,
            hosts if hosts.is_followed() => REFUSAL_TIME,
            _ => Duration::ZERO,
        };
        let is_refused = (node.refused)
            .is_some_and(|(since, ..)| now.saturating_duration_since(since) >= refusal_time);
        let is_unknown = node.location.is_none()
            && self.reloader.readings >= node.needs_readings
            && !self.reloader.hosts.is_from_agent();
        let (hosts, registry, results) = (&self.reloader.hosts, &self.registry, &mut self.results);
        let known = |waited| match (hosts.is_local_only(), hosts.is_from_agent()) {
            (true, _) => KnownBy::Nothing,
            (_, true) => KnownBy::Agent { waited },
            _ => KnownBy::File,
        };
        let mut targets = std::mem::take(&mut node.targets);
        targets.retain(|endpoint, target| {
            let address = Address {
                node: id,
                endpoint: *endpoint,
            };
            if let Some((ports, until)) = target.found {
                if now >= until
                    && let Some(location) = &node.location
                {
                    let first = location.host.address;
                    results.push((address, Ok(reachable(ports, first, first))));
                    return false;
                }
                return true;
            }
            if now < target.deadline && !is_refused && !is_unknown {
                return true;
            }
            let waited = now.saturating_duration_since(target.started);
            let error = failure(address, node, target, known(waited), registry, waited);
            results.push((address, Err(error)));
            false
        });
        node.targets = targets;
        if node.targets.is_empty() {
            return false;
        }
        warn_about(id, node, now);
        self.send_due(id, now);
        let Some(node) = self.nodes.get(&id) else {
            return false;
        };
        let is_missing = node.location.is_none();
        let is_first = is_missing && self.reloader.readings < node.needs_readings;
        let looks_moved = is_missing || node.refused.is_some() || node.is_silent(now);
        is_first || (looks_moved && self.reloader.is_due(now))
    }

    /// Queries a node for one endpoint while it does not reply, otherwise for all that are due.
    fn send_due(&mut self, id: NodeId, now: Instant) {
        let Search {
            registry,
            nodes,
            sockets,
            ..
        } = self;
        let Some(node) = nodes.get_mut(&id).filter(|node| node.location.is_some()) else {
            return;
        };
        let unanswered = node.targets.values().filter(|target| target.unanswered);
        let unanswered = unanswered.count();
        if unanswered > 0
            && (node.replied).is_some_and(|at| now.saturating_duration_since(at) >= SILENCE)
        {
            (node.replied, node.started) = (None, now);
            (node.due, node.pause) = (now, FIRST_PAUSE);
        }
        let mut room = match node.replied {
            Some(_) => MAX_UNANSWERED.saturating_sub(unanswered),
            None if node.due <= now => {
                node.due = now + node.pause;
                node.pause = (node.pause * 2).min(LAST_PAUSE);
                1
            }
            None => 0,
        };
        let mut due: Vec<EndpointId> = Vec::new();
        for (endpoint, target) in &mut node.targets {
            let is_due = target.due <= now || node.replied.is_none();
            // A repeated query takes no more room.
            let needs_room = node.replied.is_none() || !target.unanswered;
            if target.found.is_some() || !is_due || (needs_room && room == 0) {
                continue;
            }
            room -= usize::from(needs_room);
            target.due = now + target.next_pause();
            due.push(*endpoint);
        }
        for endpoint in due {
            let Some(directory) = node.next_directory() else {
                return;
            };
            let Some(target) = node.targets.get_mut(&endpoint) else {
                return;
            };
            let sent = send(registry, sockets, (id, endpoint, target.nonce), directory);
            // Without a reply yet, the next query may be for another endpoint.
            target.unanswered = node.replied.is_some();
            if let Err(cause) = sent {
                let number = cause.raw_os_error();
                node.last_error = Some((cause.kind(), number, cause.to_string()));
            }
        }
    }

    /// Takes all replies.
    fn receive(&mut self) {
        let mut buffer = [0; QUERY_BYTES + 1];
        let mut packets = Vec::new();
        for socket in self.sockets.iter().flatten() {
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                packets.push((buffer[..length].to_vec(), from));
            }
        }
        for (packet, from) in packets {
            if self.accept(&packet, from).is_none() {
                tracing::debug!(directory = %from, "not a response to our query");
            }
        }
    }

    /// Handles a packet; `None` if it is not a reply to a query.
    fn accept(&mut self, packet: &[u8], from: SocketAddr) -> Option<()> {
        let now = Instant::now();
        let authenticator = self.registry.authenticator();
        let nonce = authenticator.open(packet).ok().map(|it| it.header.nonce);
        let is_asked = |target: &Target| match nonce {
            Some(nonce) => target.nonce == nonce,
            None => authenticator.refused(packet, target.nonce).is_some(),
        };
        let (id, node, endpoint) = self.nodes.iter_mut().find_map(|(id, node)| {
            let is_there = |location: &NodeLocation| location.has(from);
            if !node.location.as_ref().is_some_and(is_there) {
                return None;
            }
            let asked = node.targets.iter().find(|(_, target)| is_asked(target));
            let endpoint = *asked?.0;
            Some((*id, node, endpoint))
        })?;
        let address = Address { node: id, endpoint };
        let target = node.targets.get_mut(&endpoint)?;
        if let Some(mismatch) = authenticator.refused(packet, target.nonce) {
            refuse(node, (now, from, Refusal::Cluster(mismatch)));
            return Some(());
        }
        let opened = authenticator.open(packet).ok()?;
        let answered = opened.header.from;
        match (opened.read().ok()?, answered == id) {
            (messages::Response::WrongNode, false) => {
                refuse(node, (now, from, Refusal::Node(answered)));
                return Some(());
            }
            (messages::Response::Found(ports), true) => {
                let location = node.location.as_ref()?;
                let found = (ports, location.clone());
                if is_for_control(location, target, from) {
                    self.query_interfaces(address, found, now);
                } else {
                    let (ports, _) = target.found.unwrap_or((ports, now));
                    let ports = reachable(ports, location.host.address, from.ip());
                    node.targets.remove(&endpoint);
                    self.results.push((address, Ok(ports)));
                }
            }
            (messages::Response::NoSuchEndpoint, true) => {
                (target.not_open, target.unanswered) = (true, false);
            }
            _ => return None,
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            if node.replied.is_none() {
                // Query the other endpoints at once.
                let others = node.targets.values_mut().filter(|target| !target.not_open);
                others.for_each(|target| target.due = target.due.min(now));
            }
            (node.replied, node.refused) = (Some(now), None);
        }
        Some(())
    }

    /// Finds out which interface replies first, after the control network has reported the ports:
    /// messages use interfaces only.
    fn query_interfaces(
        &mut self,
        address: Address,
        (ports, location): (Ports, NodeLocation),
        now: Instant,
    ) {
        let node = self.nodes.get_mut(&address.node);
        let Some(target) = node.and_then(|node| node.targets.get_mut(&address.endpoint)) else {
            return;
        };
        let has_others = !location.host.interfaces.is_empty();
        let timeout = if has_others {
            INTERFACE_TIMEOUT
        } else {
            Duration::ZERO
        };
        target.found = Some((ports, now + timeout));
        target.unanswered = false;
        let what = (address.node, address.endpoint, target.nonce);
        let is_interface = |at: &&SocketAddr| location.host.control != Some(at.ip());
        for interface in location.directories.iter().filter(is_interface) {
            if !has_others {
                break;
            }
            if let Err(cause) = send(&self.registry, &mut self.sockets, what, *interface) {
                tracing::debug!(%interface, %cause, "cannot query an interface");
            }
        }
    }

    /// When [`step`](Self::step) must be called even if no reply arrives.
    fn next_due(&self) -> Option<Instant> {
        if !self.results.is_empty() || self.reloader.is_reading() {
            return Some(Instant::now() + FIRST_PAUSE);
        }
        let of_node = |(id, node): (&NodeId, &NodeSearch)| {
            let by_target = *id == self.registry.node() || node.replied.is_some();
            let targets = node.targets.values().map(|target| {
                let until = target.found.map_or(target.deadline, |(_, until)| until);
                if by_target {
                    until.min(target.due)
                } else {
                    until
                }
            });
            let due = match (by_target, &node.location) {
                (true, _) => None,
                (false, Some(_)) => Some(node.due),
                (false, None) => Some(Instant::now() + LAST_PAUSE),
            };
            targets.chain(due).min()
        };
        self.nodes.iter().filter_map(of_node).min()
    }

    /// Waits for replies, for `wake`, until the next query is due, or for `limit`.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub fn wait(&self, wake: Option<BorrowedFd<'_>>, limit: Duration) -> io::Result<()> {
        let left = self.next_due().map_or(limit, |due| {
            due.saturating_duration_since(Instant::now()).min(limit)
        });
        let sockets = self.sockets.iter().flatten();
        let mut watched: Vec<PollFd<'_>> = sockets
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        watched.extend(wake.map(|wake| PollFd::from_borrowed_fd(wake, PollFlags::IN)));
        match poll(&mut watched, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// True if a reply came over the control network, which carries no messages.
fn is_for_control(location: &NodeLocation, target: &Target, from: SocketAddr) -> bool {
    target.found.is_none() && location.host.control == Some(from.ip())
}

/// Records that another node replied; the node itself may have moved.
fn refuse(node: &mut NodeSearch, refusal: (Instant, SocketAddr, Refusal)) {
    let since = node.refused.map_or(refusal.0, |(since, ..)| since);
    node.refused = Some((since, refusal.1, refusal.2));
    node.replied = None;
}

/// Why a look-up has failed.
fn failure(
    address: Address,
    node: &NodeSearch,
    target: &Target,
    hosts: KnownBy,
    registry: &Registry,
    waited: Duration,
) -> ResolveError {
    let Some(location) = &node.location else {
        return ResolveError::UnknownNode { address, hosts };
    };
    match node.refused {
        Some((_, directory, Refusal::Node(answered))) => ResolveError::WrongNode {
            address,
            directory,
            answered,
        },
        Some((_, directory, Refusal::Cluster(mismatch))) => ResolveError::OtherCluster {
            address,
            directory,
            mismatch,
            fingerprint: registry.authenticator().fingerprint(),
        },
        None if target.not_open => ResolveError::NoSuchEndpoint { address, waited },
        None => ResolveError::NoAnswer {
            address,
            directory: location.host.directory(),
            waited,
            cause: node.last_error.as_ref().map(|(kind, number, text)| {
                let of_number = number.map(io::Error::from_raw_os_error);
                of_number.unwrap_or_else(|| io::Error::new(*kind, text.clone()))
            }),
        },
    }
}

/// Logs a wait that lasts long, once for all endpoints of the node.
fn warn_about(id: NodeId, node: &mut NodeSearch, now: Instant) {
    let waited = now.saturating_duration_since(node.started);
    let Some(first) = node.targets.keys().next() else {
        return;
    };
    if waited < node.next_warning {
        return;
    }
    node.next_warning = waited + WARNING_INTERVAL;
    let state = match (&node.location, node.refused, node.replied) {
        (None, ..) => "the node has not joined the cluster".to_owned(),
        (_, Some((_, at, Refusal::Node(other))), _) => format!("node {other} replies at {at}"),
        (_, Some((_, at, Refusal::Cluster(_))), _) => format!("another cluster replies at {at}"),
        (Some(_), _, Some(_)) => "not opened yet".to_owned(),
        (Some(location), ..) => format!("no reply from {}", location.host.directory()),
    };
    tracing::warn!(
        node = %id,
        endpoint = %first,
        endpoints = node.targets.len(),
        seconds = waited.as_secs(),
        state,
        "waiting for a node's endpoints"
    );
}

/// Sends one query.
fn send(
    registry: &Registry,
    sockets: &mut [Option<UdpSocket>; 2],
    (node, endpoint, nonce): (NodeId, EndpointId, u64),
    directory: SocketAddr,
) -> io::Result<()> {
    let slot = &mut sockets[usize::from(directory.is_ipv6())];
    let socket = match slot {
        Some(socket) => socket,
        None => {
            let socket = UdpSocket::bind((any_like(directory), 0))?;
            socket.set_nonblocking(true)?;
            slot.insert(socket)
        }
    };
    let header = Header {
        from: registry.node(),
        to: node,
        nonce,
    };
    let query = messages::Query::Lookup(endpoint);
    let authenticator = registry.authenticator();
    let packet = authenticator.seal_to_length(header, &query, QUERY_BYTES);
    socket.send_to(&packet, directory).map(|_| ())
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

/// Looks up `address`, waiting up to `timeout` until it is opened.
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
    let mut search = Search::new(registry.clone(), hosts.clone());
    let now = Instant::now();
    search.add(address, now.checked_add(timeout).unwrap_or(now));
    loop {
        if let Some((_, found)) = search.step().pop() {
            return found;
        }
        search
            .wait(None, Duration::MAX)
            .map_err(folder::failed("waiting for look-ups of", registry.path()))?;
    }
}
