//! Why a call of a BSP program failed.

use dipole_node::{ConfigError, OpenError, ReceiveError, SendError, job};
use thiserror::Error;

use crate::misuse::Misuse;
use crate::superstep::exchange::Unexpected;
use crate::superstep::record::Malformed;
use dipole_model::ProfileError;

/// See the module. None of them can be mended: the program ends.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The program has broken a rule.
    #[error("{0}")]
    Misuse(#[from] Misuse),
    /// Another rank has ended the job and said why.
    #[error("rank {rank} has ended the program")]
    Aborted {
        /// Which.
        rank: u32,
    },
    /// A rank's process has ended in the middle of the program.
    #[error("rank {rank} has ended without bsp_end: {cause}")]
    Gone {
        /// Which.
        rank: u32,
        /// How that was found out.
        cause: String,
    },
    /// A rank could not be sent to.
    #[error("rank {rank} cannot be reached: {cause}")]
    Unreachable {
        /// Which.
        rank: u32,
        /// Why.
        cause: String,
    },
    /// Memory that cannot be read while its rank computes.
    #[error(
        "the memory of rank {rank} cannot be read before the superstep ends: only ranks of one node that share memory \
         (DIPOLE_LINK) can, where the system allows it; use bsp_get"
    )]
    OutOfReach {
        /// Whose.
        rank: u32,
    },
    /// Its launcher's environment does not say which rank this is.
    #[error("{0}")]
    Job(#[from] job::JobError),
    /// The environment is wrong.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// What was measured of this machine cannot be read.
    #[error("{0}")]
    Profile(#[from] ProfileError),
    /// Endpoints could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// Messages could not be received.
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    /// A message could not be sent.
    #[error("{0}")]
    Send(#[from] SendError),
    /// A message that makes no sense.
    #[error("{0}: do all ranks run the same program and the same libbsp?")]
    Unexpected(#[from] Unexpected),
    /// Records that make no sense.
    #[error("{0}: do all ranks run the same program and the same libbsp?")]
    Malformed(#[from] Malformed),
    /// The system refused something.
    #[error("{what}: {cause}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// Why not.
        cause: std::io::Error,
    },
    /// What is recorded in one superstep does not fit.
    #[error(
        "puts, gets and messages of one superstep to ranks of this node exceed {limit} bytes of shared memory: \
         communicate less in a superstep, or allow more address space (ulimit -v)"
    )]
    TooMuch {
        /// The bound.
        limit: usize,
    },
}

impl Failure {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
        move |cause| Failure::System { what, cause }
    }
}
