//! Operations of an MPI library that survives the death of ranks (ULFM of Open MPI), with a process
//! that is gone.
//!
//! The launcher reports the death to the library, which then ends all its requests that need the
//! dead rank. Its transport (`btl ofi`) ends the whole job at the first operation that fails. So
//! messages to a dead process end like messages that it received and did not answer, and a message
//! whose data died with its sender never came.

use super::receives::Receive;
use super::{Exchange, SendRequest};
use crate::abi::errno::FI_ECONNABORTED;
use crate::abi::fabric::{FI_TAGGED, Info};
use crate::ffi::Failure;
use crate::matching::{Criteria, Posted};

/// Set to 1 by `mpirun --with-ft ulfm`.
const ULFM: &str = "OMPI_MCA_mpi_ft_enable";

/// True if the MPI library of this endpoint gets to know of deaths from its launcher. The one that
/// sends tagged messages (`mtl ofi`) does not survive them.
pub(crate) fn survives_deaths(info: Option<&Info>) -> bool {
    let is_transport = info.is_some_and(|info| info.caps & FI_TAGGED == 0);
    is_transport && std::env::var_os(ULFM).is_some_and(|value| value == "1")
}

impl Exchange {
    /// True if the library does not want to see this failure.
    pub(super) fn is_hidden(&self, failure: Failure) -> bool {
        self.survives_deaths && failure == Failure(FI_ECONNABORTED)
    }

    /// The result of sending a message, which a dead process takes like a living one.
    #[inline]
    pub(super) fn or_taken_by_the_dead(
        &mut self,
        sent: Result<(), Failure>,
        message: &SendRequest,
    ) -> Result<(), Failure> {
        match sent {
            Err(failure) if self.is_hidden(failure) => {
                self.sinks.complete(message.notify, message.entry());
                Ok(())
            }
            other => other,
        }
    }

    /// Lets a receive wait again whose message died with its sender.
    pub(super) fn receive_again(&mut self, receive: Receive) {
        let any = Criteria {
            source: receive.source,
            tag: 0,
            ignore: 0,
        };
        let matcher = self.receives.matcher(false);
        if let Posted::Matched(message, receive) = matcher.post(any, receive) {
            self.deliver(receive, message);
        }
    }
}
