//! The two numbers that name an endpoint, and their text form `NID:DPID`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lines::excerpt;

/// A node: a host with a runtime directory of its own (NID). Always configured, never derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// An endpoint, unique on its node (DPID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointId(pub u32);

impl EndpointId {
    /// Requests any free number of [`EPHEMERAL`](Self::EPHEMERAL) when an endpoint is opened.
    pub const ANY: EndpointId = EndpointId(u32::MAX);
    /// Numbers that are assigned for [`ANY`](Self::ANY).
    pub const EPHEMERAL: std::ops::Range<u32> = 0xC000_0000..0xFFFF_0000;
}

/// An endpoint on a node: destination or source of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// Node id.
    pub node: NodeId,
    /// Id of the endpoint on the node.
    pub endpoint: EndpointId,
}

impl Address {
    /// An address from its two numbers.
    #[must_use]
    pub fn new(node: u32, endpoint: u32) -> Address {
        Address {
            node: NodeId(node),
            endpoint: EndpointId(endpoint),
        }
    }
}

/// Why a text is not a node, endpoint or address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The colon between node and endpoint is missing.
    #[error("`{found}` is not an address: expected NID:DPID, two numbers, as in 1:7")]
    NoColon {
        /// The rejected text.
        found: String,
    },
    /// A part is not a number from 0 to 4294967295.
    #[error(
        "`{found}` is not a valid {part}: expected a number from {} to 4294967295",
        u8::from(*.part == "node")
    )]
    BadNumber {
        /// The part: `node` or `endpoint`.
        part: &'static str,
        /// The rejected text.
        found: String,
    },
    /// Node 0 does not exist.
    #[error("node 0 does not exist; nodes are numbered from 1 to 4294967295")]
    NodeZero,
}

fn number(part: &'static str, text: &str) -> Result<u32, AddressError> {
    text.parse().map_err(|_| AddressError::BadNumber {
        part,
        found: excerpt(text),
    })
}

impl FromStr for NodeId {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NodeId, AddressError> {
        match number("node", text)? {
            0 => Err(AddressError::NodeZero),
            node => Ok(NodeId(node)),
        }
    }
}

impl FromStr for EndpointId {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<EndpointId, AddressError> {
        number("endpoint", text).map(EndpointId)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let Some((node, endpoint)) = text.split_once(':') else {
            return Err(AddressError::NoColon {
                found: excerpt(text),
            });
        };
        Ok(Address {
            node: node.parse()?,
            endpoint: endpoint.parse()?,
        })
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_what_it_prints() {
        for address in [
            Address::new(1, 7),
            Address::new(1, 0),
            Address::new(u32::MAX, u32::MAX),
        ] {
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn a_broken_address_is_refused_with_what_was_expected() {
        for (text, wanted) in [
            ("17", "expected NID:DPID"),
            ("0:7", "node 0 does not exist"),
            (
                "x:7",
                "`x` is not a valid node: expected a number from 1 to",
            ),
            ("1:-7", "`-7` is not a valid endpoint"),
            ("1:4294967296", "from 0 to 4294967295"),
            ("1:", "not a valid endpoint"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
