//! Statistics: percentiles, the mean of the middle 80 %, medians and their spread over rounds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use statrs::statistics::Statistics;

/// Longest round trip in the histogram; longer ones count as this long.
const LONGEST_NS: u64 = 60_000_000_000;

/// Shares at which a distribution is printed.
const SHARES: [f64; 20] = [
    0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999,
    0.9995, 0.9999, 0.99999,
];
/// Minimum of values beyond a share for which the share is meaningful.
const LEAST_BEYOND: f64 = 5.0;

/// Round trips of one run, in bounded memory with three significant digits.
pub struct RoundTrips {
    histogram: Histogram<u64>,
}

/// One-way times of one run in nanoseconds, each half a round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OneWay {
    /// The median, or the mean of a peer's tool that prints only that.
    pub p50_ns: f64,
    pub mean80_ns: Option<f64>,
    pub p99_ns: Option<f64>,
    pub p999_ns: Option<f64>,
}

/// Median, minimum and maximum of a figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .expect("the bounds are constants that hdrhistogram accepts");
        Self { histogram }
    }
}

impl RoundTrips {
    pub fn record(&mut self, round_trip_ns: u64) {
        self.histogram.saturating_record(round_trip_ns);
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub fn one_way(&self) -> OneWay {
        let half = |quantile: f64| as_float(self.histogram.value_at_quantile(quantile)) / 2.0;
        OneWay {
            p50_ns: half(0.5),
            mean80_ns: Some(self.mean80_ns()),
            p99_ns: Some(half(0.99)),
            p999_ns: Some(half(0.999)),
        }
    }

    /// Returns the distribution: shares of all messages, and the one-way time that this share does not
    /// exceed. Shares with fewer than `LEAST_BEYOND` values beyond them are left out.
    pub fn percentiles(&self) -> Vec<(f64, f64)> {
        let known = SHARES
            .into_iter()
            .filter(|share| as_float(self.count()) * (1.0 - share) >= LEAST_BEYOND);
        known
            .map(|share| {
                let value = self.histogram.value_at_quantile(share);
                (share, as_float(value) / 2.0)
            })
            .collect()
    }

    /// Returns half the mean of the middle 80 % of the round trips, without the fastest and the
    /// slowest tenth.
    pub fn mean80_ns(&self) -> f64 {
        let cut = self.count() / 10;
        let (first, last) = (cut, self.count() - cut);
        let (mut position, mut sum, mut kept) = (0_u64, 0.0, 0_u64);
        for bucket in self.histogram.iter_recorded() {
            let next = position + bucket.count_at_value();
            let inside = next.min(last).saturating_sub(position.max(first));
            let value = self.histogram.median_equivalent(bucket.value_iterated_to());
            sum += as_float(value) * as_float(inside);
            kept += inside;
            position = next;
        }
        if kept == 0 {
            0.0
        } else {
            sum / as_float(kept) / 2.0
        }
    }
}

impl Spread {
    /// Computes the spread. `None` if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self {
            median,
            least,
            most,
        })
    }
}

/// Converts counts and nanoseconds to a float, exactly up to 2^53 (104 days of nanoseconds).
#[allow(
    clippy::cast_precision_loss,
    reason = "measured numbers stay far below 2^53"
)]
pub fn as_float(number: u64) -> f64 {
    number as f64
}

pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the mean of a sample and its standard deviation.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let mean = values.mean();
    let deviation = match values.len() {
        0 | 1 => 0.0,
        _ => values.std_dev(),
    };
    (mean, deviation)
}

/// Returns the median. `None` if there are no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(values: impl IntoIterator<Item = u64>) -> RoundTrips {
        let mut trips = RoundTrips::default();
        for value in values {
            trips.record(value);
        }
        trips
    }

    #[test]
    fn mean80_leaves_out_the_fastest_and_the_slowest_tenth() {
        // Of 10 values, 10 and 900 are left out. The mean of 20..=90 is 55, half of it 27.5.
        let trips = recorded([900, 20, 30, 40, 50, 60, 70, 80, 90, 10]);
        assert_eq!(trips.mean80_ns(), 27.5);
    }

    #[test]
    fn mean80_cuts_through_a_bucket_of_equal_values() {
        // Of 20 values, two are left out at each end: 1 and one 100, and 1000 and one 100.
        let trips = recorded([1].into_iter().chain([100; 18]).chain([1000]));
        assert_eq!(trips.mean80_ns(), 50.0);
        // Of 10 values, one is left out at each end: 4, 4, 4 and five 8 remain: 52 / 8 / 2 = 3.25.
        let trips = recorded([4, 4, 4, 4, 8, 8, 8, 8, 8, 8]);
        assert_eq!(trips.mean80_ns(), 3.25);
    }

    #[test]
    fn mean80_of_fewer_than_ten_is_the_plain_mean_and_of_none_is_zero() {
        assert_eq!(recorded([2, 4, 12]).mean80_ns(), 3.0);
        assert_eq!(recorded([]).mean80_ns(), 0.0);
    }

    #[test]
    fn percentiles_are_half_the_round_trip() {
        let one_way = recorded(1..=1000).one_way();
        assert_eq!(one_way.p50_ns, 250.0);
        assert_eq!(one_way.p99_ns, Some(495.0));
        assert_eq!(one_way.p999_ns, Some(499.5));
    }

    #[test]
    fn a_distribution_rises_and_leaves_out_what_too_few_values_support() {
        let percentiles = recorded(1..=1000).percentiles();
        assert_eq!(percentiles.first(), Some(&(0.0, 0.5)));
        assert_eq!(percentiles.last(), Some(&(0.995, 497.5)));
        assert!(percentiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
    }

    #[test]
    fn a_round_trip_beyond_the_longest_counts_as_the_longest() {
        let trips = recorded([u64::MAX]);
        assert_eq!(trips.count(), 1);
        assert!(trips.one_way().p50_ns >= as_float(LONGEST_NS) / 2.0);
    }

    #[test]
    fn spread_is_median_least_and_most() {
        let odd = Spread::of([3.0, 1.0, 2.0]).expect("three values");
        assert_eq!((odd.median, odd.least, odd.most), (2.0, 1.0, 3.0));
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).expect("four values");
        assert_eq!(even.median, 2.5);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn mean_and_deviation_are_of_a_sample() {
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2.0_f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
    }
}
