//! Tracks whether the peer is alive: since when it owes a reply, and when to check. Spec §6.5.

use crate::config::Config;
use crate::time::Instant;
use serde::{Deserialize, Serialize};

/// Liveness of one peer. A peer that owes a reply and sends nothing is first suspected, then dead.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Liveness {
    /// Since when the peer has owed a reply; `None` while it owes none.
    owed_since: Option<Instant>,
    /// Since when no packet has arrived that the peer owed, whatever a third party has reported.
    silent_since: Option<Instant>,
    /// The present silence has been reported.
    is_suspected: bool,
    last_heard: Instant,
    keepalive_at: Instant,
    /// When an idle peer loses its place to another one, unless it replies.
    evict_at: Instant,
    /// The application requires early detection of the peer's death.
    is_watched: bool,
}

impl Liveness {
    /// The state of a peer to which a hello was just sent.
    pub(crate) fn new(now: Instant) -> Liveness {
        Liveness {
            owed_since: Some(now),
            silent_since: Some(now),
            is_suspected: false,
            last_heard: now,
            keepalive_at: Instant::NEVER,
            evict_at: Instant::NEVER,
            is_watched: false,
        }
    }

    /// The peer owes a reply from now on, if it did not before.
    #[inline]
    pub(crate) fn expect_reply(&mut self, now: Instant) {
        self.owed_since.get_or_insert(now);
        self.silent_since.get_or_insert(now);
    }

    /// The peer owes no reply any more.
    pub(crate) fn cancel_reply(&mut self) {
        self.owed_since = None;
        self.silent_since = None;
        self.is_suspected = false;
    }

    /// A packet of the peer was accepted; `still_owes` if another reply must follow.
    #[inline]
    pub(crate) fn heard(&mut self, now: Instant, still_owes: bool) {
        self.last_heard = now;
        self.is_suspected = false;
        self.evict_at = Instant::NEVER;
        self.owed_since = still_owes.then_some(now);
        self.silent_since = self.owed_since;
    }

    /// A third party knows that the peer's process is alive. One that `runs` should answer; a
    /// stopped one cannot.
    pub(crate) fn confirm_alive(&mut self, now: Instant, runs: bool) {
        if let Some(since) = &mut self.owed_since {
            *since = now;
            self.is_suspected = false;
        }
        if let Some(since) = self.silent_since.as_mut().filter(|_| !runs) {
            *since = now;
        }
    }

    /// True if the peer's process has been running for so long without an answer that packets cannot
    /// get through.
    pub(crate) fn is_unreachable(&self, now: Instant, config: &Config) -> bool {
        let since = self.silent_since.unwrap_or(Instant::NEVER);
        now >= since.after(config.unreachable_after_ns())
    }

    /// Since when the peer has owed a reply.
    pub(crate) fn owed_since(&self) -> Option<Instant> {
        self.owed_since
    }

    pub(crate) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    pub(crate) fn is_suspected(&self) -> bool {
        self.is_suspected
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Returns true if that changes anything.
    pub(crate) fn set_watched(&mut self, watched: bool) -> bool {
        core::mem::replace(&mut self.is_watched, watched) != watched
    }

    #[inline]
    pub(crate) fn keepalive_at(&self) -> Instant {
        self.keepalive_at
    }

    /// The next keepalive is due at this time.
    pub(crate) fn set_keepalive(&mut self, at: Instant) {
        self.keepalive_at = at;
    }

    /// The next keepalive is due at this time, or earlier.
    #[inline]
    pub(crate) fn keep_alive_by(&mut self, at: Instant) {
        self.keepalive_at = self.keepalive_at.min(at);
    }

    /// Plans the keepalive after one that is sent now to a peer that gets one every `rest_ns`.
    /// It follows soon, because the request or its reply may get lost; seldom again if the peer
    /// has not replied for long, but a third party confirms that it is alive.
    pub(crate) fn repeat_keepalive(&mut self, now: Instant, rest_ns: u64, config: &Config) {
        let unanswered_ns = now.since(self.last_heard.after(rest_ns));
        let pause_ns = match unanswered_ns < config.peer_timeout_ns {
            true => config.max_timeout_ns,
            false => rest_ns,
        };
        self.keepalive_at = now.after(pause_ns);
    }

    /// Another process needs the place of this idle peer: it must reply by then.
    pub(crate) fn evict_at(&mut self, at: Instant) {
        self.evict_at = at;
    }

    /// True while the peer must reply to keep its place.
    pub(crate) fn is_evicting(&self) -> bool {
        self.evict_at != Instant::NEVER
    }

    /// When the peer is to be suspected, or is dead once it is suspected.
    #[inline]
    pub(crate) fn silence_deadline(&self, config: &Config) -> Instant {
        let limit_ns = match self.is_suspected {
            true => config.peer_timeout_ns,
            false => config.peer_timeout_ns.min(config.suspect_after_ns),
        };
        self.owed_since
            .map_or(Instant::NEVER, |since| since.after(limit_ns))
    }

    /// When something must be done about an open session.
    #[inline]
    pub(crate) fn deadline(&self, config: &Config) -> Instant {
        let silence = self.silence_deadline(config);
        silence.min(self.keepalive_at).min(self.evict_at)
    }

    /// True if the peer has been silent for too long.
    pub(crate) fn is_dead(&self, now: Instant, config: &Config) -> bool {
        let since = self.owed_since.unwrap_or(Instant::NEVER);
        now >= since.after(config.peer_timeout_ns) || now >= self.evict_at
    }

    /// True once for each silence that is long enough to report.
    pub(crate) fn suspect(&mut self, now: Instant, config: &Config) -> bool {
        let is_silent = |since: Instant| now >= since.after(config.suspect_after_ns);
        let is_new = !self.is_suspected && self.owed_since.is_some_and(is_silent);
        self.is_suspected |= is_new;
        is_new
    }

    /// Subtracts a time in which this process did not run. What packets have renewed since then
    /// stays as it is.
    pub(crate) fn discount(&mut self, now: Instant, absence_ns: u64, config: &Config) {
        let times = [&mut self.owed_since, &mut self.silent_since];
        for since in times.into_iter().flatten() {
            *since = since.after(absence_ns).min(now);
        }
        if self.is_evicting() {
            let later = self.evict_at.after(absence_ns);
            self.evict_at = later.min(now.after(config.eviction_ns()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            suspect_after_ns: 100,
            peer_timeout_ns: 300,
            max_timeout_ns: 25,
            ..Config::default()
        }
    }

    #[test]
    fn a_silent_peer_is_suspected_once_and_then_dead() {
        let (mut liveness, config) = (Liveness::new(Instant(0)), config());
        assert_eq!(liveness.silence_deadline(&config), Instant(100));
        assert!(!liveness.suspect(Instant(99), &config));
        assert!(liveness.suspect(Instant(100), &config));
        assert!(!liveness.suspect(Instant(101), &config));
        assert_eq!(liveness.silence_deadline(&config), Instant(300));
        assert!(!liveness.is_dead(Instant(299), &config));
        assert!(liveness.is_dead(Instant(300), &config));
    }

    #[test]
    fn packets_and_vouching_end_the_silence() {
        let (mut liveness, config) = (Liveness::new(Instant(0)), config());
        assert!(liveness.suspect(Instant(150), &config));
        liveness.confirm_alive(Instant(200), true);
        assert!(!liveness.is_dead(Instant(499), &config));
        liveness.heard(Instant(250), true);
        assert_eq!(liveness.owed_since(), Some(Instant(250)));
        liveness.heard(Instant(260), false);
        assert!(!liveness.is_dead(Instant(1 << 40), &config));
        liveness.expect_reply(Instant(300));
        liveness.expect_reply(Instant(400));
        assert_eq!(liveness.owed_since(), Some(Instant(300)));
        liveness.cancel_reply();
        assert_eq!(liveness.owed_since(), None);
    }

    #[test]
    fn a_running_peer_that_never_answers_is_unreachable_but_a_stopped_one_is_not() {
        let config = config();
        let limit_ns = config.unreachable_after_ns();
        let mut liveness = Liveness::new(Instant(0));
        liveness.confirm_alive(Instant(limit_ns - 1), true);
        assert!(!liveness.is_unreachable(Instant(limit_ns - 1), &config));
        assert!(liveness.is_unreachable(Instant(limit_ns), &config));
        liveness.confirm_alive(Instant(limit_ns), false);
        assert!(!liveness.is_unreachable(Instant(2 * limit_ns - 1), &config));
        liveness.heard(Instant(2 * limit_ns - 1), true);
        assert!(!liveness.is_unreachable(Instant(2 * limit_ns), &config));
        liveness.discount(Instant(4 * limit_ns), limit_ns, &config);
        assert!(!liveness.is_unreachable(Instant(4 * limit_ns - 2), &config));
        assert!(liveness.is_unreachable(Instant(4 * limit_ns - 1), &config));
        liveness.cancel_reply();
        assert!(!liveness.is_unreachable(Instant(1 << 60), &config));
    }

    #[test]
    fn an_absence_of_this_process_is_not_the_peers_silence() {
        let (mut liveness, config) = (Liveness::new(Instant(0)), config());
        liveness.evict_at(Instant(50));
        liveness.discount(Instant(1000), 900, &config);
        assert!(!liveness.is_dead(Instant(940), &config));
        assert!(liveness.is_dead(Instant(950), &config), "to be evicted");
        liveness.heard(Instant(960), true);
        liveness.discount(Instant(1000), 900, &config);
        assert_eq!(liveness.owed_since(), Some(Instant(1000)));
        // A packet that was handled before the timers has begun the eviction.
        let at = Instant(1000).after(config.eviction_ns());
        liveness.evict_at(at);
        liveness.discount(Instant(1000), 1 << 50, &config);
        assert!(liveness.is_dead(at, &config));
    }

    #[test]
    fn keepalives_follow_soon_until_the_peer_counts_as_dead() {
        let (mut liveness, config) = (Liveness::new(Instant(0)), config());
        liveness.keep_alive_by(Instant(75));
        liveness.keep_alive_by(Instant(90));
        assert_eq!(liveness.keepalive_at(), Instant(75));
        liveness.repeat_keepalive(Instant(75), 75, &config);
        assert_eq!(liveness.keepalive_at(), Instant(100));
        liveness.repeat_keepalive(Instant(400), 75, &config);
        assert_eq!(liveness.keepalive_at(), Instant(475));
    }
}
