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

/// Whether an endpoint hides deaths from its MPI library.
#[derive(Debug)]
pub(crate) struct Survivor {
    /// The library gets to know of deaths from its launcher.
    is_active: bool,
    has_seen_deaths: bool,
}

impl Survivor {
    /// The transport that sends tagged messages (`mtl ofi`) does not survive deaths, so it sees them.
    pub(crate) fn of(info: Option<&Info>) -> Survivor {
        let is_untagged = info.is_some_and(|info| info.caps & FI_TAGGED == 0);
        Survivor {
            is_active: is_untagged && std::env::var_os(ULFM).is_some_and(|value| value == "1"),
            has_seen_deaths: false,
        }
    }

    /// True if the library must not see this failure, because the peer is gone.
    pub(super) fn hides(&mut self, failure: Failure) -> bool {
        let is_hidden = self.is_active && failure == Failure(FI_ECONNABORTED);
        self.has_seen_deaths |= is_hidden;
        is_hidden
    }

    /// True if a failure was hidden.
    pub(super) fn has_seen_deaths(&self) -> bool {
        self.has_seen_deaths
    }
}

impl Exchange {
    /// The result of sending a message, which is dropped if its receiver is dead and that is hidden.
    #[inline]
    pub(super) fn or_dropped(
        &mut self,
        sent: Result<(), Failure>,
        message: &SendRequest,
    ) -> Result<(), Failure> {
        match sent {
            Err(failure) if self.survivor.hides(failure) => {
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
