//! How long calls waited, as a histogram.

/// Upper limits of the buckets, in nanoseconds, and as `dipole stats` and Prometheus name them; the
/// last bucket has no limit.
const BUCKETS: [(u64, &str); 7] = [
    (10_000, "0.00001"),
    (100_000, "0.0001"),
    (1_000_000, "0.001"),
    (10_000_000, "0.01"),
    (100_000_000, "0.1"),
    (1_000_000_000, "1"),
    (u64::MAX, "+Inf"),
];

/// Waits of calls that did not succeed at once, by duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    counts: [u64; BUCKETS.len()],
    total_ns: u64,
}

impl Waits {
    #[inline]
    pub(crate) fn count(&mut self, duration_ns: u64) {
        let bucket = BUCKETS.iter().position(|(limit, _)| duration_ns <= *limit);
        self.counts[bucket.unwrap_or(BUCKETS.len() - 1)] += 1;
        self.total_ns = self.total_ns.saturating_add(duration_ns);
    }

    /// Number of waits.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all waits, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Limits in seconds, and how many waits lasted no longer.
    pub fn up_to(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let mut sum = 0;
        BUCKETS
            .iter()
            .zip(self.counts)
            .map(move |((_, limit), count)| {
                sum += count;
                (*limit, sum)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_in_its_bucket_and_all_longer_ones() {
        let mut waits = Waits::default();
        for duration_ns in [0, 10_000, 10_001, 2_000_000_000] {
            waits.count(duration_ns);
        }
        let counts: Vec<_> = waits.up_to().collect();
        assert_eq!(counts[0], ("0.00001", 2));
        assert_eq!(counts[1], ("0.0001", 3));
        assert_eq!(counts[5], ("1", 3));
        assert_eq!(counts[6], ("+Inf", 4));
        assert_eq!((waits.total(), waits.total_ns()), (4, 2_000_020_001));
    }
}
