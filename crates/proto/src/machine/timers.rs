//! What a machine does when time has passed.

use crate::machine::{Machine, RENEWAL_PAUSE_NS};
use crate::session::Phase;
use crate::time::{Instant, MILLISECOND};

/// A step that comes later than this after its time: the silence is our own.
const ABSENCE_NS: u64 = 10 * MILLISECOND;

impl Machine {
    /// Lets due timers act. Call after all packets at hand were given.
    #[inline]
    pub fn on_timers(&mut self, now: Instant) {
        // Sleeping until a deadline is no absence; coming long after it is.
        let due = self.timers.earliest();
        let absence = now.since(self.shared.stepped_at.max(due));
        self.shared.stepped_at = now;
        if now >= due {
            self.on_due(now, absence);
        }
        self.shared.grants.stepped(now);
        while let Some(peer) = self.shared.grants.next_news() {
            self.with(peer, |session, _| session.announce_window());
        }
        if self.shared.edges_waiting {
            self.retry_oversize(now);
        }
    }

    fn on_due(&mut self, now: Instant, absence: u64) {
        if absence > ABSENCE_NS {
            self.shared.discount(absence);
            for session in self.peers.sessions_mut() {
                session.discount(now, absence);
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
            if session.renewal.is_some() {
                self.send_bye(peer);
            }
            self.remove(peer, reason);
            return;
        }
        let mut hello = None;
        if let Some(renewal) = &mut session.renewal
            && now >= renewal.ask_at
        {
            renewal.ask_at = now.after(RENEWAL_PAUSE_NS);
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

    /// When [`on_timers`](Self::on_timers) has work next.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Instant> {
        let retry = self.shared.retry_at();
        match self.next_timer() {
            Some(timer) => Some(timer.min(retry)),
            None => (retry != Instant::NEVER).then_some(retry),
        }
    }

    fn next_timer(&mut self) -> Option<Instant> {
        // Entries whose deadline has moved are renewed until the first is true.
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
