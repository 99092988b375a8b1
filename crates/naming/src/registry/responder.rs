//! Replies to queries from other nodes, in whichever process of the node serves them.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::messages::{Presence, Query, Response};
use super::probe::forbid_fragments;
use super::{Liveness, Registry};
use crate::address::EndpointId;
use crate::envelope::{EnvelopeError, Header, Message};

/// Replies to queries about a node.
#[derive(Debug)]
pub(super) struct Responder {
    registry: Registry,
    max_packet_bytes: u16,
    refusals: Mutex<Refusals>,
}

/// Reaction to a packet.
#[derive(Debug)]
pub(super) enum Action {
    /// Send this encoded reply.
    Respond(Vec<u8>),
    /// Send this refusal: the sender is not a member of our cluster.
    Refuse(Vec<u8>),
    /// Send nothing: the registry cannot be read, or too many packets come from outside the
    /// cluster.
    Ignore,
    /// The node's agent takes over.
    Yield,
}

/// Refusals per second, and in one burst.
const REFUSALS_PER_SECOND: f64 = 500.0;
const REFUSAL_BURST: f64 = 100.0;

/// A killed process releases its lock a moment before its port.
const RELEASE_TIME: Duration = Duration::from_millis(200);
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Rate limiter for refusals.
#[derive(Debug)]
struct Refusals {
    left: f64,
    at: Instant,
}

impl Refusals {
    /// True if one more may be sent.
    fn take(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * REFUSALS_PER_SECOND;
        self.left = (self.left + earned).min(REFUSAL_BURST);
        self.at = now;
        let may = self.left >= 1.0;
        self.left -= f64::from(u8::from(may));
        may
    }
}

impl Responder {
    /// For the node of this registry, with its directory at this address.
    pub(super) fn new(registry: &Registry, address: IpAddr) -> Responder {
        // Use the present limit. Processes opened under another MTU keep theirs.
        let max_packet_bytes = dipole_link::udp::longest_frame_bytes(address)
            .ok()
            .and_then(|bytes| u16::try_from(bytes).ok())
            .unwrap_or(0);
        Responder {
            registry: registry.clone(),
            max_packet_bytes,
            refusals: Mutex::new(Refusals {
                left: REFUSAL_BURST,
                at: Instant::now(),
            }),
        }
    }

    /// Handles a packet.
    ///
    /// # Errors
    /// The packet is not a query.
    pub(super) fn handle(&self, packet: &[u8]) -> Result<Action, EnvelopeError> {
        let authenticator = self.registry.authenticator();
        let node = self.registry.node();
        let opened = match authenticator.open(packet) {
            Err(EnvelopeError::Stranger) => {
                let refusal = authenticator.refuse(packet, Query::KIND, node);
                let refusal = refusal.ok_or(EnvelopeError::Stranger)?;
                let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(match refusals.take(Instant::now()) {
                    true => Action::Refuse(refusal),
                    false => Action::Ignore,
                });
            }
            opened => opened?,
        };
        let query: Query = opened.read()?;
        let is_ours = opened.header.to == node;
        let response = match query {
            Query::Yield if is_ours => return Ok(Action::Yield),
            Query::Yield => return Ok(Action::Ignore),
            // The sender of the reply shows which node it is.
            Query::Probe => Some(Response::Present(Presence {
                max_packet_bytes: self.max_packet_bytes,
                version: version(),
            })),
            Query::Lookup(_) | Query::Liveness(_) if !is_ours => Some(Response::WrongNode),
            Query::Lookup(endpoint) => self.look_up(endpoint),
            Query::Liveness(incarnation) => self.liveness(incarnation),
        };
        let Some(response) = response else {
            return Ok(Action::Ignore);
        };
        let length_bytes = match query {
            Query::Probe => packet.len(),
            _ => 0,
        };
        let header = Header {
            from: node,
            to: opened.header.from,
            nonce: opened.header.nonce,
        };
        let response = authenticator.seal_to_length(header, &response, length_bytes);
        // Never reply with more bytes than the query has: its source address may be forged.
        Ok(match response.len() <= packet.len() {
            true => Action::Respond(response),
            false => Action::Ignore,
        })
    }

    fn look_up(&self, endpoint: EndpointId) -> Option<Response> {
        match self.registry.lookup(endpoint) {
            Ok(Some(owner)) => Some(Response::Found(owner.ports)),
            Ok(None) => Some(Response::NoSuchEndpoint),
            Err(error) => {
                tracing::warn!(%error, "cannot answer a look-up of another node");
                None
            }
        }
    }

    fn liveness(&self, incarnation: u64) -> Option<Response> {
        match self.registry.liveness(incarnation) {
            Ok(Liveness::Runs) => Some(Response::Alive),
            Ok(Liveness::Stopped) => Some(Response::Stopped),
            Ok(Liveness::Ended) => Some(Response::Ended),
            Err(error) => {
                tracing::warn!(%error, "cannot answer a liveness query of another node");
                None
            }
        }
    }
}

/// Binds the directory's socket.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let start = Instant::now();
    loop {
        match UdpSocket::bind(address) {
            Err(cause)
                if cause.kind() == io::ErrorKind::AddrInUse && start.elapsed() < RELEASE_TIME =>
            {
                std::thread::sleep(RETRY_PAUSE);
            }
            socket => return configured(socket?),
        }
    }
}

/// Configures the directory's socket.
pub(super) fn configured(socket: UdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    // A long reply then shows whether packets of its length get through.
    forbid_fragments(&socket)?;
    Ok(socket)
}

/// Version of this crate: major, minor, patch.
#[must_use]
pub fn version() -> [u16; 3] {
    let mut parts = env!("CARGO_PKG_VERSION").split(['.', '-', '+']);
    std::array::from_fn(|_| parts.next().and_then(|part| part.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_to_strangers_are_limited_per_second() {
        let at = Instant::now();
        let mut refusals = Refusals {
            left: REFUSAL_BURST,
            at,
        };
        let taken = |refusals: &mut Refusals, now| (0..1000).filter(|_| refusals.take(now)).count();
        assert_eq!(taken(&mut refusals, at), 100);
        assert_eq!(taken(&mut refusals, at + Duration::from_millis(20)), 10);
        assert_eq!(taken(&mut refusals, at + Duration::from_secs(60)), 100);
    }
}
