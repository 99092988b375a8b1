//! What the machine refuses to do for its caller.

use core::fmt;

use crate::wire::RefusedReason;

/// Why a message cannot begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginError {
    /// The edge has no credit for it; [`Event::Credit`](crate::Event::Credit)
    /// tells when it has.
    NoCredit {
        /// Bytes of credit left.
        left: u64,
    },
    /// Longer than any message may be.
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiver took no messages of this edge.
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

/// Why there is no edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeError {
    /// As many edges lead to that process as may.
    TooMany {
        /// How many that is.
        limit: u32,
    },
    /// The session has ended.
    Gone,
}

impl fmt::Display for EdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdgeError::TooMany { limit } => {
                write!(f, "{limit} edges lead to that process, as many as may")
            }
            EdgeError::Gone => f.write_str("the session has ended"),
        }
    }
}

impl core::error::Error for EdgeError {}

/// What a process of this node did that none does which keeps the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it sent {}", self.0)
    }
}

impl core::error::Error for ProtocolViolation {}

/// Why no session can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The table of sessions is full.
    TooManyPeers {
        /// Its size.
        limit: u32,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::TooManyPeers { limit } => {
                write!(f, "this process already has {limit} peers, its limit")
            }
        }
    }
}

impl core::error::Error for ConnectError {}
