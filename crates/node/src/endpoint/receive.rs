//! Messages taken from an endpoint: at once, within a time, into memory of the caller's.

use std::io;
use std::time::Duration;

use dipole_driver::{Polled, Stepper, Timeout, WaitError, WaitKey, Want};
use dipole_engine::Message;
use dipole_proto::Instant;

use super::Endpoint;
use crate::address::Address;
use crate::error::ReceiveError;
use crate::process::ProcessState;
use crate::region::RegionMemory;

/// Memory up to this length is not offered for what arrives, but copied to.
const COPIED_BYTES: usize = 4 << 10;

impl Endpoint {
    /// Waits for the next message. It is read where it lies; dropping it gives the
    /// memory back.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn receive(&self) -> Result<Message, ReceiveError> {
        self.receive_until(Timeout::Infinite)
    }

    /// Waits for the next message, at most `timeout`; with none it looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Message, ReceiveError> {
        self.receive_until(Timeout::from(timeout))
    }

    /// The next message if there is one; looks at the network once.
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

    /// The next message if it has come, or lies in memory shared with its sender: costs much less
    /// than [`try_receive`](Self::try_receive), which has to be called now and then besides, since
    /// nothing here looks at the network.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`], [`ReceiveError::Forked`] and [`ReceiveError::Ended`].
    #[inline]
    pub fn glance(&self) -> Result<Option<Message>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        if self.is_ended() {
            return Err(ReceiveError::Ended);
        }
        let id = self.id().0;
        let mut taken = None;
        let reading = Reading {
            endpoint: self,
            taken: &mut taken,
            attempt: |state: &mut ProcessState, now| state.engine.take(now, id),
            hand_over: |state: &mut ProcessState| state.poll_memory_for(id),
        };
        match self.inner.driver.glance(false, reading) {
            Err(cause) | Ok(Some(Err(cause))) => Err(ReceiveError::Broken(cause)),
            Ok(Some(Ok(())) | None) => Ok(taken),
        }
    }

    /// Waits for the next message and has it in memory of the caller's: its length and source. A
    /// short one is copied; a long one that arrives meanwhile comes there straight from the link,
    /// or from its sender's memory in another process of this node.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`] leaves the message in place; those of `receive`. The memory may
    /// then hold a part of a message that is still to be received.
    ///
    /// # Source
    /// Single copy, Nectar §2.1 and §3.1.
    pub fn receive_into(&self, buffer: &mut [u8]) -> Result<(usize, Address), ReceiveError> {
        self.receive_into_until(buffer, Timeout::Infinite)
    }

    /// The same, waiting at most `timeout`; with none it looks at the network once.
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
        let message = self.receive_fitting_until(buffer.len(), until)?;
        buffer[..message.len()].copy_from_slice(&message);
        Ok((message.len(), message.source()))
    }

    /// Like [`receive_into_timeout`](Self::receive_into_timeout), into memory that others may
    /// reach, too.
    ///
    /// # Errors
    /// Those of `receive_into_timeout`.
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
        /// Takes the memory back, whatever ends the wait.
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

    /// Waits for the next message, at most `timeout`, and takes it if it has at most `bytes`
    /// bytes; a longer one stays where it is.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`], [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_fitting(
        &self,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Message, ReceiveError> {
        self.receive_fitting_until(bytes, Timeout::from(timeout))
    }

    fn receive_fitting_until(&self, bytes: usize, until: Timeout) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        self.wait_message(until, |state, now| {
            let needed = state.engine.next_length(id)?;
            if needed > bytes {
                let given = bytes;
                return Some(Err(ReceiveError::TooShort { needed, given }));
            }
            state.engine.take(now, id).map(Ok)
        })?
    }

    /// Waits for a message and takes all that wait, at most `limit`, oldest first: at less cost
    /// than one by one. How many; none only where `limit` is 0.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive); nothing was taken.
    pub fn receive_many(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
    ) -> Result<usize, ReceiveError> {
        self.receive_many_until(messages, limit, Timeout::Infinite)
    }

    /// The same, waiting at most `timeout`; with none it looks at the network once.
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
        self.wait_message(until, |state, now| {
            let taken = state.engine.take_many(now, id, limit, messages);
            (taken > 0).then_some(taken)
        })
    }

    fn receive_until(&self, until: Timeout) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        let hand_over = |state: &mut ProcessState| state.poll_memory_for(id);
        self.wait_reading(until, |state, now| state.engine.take(now, id), hand_over)
    }

    fn wait_message<R>(
        &self,
        until: Timeout,
        attempt: impl FnMut(&mut ProcessState, Instant) -> Option<R>,
    ) -> Result<R, ReceiveError> {
        let look = |state: &mut ProcessState| state.poll_memory().into();
        self.wait_reading(until, attempt, look)
    }

    /// Waits for what `attempt` finds, or `hand_over` brings out of shared memory.
    #[inline]
    fn wait_reading<R>(
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
                    "a message to endpoint {}; nobody has sent to it yet",
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
        let reading = Reading {
            endpoint: self,
            taken: &mut taken,
            attempt,
            hand_over,
        };
        let keys = [WaitKey::Endpoint(self.id().0)];
        let waited = (self.inner.driver).wait_for(until, &keys, &what, reading);
        match waited {
            // Closed by another thread while this one waited.
            Ok(Ok(())) => taken.ok_or(ReceiveError::Ended),
            Ok(Err(cause)) | Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
            Err(WaitError::TimedOut { waited }) => Err(ReceiveError::TimedOut {
                endpoint: self.address(),
                waited,
            }),
        }
    }
}

/// What a reader waits for: what its attempts find, or that its endpoint ends.
struct Reading<'a, R, A, H> {
    endpoint: &'a Endpoint,
    /// Not by way of the wait's result: it would be moved there several times.
    taken: &'a mut Option<R>,
    attempt: A,
    hand_over: H,
}

impl<R, A, H> Reading<'_, R, A, H> {
    /// Credit that a sender waits for leaves with what was taken.
    #[inline]
    fn give_credit(&self, state: &mut ProcessState) -> io::Result<()> {
        match state.engine.has_transmit() {
            true => state.engine.transmit(self.endpoint.inner.driver.now()),
            false => Ok(()),
        }
    }
}

impl<R, A, H> Want<ProcessState> for Reading<'_, R, A, H>
where
    A: FnMut(&mut ProcessState, Instant) -> Option<R>,
    H: FnMut(&mut ProcessState) -> Polled<R>,
{
    type Got = io::Result<()>;

    #[inline]
    fn attempt(&mut self, state: &mut ProcessState, now: Instant) -> Option<io::Result<()>> {
        if self.endpoint.is_ended() {
            return Some(Ok(()));
        }
        *self.taken = (self.attempt)(state, now);
        self.taken.as_ref()?;
        Some(self.give_credit(state))
    }

    #[inline]
    fn poll_memory(&mut self, state: &mut ProcessState) -> Polled<io::Result<()>> {
        match (self.hand_over)(state) {
            Polled::Nothing => Polled::Nothing,
            Polled::Came => Polled::Came,
            Polled::Got(taken) => {
                *self.taken = Some(taken);
                Polled::Got(self.give_credit(state))
            }
        }
    }
}
