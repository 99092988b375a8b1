//! Errors of stream calls.

use std::fmt;

use dipole_node::{Address, OpenError, ReceiveError, SendError};
use thiserror::Error;

/// A failed call. After all errors but [`Misuse`](StreamError::Misuse) the stream is closed.
#[derive(Error)]
pub enum StreamError {
    /// The interface has ended the stream.
    #[error("the interface at {interface} has ended the stream: {why}")]
    Ended {
        /// The address of the interface.
        interface: Address,
        /// The reason that it gives.
        why: String,
    },
    /// The interface does not reply.
    #[error("the interface at {interface} has not answered for {seconds} s: is it running?")]
    Silent {
        /// The address of the interface.
        interface: Address,
        /// How long the rank waited.
        seconds: u64,
    },
    /// The call is invalid in the present state.
    #[error("{0}")]
    Misuse(String),
    /// A message could not be sent to the interface.
    #[error("to the interface: {0}")]
    Send(#[from] SendError),
    /// No message could be received.
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    /// An endpoint could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
}

/// The text for the user, because a `main` that returns an error prints it with `{:?}`.
impl fmt::Debug for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
