//! Receives that an endpoint's owner posts.

use dipole_engine::Context;

use super::Endpoint;
use crate::completion::CompletionQueue;
use crate::error::ReceiveError;
use crate::receives::PostedReceive;
use crate::region::RegionMemory;

impl Endpoint {
    /// Posts memory for the next message that none posted before takes; returns at once. The
    /// message is put there as [`receive_into`](Self::receive_into) does it, and `context` appears
    /// in the queue with it. A long message keeps the memory in which it has begun to arrive:
    /// messages of several sources may fill what was posted in another order. Timeout then, or until the queue or the endpoint is closed, the memory
    /// is to be left alone. Posted receives go before messages of an attached endpoint; who else
    /// receives here meanwhile may be first.
    ///
    /// # Errors
    /// [`ReceiveError::TooManyPosted`]: 1024 wait. [`ReceiveError::Ended`],
    /// [`ReceiveError::Forked`], [`ReceiveError::Broken`]: no threads are left.
    ///
    /// # Source
    /// The destination that a receiver names before data come, GAMMA §2.
    pub fn post_receive(
        &self,
        memory: RegionMemory,
        queue: &CompletionQueue,
        context: Context,
    ) -> Result<(), ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        self.inner.ensure_progress().map_err(ReceiveError::Broken)?;
        let receive = PostedReceive {
            memory,
            context,
            queue: queue.id(),
        };
        self.inner.driver.with(|state, now| {
            // Under the lock: it may be ended meanwhile.
            if self.is_ended() {
                return Err(ReceiveError::Ended);
            }
            state.receives.post(self.id().0, receive)?;
            state.advance_receives(now);
            Ok(())
        })
    }

    /// Withdraws the receive that was posted with this context first: it completes as
    /// [`ReceiveError::Cancelled`], and its memory is the caller's again. False if there is none.
    #[must_use]
    pub fn cancel_receive(&self, context: Context) -> bool {
        if self.inner.is_forked() {
            return false;
        }
        let id = self.id().0;
        self.inner.driver.with(|state, _| {
            let (receives, engine, queues) = state.receiving();
            receives.cancel((engine, queues), id, context)
        })
    }
}
