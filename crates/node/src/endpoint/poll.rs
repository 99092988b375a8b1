//! Messages for those who look without waiting.

use std::io;

use dipole_proto::Instant;

use super::Endpoint;
use crate::error::{ReceiveError, SendError};
use crate::process::ProcessState;
use dipole_driver::{Polled, Want};
use dipole_engine::{Reader, Taking};

/// Messages that a poll takes out of the inbox.
const MOST_POLLED: usize = 64;

impl Endpoint {
    /// Gives the messages that have come to a reader, which may read those in shared memory where
    /// they lie: how many. Never waits: it is for those who ask again and again, and do something
    /// else between. Looks at shared memory; also at the network, which costs more, if it is told
    /// to, as it has to be now and then.
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
        let polling = Polling {
            endpoint: self,
            id: self.id().0,
            reader,
        };
        match self.inner.driver.glance(at_network, polling) {
            Err(cause) | Ok(Some(Err(cause))) => Err(ReceiveError::Broken(cause)),
            Ok(Some(Ok(count))) => Ok(count),
            Ok(None) => Ok(0),
        }
    }

    /// What was queued by [`Edge::try_send_more`](crate::Edge::try_send_more) leaves, as far as
    /// windows allow: of all edges of this process.
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

/// What comes goes to a reader.
struct Polling<'a, R> {
    endpoint: &'a Endpoint,
    id: u32,
    reader: &'a mut R,
}

impl<R> Polling<'_, R> {
    /// Credit that senders wait for leaves with what was taken.
    #[inline]
    fn taken(&self, state: &mut ProcessState, count: usize) -> io::Result<usize> {
        if state.engine.has_transmit() {
            state.engine.transmit(self.endpoint.inner.driver.now())?;
        }
        Ok(count)
    }
}

impl<R: Reader> Want<ProcessState> for Polling<'_, R> {
    type Got = io::Result<usize>;

    #[inline]
    fn attempt(&mut self, state: &mut ProcessState, now: Instant) -> Option<io::Result<usize>> {
        if !state.engine.has_message(self.id) {
            return None;
        }
        let count = state
            .engine
            .take_many(now, self.id, MOST_POLLED, &mut Taking(self.reader));
        Some(self.taken(state, count))
    }

    #[inline]
    fn poll_memory(&mut self, state: &mut ProcessState) -> Polled<io::Result<usize>> {
        match state.poll_memory_to(self.id, self.reader) {
            Polled::Nothing => Polled::Nothing,
            Polled::Came => Polled::Came,
            Polled::Got(count) => Polled::Got(self.taken(state, count)),
        }
    }
}
