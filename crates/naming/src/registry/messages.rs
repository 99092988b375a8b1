//! Queries of directories and their replies.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Ports;
use crate::address::EndpointId;
use crate::envelope::Message;

/// Length of a query. No reply is longer, so directories cannot be used to amplify traffic to a
/// forged address.
pub const QUERY_BYTES: usize = 100;

/// A query of a node's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// Requests the location of an endpoint.
    Lookup(EndpointId),
    /// Does the process with this incarnation run?
    Liveness(u64),
    /// Requests the node id. The reply is as long as the query.
    Probe,
    /// Requests the serving process to make room for the node's agent. It has no reply.
    Yield,
}

impl Message for Query {
    const KIND: u8 = 1;
}

/// A reply of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// The endpoint is at these ports.
    Found(Ports),
    /// No process has the endpoint open.
    NoSuchEndpoint,
    /// The process runs.
    Alive,
    /// No live process has that incarnation.
    Ended,
    /// Reply to a probe.
    Present(Presence),
    /// This address belongs to another node: the hosts file is wrong.
    WrongNode,
    /// The process is alive, but stopped (by a signal or a debugger) or frozen.
    Stopped,
}

impl Message for Response {
    const KIND: u8 = 2;

    fn is_valid(&self) -> bool {
        let has_port = |socket: SocketAddr| socket.port() != 0;
        match self {
            Response::Found(ports) => has_port(ports.small) && has_port(ports.bulk),
            _ => true,
        }
    }
}

/// Reply to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Longest packet that processes of this node accept; 0 if unknown.
    pub max_packet_bytes: u16,
    /// Version of the program: major, minor, patch.
    pub version: [u16; 3],
}

/// Length of a probe in bytes of UDP payload, and of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeLength(usize);

impl ProbeLength {
    /// Length of a query.
    pub const SHORTEST: ProbeLength = ProbeLength(QUERY_BYTES);
    /// Length of the longest frame of a link.
    pub const LONGEST: ProbeLength = ProbeLength(dipole_link::udp::MAX_FRAME_BYTES);

    /// The closest valid length.
    #[must_use]
    pub fn nearest(bytes: usize) -> ProbeLength {
        ProbeLength(bytes.clamp(Self::SHORTEST.0, Self::LONGEST.0))
    }

    /// Returns the length in bytes.
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

    fn found(small: &str, bulk: &str) -> Response {
        Response::Found(Ports {
            small: small.parse().unwrap(),
            bulk: bulk.parse().unwrap(),
            incarnation: u64::MAX,
        })
    }

    fn responses() -> [Response; 8] {
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        [
            found(longest, longest),
            found("10.0.0.1:80", "0.0.0.0:81"),
            Response::NoSuchEndpoint,
            Response::Alive,
            Response::Ended,
            Response::Present(Presence {
                max_packet_bytes: u16::MAX,
                version: [u16::MAX; 3],
            }),
            Response::WrongNode,
            Response::Stopped,
        ]
    }

    fn authenticators() -> [Authenticator; 2] {
        [None, Some(ClusterKey::new([7; KEY_BYTES]))].map(|key| Authenticator::new(key.as_ref()))
    }

    #[test]
    fn no_response_is_longer_than_a_query_with_a_key_or_without() {
        for authenticator in authenticators() {
            for query in [
                Query::Lookup(EndpointId(u32::MAX)),
                Query::Liveness(u64::MAX),
                Query::Probe,
                Query::Yield,
            ] {
                let packet = authenticator.seal_to_length(HEADER, &query, QUERY_BYTES);
                assert_eq!(packet.len(), QUERY_BYTES);
                assert_eq!(authenticator.open(&packet).unwrap().read(), Ok(query));
            }
            for response in responses() {
                let packet = authenticator.seal(HEADER, &response);
                assert!(packet.len() <= QUERY_BYTES, "{response:?}");
                assert_eq!(authenticator.open(&packet).unwrap().read(), Ok(response));
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
            let read = authenticator.open(&packet).unwrap().read::<Response>();
            assert_eq!(read, Err(EnvelopeError::Body));
        }
    }

    #[test]
    fn a_probe_of_any_requested_length_can_be_written() {
        for bytes in [0, 84, QUERY_BYTES, 1472, usize::MAX] {
            let length = ProbeLength::nearest(bytes).bytes();
            for authenticator in authenticators() {
                let packet = authenticator.seal_to_length(HEADER, &Query::Probe, length);
                assert_eq!(packet.len(), length);
            }
        }
    }
}
