//! Reasons for which the machine refuses a call.

use core::fmt;

use crate::wire::RefusedReason;

/// Why a message cannot begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BeginError {
    /// The edge has too little credit. [`Event::Credit`](crate::Event::Credit) reports more.
    NoCredit {
        /// Bytes of credit left.
        left: u64,
    },
    /// It is longer than the limit for all messages.
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiver has refused messages of this edge.
    Refused(RefusedReason),
    /// The session is not open yet.
    Opening,
    /// The session or the edge has ended.
    Gone,
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeginError::NoCredit { left } => write!(f, "no credit: {left} bytes left"),
            BeginError::TooLong { limit } => write!(f, "longer than {limit} bytes"),
            BeginError::Refused(reason) => write!(f, "refused by the receiver: {reason:?}"),
            BeginError::Opening => f.write_str("the session is not open yet"),
            BeginError::Gone => f.write_str("the session has ended"),
        }
    }
}

impl core::error::Error for BeginError {}

/// Why an edge cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeError {
    /// Too many edges lead to that process.
    TooMany {
        /// The limit.
        limit: u32,
    },
    /// The session has ended.
    Gone,
}

impl fmt::Display for EdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdgeError::TooMany { limit } => {
                write!(f, "{limit} edges lead to that process, which is the limit")
            }
            EdgeError::Gone => f.write_str("the session has ended"),
        }
    }
}

impl core::error::Error for EdgeError {}

/// An invalid record from a process of this node, which must be cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProtocolViolation(pub &'static str);

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it sent {}", self.0)
    }
}

impl core::error::Error for ProtocolViolation {}

/// Why no session can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectError {
    /// The table of peers is full.
    TooManyPeers {
        /// Size of the table.
        limit: u32,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::TooManyPeers { limit } => {
                write!(
                    f,
                    "this process already has {limit} peers, which is the limit"
                )
            }
        }
    }
}

impl core::error::Error for ConnectError {}
