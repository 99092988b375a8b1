//! Why a stream failed.

use dipole_node::{Address, OpenError, ReceiveError, SendError};
use thiserror::Error;

/// See the module. After all but [`Misuse`](StreamError::Misuse) the stream is over.
#[derive(Debug, Error)]
pub enum StreamError {
    /// The interface says that it cannot go on, and why.
    #[error("the interface at {interface} has ended the stream: {why}")]
    Ended {
        /// Which.
        interface: Address,
        /// What it says.
        why: String,
    },
    /// The interface is silent.
    #[error("the interface at {interface} has not answered for {seconds} s: is it running?")]
    Silent {
        /// Which.
        interface: Address,
        /// How long was waited.
        seconds: u64,
    },
    /// A call that makes no sense.
    #[error("{0}")]
    Misuse(String),
    /// A message could not be sent.
    #[error("to the interface: {0}")]
    Send(#[from] SendError),
    /// None could be received.
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    /// An endpoint could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
}
