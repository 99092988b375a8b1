//! Decides when unacknowledged units are retransmitted: round-trip estimate and tail timer.
//! Spec §6.1, §6.3.

use crate::backoff::Backoff;
use crate::config::Config;
use crate::rtt::RoundTrip;
use crate::time::Instant;
use serde::{Deserialize, Serialize};

/// Timers and estimates for retransmissions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Retransmission {
    pub(super) round_trip: RoundTrip,
    /// Runs while units are in flight.
    tail: Backoff,
    /// The tail timer has fired since it was started.
    has_fired: bool,
    /// Arrivals counted when the tail timer was last checked.
    arrivals: u64,
    /// Retransmissions that may exceed the pace: the first and last piece of a tail.
    unpaced: u32,
    /// Unpaced retransmissions avoid lanes with recent time-outs.
    is_detour: bool,
    /// When the last retransmission or request for an acknowledgement was sent.
    prompted_at: Instant,
}

impl Retransmission {
    pub(crate) fn new() -> Retransmission {
        Retransmission {
            round_trip: RoundTrip::default(),
            tail: Backoff::OFF,
            has_fired: false,
            arrivals: 0,
            unpaced: 0,
            is_detour: false,
            prompted_at: Instant(0),
        }
    }

    /// How long to wait for a reply before a loss is suspected.
    pub(crate) fn timeout_ns(&self, config: &Config) -> u64 {
        self.round_trip
            .timeout_ns(config.min_timeout_ns, config.max_timeout_ns)
    }

    /// Updates the estimate with the round trip of a packet that is acknowledged now.
    ///
    /// It may have arrived long ago, if its acknowledgement was lost or it had arrived behind a hole.
    /// An acknowledgement that took longer than usual is taken to answer the last prompt.
    pub(crate) fn sample(&mut self, sent_at: Instant, now: Instant) {
        let ns = now.since(sent_at);
        let is_answer = self.prompted_at > sent_at && ns > self.round_trip.timeout_ns(0, u64::MAX);
        let ns = match is_answer {
            true => (self.round_trip.smoothed_ns().unwrap_or(0)).max(now.since(self.prompted_at)),
            false => ns,
        };
        self.round_trip.sample(ns);
    }

    /// A request for an acknowledgement was sent.
    pub(crate) fn prompted(&mut self, now: Instant) {
        self.prompted_at = now;
    }

    /// When the tail timer fires.
    #[inline]
    pub(crate) fn tail_at(&self) -> Instant {
        self.tail.at
    }

    /// True while nothing is in flight.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.tail.is_off()
    }

    /// Starts the tail timer with the shortest pause.
    pub(crate) fn start(&mut self, now: Instant, config: &Config) {
        let pause_ns = self.timeout_ns(config);
        self.tail.start(now, pause_ns);
        self.has_fired = false;
    }

    /// Nothing is in flight any more.
    #[inline]
    pub(crate) fn stop(&mut self) {
        self.tail = Backoff::OFF;
        self.unpaced = 0;
    }

    /// The tail timer has fired: the next pause is longer. The first repetition of a single packet
    /// keeps it, because one packet more in a round trip loads no path.
    pub(crate) fn back_off(&mut self, now: Instant, config: &Config, is_single: bool) {
        match core::mem::replace(&mut self.has_fired, true) || !is_single {
            true => self.tail.again(now, config.max_timeout_ns),
            false => self.tail.start(now, self.tail.pause_ns),
        }
    }

    /// True if units have arrived since the last [`count`](Self::count).
    #[inline]
    pub(crate) fn has_news(&self, arrivals: u64) -> bool {
        self.arrivals != arrivals
    }

    /// Remembers how many units have arrived.
    #[inline]
    pub(crate) fn count(&mut self, arrivals: u64) {
        self.arrivals = arrivals;
    }

    /// Lets this many retransmissions exceed the pace.
    pub(crate) fn allow_unpaced(&mut self, count: u32) {
        self.unpaced = self.unpaced.max(count);
    }

    /// Retransmissions that may still exceed the pace.
    #[inline]
    pub(crate) fn unpaced(&self) -> u32 {
        self.unpaced
    }

    /// A piece was sent again.
    pub(crate) fn repeated(&mut self, now: Instant) {
        self.unpaced = self.unpaced.saturating_sub(1);
        self.prompted_at = now;
    }

    /// Sets whether unpaced retransmissions avoid lanes with recent time-outs.
    pub(crate) fn set_detour(&mut self, is_detour: bool) {
        self.is_detour = is_detour;
    }

    /// True if a piece that is sent now avoids lanes with recent time-outs.
    #[inline]
    pub(crate) fn takes_detour(&self, repeat: bool) -> bool {
        self.is_detour && repeat && self.unpaced > 0
    }

    /// Subtracts a time in which this process did not run.
    pub(crate) fn discount(&mut self, now: Instant, absence_ns: u64) {
        self.tail.postpone(now, absence_ns);
    }

    /// Everything but the times, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, arrivals: u64, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (
            self.tail.pause_ns,
            self.has_fired,
            self.arrivals == arrivals,
        )
            .hash(hasher);
        (self.unpaced, self.is_detour).hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detour_ends_with_the_last_unpaced_retransmission() {
        let mut state = Retransmission::new();
        state.set_detour(true);
        assert!(!state.takes_detour(true));
        state.allow_unpaced(2);
        state.allow_unpaced(1);
        assert!(state.takes_detour(true) && !state.takes_detour(false));
        state.repeated(Instant(0));
        assert_eq!(state.unpaced(), 1);
        state.repeated(Instant(0));
        state.repeated(Instant(0));
        assert!(!state.takes_detour(true));
    }

    #[test]
    fn the_tail_timer_runs_while_units_are_in_flight_and_backs_off_after_a_repetition() {
        let (mut state, config) = (Retransmission::new(), Config::default());
        assert!(state.is_stopped());
        state.start(Instant(0), &config);
        let first = state.tail_at();
        for pauses in [2, 4, 8] {
            state.back_off(state.tail_at(), &config, true);
            assert_eq!(state.tail_at(), Instant(pauses * first.0));
        }
        for (is_single, pauses) in [(true, 2), (false, 3)] {
            state.start(Instant(0), &config);
            state.back_off(first, &config, is_single);
            assert_eq!(state.tail_at(), Instant(pauses * first.0));
        }
        assert!(state.has_news(1));
        state.count(1);
        assert!(!state.has_news(1));
        state.stop();
        assert_eq!((state.tail_at(), state.unpaced()), (Instant::NEVER, 0));
    }
}
