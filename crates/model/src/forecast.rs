//! The time of a whole program in supersteps, with an interval.
//!
//! The interval has three sources: the uncertainty of l and g, which is the same in all supersteps and
//! so grows with their number; the spread between supersteps, of which one run is a sample and the
//! predicted run another; and the state of the machine, which may be as during the calibration or as
//! during the traced run.

use serde::Serialize;

use crate::superstep::Parameters;

/// Quantile of the normal distribution for intervals of 95 %.
const NORMAL_95: f64 = 1.96;
/// The same quantile of Student's distribution for 1, 2, 3, ... degrees of freedom.
const STUDENT_95: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

/// Sums over the supersteps of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Number of supersteps.
    pub supersteps: f64,
    /// Computation of the slowest rank of each superstep.
    pub work_ns: f64,
    /// The same if no rank had been preempted.
    pub undisturbed_ns: f64,
    /// h of each superstep.
    pub h_bytes: f64,
    /// Measured communication, beyond what the model predicts for the traced run; negative if it took
    /// less.
    pub beyond_ns: f64,
    /// Half the width of the interval of the sum that the spread between supersteps causes, as
    /// [`half_width`] computes it. `None` if there are too few supersteps to see a spread.
    pub spread_ns: Option<f64>,
}

/// The predicted time of a program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// With the computation of the slowest rank, as traced, and communication as calibrated.
    pub ns: f64,
    /// Interval in which 95 % of runs are expected; `None` if the spread is not known.
    pub interval: Option<(f64, f64)>,
}

impl Parameters {
    /// Predicts a program.
    #[must_use]
    pub fn forecast(&self, sums: &Sums) -> Forecast {
        let ns = sums.work_ns + self.g_ns_per_byte * sums.h_bytes + self.l_ns * sums.supersteps;
        let of_parameters = self.half_width_ns(sums.supersteps, sums.h_bytes);
        let interval = sums.spread_ns.map(|spread_ns| {
            let half = spread_ns.hypot(of_parameters);
            let preempted_ns = (sums.work_ns - sums.undisturbed_ns).max(0.0);
            let low = ns - preempted_ns - (-sums.beyond_ns).max(0.0) - half;
            (low.max(0.0), ns + sums.beyond_ns.max(0.0) + half)
        });
        Forecast { ns, interval }
    }

    /// Half the width of the interval that the uncertainty of l and g causes, for a number of
    /// supersteps and the sum of their h.
    #[must_use]
    pub fn half_width_ns(&self, supersteps: f64, h_bytes: f64) -> f64 {
        (self.l_ci_ns * supersteps).hypot(NORMAL_95 * self.g_sd * h_bytes)
    }
}

/// Half the width of the 95 % interval for the difference between the sum of these times and the same
/// sum in another run. Each time belongs to a kind of superstep, such as the call that ended it, and
/// they are in order. `None` if there are fewer than two of any kind.
///
/// The variance is estimated from differences of successive times of one kind, so that a slow change,
/// such as that of a shrinking matrix, does not count as noise. A second estimate from sums of
/// neighbouring supersteps includes disturbances that last for several of them; the larger counts.
#[must_use]
pub fn half_width(times: &[(usize, f64)]) -> Option<f64> {
    let kinds = times.iter().map(|(kind, _)| kind + 1).max()?;
    let mut by_kind = vec![Vec::new(); kinds];
    for (kind, time) in times {
        by_kind[*kind].push(*time);
    }
    let single = by_kind
        .iter()
        .filter_map(|times| Some((sum_variance(times)?, times.len())));
    let (mut variance, mut freedom) = (0.0, 0);
    for (own, count) in single {
        variance += own;
        freedom += count - 1;
    }
    if freedom == 0 {
        return None;
    }
    let mut half = student_95(freedom) * variance.sqrt();
    // Blocks hold several rounds of all kinds, and there are enough of them to see a spread.
    let length = times.len().isqrt().max(kinds * 2);
    // A block may hold one kind more often than another.
    let means: Vec<f64> = by_kind.iter().map(|times| mean(times)).collect();
    let blocks: Vec<f64> = times
        .chunks_exact(length)
        .map(|block| block.iter().map(|(kind, time)| time - means[*kind]).sum())
        .collect();
    if blocks.len() >= 6 {
        let of_blocks = variance_without_trend(&blocks) * float(blocks.len());
        half = half.max(student_95(blocks.len() - 2) * of_blocks.sqrt());
    }
    // Both runs vary.
    Some(half * std::f64::consts::SQRT_2)
}

/// Variance of the sum of values, from their successive differences. `None` for fewer than two.
fn sum_variance(values: &[f64]) -> Option<f64> {
    let differences = values.windows(2).map(|two| (two[1] - two[0]).powi(2));
    let (count, pairs) = (values.len(), values.len().checked_sub(1)?);
    let squares: f64 = differences.sum();
    (pairs > 0).then(|| squares / 2.0 / float(pairs) * float(count))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1))
}

/// Variance of values around a line, from their second differences. A trend over few long blocks would
/// dominate their first differences.
fn variance_without_trend(values: &[f64]) -> f64 {
    let differences = values
        .windows(3)
        .map(|three| three[2] - 2.0 * three[1] + three[0]);
    let squares: f64 = differences.map(|difference| difference.powi(2)).sum();
    squares / 6.0 / float(values.len().saturating_sub(2).max(1))
}

/// Differences of neighbours share values, so they have about two thirds of the degrees of freedom.
fn student_95(differences: usize) -> f64 {
    let freedom = (differences * 2 / 3).max(1);
    let listed = STUDENT_95.get(freedom - 1).copied();
    listed.unwrap_or(NORMAL_95 + 2.7 / float(freedom))
}

fn float(count: usize) -> f64 {
    crate::interval::float(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_and_different_kinds_are_no_spread_and_noise_is() {
        let trend: Vec<(usize, f64)> = (0..1000).map(|at| (0, 1e6 - f64::from(at))).collect();
        let sum: f64 = trend.iter().map(|(_, time)| time).sum();
        assert!(half_width(&trend).expect("many") < 0.001 * sum);
        let kinds: Vec<(usize, f64)> = (0..1000).map(|at| (at % 2, [5.0, 900.0][at % 2])).collect();
        assert_eq!(half_width(&kinds), Some(0.0));
        let noise: Vec<(usize, f64)> = (0..1000).map(|at| (0, [0.0, 2.0][at / 2 % 2])).collect();
        // Half of the differences are 2, so the variance of one is 1, and that of the sum is 1000.
        let half = half_width(&noise).expect("many");
        assert!(
            (half / (1.96 * 2000_f64.sqrt()) - 1.0).abs() < 0.01,
            "{half}"
        );
        assert_eq!(half_width(&[(0, 1.0), (1, 2.0)]), None);
        assert_eq!(half_width(&[]), None);
    }

    #[test]
    fn disturbances_that_last_widen_the_interval_more_than_short_ones() {
        let slow = |length: usize| -> Vec<(usize, f64)> {
            (0..4096)
                .map(|at| {
                    (
                        0,
                        if (at / length).is_multiple_of(2) {
                            1.0
                        } else {
                            3.0
                        },
                    )
                })
                .collect()
        };
        let (long, short) = (half_width(&slow(64)), half_width(&slow(1)));
        assert!(long > short.map(|half| half * 3.0), "{long:?} {short:?}");
    }
}
