//! Windows and backlogs that the two sides have announced to each other. Spec §6.6.

use crate::holes::widen;
use serde::{Deserialize, Serialize};

/// Last reports about flow control in both directions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FlowReports {
    /// The window last sent to the peer.
    window: u32,
    /// The window has changed since.
    is_window_due: bool,
    /// Unit number after the last one that was announced to the peer as waiting.
    backlog: u64,
    /// Unit number after the last one that the peer has announced as waiting.
    peer_backlog: u64,
    /// Period in which [`Grants`](crate::grants::Grants) last counted the peer as a sender.
    sender_period: u64,
}

impl FlowReports {
    /// Units are numbered from `first` on.
    pub(crate) fn new(first: u64) -> FlowReports {
        FlowReports {
            window: 0,
            is_window_due: false,
            backlog: first,
            peer_backlog: first,
            sender_period: u64::MAX,
        }
    }

    /// The window that was last sent to the peer.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// This window was sent to the peer.
    pub(crate) fn announce_window(&mut self, window: u32) {
        self.window = window;
    }

    pub(crate) fn set_window_due(&mut self, due: bool) {
        self.is_window_due = due;
    }

    #[inline]
    pub(crate) fn is_window_due(&self) -> bool {
        self.is_window_due
    }

    /// True if the peer does not know of any unit from `top` on that waits before `end`.
    pub(crate) fn hides_backlog(&self, top: u64, end: u64) -> bool {
        self.backlog <= top && self.backlog < end
    }

    /// The peer knows now that units before `end` wait.
    pub(crate) fn announce_backlog(&mut self, end: u64) {
        self.backlog = end;
    }

    /// The peer has announced that units before `end` wait; `next` is the first that is missing.
    pub(crate) fn on_backlog(&mut self, end: u32, next: u64) {
        self.peer_backlog = widen(end, next);
    }

    /// Announced units of the peer from `next` on.
    #[inline]
    pub(crate) fn peer_backlog(&self, next: u64) -> u32 {
        let left = self.peer_backlog.saturating_sub(next);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(crate) fn sender_period(&self) -> u64 {
        self.sender_period
    }

    #[inline]
    pub(crate) fn set_sender_period(&mut self, period: u64) {
        self.sender_period = period;
    }

    /// Everything that matters relative to the first unit not yet acknowledged and the first one
    /// missing, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, base: u64, next: u64, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (self.window, self.is_window_due).hash(hasher);
        (self.backlog.saturating_sub(base), self.peer_backlog(next)).hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_hidden_until_it_is_announced() {
        let mut reports = FlowReports::new(10);
        assert!(!reports.hides_backlog(10, 10), "nothing waits");
        assert!(reports.hides_backlog(12, 15));
        reports.announce_backlog(15);
        assert!(!reports.hides_backlog(12, 20), "some of those still wait");
        assert!(reports.hides_backlog(15, 20));
    }

    #[test]
    fn the_peers_backlog_shrinks_as_units_arrive() {
        let mut reports = FlowReports::new(0);
        reports.on_backlog(30, 20);
        assert_eq!(reports.peer_backlog(25), 5);
        assert_eq!(reports.peer_backlog(31), 0);
    }
}
