//! Probes a node's directory with packets of a given length, for `dipole doctor`.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dipole_link::busy_poll::{BusyPolling, receive_queue};
use rustix::net::sockopt;

use super::messages::{Answer, Presence, ProbeLength, QUESTION_BYTES, Question};
use super::random_number;
use crate::address::{EndpointId, NodeId};
use crate::envelope::{Authenticator, Header};
use crate::key::{ClusterKey, KeyMismatch};
use crate::net::any_like;

/// What became of a question.
#[derive(Debug)]
pub enum Reply<T> {
    /// An answer, and how long it took.
    Answered(T, Duration),
    /// The node that answers is not of our cluster.
    Stranger(KeyMismatch),
    /// Nothing came in time.
    Silent,
    /// The host reports that no process has the port.
    Refused,
    /// This kernel knows that the path does not take packets of that length.
    TooLong,
    /// The packet could not be sent.
    Failed(io::Error),
}

/// A socket towards one node's directory. Its packets are never fragmented.
#[derive(Debug)]
pub struct Prober {
    socket: UdpSocket,
    node: NodeId,
    authenticator: Authenticator,
}

impl Prober {
    /// Makes the socket, bound to `from` or, without it, to the address the route gives. With a `key`
    /// questions prove that they are of its cluster, and answers must.
    ///
    /// # Errors
    /// There is no route, or `from` is no address of this machine.
    pub fn open(
        from: Option<IpAddr>,
        directory: SocketAddr,
        node: NodeId,
        key: Option<&ClusterKey>,
    ) -> io::Result<Prober> {
        let socket = UdpSocket::bind((from.unwrap_or(any_like(directory)), 0))?;
        forbid_fragments(&socket)?;
        socket.connect(directory)?;
        Ok(Prober {
            socket,
            node,
            authenticator: Authenticator::new(key),
        })
    }

    /// The address that packets leave from.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn source(&self) -> io::Result<IpAddr> {
        Ok(self.socket.local_addr()?.ip())
    }

    /// The MTU of the path in bytes, as far as this kernel knows.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn path_mtu_bytes(&self) -> io::Result<usize> {
        let mtu = match self.socket.local_addr()? {
            SocketAddr::V4(_) => sockopt::ip_mtu(&self.socket)?,
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&self.socket)?,
        };
        usize::try_from(mtu).map_err(io::Error::other)
    }

    /// The number of the receive queue by which the last answer came, if a process can poll it.
    #[must_use]
    pub fn receive_queue(&self) -> Option<u32> {
        receive_queue(self.socket.as_fd())
    }

    /// From now on waits for answers without sleeping; with `polls` each look polls the receive
    /// queue.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn spin(&self, polls: bool) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        if !polls {
            BusyPolling::stop(self.socket.as_fd());
        } else if let BusyPolling::Refused(cause) = BusyPolling::start(self.socket.as_fd()) {
            return Err(cause);
        }
        Ok(())
    }

    /// Asks where an endpoint of the node is, once.
    #[must_use]
    pub fn look_up(&self, endpoint: EndpointId, timeout: Duration) -> Reply<Answer> {
        self.ask(
            &Question::Lookup(endpoint),
            QUESTION_BYTES,
            timeout,
            |_, answer, _| Some(answer),
        )
    }

    /// Asks who answers, once, by a packet of this length.
    #[must_use]
    pub fn probe(&self, length: ProbeLength, timeout: Duration) -> Reply<Presence> {
        let read = |from, answer, length_bytes| match answer {
            Answer::Present(presence) if from == self.node && length_bytes == length.bytes() => {
                Some(presence)
            }
            _ => None,
        };
        self.ask(&Question::Probe, length.bytes(), timeout, read)
    }

    fn ask<T>(
        &self,
        question: &Question,
        length_bytes: usize,
        timeout: Duration,
        read: impl Fn(NodeId, Answer, usize) -> Option<T>,
    ) -> Reply<T> {
        let asked = random_number().and_then(|nonce| {
            let header = Header {
                from: NodeId(0),
                to: self.node,
                nonce,
            };
            let packet = self
                .authenticator
                .seal_to_length(header, question, length_bytes);
            let started = Instant::now();
            self.socket.send(&packet)?;
            Ok((nonce, started))
        });
        let answered = asked.and_then(|(nonce, started)| {
            let mut buffer = vec![0; ProbeLength::LONGEST.bytes() + 1];
            loop {
                let left = timeout.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return Ok(Reply::Silent);
                }
                self.socket
                    .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
                match self.socket.recv(&mut buffer) {
                    Ok(length) => {
                        let packet = &buffer[..length];
                        if let Some(mismatch) = self.authenticator.refused(packet, nonce) {
                            return Ok(Reply::Stranger(mismatch));
                        }
                        let opened = self.authenticator.open(packet).ok();
                        let opened = opened.filter(|opened| opened.header.nonce == nonce);
                        let answer = opened.and_then(|opened| {
                            read(opened.header.from, opened.read().ok()?, length)
                        });
                        if let Some(answer) = answer {
                            return Ok(Reply::Answered(answer, started.elapsed()));
                        }
                    }
                    Err(cause) if is_pause(&cause) => {}
                    Err(cause) => return Err(cause),
                }
            }
        });
        answered.unwrap_or_else(|cause| match cause.raw_os_error() {
            Some(code) if code == rustix::io::Errno::MSGSIZE.raw_os_error() => Reply::TooLong,
            _ if cause.kind() == io::ErrorKind::ConnectionRefused => Reply::Refused,
            _ => Reply::Failed(cause),
        })
    }
}

fn is_pause(cause: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(cause.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Packets leave whole or not at all, so that a probe's length is that of its packet.
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
