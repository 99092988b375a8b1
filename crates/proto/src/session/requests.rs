//! Requests that are repeated until the peer replies: for an acknowledgement, and for credit.
//! Spec §6.3, §5.6.

use crate::backoff::Backoff;
use crate::config::Config;
use crate::time::Instant;
use serde::{Deserialize, Serialize};

/// Timers of the repeated requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Requests {
    ack: Backoff,
    /// An `AckRequest` is the next packet.
    is_ack_due: bool,
    /// The application knows that a message must come.
    is_expecting: bool,
    credit: Backoff,
    /// Requests sent since the last packet from the peer: each one uses the next interface.
    unanswered: usize,
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests {
            ack: Backoff::OFF,
            is_ack_due: false,
            is_expecting: false,
            credit: Backoff::OFF,
            unanswered: 0,
        }
    }

    // ---- acknowledgements -----------------------------------------------------------

    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.is_ack_due
    }

    /// Lets the next packet be an `AckRequest`.
    pub(crate) fn request_ack(&mut self) {
        self.is_ack_due = true;
    }

    /// True if the packet that is written now is an `AckRequest`.
    pub(crate) fn take_ack(&mut self) -> bool {
        core::mem::take(&mut self.is_ack_due)
    }

    /// When an `AckRequest` is due.
    #[inline]
    pub(crate) fn ack_at(&self) -> Instant {
        self.ack.at
    }

    /// True while something is missing.
    pub(crate) fn awaits_ack(&self) -> bool {
        !self.ack.is_off()
    }

    /// Starts the timer if it is off.
    pub(crate) fn start_ack(&mut self, now: Instant, pause_ns: impl FnOnce() -> u64) {
        if self.ack.is_off() {
            self.ack.start(now, pause_ns());
        }
    }

    /// Nothing is missing, or something new has arrived.
    #[inline]
    pub(crate) fn stop_ack(&mut self) {
        self.ack = Backoff::OFF;
    }

    /// Called when the timer of ack requests has fired.
    pub(crate) fn on_ack_timer(&mut self, now: Instant, config: &Config) {
        self.is_ack_due = true;
        self.ack.again(now, config.max_timeout_ns);
    }

    pub(crate) fn set_expecting(&mut self, expecting: bool) {
        self.is_expecting = expecting;
    }

    #[inline]
    pub(crate) fn is_expecting(&self) -> bool {
        self.is_expecting
    }

    // ---- credit ---------------------------------------------------------------------

    /// When the request for credit is repeated.
    #[inline]
    pub(crate) fn credit_at(&self) -> Instant {
        self.credit.at
    }

    /// Starts the timer if it is off.
    pub(crate) fn start_credit(&mut self, now: Instant, config: &Config) {
        if self.credit.is_off() {
            self.credit.start(now, config.min_timeout_ns);
        }
    }

    /// Stops the timer when no edge needs credit.
    pub(crate) fn stop_credit(&mut self) {
        self.credit = Backoff::OFF;
    }

    /// The timer has fired; `is_needed` if some edge still needs credit.
    pub(crate) fn on_credit_timer(&mut self, is_needed: bool, now: Instant, config: &Config) {
        match is_needed {
            true => self.credit.again(now, config.max_timeout_ns),
            false => self.stop_credit(),
        }
    }

    // ---- interfaces -----------------------------------------------------------------

    /// Requests sent since the last packet from the peer.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Called when a request was sent.
    pub(crate) fn sent(&mut self) {
        self.unanswered += 1;
    }

    /// A packet of the peer was accepted.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.unanswered = 0;
    }

    /// Everything but the times, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, has_spare_lanes: bool, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (self.is_ack_due, self.is_expecting).hash(hasher);
        (self.ack.pause_ns, self.credit.pause_ns).hash(hasher);
        if has_spare_lanes {
            self.unanswered.hash(hasher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_request_is_taken_once_and_repeated_later() {
        let (mut requests, config) = (Requests::new(), Config::default());
        requests.start_ack(Instant(0), || 10);
        requests.start_ack(Instant(5), || panic!("it runs already"));
        assert_eq!(requests.ack_at(), Instant(10));
        requests.on_ack_timer(Instant(10), &config);
        assert!(requests.take_ack() && !requests.take_ack());
        assert_eq!(requests.ack_at(), Instant(30));
        requests.stop_ack();
        assert!(!requests.awaits_ack());
    }

    #[test]
    fn credit_requests_stop_when_no_edge_needs_credit() {
        let (mut requests, config) = (Requests::new(), Config::default());
        requests.start_credit(Instant(0), &config);
        let first = requests.credit_at();
        requests.on_credit_timer(true, first, &config);
        assert_eq!(requests.credit_at(), Instant(3 * first.0));
        requests.on_credit_timer(false, first, &config);
        assert_eq!(requests.credit_at(), Instant::NEVER);
    }
}
