//! Decides when to poll the network in addition to shared memory, and when to check that peers are alive.

use std::time::{Duration, Instant};

use crate::unexpected::ENTRY_BYTES;

/// One in so many polls of shared memory also polls the network, even while messages arrive.
const POLLS_PER_NETWORK_POLL: u32 = 64;
/// After shared memory has been empty for this long, the network is polled as well.
const SHM_ONLY_TIME: Duration = Duration::from_micros(2);
/// A program that only sends polls after so many bytes, so that receivers can
/// [throttle](super::throttle) it.
const SENT_BYTES_PER_POLL: usize = 1 << 20;
/// Empty polls between two reads of the clock for the peer check.
const POLLS_PER_CHECK: u32 = 4096;
/// How often peers that something waits for are checked.
const PEER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Poll counts and times of one endpoint.
#[derive(Debug)]
pub(super) struct Schedule {
    polls: u32,
    /// Number of times the program has called for progress.
    round: u64,
    /// Bytes of messages sent in this round.
    sent_bytes: usize,
    /// Polls in a row in which nothing happened while the program began no operation.
    idle_polls: u32,
    /// Start of the period without messages through shared memory.
    idle_since: Option<Instant>,
    /// The last poll of shared memory that found nothing.
    polled_at: Instant,
    peers_checked_at: Instant,
}

impl Schedule {
    pub(super) fn new() -> Schedule {
        let now = Instant::now();
        Schedule {
            polls: 0,
            round: 0,
            sent_bytes: 0,
            idle_polls: 0,
            idle_since: None,
            polled_at: now,
            peers_checked_at: now,
        }
    }

    #[inline]
    pub(super) fn round(&self) -> u64 {
        self.round
    }

    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
        self.sent_bytes = 0;
    }

    /// Counts a message; true if the program has sent so much that a new round is due.
    #[inline]
    pub(super) fn count_sent(&mut self, bytes: usize) -> bool {
        let counted = ENTRY_BYTES.saturating_add(bytes);
        self.sent_bytes = self.sent_bytes.saturating_add(counted);
        self.sent_bytes >= SENT_BYTES_PER_POLL
    }

    #[inline]
    pub(super) fn end_round(&mut self) {
        self.polls = self.polls.wrapping_add(1);
    }

    /// Counts a poll of the program; returns how many in a row were idle.
    #[inline]
    pub(super) fn count_poll(&mut self, has_moved: bool) -> u32 {
        self.idle_polls = match has_moved {
            true => 0,
            false => self.idle_polls.saturating_add(1),
        };
        self.idle_polls
    }

    /// The program has begun an operation, so it does not only wait.
    #[inline]
    pub(super) fn on_operation(&mut self) {
        self.idle_polls = 0;
    }

    /// True in every other round.
    #[inline]
    pub(super) fn is_even(&self) -> bool {
        self.polls & 1 == 0
    }

    #[inline]
    pub(super) fn includes_network(&self, shares_memory: bool) -> bool {
        !shares_memory || self.polls.is_multiple_of(POLLS_PER_NETWORK_POLL)
    }

    #[inline]
    pub(super) fn on_received(&mut self) {
        self.idle_since = None;
    }

    /// Called after an empty poll of shared memory: true if it has been empty for
    /// [`SHM_ONLY_TIME`], or if this process was off its core for that long.
    pub(super) fn is_network_due(&mut self) -> bool {
        let now = Instant::now();
        let last = std::mem::replace(&mut self.polled_at, now);
        let since = *self.idle_since.get_or_insert(now);
        let is_due = now - since.min(last) >= SHM_ONLY_TIME;
        if is_due {
            self.idle_since = Some(now);
        }
        is_due
    }

    /// Has the clock read after the next poll: the thread slept instead of polling.
    pub(super) fn on_slept(&mut self) {
        self.polls |= POLLS_PER_CHECK - 1;
    }

    #[inline]
    pub(super) fn is_peer_check_due(&self) -> bool {
        self.polls.is_multiple_of(POLLS_PER_CHECK) && self.is_peer_check_overdue()
    }

    pub(super) fn is_peer_check_overdue(&self) -> bool {
        self.peers_checked_at.elapsed() >= PEER_CHECK_INTERVAL
    }

    pub(super) fn time_to_peer_check(&self) -> Duration {
        PEER_CHECK_INTERVAL.saturating_sub(self.peers_checked_at.elapsed())
    }

    pub(super) fn on_peers_checked(&mut self) {
        self.peers_checked_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_polled_in_one_of_64_rounds_and_when_memory_stays_empty() {
        let mut schedule = Schedule::new();
        let mut polled = 0;
        for _ in 0..128 {
            assert!(schedule.includes_network(false));
            polled += u32::from(schedule.includes_network(true));
            schedule.end_round();
        }
        assert_eq!(polled, 2);
        schedule.is_network_due();
        std::thread::sleep(SHM_ONLY_TIME);
        assert!(schedule.is_network_due());
    }

    #[test]
    fn a_program_that_only_sends_polls_after_a_mebibyte() {
        let mut schedule = Schedule::new();
        schedule.begin_round();
        let lasts = |schedule: &mut Schedule, bytes: usize| {
            (1..).find(|_| schedule.count_sent(bytes)).expect("due")
        };
        assert_eq!(lasts(&mut schedule, 8 << 10), 126);
        schedule.begin_round();
        assert_eq!(lasts(&mut schedule, 0), 5462);
        schedule.begin_round();
        assert_eq!(lasts(&mut schedule, usize::MAX), 1);
    }

    #[test]
    fn a_sleep_makes_the_next_poll_read_the_clock() {
        let mut schedule = Schedule::new();
        schedule.peers_checked_at -= PEER_CHECK_INTERVAL;
        schedule.end_round();
        assert!(!schedule.is_peer_check_due());
        schedule.on_slept();
        schedule.end_round();
        assert!(schedule.is_peer_check_due());
        schedule.on_peers_checked();
        assert!(!schedule.is_peer_check_due());
    }
}
