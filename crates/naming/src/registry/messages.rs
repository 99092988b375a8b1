//! What nodes ask each other's directories, and what those answer.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Ports;
use crate::address::EndpointId;
use crate::envelope::Message;

/// Length of a question: no answer to one is longer, so that nobody can have a directory send
/// much to others by asking in their name.
pub const QUESTION_BYTES: usize = 100;

/// What a node's directory can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Where is this endpoint?
    Lookup(EndpointId),
    /// Does the process with this incarnation live?
    Liveness(u64),
    /// Who answers? The answer is as long as the question.
    Probe,
    /// Will the process that answers make room for the node's agent? It has no answer.
    Yield,
}

impl Message for Question {
    const KIND: u8 = 1;
}

/// What a directory answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The endpoint is at these ports.
    Found(Ports),
    /// Nobody has that endpoint open now.
    NoSuchEndpoint,
    /// The process lives, whether it makes progress or not.
    Alive,
    /// No living process has that incarnation.
    Ended,
    /// To a probe.
    Present(Presence),
    /// Another node answers at this address: the hosts file is wrong.
    WrongNode,
}

impl Message for Answer {
    const KIND: u8 = 2;

    fn is_valid(&self) -> bool {
        let has_port = |socket: SocketAddr| socket.port() != 0;
        match self {
            Answer::Found(ports) => has_port(ports.small) && has_port(ports.bulk),
            _ => true,
        }
    }
}

/// The answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The longest packet that processes of this node take; 0 if unknown.
    pub max_packet_bytes: u16,
    /// Version of the program that answers: major, minor, patch.
    pub version: [u16; 3],
}

/// Length of a probe in bytes (the UDP payload), and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeLength(usize);

impl ProbeLength {
    /// As long as any question.
    pub const SHORTEST: ProbeLength = ProbeLength(QUESTION_BYTES);
    /// As long as the longest frame of a link.
    pub const LONGEST: ProbeLength = ProbeLength(dipole_link::udp::MAX_FRAME_BYTES);

    /// The length nearest to this many bytes.
    #[must_use]
    pub fn nearest(bytes: usize) -> ProbeLength {
        ProbeLength(bytes.clamp(Self::SHORTEST.0, Self::LONGEST.0))
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::NodeId;
    use crate::envelope::{Authenticator, EnvelopeError, Header};
    use crate::key::{ClusterKey, KEY_BYTES};

    const HEADER: Header = Header {
        from: NodeId(u32::MAX),
        to: NodeId(u32::MAX),
        nonce: u64::MAX,
    };

    fn found(small: &str, bulk: &str) -> Answer {
        Answer::Found(Ports {
            small: small.parse().unwrap(),
            bulk: bulk.parse().unwrap(),
            incarnation: u64::MAX,
        })
    }

    fn answers() -> [Answer; 7] {
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        [
            found(longest, longest),
            found("10.0.0.1:80", "0.0.0.0:81"),
            Answer::NoSuchEndpoint,
            Answer::Alive,
            Answer::Ended,
            Answer::Present(Presence {
                max_packet_bytes: u16::MAX,
                version: [u16::MAX; 3],
            }),
            Answer::WrongNode,
        ]
    }

    fn authenticators() -> [Authenticator; 2] {
        [None, Some(ClusterKey::new([7; KEY_BYTES]))].map(|key| Authenticator::new(key.as_ref()))
    }

    #[test]
    fn no_answer_is_longer_than_a_question_with_a_key_and_without() {
        for authenticator in authenticators() {
            for question in [
                Question::Lookup(EndpointId(u32::MAX)),
                Question::Liveness(u64::MAX),
                Question::Probe,
                Question::Yield,
            ] {
                let packet = authenticator.seal_to_length(HEADER, &question, QUESTION_BYTES);
                assert_eq!(packet.len(), QUESTION_BYTES);
                assert_eq!(authenticator.open(&packet).unwrap().read(), Ok(question));
            }
            for answer in answers() {
                let packet = authenticator.seal(HEADER, &answer);
                assert!(packet.len() <= QUESTION_BYTES, "{answer:?}");
                assert_eq!(authenticator.open(&packet).unwrap().read(), Ok(answer));
            }
        }
    }

    #[test]
    fn an_endpoint_at_port_zero_is_refused() {
        let [authenticator, _] = authenticators();
        for bad in [
            found("10.0.0.1:0", "10.0.0.1:1"),
            found("10.0.0.1:1", "[::1]:0"),
        ] {
            let packet = authenticator.seal(HEADER, &bad);
            let read = authenticator.open(&packet).unwrap().read::<Answer>();
            assert_eq!(read, Err(EnvelopeError::Body));
        }
    }

    #[test]
    fn a_probe_of_any_length_asked_for_can_be_written() {
        for bytes in [0, 84, QUESTION_BYTES, 1472, usize::MAX] {
            let length = ProbeLength::nearest(bytes).bytes();
            for authenticator in authenticators() {
                let packet = authenticator.seal_to_length(HEADER, &Question::Probe, length);
                assert_eq!(packet.len(), length);
            }
        }
    }
}
