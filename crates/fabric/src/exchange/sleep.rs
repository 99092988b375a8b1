//! Preparations before a program sleeps until a descriptor becomes readable.

use std::os::fd::OwnedFd;
use std::time::Duration;

use dipole_node::ReceiveError;

use super::{Exchange, log_error};

/// Steps after which control returns to the program even if more messages wait.
const MAX_STEPS: u32 = 256;
/// Time until something is sent again whose edge had no room.
const RETRY_AFTER: Duration = Duration::from_millis(1);

impl Exchange {
    /// Descriptors that are readable while messages or completions wait. They must not be
    /// exported again while these are open.
    pub(crate) fn descriptors(&self) -> Option<[OwnedFd; 2]> {
        Some([self.endpoint.export().ok()?, self.queue.export().ok()?])
    }

    /// Processes everything that has arrived. Returns the time after which to do so again even if
    /// nothing arrives, if that is necessary.
    pub(crate) fn prepare_sleep(&mut self) -> Option<Duration> {
        if !self.batch.is_empty() {
            self.flush();
        }
        for _ in 0..MAX_STEPS {
            // Poll even if nothing is posted: the queue's descriptor stays readable until a poll
            // finds nothing.
            let has_completed = self.take_completion();
            let has_received = self.take_message();
            if self.edges.are_held_up() {
                self.advance_queues();
            }
            if !has_completed && !has_received {
                return self.next_wakeup();
            }
        }
        Some(Duration::ZERO)
    }

    /// Receives one message, from the network or through shared memory; true if there was one.
    fn take_message(&mut self) -> bool {
        match self.endpoint.try_receive() {
            Ok(Some(message)) => {
                self.receive(message);
                true
            }
            Ok(None) | Err(ReceiveError::Forked) => false,
            Err(error) => {
                log_error(&error);
                false
            }
        }
    }

    fn next_wakeup(&self) -> Option<Duration> {
        if self.edges.are_held_up() {
            return Some(RETRY_AFTER);
        }
        let mut peers = self.receives.sources().chain(self.outstanding.peers());
        (peers.next().is_some()).then(|| self.schedule.time_to_peer_check())
    }

    pub(crate) fn is_peer_check_overdue(&self) -> bool {
        self.schedule.is_peer_check_overdue()
    }
}
