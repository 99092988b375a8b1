//! The interface to a launcher's service with which ranks exchange short texts.

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
