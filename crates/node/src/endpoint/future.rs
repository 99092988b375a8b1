//! The asynchronous API: futures that work with any runtime.
//!
//! A pending future registers its task for the keys it waits for, and the thread that finds them
//! ready wakes it. The progress thread steps the engine meanwhile.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use crate::error::ReceiveError;
use crate::{Endpoint, Message};
use dipole_driver::WaitKey;

impl Endpoint {
    /// Receives the next message without blocking the thread, in any executor. Dropping the
    /// future loses no message.
    ///
    /// # Errors
    /// [`ReceiveError::Ended`], [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn receive_async(&self) -> impl Future<Output = Result<Message, ReceiveError>> + '_ {
        poll_fn(|context| self.poll_receive(context))
    }

    /// Poll-based version of [`receive_async`](Self::receive_async), for custom futures.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<Result<Message, ReceiveError>> {
        if self.inner.is_forked() {
            return Poll::Ready(Err(ReceiveError::Forked));
        }
        let driver = &self.inner.driver;
        if let Err(cause) = self.inner.ensure_progress() {
            return Poll::Ready(Err(ReceiveError::Broken(cause)));
        }
        let id = self.id().0;
        let keys = [WaitKey::Endpoint(id)];
        let taken = driver.wait_task(&keys, context.waker(), |state, now| {
            if self.is_ended() {
                return Some(Err(ReceiveError::Ended));
            }
            let message = state.engine.take(now, id)?;
            // Send credit that the sender may be waiting for.
            Some(match state.engine.transmit(now) {
                Ok(()) => Ok(message),
                Err(cause) => Err(ReceiveError::Broken(cause)),
            })
        });
        taken.map_or(Poll::Pending, Poll::Ready)
    }
}
