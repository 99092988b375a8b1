//! Time-outs of a machine.

use crate::machine::{Machine, RENEWAL_PAUSE_NS};
use crate::session::Phase;
use crate::time::{Instant, MILLISECOND};

/// A step that is later than its time by more than this means that this process did not run.
const ABSENCE_NS: u64 = 10 * MILLISECOND;

impl Machine {
    /// Handles the timers that are due. To be called after all available packets.
    #[inline]
    pub fn on_timers(&mut self, now: Instant) {
        // Sleeping until a deadline is not an absence; returning long after it is.
        let due = self.timers.earliest();
        let absence = now.since(self.shared.stepped_at.max(due));
        self.shared.stepped_at = now;
        if now >= due {
            self.on_due(now, absence);
        }
        self.shared.grants.stepped(now);
        while let Some(peer) = self.shared.grants.next_changed() {
            self.with(peer, |session, _| session.announce_window());
        }
        if self.shared.edges_waiting {
            self.retry_long_messages(now);
        }
    }

    /// True if [`on_timers`](Self::on_timers) would only note the time. Of several such calls in a
    /// row, only the last one has an effect.
    #[must_use]
    pub fn is_idle_at(&self, now: Instant) -> bool {
        now < self.timers.earliest() && !self.shared.edges_waiting && self.shared.grants.is_idle()
    }

    fn on_due(&mut self, now: Instant, absence: u64) {
        if absence > ABSENCE_NS {
            self.shared.discount(now, absence);
            for session in self.peers.sessions_mut() {
                session.discount(now, absence, &self.shared.config);
            }
        }
        while let Some(index) = self.timers.pop(now) {
            self.on_timer(now, index);
        }
    }

    fn on_timer(&mut self, now: Instant, index: u32) {
        let Some(session) = self.peers.session_at_mut(index) else {
            return;
        };
        if session.deadline(&self.shared) > now {
            self.timers.arm(index, session.deadline(&self.shared));
            return;
        }
        let peer = session.id;
        if let Some(reason) = session.on_timers(now, &mut self.shared) {
            if session.keys.renewal.is_some() {
                self.send_bye(peer);
            }
            self.remove(peer, reason);
            return;
        }
        let mut hello = None;
        if let Some(renewal) = &mut session.keys.renewal
            && now >= renewal.hello_at
        {
            renewal.hello_at = now.after(RENEWAL_PAUSE_NS);
            hello = Some(renewal.cookie);
        }
        if let Phase::Opening {
            cookie,
            retry_at,
            retry_ns,
        } = session.phase
            && now >= retry_at
        {
            let retry_ns = (2 * retry_ns).min(self.shared.config.max_timeout_ns);
            session.phase = Phase::Opening {
                cookie,
                retry_at: now.after(retry_ns),
                retry_ns,
            };
            hello = Some(cookie);
        }
        self.timers.arm(index, session.deadline(&self.shared));
        self.wake(peer);
        if let Some(cookie) = hello {
            self.send_hello(peer, cookie);
        }
    }

    /// When [`on_timers`](Self::on_timers) must be called next.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Instant> {
        let retry = self.shared.retry_at();
        match self.next_timer() {
            Some(timer) => Some(timer.min(retry)),
            None => (retry != Instant::NEVER).then_some(retry),
        }
    }

    fn next_timer(&mut self) -> Option<Instant> {
        // Replace entries whose deadline has moved until the first one is valid.
        loop {
            let earliest = self.timers.earliest();
            if earliest == Instant::NEVER {
                return None;
            }
            let Some(index) = self.timers.pop(earliest) else {
                continue;
            };
            if let Some(session) = self.peers.session_at(index) {
                let deadline = session.deadline(&self.shared);
                self.timers.arm(index, deadline);
                if deadline <= earliest {
                    return Some(deadline);
                }
            }
        }
    }
}
