//! Statistics of samples of g: normal and log-normal fits and their goodness, the distribution of the
//! maximum of several values, and the number of edges that explains a sample.
//!
//! # Source
//! `bsp-protocols-thesis` ch. 7: eq. 7.1 (links), eq. 7.2 (edges). Goodness of fit by the test of
//! Anderson and Darling with mean and deviation from the sample (D'Agostino and Stephens,
//! Goodness-of-Fit Techniques, table 4.9).

use serde::Serialize;
use statrs::distribution::{Continuous, ContinuousCDF, LogNormal, Normal, StudentsT};

use dipole_bench::statistics::{as_float, mean_and_deviation};

/// Beyond this A² the formula for the probability is not valid; the probability is close to 0.
const MOST_DISTANCE: f64 = 13.0;
/// Largest exponent that is searched.
const MOST_EXPONENT: f64 = 1e9;
/// Steps of an integral, and its range in standard deviations to each side.
const STEPS: u32 = 4000;
const REACH: f64 = 12.0;

/// Goodness of fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Goodness {
    /// Largest distance between the distribution functions (Kolmogorov-Smirnov).
    pub(super) distance: f64,
    /// Anderson and Darling's A².
    pub(super) a_squared: f64,
    /// Probability that a sample of the distribution fits as badly.
    pub(super) chance: f64,
}

/// Fits of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Fit {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) sd: f64,
    /// Mean of the logarithms.
    pub(super) log_mean: f64,
    pub(super) log_sd: f64,
    pub(super) normal: Goodness,
    pub(super) log_normal: Goodness,
}

/// A straight line, fitted by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Slope {
    pub(super) at_zero: f64,
    pub(super) slope: f64,
    /// 95 % confidence interval of the slope; `None` for two points.
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
}

/// The exponent k for which a sample is distributed like the maximum of k values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Exponent {
    pub(super) likely: f64,
    /// Lower end of the 95 % confidence interval.
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Fit {
    /// Computes the fits. `None` for fewer than three values, equal values, or values of at most 0.
    pub(super) fn of(values: &[f64]) -> Option<Fit> {
        if values.len() < 3 || !values.iter().all(|value| *value > 0.0) {
            return None;
        }
        let (mean, sd) = mean_and_deviation(values);
        let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let (log_mean, log_sd) = mean_and_deviation(&logarithms);
        let normal = Normal::new(mean, sd).ok()?;
        let log_normal = LogNormal::new(log_mean, log_sd).ok()?;
        Some(Fit {
            count: values.len(),
            mean,
            sd,
            log_mean,
            log_sd,
            normal: goodness(values, &normal),
            log_normal: goodness(values, &log_normal),
        })
    }

    /// Returns the fitted normal distribution.
    pub(super) fn as_normal(&self) -> Option<Normal> {
        Normal::new(self.mean, self.sd).ok()
    }

    pub(super) fn as_log_normal(&self) -> Option<LogNormal> {
        LogNormal::new(self.log_mean, self.log_sd).ok()
    }
}

/// Computes the goodness of fit of a distribution with mean and deviation of the values.
fn goodness<T: ContinuousCDF<f64, f64>>(values: &[f64], of: &T) -> Goodness {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = as_float(sorted.len() as u64);
    let pairs = sorted.iter().zip(sorted.iter().rev()).zip(1_u64..);
    let sum: f64 = pairs
        .map(|((low, high), index)| {
            // An outlier of probability 0 must not make the sum infinite.
            let below = of.cdf(*low).max(f64::MIN_POSITIVE).ln();
            let above = of.sf(*high).max(f64::MIN_POSITIVE).ln();
            (2.0 * as_float(index) - 1.0) * (below + above)
        })
        .sum();
    let a_squared = -count - sum / count;
    Goodness {
        distance: distance(&sorted, |value| of.cdf(value)),
        a_squared,
        chance: chance(a_squared * (1.0 + 0.75 / count + 2.25 / (count * count))),
    }
}

/// Returns the probability of such an A², adjusted for the number of values.
fn chance(a_squared: f64) -> f64 {
    let a = a_squared;
    if a >= MOST_DISTANCE {
        0.0
    } else if a >= 0.6 {
        (1.2937 - 5.709 * a + 0.0186 * a * a).exp()
    } else if a >= 0.34 {
        (0.9177 - 4.279 * a - 1.38 * a * a).exp()
    } else if a >= 0.2 {
        1.0 - (-8.318 + 42.796 * a - 59.938 * a * a).exp()
    } else {
        1.0 - (-13.436 + 101.14 * a - 223.73 * a * a).exp()
    }
}

/// Returns the largest distance between the distribution function of sorted values and another one.
fn distance(sorted: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let all = as_float(sorted.len() as u64);
    let distances = sorted.iter().zip(0_u64..).map(|(value, index)| {
        let predicted = of(*value);
        let (below, upto) = (as_float(index) / all, as_float(index + 1) / all);
        (predicted - below).abs().max((predicted - upto).abs())
    });
    distances.fold(0.0, f64::max)
}

/// Returns mean and standard deviation of the maximum of `count` independent values of a normal
/// distribution. `count` may be fractional, because `F(y)^count` is still a distribution function
/// (eq. 7.1).
pub(super) fn largest_of(normal: (f64, f64), count: f64) -> (f64, f64) {
    let (mean, sd) = normal;
    let standard = Normal::standard();
    let step = 2.0 * REACH / f64::from(STEPS);
    let (mut first, mut second, mut all) = (0.0, 0.0, 0.0);
    for index in 0..=STEPS {
        let z = -REACH + step * f64::from(index);
        let density = largest_density(&standard, count, z) * step;
        all += density;
        first += z * density;
        second += z * z * density;
    }
    // Moments of the truncated distribution.
    let (first, second) = (first / all, second / all);
    let deviation = (second - first * first).max(0.0).sqrt();
    (mean + sd * first, sd * deviation)
}

/// Returns the density of `F(y)^count`.
pub(super) fn largest_density(normal: &Normal, count: f64, at: f64) -> f64 {
    count * normal.pdf(at) * normal.cdf(at).powf(count - 1.0)
}

/// Returns the most likely k and its interval for values that are maxima of k draws from F, because
/// `-ln F(x)` is then exponential with rate k. `None` if values are so far beyond F that no k
/// explains them.
pub(super) fn exponent(values: &[f64], one: &Normal) -> Option<Exponent> {
    let count = as_float(values.len() as u64);
    let sum: f64 = values
        .iter()
        .map(|value| -one.cdf(*value).max(f64::MIN_POSITIVE).ln())
        .sum();
    let likely = count / sum;
    let margin = 1.96 / count.sqrt();
    (sum > 0.0 && likely < MOST_EXPONENT).then_some(Exponent {
        likely,
        low: likely * (1.0 - margin).max(0.0),
        high: likely * (1.0 + margin),
    })
}

/// Returns the distribution of one edge from a sample of maxima of `edges` values (eq. 7.2 solved for
/// P_e): ordered values, and the share of an edge's values that are at most as large.
pub(super) fn edge_distribution(values: &[f64], edges: u32) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = as_float(sorted.len() as u64);
    let shares = (1..=sorted.len() as u64).map(|index| {
        let share = (as_float(index) - 0.5) / count;
        share.powf(1.0 / f64::from(edges))
    });
    sorted.iter().copied().zip(shares).collect()
}

/// Returns mean and standard deviation of one edge from a sample of maxima of `edges` values: those
/// of the normal distribution whose maxima fit the middle 80 % of the sample, by regression. `None`
/// for fewer than three values.
pub(super) fn edge_of(values: &[f64], edges: u32) -> Option<(f64, f64)> {
    let all = edge_distribution(values, edges);
    let cut = all.len() / 10;
    let middle = &all[cut..all.len() - cut];
    if middle.len() < 3 {
        return None;
    }
    let standard = Normal::standard();
    let points = middle
        .iter()
        .map(|&(value, share)| (standard.inverse_cdf(share), value));
    let line = slope(&points.collect::<Vec<_>>())?;
    Some((line.at_zero, line.slope))
}

/// Returns the largest distance between a sample's distribution function and `F^count`.
pub(super) fn distance_to(values: &[f64], normal: &Normal, count: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    distance(&sorted, |value| normal.cdf(value).powf(count))
}

/// Fits a straight line. `None` for fewer than two x.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<Slope> {
    let count = as_float(points.len() as u64);
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let squares: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if squares <= 0.0 || squares.is_nan() {
        return None;
    }
    let products = points.iter().map(|point| (point.0 - x) * (point.1 - y));
    let slope = products.sum::<f64>() / squares;
    let at_zero = y - slope * x;
    let freedom = count - 2.0;
    let student = StudentsT::new(0.0, 1.0, freedom).ok();
    let margin = student.map(|student| {
        let rest = points
            .iter()
            .map(|point| (point.1 - at_zero - slope * point.0).powi(2));
        let error = (rest.sum::<f64>() / freedom / squares).sqrt();
        student.inverse_cdf(0.975) * error
    });
    Some(Slope {
        at_zero,
        slope,
        low: margin.map(|margin| slope - margin),
        high: margin.map(|margin| slope + margin),
    })
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Returns values of a normal distribution, from its inverse.
    fn normal(mean: f64, sd: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut dice = StdRng::seed_from_u64(seed);
        let of = Normal::new(mean, sd).expect("a distribution");
        (0..count)
            .map(|_| of.inverse_cdf(dice.random_range(1e-9..1.0)))
            .collect()
    }

    #[test]
    fn a_normal_sample_fits_a_normal_distribution_and_a_log_normal_one_does_not() {
        let values = normal(10.0, 2.0, 400, 1);
        let fit = Fit::of(&values).expect("values");
        assert!((fit.mean - 10.0).abs() < 0.3 && (fit.sd - 2.0).abs() < 0.2);
        assert!(fit.normal.chance > 0.05, "{fit:?}");
        let skewed: Vec<f64> = normal(1.0, 0.8, 400, 2).iter().map(|it| it.exp()).collect();
        let fit = Fit::of(&skewed).expect("values");
        assert!(fit.normal.chance < 0.001, "{fit:?}");
        assert!(fit.log_normal.chance > 0.05, "{fit:?}");
        assert!(fit.log_normal.distance < fit.normal.distance);
    }

    #[test]
    fn a_value_far_out_is_no_fit_and_no_nonsense() {
        let mut values = normal(10.0, 0.01, 100, 3);
        values.push(1e6);
        let fit = Fit::of(&values).expect("values");
        assert_eq!(fit.normal.chance, 0.0, "{fit:?}");
        assert!(fit.normal.a_squared.is_finite());
        assert_eq!(Fit::of(&[1.0, 2.0]), None);
        assert_eq!(Fit::of(&[2.0; 9]), None);
        assert_eq!(Fit::of(&[0.0, 1.0, 2.0]), None);
        assert_eq!(Fit::of(&[f64::NAN, 1.0, 2.0]), None);
    }

    #[test]
    fn the_largest_of_several_has_the_mean_that_tables_of_order_statistics_say() {
        // Mean maxima of standard normal values (David, Order Statistics).
        for (count, mean) in [
            (1.0, 0.0),
            (2.0, 0.564_19),
            (5.0, 1.162_96),
            (10.0, 1.538_75),
        ] {
            let (found, _) = largest_of((0.0, 1.0), count);
            assert!((found - mean).abs() < 1e-4, "{count}: {found}");
        }
        let (_, deviation) = largest_of((0.0, 1.0), 2.0);
        assert!((deviation.powi(2) - 0.681_69).abs() < 1e-4, "{deviation}");
        let (mean, deviation) = largest_of((7.0, 3.0), 1.0);
        assert!((mean - 7.0).abs() < 1e-6 && (deviation - 3.0).abs() < 1e-4);
        // The number of links in a machine of 1024 nodes.
        let (mean, _) = largest_of((0.0, 1.0), 523_776.0);
        assert!((4.7..5.1).contains(&mean), "{mean}");
    }

    #[test]
    fn the_largest_of_edges_tells_its_edge_and_how_many_there_were() {
        let one = (5.0, 0.5);
        let draws = normal(one.0, one.1, 8 * 600, 4);
        let largest: Vec<f64> = draws
            .chunks(8)
            .map(|chunk| chunk.iter().copied().fold(f64::MIN, f64::max))
            .collect();
        let edge = edge_of(&largest, 8).expect("many values");
        assert!(
            (edge.0 - 5.0).abs() < 0.1 && (edge.1 - 0.5).abs() < 0.06,
            "{edge:?}"
        );
        // A stall changes neither.
        let mut stalled = largest.clone();
        stalled[0] = 1e6;
        let other = edge_of(&stalled, 8).expect("many values");
        assert!((other.0 - edge.0).abs() < 0.02, "{other:?} {edge:?}");
        let normal = Normal::new(one.0, one.1).expect("a distribution");
        assert_eq!(exponent(&[100.0, 101.0], &normal), None);
        let found = exponent(&largest, &normal).expect("near enough");
        assert!(found.low < 8.0 && 8.0 < found.high, "{found:?}");
        assert!(distance_to(&largest, &normal, 8.0) < 0.07);
        assert!(distance_to(&largest, &normal, 1.0) > 0.5);
        let distribution = edge_distribution(&largest, 8);
        let middle = distribution[distribution.len() / 300];
        assert!(
            (middle.1 - 0.5).abs() < 0.1 && (middle.0 - 5.0).abs() < 0.2,
            "{middle:?}"
        );
    }

    #[test]
    fn a_slope_is_found_with_its_interval() {
        let found = slope(&[(1.0, 3.1), (2.0, 4.9), (3.0, 7.0), (4.0, 9.1)]).expect("places");
        assert!((found.slope - 2.01).abs() < 1e-9, "{found:?}");
        assert!(found.low.is_some_and(|low| low < 2.0) && found.high.is_some_and(|it| it > 2.0));
        let two = slope(&[(1.0, 1.0), (2.0, 3.0)]).expect("places");
        assert_eq!((two.slope, two.at_zero, two.low), (2.0, -1.0, None));
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
