//! What has to be done before a program sleeps until a descriptor is readable.

use std::os::fd::OwnedFd;
use std::time::Duration;

use dipole_node::ReceiveError;

use super::{ASK_AGAIN, Exchange, say};

/// Steps after which the program has its turn, though more has come.
const MOST_STEPS: u32 = 256;
/// What found no room is tried again so soon.
const TRY_AGAIN: Duration = Duration::from_millis(1);

impl Exchange {
    /// Descriptors that are readable while messages or completions wait to be taken. They are
    /// not to be asked for again while these live.
    pub(crate) fn descriptors(&self) -> Option<[OwnedFd; 2]> {
        Some([self.endpoint.export().ok()?, self.queue.export().ok()?])
    }

    /// Takes all that has come. Tells after which time it is to be done again though nothing
    /// comes, if ever.
    pub(crate) fn settle(&mut self) -> Option<Duration> {
        if !self.withheld.is_empty() {
            self.flush();
        }
        for _ in 0..MOST_STEPS {
            // Also where nothing is posted any more: its descriptor is ready until this finds nothing.
            let has_completed = self.take_completion();
            let has_come = self.take_message();
            if !self.delayed.is_empty() {
                self.get_delayed();
            }
            if !has_completed && !has_come {
                return self.next_look();
            }
        }
        Some(Duration::ZERO)
    }

    /// Takes a message, if one has come; looks everywhere, not only where short ones come.
    fn take_message(&mut self) -> bool {
        match self.endpoint.try_receive() {
            Ok(Some(message)) => {
                self.receive(message);
                true
            }
            Ok(None) | Err(ReceiveError::Forked) => false,
            Err(error) => {
                say(&error);
                false
            }
        }
    }

    fn next_look(&self) -> Option<Duration> {
        if !self.delayed.is_empty() {
            return Some(TRY_AGAIN);
        }
        let waits =
            self.sources().next().is_some() || !self.offered.is_empty() || !self.updates.is_empty();
        waits.then(|| ASK_AGAIN.saturating_sub(self.asked_at.elapsed()))
    }

    /// True if those that are waited for were not asked for some time whether they live.
    pub(crate) fn is_overdue(&self) -> bool {
        self.asked_at.elapsed() >= ASK_AGAIN
    }
}
