//! Posting receives to an endpoint.

use dipole_engine::Context;

use super::Endpoint;
use crate::completion::CompletionQueue;
use crate::error::ReceiveError;
use crate::receives::PostedReceive;
use crate::region::RegionMemory;

impl Endpoint {
    /// Posts memory for a later message and returns at once. Messages fill posted memory in order,
    /// as by [`receive_into`](Self::receive_into), and `context` then appears in the queue. A long
    /// message keeps the memory in which its arrival began, so messages of several sources may
    /// fill posted memory out of order. The memory must not be touched until the completion, or
    /// until the queue or the endpoint is closed. Posted receives take precedence over the
    /// messages of an attached endpoint; other concurrent receives may come first.
    ///
    /// # Errors
    /// [`ReceiveError::TooManyPosted`] if 1024 are waiting. [`ReceiveError::Ended`],
    /// [`ReceiveError::Forked`]. [`ReceiveError::Broken`] if no thread can start.
    ///
    /// # Source
    /// Destinations named by the receiver before data arrive, GAMMA §2.
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
            // Check this under the lock, because another thread may close it.
            if self.is_ended() {
                return Err(ReceiveError::Ended);
            }
            state.receives.post(self.id().0, receive)?;
            state.advance_receives(now);
            Ok(())
        })
    }

    /// Cancels the oldest posted receive with this context. It completes as
    /// [`ReceiveError::Cancelled`], and its memory is free again. False if it does not exist.
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
