//! Limits the memory of unexpected messages.
//!
//! A receiver whose unexpected messages take too much memory throttles their senders. A throttled
//! sender offers also short messages instead of sending them, so only the offer waits here. If a
//! receive is posted for an offered message, it is fetched at once, whatever waits before it. The
//! shortest messages are always sent whole.

use super::{Destination, Exchange, address};
use crate::ffi::{AGAIN, Failure};
use crate::name::{Name, number};
use crate::unexpected::ENTRY_BYTES;
use crate::wire::{Head, Kind};

/// Longest message that is sent whole in any case: its offer would take as much memory.
pub(super) const MAX_UNTHROTTLED_BYTES: usize = ENTRY_BYTES;
/// Copies of injected messages that a process keeps for throttling receivers.
const MAX_INJECTED_BYTES: usize = 32 << 20;

impl Exchange {
    /// Throttles the sender of an unexpected message if too much is waiting.
    #[inline]
    pub(super) fn throttle_if_full(&mut self, from: u64) {
        if self.receives.is_full() && from != number(self.own.messages) {
            self.throttle(from);
        }
    }

    #[cold]
    fn throttle(&mut self, from: u64) {
        let to = Destination::known(address(from));
        // A sender that is gone sends no more messages.
        if let Ok(index) = self.edge_index(to)
            && self.edges.throttle(index)
        {
            let head = Head::control(Kind::Throttle, 1, 0);
            let _gone = self.send_control(to, &head);
        }
    }

    /// Lets throttled senders send their messages again if there is room.
    #[inline]
    pub(super) fn release_throttled(&mut self) {
        if self.edges.has_throttled() && self.receives.has_room() {
            self.release_all();
        }
    }

    #[cold]
    fn release_all(&mut self) {
        for peer in self.edges.take_throttled() {
            let head = Head::control(Kind::Throttle, 0, 0);
            let _gone = self.send_control(Destination::known(address(peer)), &head);
        }
    }

    /// A receiver throttles this sender, or no longer does.
    pub(super) fn on_throttle(&mut self, from: u64, is_throttled: bool) {
        if let Ok(index) = self.edge_index(Destination::known(address(from))) {
            self.edges.set_throttled(index, is_throttled);
        }
    }

    /// True if messages to this receiver must be offered.
    #[inline]
    pub(super) fn is_throttled(&mut self, to: &Name) -> Result<bool, Failure> {
        if !self.edges.is_throttled() {
            return Ok(false);
        }
        Ok(self.edge(to.message_endpoint())?.is_throttled)
    }

    /// Checks that another injected message may be kept.
    ///
    /// # Errors
    /// `AGAIN` if too many wait for their receivers.
    pub(super) fn check_injected(&self, more: usize) -> Result<(), Failure> {
        match self.outstanding.injected_bytes() {
            0 => Ok(()),
            kept if kept + more <= MAX_INJECTED_BYTES => Ok(()),
            _ => Err(AGAIN),
        }
    }
}
