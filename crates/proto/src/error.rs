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
    /// The session has ended.
    Gone,
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeginError::NoCredit { left } => write!(f, "no credit: {left} bytes left"),
            BeginError::TooLong { limit } => write!(f, "longer than {limit} bytes"),
            BeginError::Refused(reason) => write!(f, "refused by the receiver: {reason:?}"),
            BeginError::Gone => f.write_str("the session has ended"),
        }
    }
}

impl core::error::Error for BeginError {}

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
