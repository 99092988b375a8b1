//! The process's monotonic clock in nanoseconds, as the protocol and links use it.

use std::time::{Duration, SystemTime};

use dipole_link::clock::monotonic_ns;

/// Counts nanoseconds from its creation; never zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Clock {
        Clock {
            origin_ns: monotonic_ns(),
        }
    }

    /// Returns the current time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> dipole_proto::Instant {
        dipole_proto::Instant(monotonic_ns().saturating_sub(self.origin_ns) + 1)
    }

    /// Offset from this clock's readings to nanoseconds since 1970.
    #[must_use]
    pub fn since_1970_ns(&self) -> u64 {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        nanoseconds(wall).saturating_sub(self.now().0)
    }
}

/// A clock that is read only on demand.
#[derive(Debug)]
pub struct Reading<'a> {
    clock: &'a Clock,
    last: dipole_proto::Instant,
}

impl Reading<'_> {
    /// A reading of `clock`, which was last read at `last`.
    #[must_use]
    pub fn new(clock: &Clock, last: dipole_proto::Instant) -> Reading<'_> {
        Reading { clock, last }
    }

    /// The last reading, which may be old.
    #[inline]
    pub fn last(&self) -> dipole_proto::Instant {
        self.last
    }

    /// Reads the clock.
    #[inline]
    pub fn now(&mut self) -> dipole_proto::Instant {
        self.last = self.clock.now();
        self.last
    }
}

/// A duration in nanoseconds, saturating at about 584 years.
#[inline]
#[must_use]
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
