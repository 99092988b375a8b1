//! What a node answers to others' questions, whichever of its processes does.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use super::Registry;
use super::directory_wire::{
    Found, FoundStatus, Lookup, Testimony, Vouch, Vouched, WireError, decode_vouch, encode_found,
    encode_vouched,
};
use super::probe::forbid_fragments;
use super::probe_wire::{Presence, Question, decode_question, encode_presence};

/// The answers of a node.
#[derive(Debug)]
pub(super) struct Answers {
    registry: Registry,
    max_packet_bytes: u16,
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
        }
    }

    /// The answer to a question; `None` if the registry cannot give it.
    ///
    /// # Errors
    /// The packet is no question.
    pub(super) fn reply(&self, packet: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
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
