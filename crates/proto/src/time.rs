//! Time as passed in by the caller: nanoseconds since an origin of its choice.

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds of the caller's clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Instant(pub u64);

impl Instant {
    /// A time that is never reached.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The time `ns` nanoseconds later.
    #[must_use]
    pub fn after(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One microsecond in nanoseconds.
pub const MICROSECOND: u64 = 1_000;
/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
