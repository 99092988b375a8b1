//! A call from a launcher to a node's agent: authentication and the encrypted channel.
//!
//! Both ends prove that they hold the cluster key, then everything is encrypted. Of jobs this
//! module knows only the first request and its answer. `docs/design/protocol.md` §11 specifies the
//! bytes.

mod channel;
mod greeting;
mod standing;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use channel::{Channel, Frame, MAX_CHUNK_BYTES, Receiver, Sender};
pub use greeting::{GREETING_BYTES, Greeting, PROOF_BYTES, verify};
pub use standing::{Standing, send_keepalives, watch_standing};

/// A caller's request for work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// User and machine of the caller, as it claims.
    pub who: String,
    /// The job's program and its arguments, for display.
    pub command: String,
    /// Number of ranks that may be placed there.
    pub ranks: u32,
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A guard has been started.
    Accepted {
        /// Maximum number of ranks; `None` for no limit.
        max_ranks: Option<u32>,
    },
    /// The rules of the machine's owner do not allow it.
    Refused {
        /// Explanation for the user.
        reason: String,
    },
}

/// How long an end may be silent before its machine is considered dead.
///
/// TCP keepalives do not suffice: they cannot distinguish a dead machine from a program that does
/// not read at the moment.
pub const IDLE_LIMIT: Duration = Duration::from_secs(30);
