//! Time-outs of a session: ack requests, lost tails, dead lanes, silent peers.

use crate::config::Config;
use crate::event::{Event, GoneReason, KeyMismatch};
use crate::lane::{Lane, LaneTimeouts};
use crate::session::{Phase, RENEWAL_NS, Session};
use crate::shared::Shared;
use crate::time::Instant;

impl Session {
    /// When [`on_timers`](Self::on_timers) must be called next.
    pub(crate) fn deadline(&self, shared: &Shared) -> Instant {
        let config = &shared.config;
        if let Phase::Opening { retry_at, .. } = self.phase {
            return retry_at.min(self.liveness.silence_deadline(config));
        }
        let renewal = self.keys.renewal;
        [
            self.acks.at(),
            self.requests.ack_at(),
            self.retransmission.tail_at(),
            self.requests.credit_at(),
            self.probe_at(),
            self.sizing_at(),
            renewal.map_or(Instant::NEVER, |it| it.hello_at.min(it.until)),
            self.liveness.deadline(config),
        ]
        .into_iter()
        .min()
        .unwrap_or(Instant::NEVER)
    }

    /// Handles the timers that are due. Returns a reason if the peer must be given up.
    pub(crate) fn on_timers(&mut self, now: Instant, shared: &mut Shared) -> Option<GoneReason> {
        if self.liveness.is_dead(now, &shared.config) {
            return Some(GoneReason::Silent);
        }
        if self.liveness.suspect(now, &shared.config) && self.is_open() {
            shared.event(Event::Suspected { peer: self.id });
        }
        if !self.is_open() {
            return None;
        }
        if let Some(renewal) = self.keys.renewal.filter(|renewal| now >= renewal.until) {
            return Some(match renewal.refused {
                true => GoneReason::Key(KeyMismatch::Different),
                false => GoneReason::Silent,
            });
        }
        self.acks.on_timer(now);
        if now >= self.requests.ack_at() {
            self.requests.on_ack_timer(now, &shared.config);
            self.liveness.expect_reply(now);
        }
        if now >= self.retransmission.tail_at() {
            self.on_tail(now, shared);
        }
        if now >= self.probe_at() {
            self.probe_lanes(now, shared);
        }
        if now >= self.sizing_at() {
            self.on_sizing(now, shared);
        }
        if now >= self.requests.credit_at() {
            self.channel.credit_requests_due = self.channel.needs_credit();
            let is_needed = self.channel.credit_requests_due;
            self.requests
                .on_credit_timer(is_needed, now, &shared.config);
        }
        if now >= self.liveness.keepalive_at() {
            let silence_ns = now.since(self.liveness.last_heard());
            match silence_ns >= self.keepalive_ns(shared) || self.is_evicting() {
                true => self.send_keepalive(now, shared),
                false => self.rest_keepalive(now, shared),
            }
        }
        None
    }

    /// Sends the peer a keepalive that it must answer.
    pub(super) fn send_keepalive(&mut self, now: Instant, shared: &Shared) {
        self.requests.request_ack();
        self.liveness.expect_reply(now);
        let rest_ns = self.keepalive_ns(shared);
        self.liveness.repeat_keepalive(now, rest_ns, &shared.config);
    }

    /// Subtracts a time in which this process did not run from all waits for the peer.
    pub(crate) fn discount(&mut self, now: Instant, absence_ns: u64, config: &Config) {
        self.liveness.discount(now, absence_ns, config);
        if let Some(renewal) = &mut self.keys.renewal {
            let later = renewal.until.after(absence_ns);
            renewal.until = later.min(now.after(RENEWAL_NS));
        }
        self.retransmission.discount(now, absence_ns);
    }

    /// Starts the timer of ack requests while something is missing or expected. It fires after
    /// about a round trip.
    pub(super) fn arm_ack_request(&mut self, now: Instant, shared: &Shared) {
        let is_missing = self.requests.is_expecting()
            || self.window.flying() == 0 && (self.is_held() || !self.window.is_settled())
            || !self.units.is_whole()
            || self.lanes.iter().any(|lane| !lane.incoming.is_whole());
        if !is_missing {
            self.requests.stop_ack();
            return;
        }
        let (config, round_trip) = (&shared.config, &self.retransmission.round_trip);
        self.requests.start_ack(now, || {
            round_trip.timeout_ns(config.min_timeout_ns / 4, config.max_timeout_ns)
        });
    }

    /// Starts or stops the tail timer as units leave and arrive.
    pub(super) fn progress(&mut self, now: Instant, shared: &Shared) {
        let arrivals = self.window.arrivals();
        if self.window.flying() == 0 {
            self.retransmission.stop();
        } else if self.retransmission.is_stopped()
            || self.retransmission.has_news(arrivals) && !self.has_timed_out()
        {
            self.retransmission.start(now, &shared.config);
        }
        self.retransmission.count(arrivals);
    }

    /// Nothing new was acknowledged for too long: the tail may be lost (thesis §5.2).
    fn on_tail(&mut self, now: Instant, shared: &mut Shared) {
        self.count_timeout(now, shared);
        let is_single = self.window.flying() == 1;
        if let Some((first, last)) = self.window.first_and_last_flying() {
            let mut is_suspect = false;
            for piece in [first, last] {
                let bytes = self.window.packet_bytes(piece);
                is_suspect |= self.sizing.size.lost(bytes);
            }
            if is_suspect {
                self.probe_sizes(false, now, shared);
            }
        }
        let repeated = self.repeat_first_and_last(now, 0);
        shared.stats.tail_repeats += u64::from(repeated);
        self.pace.timed_out();
        self.retransmission.back_off(now, &shared.config, is_single);
        self.liveness.expect_reply(now);
    }

    /// Retransmits the first and the last piece in flight, unless they were sent within the last
    /// `fresh_ns`. Returns how many.
    pub(super) fn repeat_first_and_last(&mut self, now: Instant, fresh_ns: u64) -> u32 {
        let Some((first, last)) = self.window.first_and_last_flying() else {
            return 0;
        };
        let mut repeated = 0;
        for piece in [first, last] {
            let stale = self
                .window
                .sent_at(piece)
                .is_some_and(|at| now.since(at) >= fresh_ns);
            if stale && self.window.lane_of(piece).is_some() {
                self.window.repeat(piece);
                repeated += 1;
            }
        }
        self.retransmission.allow_unpaced(repeated);
        repeated
    }

    /// True if the lane of the oldest flight has had a time-out. Then arrivals on other lanes do
    /// not restart the tail timer.
    fn has_timed_out(&self) -> bool {
        let has_timed_out = |lane: &Lane| !lane.timeouts.is_none();
        self.lanes.iter().any(has_timed_out)
            && self
                .oldest_flight_lane()
                .is_some_and(|index| has_timed_out(&self.lanes[index]))
    }

    /// The lane of the oldest flight, if it is in use.
    fn oldest_flight_lane(&self) -> Option<usize> {
        let oldest = self
            .window
            .first_and_last_flying()
            .and_then(|(first, _)| self.window.lane_of(first))
            .or_else(|| self.window.oldest_lane())?;
        let oldest_flight_lane = |lane: &Lane| lane.id == oldest && lane.path.is_proven();
        self.lanes.iter().position(oldest_flight_lane)
    }

    /// Counts a time-out of the lane of the oldest flight. A lane that stays silent while the peer
    /// answers elsewhere is given up. If nothing is in flight because an ack request has just queued
    /// everything for retransmission, the last lane of the oldest unit is charged.
    fn count_timeout(&mut self, now: Instant, shared: &mut Shared) {
        let Some(index) = self.oldest_flight_lane() else {
            return;
        };
        let mut others = self.lanes.iter().enumerate();
        let spare = others.any(|(other, lane)| other != index && lane.path.is_proven());
        if self.lanes[index].timeouts.is_none() {
            self.lanes.iter_mut().for_each(|lane| lane.out.mark());
        }
        let lane = &mut self.lanes[index];
        lane.timeouts.add(now);
        // The next tail retransmission tries another lane. If the peer acknowledges that, this
        // lane is dead.
        let is_detour = lane.timeouts.is_suspect() && spare;
        self.retransmission.set_detour(is_detour);
        if lane.timeouts.is_dead() && spare {
            lane.timeouts = LaneTimeouts::default();
            self.lane_lost(index, now, shared);
        }
    }
}
