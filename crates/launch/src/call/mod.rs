//! A call from a launcher to a node's agent: authentication and the encrypted channel.
//!
//! Both ends prove that they hold the cluster key; what follows is encrypted. Of jobs this module
//! knows only the first request and its answer. The bytes are in `docs/design/protocol.md` §11.

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
    /// The user and machine of the caller, as it claims.
    pub who: String,
    /// The job's program and its arguments, for display.
    pub command: String,
    /// How many ranks may be placed there.
    pub ranks: u32,
}

/// The answer to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A guard has been started.
    Accepted {
        /// How many ranks may be started there; `None` for no limit.
        most_ranks: Option<u32>,
    },
    /// The rules of the machine's owner do not allow it.
    Refused {
        /// For the caller to read.
        reason: String,
    },
}

/// How long an end may be silent before its machine is taken for gone.
///
/// The kernel's keepalives would not do: they cannot tell a machine that is gone from one whose
/// program is not reading at the moment.
pub const IDLE_LIMIT: Duration = Duration::from_secs(30);
