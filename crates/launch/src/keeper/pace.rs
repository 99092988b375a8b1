//! A limit on the bytes per second that are sent, so that the program's own messages find room.

use std::time::{Duration, Instant};

/// Bytes that are sent at once after a pause, as a time at full rate.
const BURST: Duration = Duration::from_millis(10);

/// When the next bytes may be sent.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When all bytes so far have been sent at this rate.
    free_at: Instant,
}

impl Pace {
    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Pace {
        Pace {
            bytes_per_second: bytes_per_second.max(1),
            free_at: now,
        }
    }

    /// How long to wait before the next bytes are sent.
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        // A time without bytes allows no more than one burst afterwards.
        self.free_at = self.free_at.max(now);
        (self.free_at - now).saturating_sub(BURST)
    }

    /// Notes bytes that were sent after a pause of zero.
    pub(super) fn take(&mut self, bytes: usize) {
        let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second);
        self.free_at += Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_on_average_and_idle_time_is_not_saved_up() {
        let start = Instant::now();
        let mut pace = Pace::new(1_000_000, start);
        let mut now = start + Duration::from_secs(60);
        let begun = now;
        for _ in 0..1000 {
            now += pace.pause(now);
            assert!(pace.pause(now).is_zero());
            pace.take(10_000);
        }
        let elapsed = now - begun;
        assert!(elapsed <= Duration::from_secs(10), "{elapsed:?}");
        assert!(elapsed >= Duration::from_millis(9_970), "{elapsed:?}");
    }
}
