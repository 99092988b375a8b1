//! The interface to a launcher's service with which ranks exchange short texts.

use std::time::Duration;

/// After this time in the barrier it is logged.
pub(super) const WARN_AFTER: Duration = Duration::from_secs(10);

/// Longest times to wait for the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For a reply.
    pub(super) reply: Duration,
    /// For the slowest rank to start and enter the barrier.
    pub(super) barrier: Duration,
}

pub(super) const TIMEOUTS: Timeouts = Timeouts {
    reply: Duration::from_secs(30),
    barrier: Duration::from_secs(300),
};

/// A service that a launcher offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// PMI-1: lines of text over a socket.
    Pmi,
    /// PMIx: a library.
    Pmix,
}

/// A launcher's service that moves short texts between the ranks of a job.
pub(super) trait Exchange {
    /// A name of the job that is the same in all ranks, and different for other jobs.
    fn job_name(&self) -> &str;

    /// Longest text that can be published.
    fn max_value_bytes(&self) -> usize;

    /// Publishes this rank's text of a round.
    fn put(&mut self, round: u32, rank: u32, value: &str) -> Result<(), ServiceError>;

    /// Waits until all ranks have published theirs.
    fn barrier(&mut self) -> Result<(), ServiceError>;

    /// A rank's text of a round, after the barrier.
    fn get(&mut self, round: u32, rank: u32) -> Result<String, ServiceError>;

    /// Ends the use of the service.
    fn finish(&mut self) -> Result<(), ServiceError>;
}

/// Rank and number of ranks, as far as the launcher's variables say them. The server sends the rest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    pub(super) rank: Option<u32>,
    pub(super) size: Option<u32>,
}

impl Given {
    pub(super) fn rank(rank: u32) -> Given {
        Given {
            rank: Some(rank),
            size: None,
        }
    }

    pub(super) fn both(rank: u32, size: u32) -> Given {
        Given {
            rank: Some(rank),
            size: Some(size),
        }
    }
}

/// A service in use, with the rank of this process and the number of ranks.
pub(super) type Connected = (Box<dyn Exchange>, u32, u32);

/// Why the launcher's service cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The connection cannot be opened.
    #[error("cannot be reached ({variable}={value}): {cause}")]
    Unreachable {
        /// The variable that describes the connection.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The operating system's error.
        cause: String,
    },
    /// The client library of PMIx cannot be loaded.
    #[error(
        "needs libpmix.so.2, which cannot be loaded: {cause}; install it on all nodes (Debian: \
         libpmix2) or name its directory in LD_LIBRARY_PATH"
    )]
    Library {
        /// The loader's message.
        cause: String,
    },
    /// The client library of PMIx is too old or too new.
    #[error(
        "needs libpmix of version 3, 4, 5 or 6, but libpmix.so.2 has version `{found}`; install \
         another one, or name its directory in LD_LIBRARY_PATH"
    )]
    Version {
        /// The version as the library reports it.
        found: String,
    },
    /// The server has closed the connection.
    #[error(
        "closed the connection during `{request}`; it serves only one program per rank, so none \
         that uses PMI may run before this one, or the launcher has ended"
    )]
    Closed {
        /// The request that was not answered.
        request: &'static str,
    },
    /// The connection failed.
    #[error("failed during `{request}`: {cause}")]
    Io {
        /// The request that was not answered.
        request: &'static str,
        /// The operating system's error.
        cause: String,
    },
    /// No reply within the limit.
    #[error("did not answer `{request}` within {seconds} s")]
    Silent {
        /// The request that was not answered.
        request: &'static str,
        /// How long this process waited.
        seconds: u64,
    },
    /// No rank knows the end of the barrier, because some rank has not entered it.
    #[error(
        "did not end the barrier within {seconds} s: some rank has not started, or runs no \
         program of Dipole"
    )]
    Barrier {
        /// How long this process waited.
        seconds: u64,
    },
    /// The reply is not one to the request.
    #[error("answered `{request}` with `{line}`, expected {expected}")]
    Unexpected {
        /// The request.
        request: &'static str,
        /// The beginning of the reply.
        line: String,
        /// Description of a valid reply.
        expected: &'static str,
    },
    /// A rank has published something else than its addresses.
    #[error("has `{found}` for rank {rank}, expected {expected}")]
    BusinessCard {
        /// The rank.
        rank: u32,
        /// The beginning of the text.
        found: String,
        /// Description of a valid text.
        expected: &'static str,
    },
}
