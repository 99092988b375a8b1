//! Statistics of repeated measurements: median with confidence interval, mean and deviation.

use dipole_model::MedianInterval;
use serde::Serialize;
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::statistics::{Spread, mean_and_deviation};

/// Probability that the median is below the interval, and that it is above.
const MISS: f64 = 0.025;

/// Statistics of a figure that was measured repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub median: f64,
    /// Lower end of the 95 % confidence interval of the median.
    pub low: f64,
    pub high: f64,
    pub mean: f64,
    /// Standard deviation of single values.
    pub sd: f64,
    pub p99: f64,
    pub count: usize,
}

impl Estimate {
    /// Computes the statistics. `None` if there are no values.
    ///
    /// The interval makes no assumption about the distribution: the k-th smallest value exceeds the
    /// median with the probability that fewer than k of n coin tosses are heads. With fewer than 6
    /// values the interval covers all of them and has less confidence.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let median = Spread::of(sorted.iter().copied())?.median;
        let count = sorted.len();
        let outside = values_outside(count);
        let (mean, sd) = mean_and_deviation(&sorted);
        Some(Self {
            median,
            low: sorted[outside],
            high: sorted[count - 1 - outside],
            mean,
            sd,
            p99: sorted[(count * 99).div_ceil(100).max(1) - 1],
            count,
        })
    }

    /// Returns median and interval, as in profiles.
    pub fn measured(&self) -> MedianInterval {
        MedianInterval {
            median: self.median,
            low: self.low,
            high: self.high,
        }
    }

    /// Returns the larger distance from the median to an end of the interval.
    pub fn margin(&self) -> f64 {
        (self.median - self.low).max(self.high - self.median)
    }
}

/// Returns how many of the smallest and of the largest values the interval excludes.
fn values_outside(count: usize) -> usize {
    let heads = Binomial::new(0.5, count as u64).map(|heads| heads.inverse_cdf(MISS));
    usize::try_from(heads.unwrap_or(0)).map_or(0, |heads| heads.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_leaves_out_what_tables_of_the_sign_test_say() {
        // Rank of the lower end, for 95 %: 1 of 6, 2 of 10, 6 of 20, 10 of 30, 40 of 100.
        for (count, k) in [(6, 1), (10, 2), (20, 6), (30, 10), (100, 40)] {
            assert_eq!(values_outside(count), k - 1, "{count}");
        }
        assert_eq!(values_outside(1), 0);
        // With this many tosses, the probability of a single outcome underflows.
        let k = values_outside(100_000);
        assert!((49_600..49_760).contains(&k), "{k}");
    }

    #[test]
    fn an_estimate_tells_median_interval_mean_deviation_and_percentile() {
        let estimate = Estimate::of((1..=20).rev().map(f64::from)).expect("values");
        assert_eq!(
            (estimate.low, estimate.median, estimate.high),
            (6.0, 10.5, 15.0)
        );
        assert_eq!(
            (estimate.mean, estimate.p99, estimate.count),
            (10.5, 20.0, 20)
        );
        assert_eq!(estimate.margin(), 4.5);
        assert!(
            (estimate.sd - 35_f64.sqrt()).abs() < 1e-9,
            "{}",
            estimate.sd
        );
        let one = Estimate::of([3.0]).expect("a value");
        assert_eq!((one.low, one.high, one.sd), (3.0, 3.0, 0.0));
        assert_eq!(Estimate::of([]), None);
    }

    #[test]
    fn a_single_stall_moves_the_mean_and_not_the_interval() {
        let calm = Estimate::of([1.0; 20]).expect("values");
        let stalled = [1.0; 19].into_iter().chain([1000.0]);
        let stalled = Estimate::of(stalled).expect("values");
        assert_eq!((stalled.low, stalled.high), (calm.low, calm.high));
        assert!(stalled.mean > 50.0 && stalled.p99 == 1000.0);
    }
}
