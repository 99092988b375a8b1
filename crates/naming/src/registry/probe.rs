//! Probes of a node's directory with packets of a given length, for `dipole doctor`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dipole_link::busy_poll::{BusyPolling, receive_queue};
use rustix::net::sockopt;

use super::messages::{Presence, ProbeLength, QUERY_BYTES, Query, Response};
use super::random_number;
use crate::address::{EndpointId, NodeId};
use crate::envelope::{Authenticator, Header};
use crate::key::{ClusterKey, KeyMismatch};
use crate::net::any_like;

/// Result of a query.
#[derive(Debug)]
pub enum ProbeResult<T> {
    /// The reply and the round trip time.
    Answered(T, Duration),
    /// The node is not a member of our cluster.
    Stranger(KeyMismatch),
    /// No reply within the timeout.
    Silent,
    /// The host reports that no process has bound the port.
    Refused,
    /// The kernel knows that packets of that length do not fit the path.
    TooLong,
    /// The packet could not be sent.
    Failed(io::Error),
}

/// Any port at an address of this machine, with the scope that a link-local one needs to reach `to`.
#[must_use]
pub fn source_towards(source: IpAddr, to: SocketAddr) -> SocketAddr {
    let mut at = to;
    at.set_ip(source);
    at.set_port(0);
    at
}

/// A socket for queries of one node's directory. Its packets are never fragmented.
#[derive(Debug)]
pub struct Prober {
    socket: UdpSocket,
    node: NodeId,
    authenticator: Authenticator,
}

impl Prober {
    /// Opens the socket, bound to `from` or to the address that the route selects. With a `key`
    /// queries and replies are authenticated.
    ///
    /// # Errors
    /// There is no route, or `from` is not an address of this machine.
    pub fn open(
        from: Option<IpAddr>,
        directory: SocketAddr,
        node: NodeId,
        key: Option<&ClusterKey>,
    ) -> io::Result<Prober> {
        let source = from.unwrap_or(any_like(directory));
        let socket = UdpSocket::bind(source_towards(source, directory))?;
        forbid_fragments(&socket)?;
        socket.connect(directory)?;
        Ok(Prober {
            socket,
            node,
            authenticator: Authenticator::new(key),
        })
    }

    /// The source address of packets.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn source(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// The path MTU in bytes, as far as the kernel knows.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn path_mtu_bytes(&self) -> io::Result<usize> {
        let mtu = match self.socket.local_addr()? {
            SocketAddr::V4(_) => sockopt::ip_mtu(&self.socket)?,
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&self.socket)?,
        };
        usize::try_from(mtu).map_err(io::Error::other)
    }

    /// Number of the receive queue of the last reply, if a process can poll it.
    #[must_use]
    pub fn receive_queue(&self) -> Option<u32> {
        receive_queue(self.socket.as_fd())
    }

    /// From now on waits for replies without sleeping, and busy-polls the receive queue if `polls`.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn spin(&self, polls: bool) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        if !polls {
            BusyPolling::stop(self.socket.as_fd());
        } else if let BusyPolling::Refused(cause) = BusyPolling::start(self.socket.as_fd()) {
            return Err(cause);
        }
        Ok(())
    }

    /// Looks up an endpoint of the node, once.
    #[must_use]
    pub fn look_up(&self, endpoint: EndpointId, timeout: Duration) -> ProbeResult<Response> {
        self.query(
            &Query::Lookup(endpoint),
            QUERY_BYTES,
            timeout,
            |_, response, _| Some(response),
        )
    }

    /// Sends one probe of this length.
    #[must_use]
    pub fn probe(&self, length: ProbeLength, timeout: Duration) -> ProbeResult<Presence> {
        let read = |from, response, length_bytes| match response {
            Response::Present(presence) if from == self.node && length_bytes == length.bytes() => {
                Some(presence)
            }
            _ => None,
        };
        self.query(&Query::Probe, length.bytes(), timeout, read)
    }

    fn query<T>(
        &self,
        query: &Query,
        length_bytes: usize,
        timeout: Duration,
        read: impl Fn(NodeId, Response, usize) -> Option<T>,
    ) -> ProbeResult<T> {
        let sent = random_number().and_then(|nonce| {
            let header = Header {
                from: NodeId(0),
                to: self.node,
                nonce,
            };
            let packet = self
                .authenticator
                .seal_to_length(header, query, length_bytes);
            let started = Instant::now();
            self.socket.send(&packet)?;
            Ok((nonce, started))
        });
        let answered = sent.and_then(|(nonce, started)| {
            let mut buffer = vec![0; ProbeLength::LONGEST.bytes() + 1];
            loop {
                let left = timeout.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return Ok(ProbeResult::Silent);
                }
                self.socket
                    .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
                match self.socket.recv(&mut buffer) {
                    Ok(length) => {
                        let packet = &buffer[..length];
                        if let Some(mismatch) = self.authenticator.refused(packet, nonce) {
                            return Ok(ProbeResult::Stranger(mismatch));
                        }
                        let opened = self.authenticator.open(packet).ok();
                        let opened = opened.filter(|opened| opened.header.nonce == nonce);
                        let answer = opened.and_then(|opened| {
                            read(opened.header.from, opened.read().ok()?, length)
                        });
                        if let Some(answer) = answer {
                            return Ok(ProbeResult::Answered(answer, started.elapsed()));
                        }
                    }
                    Err(cause) if is_timeout(&cause) => {}
                    Err(cause) => return Err(cause),
                }
            }
        });
        answered.unwrap_or_else(|cause| match cause.raw_os_error() {
            Some(code) if code == rustix::io::Errno::MSGSIZE.raw_os_error() => ProbeResult::TooLong,
            _ if cause.kind() == io::ErrorKind::ConnectionRefused => ProbeResult::Refused,
            _ => ProbeResult::Failed(cause),
        })
    }
}

fn is_timeout(cause: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(cause.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Forbids fragmentation, so that a probe arrives as one packet or not at all.
pub(super) fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    match socket.local_addr()? {
        SocketAddr::V4(_) => {
            sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
        }
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
        }
    }
    Ok(())
}
