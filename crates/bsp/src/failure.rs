//! Why a call of a BSP program failed.

use std::fmt;

use dipole_node::{ConfigError, OpenError, ReceiveError, SendError, job};
use thiserror::Error;

use crate::misuse::Misuse;
use crate::superstep::exchange::UnexpectedMessage;
use crate::superstep::record::Malformed;
use dipole_model::ProfileError;

/// A failed call. The program cannot recover and must end.
#[derive(Error)]
#[non_exhaustive]
pub enum Failure {
    /// The program broke a rule of BSPlib.
    #[error("{0}")]
    Misuse(#[from] Misuse),
    /// Another rank ended the program and reported why.
    #[error("rank {rank} has ended the program")]
    Aborted {
        /// Rank that ended the program.
        rank: u32,
    },
    /// A rank's process ended before the program did.
    #[error("rank {rank} has ended without bsp_end: {cause}")]
    Gone {
        /// The other rank.
        rank: u32,
        /// How this was detected.
        cause: String,
    },
    /// Nothing could be sent to a rank.
    #[error("rank {rank} cannot be reached: {cause}")]
    Unreachable {
        /// The other rank.
        rank: u32,
        /// Description of the cause.
        cause: String,
    },
    /// Another rank's memory cannot be read before the superstep ends.
    #[error(
        "the memory of rank {rank} cannot be read before the superstep ends: only ranks of one node that share memory \
         (DIPOLE_LINK) can, where the system allows it; use bsp_get"
    )]
    OutOfReach {
        /// The rank that owns the memory.
        rank: u32,
    },
    /// The program could not be saved, or not continue from an image.
    #[error("checkpoint: {0}")]
    NotSaved(String),
    /// The launcher's environment variables do not give a valid rank.
    #[error("{0}")]
    Job(#[from] job::JobError),
    /// The configuration is invalid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The measurements of this machine cannot be read.
    #[error("{0}")]
    Profile(#[from] ProfileError),
    /// An endpoint could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// No messages could be received.
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    /// A message could not be sent.
    #[error("{0}")]
    Send(#[from] SendError),
    /// A rank sent a message that is not valid now.
    #[error("{0}: do all ranks run the same program and the same libbsp?")]
    UnexpectedMessage(#[from] UnexpectedMessage),
    /// A rank sent invalid records.
    #[error("{0}: do all ranks run the same program and the same libbsp?")]
    Malformed(#[from] Malformed),
    /// The program cancelled the call ([`dipole_node::cancellable`]).
    #[error("the call was interrupted")]
    Interrupted,
    /// A system call failed.
    #[error("{what}: {cause}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Error returned by the kernel.
        cause: std::io::Error,
    },
    /// The records of one superstep do not fit into shared memory.
    #[error(
        "puts, gets and messages of one superstep to ranks of this node exceed {limit} bytes of shared memory: \
         communicate less in a superstep, or allow more address space (ulimit -v)"
    )]
    ArenaFull {
        /// The limit in bytes.
        limit: usize,
    },
}

/// The text for the user, because a `main` that returns an error prints it with `{:?}`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Failure {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
        move |cause| Failure::System { what, cause }
    }
}
