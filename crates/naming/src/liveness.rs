//! Queries the node of a silent peer whether its process still runs: a process that computes for
//! minutes, or is stopped in a debugger, is not dead.
//!
//! The registry answers for this node. The directory of another node is queried over UDP until it
//! replies. No call blocks. Times are nanoseconds of the caller's clock.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use crate::address::NodeId;
use crate::envelope::Header;
use crate::hosts::Hosts;
use crate::net::any_like;
pub use crate::registry::Liveness;
use crate::registry::{self, QUERY_BYTES, Registry, Response};

/// First pause between two attempts; doubled after each.
const FIRST_PAUSE_NS: u64 = 20_000_000;
/// How often sockets are checked for replies.
const CHECK_NS: u64 = 5_000_000;
/// Packets received in one check.
const MAX_RESPONSES: u32 = 64;
/// A query without a reply is dropped after this time: the protocol repeats it, or has given up
/// the peer.
const GIVE_UP_NS: u64 = 5_000_000_000;

#[derive(Debug)]
struct PendingQuery<P> {
    peer: P,
    node: NodeId,
    incarnation: u64,
    nonce: u64,
    /// Directories on each of the node's interfaces, tried in turn.
    directories: Vec<SocketAddr>,
    attempts: usize,
    begun_ns: u64,
    next_ns: u64,
    pause_ns: u64,
}

/// Queries silent processes, which the caller identifies by a `P` of its own.
#[derive(Debug)]
pub struct LivenessProber<P> {
    registry: Registry,
    hosts: Hosts,
    /// One per address family, created for the first query.
    sockets: [Option<UdpSocket>; 2],
    queries: Vec<PendingQuery<P>>,
    checked_ns: u64,
}

impl<P: Copy + PartialEq> LivenessProber<P> {
    /// Uses this registry and the directories of these hosts.
    #[must_use]
    pub fn new(registry: Registry, hosts: Hosts) -> LivenessProber<P> {
        LivenessProber {
            registry,
            hosts,
            sockets: [None, None],
            queries: Vec::new(),
            checked_ns: 0,
        }
    }

    /// True if a query is pending.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.queries.is_empty()
    }

    /// When [`poll`](Self::poll) must be called.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.is_busy()
            .then(|| self.checked_ns.saturating_add(CHECK_NS))
    }

    /// Starts a query for a silent peer; returns the result if it is known at once.
    pub fn suspect(
        &mut self,
        peer: P,
        node: NodeId,
        incarnation: u64,
        now_ns: u64,
    ) -> Option<Liveness> {
        if node == self.registry.node() {
            return match self.registry.liveness(incarnation) {
                Ok(liveness) => Some(liveness),
                Err(error) => {
                    tracing::warn!(%error, "cannot find out whether a silent process still runs");
                    None
                }
            };
        }
        // The node may have been added, or have moved, after this process started.
        if let Some(hosts) = self.hosts.reload() {
            self.hosts = hosts;
        }
        let host = self.hosts.get(node)?;
        self.queries.retain(|query| query.peer != peer);
        self.queries.push(PendingQuery {
            peer,
            node,
            incarnation,
            nonce: rand::random(),
            directories: self
                .hosts
                .directories_as_seen_from(self.registry.node(), host),
            attempts: 0,
            begun_ns: now_ns,
            next_ns: now_ns,
            pause_ns: FIRST_PAUSE_NS,
        });
        // Makes the next poll check at once.
        self.checked_ns = 0;
        None
    }

    /// Sends due queries and receives replies without blocking; `report` gets each result.
    pub fn poll(&mut self, now_ns: u64, mut report: impl FnMut(P, Liveness)) {
        if self.queries.is_empty() || now_ns < self.checked_ns.saturating_add(CHECK_NS) {
            return;
        }
        self.checked_ns = now_ns;
        self.receive(&mut report);
        self.queries
            .retain(|query| now_ns.saturating_sub(query.begun_ns) < GIVE_UP_NS);
        for query in &mut self.queries {
            if now_ns < query.next_ns {
                continue;
            }
            query.next_ns = now_ns.saturating_add(query.pause_ns);
            query.pause_ns *= 2;
            let header = Header {
                from: self.registry.node(),
                to: query.node,
                nonce: query.nonce,
            };
            let body = registry::Query::Liveness(query.incarnation);
            let authenticator = self.registry.authenticator();
            let packet = authenticator.seal_to_length(header, &body, QUERY_BYTES);
            let directory = query.directories[query.attempts % query.directories.len()];
            query.attempts += 1;
            let socket = &mut self.sockets[usize::from(directory.is_ipv6())];
            let sent =
                bound(socket, directory).and_then(|socket| socket.send_to(&packet, directory));
            if let Err(cause) = sent {
                tracing::debug!(node = %query.node, %cause, "cannot query a silent process");
            }
        }
    }

    fn receive(&mut self, report: &mut impl FnMut(P, Liveness)) {
        let authenticator = self.registry.authenticator();
        let mut buffer = [0; QUERY_BYTES + 1];
        for socket in self.sockets.iter().flatten() {
            for _ in 0..MAX_RESPONSES {
                let (length, from) = match socket.recv_from(&mut buffer) {
                    Ok(received) => received,
                    Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                    // An ICMP error for a query.
                    Err(_) => continue,
                };
                let packet = &buffer[..length];
                let refused = self.queries.iter().position(|query| {
                    query.directories.contains(&from)
                        && authenticator.refused(packet, query.nonce).is_some()
                });
                if let Some(position) = refused {
                    let query = self.queries.swap_remove(position);
                    tracing::warn!(
                        directory = %from,
                        "node {} does not report whether a silent process still runs: it has \
                         another cluster key",
                        query.node
                    );
                    continue;
                }
                let Ok(opened) = authenticator.open(packet) else {
                    continue;
                };
                // The nonce is random: only a node that received the query can reply.
                let position = self.queries.iter().position(|query| {
                    query.nonce == opened.header.nonce && query.directories.contains(&from)
                });
                let (Some(position), Ok(response)) = (position, opened.read()) else {
                    continue;
                };
                let is_expected = opened.header.from == self.queries[position].node;
                let liveness = match response {
                    Response::Alive if is_expected => Some(Liveness::Runs),
                    Response::Stopped if is_expected => Some(Liveness::Stopped),
                    Response::Ended if is_expected => Some(Liveness::Ended),
                    Response::WrongNode if !is_expected => None,
                    _ => continue,
                };
                let query = self.queries.swap_remove(position);
                match liveness {
                    Some(liveness) => report(query.peer, liveness),
                    None => tracing::warn!(
                        directory = %from,
                        "node {} replies at the address that the hosts file has for node {}; correct one of them",
                        opened.header.from,
                        query.node
                    ),
                }
            }
        }
    }
}

fn bound(socket: &mut Option<UdpSocket>, directory: SocketAddr) -> io::Result<&UdpSocket> {
    if socket.is_none() {
        let made = UdpSocket::bind((any_like(directory), 0))?;
        made.set_nonblocking(true)?;
        *socket = Some(made);
    }
    socket.as_ref().ok_or(io::ErrorKind::NotConnected.into())
}
