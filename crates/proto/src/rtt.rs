//! Round-trip estimate and the time-out derived from it. Spec §6.1.
//!
//! Packet numbers are never reused, so a sample is never ambiguous. It may only be too long, if the
//! acknowledgement waited for a packet to carry it or for a hole to be filled, or was lost.

use crate::time::{MICROSECOND, MILLISECOND};
use serde::{Deserialize, Serialize};

/// Smoothed round trip and its variation (Jacobson's estimator).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
    /// The shortest sample: the round trip without queues.
    least_ns: u64,
}

/// A longer round trip in a cluster means that packets queue up.
const LONG_NS: u64 = 2 * MILLISECOND;
/// Scheduling, delayed acknowledgements and the time that a window takes to be written may add this
/// much.
const JITTER_NS: u64 = 200 * MICROSECOND;

impl RoundTrip {
    /// Updates the estimate with a sample.
    pub(crate) fn sample(&mut self, ns: u64) {
        let ns = ns.max(1);
        if self.smoothed_ns == 0 {
            self.smoothed_ns = ns;
            self.variation_ns = ns / 2;
            self.least_ns = ns;
            return;
        }
        self.least_ns = self.least_ns.min(ns);
        let difference = self.smoothed_ns.abs_diff(ns);
        self.variation_ns = (3 * self.variation_ns + difference) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
    }

    /// The smoothed round trip in ns; `None` before the first sample.
    #[must_use]
    pub(crate) fn smoothed_ns(&self) -> Option<u64> {
        (self.smoothed_ns > 0).then_some(self.smoothed_ns)
    }

    /// True while packets seem to queue up on the path.
    pub(crate) fn is_queueing(&self) -> bool {
        let usual_ns = (2 * self.least_ns + JITTER_NS).min(LONG_NS);
        self.smoothed_ns > usual_ns
    }

    /// How long to wait for a reply before suspecting a loss.
    #[must_use]
    pub(crate) fn timeout_ns(&self, min_ns: u64, max_ns: u64) -> u64 {
        if self.smoothed_ns == 0 {
            return (4 * min_ns).min(max_ns);
        }
        (self.smoothed_ns + 4 * self.variation_ns).clamp(min_ns, max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_on_the_path_shows_in_the_round_trip() {
        let mut trip = RoundTrip::default();
        for _ in 0..20 {
            trip.sample(50 * MICROSECOND);
        }
        assert!(!trip.is_queueing());
        for _ in 0..20 {
            trip.sample(290 * MICROSECOND);
        }
        assert!(!trip.is_queueing());
        for _ in 0..20 {
            trip.sample(500 * MICROSECOND);
        }
        assert!(trip.is_queueing());
        for _ in 0..50 {
            trip.sample(60 * MICROSECOND);
        }
        assert!(!trip.is_queueing());
    }

    #[test]
    fn the_timeout_follows_the_samples_within_its_bounds() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout_ns(10, 1000), 40);
        for _ in 0..100 {
            trip.sample(100);
        }
        assert_eq!(trip.smoothed_ns(), Some(100));
        assert!(trip.timeout_ns(10, 1000) < 150);
        trip.sample(5000);
        assert_eq!(trip.timeout_ns(10, 1000), 1000);
    }
}
