//! A call from a launcher to a node's agent: who may call, and how it is carried.
//!
//! Both ends prove to hold the cluster key; what follows is encrypted. Knows nothing of jobs but
//! what is asked for and answered first. The bytes are in `docs/protocol.md` §10.

mod channel;
mod greeting;

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use channel::{Channel, Frame, MOST_BYTES, Receiver, Sender};
pub(crate) use greeting::{GREETING_BYTES, Greeting, PROOF_BYTES, proves};

/// What a caller wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Who asks, as they call themselves: a user on a machine.
    pub(crate) who: String,
    /// The job's program and its arguments, for people to read.
    pub(crate) command: String,
    /// How many ranks may be placed there.
    pub(crate) ranks: u32,
}

/// What comes of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// A guard is started; at most so many ranks may be, if there is a limit.
    Welcome { most_ranks: Option<u32> },
    /// The agent's owner does not want it.
    Refused { reason: String },
}

/// Makes a connection notice, after half a minute, that the other machine is gone.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    // Also while bytes are on their way.
    Ok(sockopt::set_tcp_user_timeout(stream, 30_000)?)
}
