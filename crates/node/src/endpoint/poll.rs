//! Receiving by polling, without ever waiting.

use std::io;

use dipole_proto::Instant;

use super::Endpoint;
use crate::error::{ReceiveError, SendError};
use crate::process::ProcessState;
use dipole_driver::{Polled, WaitCondition};
use dipole_engine::{Reader, ReaderSink};

/// Messages taken from the inbox per poll.
const MAX_POLLED: usize = 64;

impl Endpoint {
    /// Passes arrived messages to a reader, which may read those in shared memory in place;
    /// returns their number. Never waits: meant for programs that poll in a loop and do other work
    /// in between. Polls shared memory, and with `at_network` also the network, which is more
    /// expensive but must happen now and then.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`], [`ReceiveError::Forked`] and [`ReceiveError::Ended`].
    #[inline]
    pub fn poll(&self, reader: &mut impl Reader, at_network: bool) -> Result<usize, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        if self.is_ended() {
            return Err(ReceiveError::Ended);
        }
        let condition = PollCondition {
            endpoint: self,
            id: self.id().0,
            reader,
        };
        match self.inner.driver.poll_once(at_network, condition) {
            Err(cause) | Ok(Some(Err(cause))) => Err(ReceiveError::Broken(cause)),
            Ok(Some(Ok(count))) => Ok(count),
            Ok(None) => Ok(0),
        }
    }

    /// Sends everything queued by [`Edge::try_send_more`](crate::Edge::try_send_more) on all edges
    /// of this process, as far as the windows allow.
    ///
    /// # Errors
    /// [`SendError::Broken`] and [`SendError::Forked`].
    pub fn flush_edges(&self) -> Result<(), SendError> {
        self.check_usable()?;
        let flushed = self.inner.driver.with(|state, now| {
            state.engine.flush_all();
            state.engine.transmit(now)
        });
        flushed.map_err(SendError::Broken)
    }
}

/// Passes arriving messages to a reader.
struct PollCondition<'a, R> {
    endpoint: &'a Endpoint,
    id: u32,
    reader: &'a mut R,
}

impl<R> PollCondition<'_, R> {
    /// Sends credit for what was taken, since the senders may be waiting for it.
    #[inline]
    fn send_credit(&self, state: &mut ProcessState, count: usize) -> io::Result<usize> {
        if state.engine.has_transmit() {
            state.engine.transmit(self.endpoint.inner.driver.now())?;
        }
        Ok(count)
    }
}

impl<R: Reader> WaitCondition<ProcessState> for PollCondition<'_, R> {
    type Output = io::Result<usize>;

    #[inline]
    fn attempt(&mut self, state: &mut ProcessState, now: Instant) -> Option<io::Result<usize>> {
        if !state.engine.has_message(self.id) {
            return None;
        }
        let count = state
            .engine
            .take_many(now, self.id, MAX_POLLED, &mut ReaderSink(self.reader));
        Some(self.send_credit(state, count))
    }

    #[inline]
    fn poll_memory(&mut self, state: &mut ProcessState) -> Polled<io::Result<usize>> {
        match state.poll_memory_to(self.id, self.reader) {
            Polled::Nothing => Polled::Nothing,
            Polled::Progress => Polled::Progress,
            Polled::Ready(count) => Polled::Ready(self.send_credit(state, count)),
        }
    }
}
