//! What a node answers to others' questions, whichever of its processes does.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::Registry;
use super::badge::Unopened;
use super::directory_wire::{
    Found, FoundStatus, Lookup, Testimony, Vouch, Vouched, WireError, decode_vouch, encode_found,
    encode_vouched, is_yield,
};
use super::probe::forbid_fragments;
use super::probe_wire::{Presence, Question, decode_question, encode_presence};

/// The answers of a node.
#[derive(Debug)]
pub(super) struct Answers {
    registry: Registry,
    max_packet_bytes: u16,
    refusals: Mutex<Refusals>,
}

/// What becomes of a question.
#[derive(Debug)]
pub(super) enum Said {
    Answer(Vec<u8>),
    /// Who asks is not of our cluster.
    Refusal(Vec<u8>),
    /// The registry cannot give an answer, or too many strangers ask.
    Nothing,
}

/// Refusals per second, and in one burst.
const REFUSALS_PER_SECOND: f64 = 500.0;
const REFUSAL_BURST: f64 = 100.0;

/// How many strangers may be refused now.
#[derive(Debug)]
struct Refusals {
    left: f64,
    at: Instant,
}

impl Refusals {
    /// True if one more may go.
    fn take(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * REFUSALS_PER_SECOND;
        self.left = (self.left + earned).min(REFUSAL_BURST);
        self.at = now;
        let may = self.left >= 1.0;
        self.left -= f64::from(u8::from(may));
        may
    }
}

impl Answers {
    /// Those of the node of this registry, asked at this address.
    pub(super) fn new(registry: &Registry, address: IpAddr) -> Answers {
        // As of now: processes that were opened under another MTU keep theirs.
        let max_packet_bytes = dipole_link::udp::longest_frame_bytes(address)
            .ok()
            .and_then(|bytes| u16::try_from(bytes).ok())
            .unwrap_or(0);
        Answers {
            registry: registry.clone(),
            max_packet_bytes,
            refusals: Mutex::new(Refusals {
                left: REFUSAL_BURST,
                at: Instant::now(),
            }),
        }
    }

    /// The answer to a question.
    ///
    /// # Errors
    /// The packet is no question.
    pub(super) fn reply(&self, packet: &[u8]) -> Result<Said, WireError> {
        let badge = self.registry.badge();
        let plain = match badge.open(packet) {
            Ok(plain) => plain,
            Err(Unopened::Broken(error)) => return Err(error),
            Err(Unopened::Stranger) => {
                let refusal = badge.refusal(packet, self.registry.node());
                let refusal = refusal.ok_or(WireError::Kind { found: packet[0] })?;
                let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(match refusals.take(Instant::now()) {
                    true => Said::Refusal(refusal.to_vec()),
                    false => Said::Nothing,
                });
            }
        };
        let answer = self.answer(&plain)?;
        Ok(answer.map_or(Said::Nothing, |answer| Said::Answer(badge.seal(&answer))))
    }

    /// True if the node's agent wants to answer from now on.
    pub(super) fn asks_to_yield(&self, packet: &[u8]) -> bool {
        let plain = self.registry.badge().open(packet);
        plain.is_ok_and(|plain| is_yield(&plain, self.registry.node()))
    }

    /// The answer to a question of our cluster, both without proofs; `None` if the registry
    /// cannot give it.
    fn answer(&self, packet: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
        if let Ok(vouch) = decode_vouch(packet) {
            return Ok(testify(&self.registry, &vouch).map(|said| encode_vouched(&said).to_vec()));
        }
        Ok(match decode_question(packet)? {
            Question::Where(lookup) => {
                find(&self.registry, &lookup).map(|found| encode_found(&found).to_vec())
            }
            Question::Who(probe) => {
                let presence = Presence {
                    nonce: probe.nonce,
                    node: self.registry.node(),
                    max_packet_bytes: self.max_packet_bytes,
                    version: version(),
                };
                Some(encode_presence(&presence, probe.length_bytes))
            }
        })
    }
}

/// The socket at which a node is asked.
pub(super) fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    settled(UdpSocket::bind(address)?)
}

/// A bound socket, set up to be asked at.
pub(super) fn settled(socket: UdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    // A long answer shows whether its length gets through.
    forbid_fragments(&socket)?;
    Ok(socket)
}

fn find(registry: &Registry, lookup: &Lookup) -> Option<Found> {
    if lookup.address.node != registry.node() {
        let mut address = lookup.address;
        address.node = registry.node();
        return Some(Found {
            nonce: lookup.nonce,
            address,
            status: FoundStatus::WrongNode,
        });
    }
    let status = match registry.lookup(lookup.address.endpoint) {
        Ok(Some(owner)) => FoundStatus::Found(owner.ports),
        Ok(None) => FoundStatus::NoSuchEndpoint,
        Err(error) => {
            tracing::warn!(%error, "a look-up of another node stays unanswered");
            return None;
        }
    };
    Some(Found {
        nonce: lookup.nonce,
        address: lookup.address,
        status,
    })
}

fn testify(registry: &Registry, vouch: &Vouch) -> Option<Vouched> {
    let testimony = if vouch.node != registry.node() {
        Testimony::WrongNode
    } else {
        match registry.lives(vouch.incarnation) {
            Ok(true) => Testimony::Lives,
            Ok(false) => Testimony::Ended,
            Err(error) => {
                tracing::warn!(%error, "a question about a process stays unanswered");
                return None;
            }
        }
    };
    Some(Vouched {
        nonce: vouch.nonce,
        node: registry.node(),
        incarnation: vouch.incarnation,
        testimony,
    })
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
    use std::time::Duration;

    #[test]
    fn strangers_are_refused_so_often_per_second_and_no_more() {
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
