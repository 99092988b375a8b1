//! The asynchronous face: futures that need no runtime of their own.
//!
//! A future that is not ready registers its task for the keys it waits for; the thread
//! that finds them ready wakes it. The progress thread steps the engine meanwhile.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use crate::error::ReceiveError;
use crate::{Endpoint, Message};
use dipole_driver::WaitKey;

impl Endpoint {
    /// The next message, without blocking the thread: for any executor. Dropping the
    /// future before it is ready loses nothing.
    ///
    /// # Errors
    /// [`ReceiveError::Ended`], [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn receive_async(&self) -> impl Future<Output = Result<Message, ReceiveError>> + '_ {
        poll_fn(|context| self.poll_receive(context))
    }

    /// [`receive_async`](Self::receive_async) for callers who write their own futures.
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
            // Credit that the sender waits for leaves with it.
            Some(match state.engine.transmit(now) {
                Ok(()) => Ok(message),
                Err(cause) => Err(ReceiveError::Broken(cause)),
            })
        });
        taken.map_or(Poll::Pending, Poll::Ready)
    }
}
