//! What a session does when time has passed: ack requests, lost tails, dead lanes, silence.

use crate::event::{Event, GoneReason, KeyMismatch};
use crate::lane::{Lane, LaneTimeouts};
use crate::session::{Backoff, Phase, Session};
use crate::shared::Shared;
use crate::time::Instant;

impl Session {
    /// The earliest moment at which [`on_timers`](Self::on_timers) has work.
    pub(crate) fn deadline(&self, shared: &Shared) -> Instant {
        let patience_ns = match self.doubted {
            true => shared.config.peer_timeout_ns,
            false => shared
                .config
                .peer_timeout_ns
                .min(shared.config.suspect_after_ns),
        };
        let silence = self
            .asked_at
            .map_or(Instant::NEVER, |at| at.after(patience_ns));
        if let Phase::Opening { retry_at, .. } = self.phase {
            return retry_at.min(silence);
        }
        [
            self.pending_ack.due,
            self.ack_request.at,
            self.tail.at,
            self.want.at,
            self.keepalive_at,
            self.probe_at(),
            self.sizing_at(),
            self.evicted_at,
            self.renewal
                .map_or(Instant::NEVER, |renewal| renewal.ask_at.min(renewal.until)),
            silence,
        ]
        .into_iter()
        .min()
        .unwrap_or(Instant::NEVER)
    }

    /// Lets due timers act; a reason if the peer must be given up.
    pub(crate) fn on_timers(&mut self, now: Instant, shared: &mut Shared) -> Option<GoneReason> {
        let asked_at = self.asked_at.unwrap_or(Instant::NEVER);
        if now >= asked_at.after(shared.config.peer_timeout_ns) || now >= self.evicted_at {
            return Some(GoneReason::Silent);
        }
        if let Some(asked) = self.asked_at
            && !self.doubted
            && now >= asked.after(shared.config.suspect_after_ns)
        {
            self.doubted = true;
            if self.is_open() {
                shared.event(Event::Suspected { peer: self.id });
            }
        }
        if !self.is_open() {
            return None;
        }
        if let Some(renewal) = self.renewal.filter(|renewal| now >= renewal.until) {
            return Some(match renewal.refused {
                true => GoneReason::Key(KeyMismatch::Different),
                false => GoneReason::Silent,
            });
        }
        if now >= self.pending_ack.due {
            self.pending_ack.due = Instant::NEVER;
            self.pending_ack.now = true;
        }
        if now >= self.ack_request.at {
            self.ack_request_due = true;
            self.ask(now);
            self.ack_request.again(now, shared.config.max_timeout_ns);
        }
        if now >= self.tail.at {
            self.on_tail(now, shared);
        }
        if now >= self.probe_at() {
            self.probe_lanes(now, shared);
        }
        if now >= self.sizing_at() {
            self.on_sizing(now, shared);
        }
        if now >= self.want.at {
            self.channel.credit_requests_due = self.channel.is_wanting();
            self.want.again(now, shared.config.max_timeout_ns);
            if !self.channel.credit_requests_due {
                self.want = Backoff::OFF;
            }
        }
        if now >= self.keepalive_at {
            let is_silent = now.since(self.last_heard) >= self.keepalive_ns(shared);
            match is_silent || self.is_asked_to_stay() {
                true => self.ask_for_life(now, shared),
                false => self.rest_keepalive(now, shared),
            }
        }
        None
    }

    /// Asks the peer whether it lives. The question or its answer may be lost, so it is asked
    /// again and again before it counts as gone; more seldom if others say that it lives.
    pub(super) fn ask_for_life(&mut self, now: Instant, shared: &Shared) {
        self.ack_request_due = true;
        self.ask(now);
        let rest_ns = self.keepalive_ns(shared);
        let asked_ns = now.since(self.last_heard.after(rest_ns));
        let pause_ns = match asked_ns < shared.config.peer_timeout_ns {
            true => shared.config.max_timeout_ns,
            false => rest_ns,
        };
        self.keepalive_at = now.after(pause_ns);
    }

    /// This process did not step for a while: that silence is not the peer's.
    /// What packets have renewed since we are back stays as it is.
    pub(crate) fn discount(&mut self, now: Instant, absence_ns: u64) {
        if let Some(asked) = &mut self.asked_at {
            *asked = asked.after(absence_ns).min(now);
        }
        if self.is_asked_to_stay() {
            self.evicted_at = self.evicted_at.after(absence_ns);
        }
        if let Some(renewal) = &mut self.renewal {
            renewal.until = renewal.until.after(absence_ns);
        }
        if !self.tail.is_off() {
            let later = self.tail.at.after(absence_ns);
            self.tail.at = later.min(now.after(self.tail.pause_ns));
        }
    }

    /// Something is missing or expected: ask for it, not sooner than a round trip.
    pub(super) fn arm_ack_request(&mut self, now: Instant, shared: &Shared) {
        let missing = self.expecting
            || self.window.flying() == 0 && self.is_held()
            || !self.units.is_whole()
            || self.lanes.iter().any(|lane| !lane.incoming.is_whole());
        if !missing {
            self.ack_request = Backoff::OFF;
        } else if self.ack_request.is_off() {
            let config = &shared.config;
            let pause = self
                .trip
                .timeout_ns(config.min_timeout_ns / 4, config.max_timeout_ns);
            self.ack_request.start(now, pause);
        }
    }

    /// Keeps the tail timer in step with what flies.
    pub(super) fn progress(&mut self, now: Instant, shared: &Shared) {
        if self.window.flying() == 0 {
            self.tail = Backoff::OFF;
            self.forced = 0;
        } else if self.tail.is_off()
            || self.tail_arrivals != self.window.arrivals() && !self.has_timed_out()
        {
            let config = &shared.config;
            let pause = self
                .trip
                .timeout_ns(config.min_timeout_ns, config.max_timeout_ns);
            self.tail.start(now, pause);
        }
        self.tail_arrivals = self.window.arrivals();
    }

    /// No news of what flies for too long: its tail may be lost (thesis §5.2).
    fn on_tail(&mut self, now: Instant, shared: &mut Shared) {
        self.strike(now, shared);
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
        self.tail.again(now, shared.config.max_timeout_ns);
        self.ask(now);
    }

    /// Repeats the first and last piece in flight unless they left within
    /// `fresh_ns`; how many.
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
        self.forced = self.forced.max(repeated);
        repeated
    }

    /// True if the lane that is waited for has let a time-out pass: what arrives by others
    /// neither hurries it nor gives it more time.
    fn has_timed_out(&self) -> bool {
        let has_timed_out = |lane: &Lane| !lane.timeouts.is_none();
        self.lanes.iter().any(has_timed_out)
            && self
                .blamed()
                .is_some_and(|index| has_timed_out(&self.lanes[index]))
    }

    /// The lane of the oldest flight, if it is in use.
    fn blamed(&self) -> Option<usize> {
        let oldest = self
            .window
            .first_and_last_flying()
            .and_then(|(first, _)| self.window.lane_of(first))
            .or_else(|| self.window.oldest_lane())?;
        let blamed = |lane: &Lane| lane.id == oldest && lane.path.is_proven();
        self.lanes.iter().position(blamed)
    }

    /// Blames the lane of the oldest flight; a lane that stays silent while the
    /// peer answers elsewhere hands its units to the others. If an ack request has just queued all
    /// flights for repetition, the lane of the oldest unit's last flight is blamed.
    fn strike(&mut self, now: Instant, shared: &mut Shared) {
        let Some(index) = self.blamed() else {
            return;
        };
        let mut others = self.lanes.iter().enumerate();
        let spare = others.any(|(other, lane)| other != index && lane.path.is_proven());
        if self.lanes[index].timeouts.is_none() {
            self.lanes.iter_mut().for_each(|lane| lane.out.mark());
        }
        let lane = &mut self.lanes[index];
        lane.timeouts.add(now);
        // The next repeats of first and last try another lane: if the peer answers
        // those, it is this lane that is dead.
        self.detour = lane.timeouts.is_suspect() && spare;
        if lane.timeouts.is_dead() && spare {
            lane.timeouts = LaneTimeouts::default();
            self.lane_lost(index, now, shared);
        }
    }
}
