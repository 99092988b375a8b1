//! Receives messages: without waiting, within a time limit, or into the caller's memory.

use std::io;
use std::time::Duration;

use dipole_driver::{Polled, Stepper, Timeout, WaitCondition, WaitError, WaitKey};
use dipole_engine::Message;
use dipole_proto::Instant;

use super::Endpoint;
use crate::address::Address;
use crate::error::ReceiveError;
use crate::process::ProcessState;
use crate::region::RegionMemory;

/// Buffers up to this length get a copy of the message, instead of being offered to the engine.
const COPIED_BYTES: usize = 4 << 10;

impl Endpoint {
    /// Waits for the next message. It is not copied; dropping it frees its memory.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn receive(&self) -> Result<Message, ReceiveError> {
        self.receive_until(Timeout::Infinite)
    }

    /// Waits for the next message for at most `timeout`; zero polls the network once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Message, ReceiveError> {
        self.receive_until(Timeout::from(timeout))
    }

    /// Returns the next message if there is one; polls the network once.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn try_receive(&self) -> Result<Option<Message>, ReceiveError> {
        match self.receive_until(Timeout::Zero) {
            Ok(message) => Ok(Some(message)),
            Err(ReceiveError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the next message if it has already arrived or is in memory shared with its sender.
    /// This is much cheaper than [`try_receive`](Self::try_receive), which must still be called
    /// now and then, because this function does not poll the network.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`], [`ReceiveError::Forked`] and [`ReceiveError::Ended`].
    #[inline]
    pub fn try_receive_local(&self) -> Result<Option<Message>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        if self.is_ended() {
            return Err(ReceiveError::Ended);
        }
        let id = self.id().0;
        let mut taken = None;
        let condition = ReceiveCondition {
            endpoint: self,
            taken: &mut taken,
            attempt: |state: &mut ProcessState, now| state.engine.take(now, id),
            hand_over: |state: &mut ProcessState| state.poll_memory_for(id),
        };
        match self.inner.driver.poll_once(false, condition) {
            Err(cause) | Ok(Some(Err(cause))) => Err(ReceiveError::Broken(cause)),
            Ok(Some(Ok(())) | None) => Ok(taken),
        }
    }

    /// Waits for the next message and stores it in `buffer`; returns its length and source. Short
    /// messages are copied. A long message that arrives during the call goes into `buffer`
    /// directly, from the link or from the memory of a sender on this node.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`] leaves the message in the queue; those of `receive`. On error,
    /// the buffer may contain parts of a message that has not been received.
    ///
    /// # Source
    /// Single copy, Nectar §2.1 and §3.1.
    pub fn receive_into(&self, buffer: &mut [u8]) -> Result<(usize, Address), ReceiveError> {
        self.receive_into_until(buffer, Timeout::Infinite)
    }

    /// Like [`receive_into`](Self::receive_into), for at most `timeout`; zero polls the network
    /// once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive_into`.
    pub fn receive_into_timeout(
        &self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> Result<(usize, Address), ReceiveError> {
        self.receive_into_until(buffer, Timeout::from(timeout))
    }

    fn receive_into_until(
        &self,
        buffer: &mut [u8],
        until: Timeout,
    ) -> Result<(usize, Address), ReceiveError> {
        if buffer.len() > COPIED_BYTES {
            return RegionMemory::lend(buffer, |memory| self.receive_to(memory, until));
        }
        let message = self.receive_max_until(buffer.len(), until)?;
        buffer[..message.len()].copy_from_slice(&message);
        Ok((message.len(), message.source()))
    }

    /// Like [`receive_into_timeout`](Self::receive_into_timeout), but stores the message in memory
    /// that may be shared.
    ///
    /// # Errors
    /// The errors of `receive_into_timeout`.
    pub fn receive_to_region(
        &self,
        memory: &RegionMemory,
        timeout: Duration,
    ) -> Result<(usize, Address), ReceiveError> {
        self.receive_to(memory, Timeout::from(timeout))
    }

    fn receive_to(
        &self,
        memory: &RegionMemory,
        until: Timeout,
    ) -> Result<(usize, Address), ReceiveError> {
        /// Withdraws the offer however the wait ends.
        struct Offer<'a>(&'a Endpoint, &'a RegionMemory);
        impl Drop for Offer<'_> {
            fn drop(&mut self) {
                let Offer(endpoint, memory) = self;
                if !endpoint.inner.is_forked() {
                    let id = endpoint.id().0;
                    (endpoint.inner.driver).with_last(|state, _| state.engine.withdraw(id, memory));
                }
            }
        }
        let id = self.id().0;
        let mut offer = None;
        let given = memory.bytes();
        self.wait_message(until, |state, now| {
            let taken = state.engine.take_into(now, id, memory);
            if taken.is_none() {
                offer.get_or_insert_with(|| Offer(self, memory));
            }
            let too_short = |needed| ReceiveError::TooShort { needed, given };
            Some(taken?.map_err(too_short))
        })?
    }

    /// Waits for the next message for at most `timeout` and takes it if it is not longer than
    /// `bytes`; a longer message stays in the queue.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`], [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_max(&self, bytes: usize, timeout: Duration) -> Result<Message, ReceiveError> {
        self.receive_max_until(bytes, Timeout::from(timeout))
    }

    fn receive_max_until(&self, bytes: usize, until: Timeout) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        self.wait_message(until, |state, now| {
            let (_, needed) = state.engine.next_arrival(id)?;
            if needed > bytes {
                let given = bytes;
                return Some(Err(ReceiveError::TooShort { needed, given }));
            }
            state.engine.take(now, id).map(Ok)
        })?
    }

    /// Waits for a message and takes all that are waiting, at most `limit`, oldest first. This is
    /// cheaper than taking them one by one. Returns their number, which is 0 only if `limit` is.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive); nothing was taken.
    pub fn receive_many(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
    ) -> Result<usize, ReceiveError> {
        self.receive_many_until(messages, limit, Timeout::Infinite)
    }

    /// Like [`receive_into`](Self::receive_into), for at most `timeout`; zero polls the network
    /// once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive_many`.
    pub fn receive_many_timeout(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
        timeout: Duration,
    ) -> Result<usize, ReceiveError> {
        self.receive_many_until(messages, limit, Timeout::from(timeout))
    }

    fn receive_many_until(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
        until: Timeout,
    ) -> Result<usize, ReceiveError> {
        let id = self.id().0;
        if limit == 0 {
            return Ok(0);
        }
        let many = self.wait_message(until, |state, now| {
            let first = state.engine.next_arrival(id);
            let count = state.engine.take_many(now, id, limit, messages);
            (count > 0).then_some(Many { first, count })
        })?;
        Ok(many.count)
    }

    fn receive_until(&self, until: Timeout) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        let hand_over = |state: &mut ProcessState| state.poll_memory_for(id);
        self.wait_receive(until, |state, now| state.engine.take(now, id), hand_over)
    }

    fn wait_message<R: Arrival>(
        &self,
        until: Timeout,
        attempt: impl FnMut(&mut ProcessState, Instant) -> Option<R>,
    ) -> Result<R, ReceiveError> {
        let look = |state: &mut ProcessState| state.poll_memory().into();
        self.wait_receive(until, attempt, look)
    }

    /// Waits for the result of `attempt`, or of `hand_over`, which polls shared memory.
    #[inline]
    fn wait_receive<R: Arrival>(
        &self,
        until: Timeout,
        attempt: impl FnMut(&mut ProcessState, Instant) -> Option<R>,
        hand_over: impl FnMut(&mut ProcessState) -> Polled<R>,
    ) -> Result<R, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        if self.is_ended() {
            return Err(ReceiveError::Ended);
        }
        let what = |state: &ProcessState| {
            let sources = state.engine.sources(self.id().0);
            if sources.is_empty() {
                format!(
                    "a message to endpoint {}; it has no senders yet",
                    self.address()
                )
            } else {
                let names: Vec<String> = sources.iter().map(ToString::to_string).collect();
                format!(
                    "a message to endpoint {} from {}",
                    self.address(),
                    names.join(", ")
                )
            }
        };
        let mut taken = None;
        let condition = ReceiveCondition {
            endpoint: self,
            taken: &mut taken,
            attempt,
            hand_over,
        };
        let keys = [WaitKey::Endpoint(self.id().0)];
        let traced = self.inner.trace_wait(until);
        let waited = (self.inner.driver).wait_for(until, &keys, &what, condition);
        if let Some(traced) = traced {
            traced.end_receive(Some(self.address()), taken.as_ref().and_then(R::arrival));
        }
        match waited {
            // Another thread closed the endpoint during the wait.
            Ok(Ok(())) => taken.ok_or(ReceiveError::Ended),
            Ok(Err(cause)) | Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
            Err(WaitError::Interrupted { .. }) => Err(ReceiveError::Interrupted),
            Err(WaitError::TimedOut { waited }) => Err(ReceiveError::TimedOut {
                endpoint: self.address(),
                waited,
            }),
        }
    }
}

/// A result of a call that receives.
trait Arrival {
    /// Source and length of the message that arrived, if one did.
    fn arrival(&self) -> Option<(Address, usize)>;
}

impl Arrival for Message {
    fn arrival(&self) -> Option<(Address, usize)> {
        Some((self.source(), self.len()))
    }
}

impl Arrival for (usize, Address) {
    fn arrival(&self) -> Option<(Address, usize)> {
        Some((self.1, self.0))
    }
}

/// Messages that were taken together.
struct Many {
    first: Option<(Address, usize)>,
    count: usize,
}

impl Arrival for Many {
    fn arrival(&self) -> Option<(Address, usize)> {
        self.first
    }
}

impl<R: Arrival> Arrival for Result<R, ReceiveError> {
    fn arrival(&self) -> Option<(Address, usize)> {
        self.as_ref().ok()?.arrival()
    }
}

/// Waits for a result of `attempt`, or for the endpoint to be closed.
struct ReceiveCondition<'a, R, A, H> {
    endpoint: &'a Endpoint,
    /// Stored here because returning it through the wait would move it several times.
    taken: &'a mut Option<R>,
    attempt: A,
    hand_over: H,
}

impl<R, A, H> ReceiveCondition<'_, R, A, H> {
    /// Sends credit for what was taken, since its sender may be waiting for it.
    #[inline]
    fn send_credit(&self, state: &mut ProcessState) -> io::Result<()> {
        match state.engine.has_transmit() {
            true => state.engine.transmit(self.endpoint.inner.driver.now()),
            false => Ok(()),
        }
    }
}

impl<R, A, H> WaitCondition<ProcessState> for ReceiveCondition<'_, R, A, H>
where
    A: FnMut(&mut ProcessState, Instant) -> Option<R>,
    H: FnMut(&mut ProcessState) -> Polled<R>,
{
    type Output = io::Result<()>;

    #[inline]
    fn attempt(&mut self, state: &mut ProcessState, now: Instant) -> Option<io::Result<()>> {
        if self.endpoint.is_ended() {
            return Some(Ok(()));
        }
        *self.taken = (self.attempt)(state, now);
        self.taken.as_ref()?;
        Some(self.send_credit(state))
    }

    #[inline]
    fn poll_memory(&mut self, state: &mut ProcessState) -> Polled<io::Result<()>> {
        match (self.hand_over)(state) {
            Polled::Nothing => Polled::Nothing,
            Polled::Progress => Polled::Progress,
            Polled::Ready(taken) => {
                *self.taken = Some(taken);
                Polled::Ready(self.send_credit(state))
            }
        }
    }
}
