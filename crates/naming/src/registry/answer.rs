//! What a node answers to others' questions, whichever of its processes does.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Registry;
use super::messages::{Answer, Presence, Question};
use super::probe::forbid_fragments;
use crate::address::EndpointId;
use crate::envelope::{EnvelopeError, Header, Message};

/// The answers of a node.
#[derive(Debug)]
pub(super) struct Answers {
    registry: Registry,
    max_packet_bytes: u16,
    refusals: Mutex<Refusals>,
}

/// What is to be done about a packet.
#[derive(Debug)]
pub(super) enum Reply {
    /// Send this answer.
    Answer(Vec<u8>),
    /// Send this: the asker is not of our cluster.
    Refusal(Vec<u8>),
    /// Nothing: the registry cannot give an answer, or too many strangers ask.
    Nothing,
    /// The node's agent wants to answer from now on.
    Yield,
}

/// Refusals per second, and in one burst.
const REFUSALS_PER_SECOND: f64 = 500.0;
const REFUSAL_BURST: f64 = 100.0;

/// How long a port may be in use by who has just ended.
const MOMENT: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

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

    /// What is to be done about a packet.
    ///
    /// # Errors
    /// The packet is no question.
    pub(super) fn reply(&self, packet: &[u8]) -> Result<Reply, EnvelopeError> {
        let authenticator = self.registry.authenticator();
        let node = self.registry.node();
        let opened = match authenticator.open(packet) {
            Err(EnvelopeError::Stranger) => {
                let refusal = authenticator.refuse(packet, Question::KIND, node);
                let refusal = refusal.ok_or(EnvelopeError::Stranger)?;
                let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(match refusals.take(Instant::now()) {
                    true => Reply::Refusal(refusal),
                    false => Reply::Nothing,
                });
            }
            opened => opened?,
        };
        let question: Question = opened.read()?;
        let is_ours = opened.header.to == node;
        let answer = match question {
            Question::Yield if is_ours => return Ok(Reply::Yield),
            Question::Yield => return Ok(Reply::Nothing),
            // Who answers shows by the sender of the answer.
            Question::Probe => Some(Answer::Present(Presence {
                max_packet_bytes: self.max_packet_bytes,
                version: version(),
            })),
            Question::Lookup(_) | Question::Liveness(_) if !is_ours => Some(Answer::WrongNode),
            Question::Lookup(endpoint) => self.find(endpoint),
            Question::Liveness(incarnation) => self.liveness(incarnation),
        };
        let Some(answer) = answer else {
            return Ok(Reply::Nothing);
        };
        let length_bytes = match question {
            Question::Probe => packet.len(),
            _ => 0,
        };
        let header = Header {
            from: node,
            to: opened.header.from,
            nonce: opened.header.nonce,
        };
        let answer = authenticator.seal_to_length(header, &answer, length_bytes);
        // Never more than was asked for: the asker's address may be somebody else's.
        Ok(match answer.len() <= packet.len() {
            true => Reply::Answer(answer),
            false => Reply::Nothing,
        })
    }

    fn find(&self, endpoint: EndpointId) -> Option<Answer> {
        match self.registry.lookup(endpoint) {
            Ok(Some(owner)) => Some(Answer::Found(owner.ports)),
            Ok(None) => Some(Answer::NoSuchEndpoint),
            Err(error) => {
                tracing::warn!(%error, "a look-up of another node stays unanswered");
                None
            }
        }
    }

    fn liveness(&self, incarnation: u64) -> Option<Answer> {
        match self.registry.lives(incarnation) {
            Ok(true) => Some(Answer::Alive),
            Ok(false) => Some(Answer::Ended),
            Err(error) => {
                tracing::warn!(%error, "a question about a process stays unanswered");
                None
            }
        }
    }
}

/// The socket at which a node is asked. A killed agent's standby has it for a moment longer than
/// the agent.
pub(super) fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let begun = Instant::now();
    loop {
        match UdpSocket::bind(address) {
            Err(cause) if cause.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < MOMENT => {
                std::thread::sleep(PAUSE);
            }
            socket => return settled(socket?),
        }
    }
}

/// A bound socket, set up to be asked at.
pub(super) fn settled(socket: UdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    // A long answer shows whether its length gets through.
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
