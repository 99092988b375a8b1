//! Measured numbers with confidence intervals, and interpolation between them.

use serde::{Deserialize, Serialize};

/// The median of repeated measurements, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MedianInterval {
    /// The median of all rounds.
    pub median: f64,
    /// Lower end of the confidence interval.
    pub low: f64,
    /// Upper end of the confidence interval.
    pub high: f64,
}

impl MedianInterval {
    /// An interval of width 0.
    #[must_use]
    pub fn exactly(value: f64) -> MedianInterval {
        MedianInterval {
            median: value,
            low: value,
            high: value,
        }
    }

    /// True if the two intervals overlap.
    #[must_use]
    pub fn agrees(&self, other: &MedianInterval) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    /// Combines median with median, low with low and high with high.
    pub(crate) fn each(
        self,
        other: MedianInterval,
        of: impl Fn(f64, f64) -> f64,
    ) -> MedianInterval {
        MedianInterval {
            median: of(self.median, other.median),
            low: of(self.low, other.low),
            high: of(self.high, other.high),
        }
    }

    /// Interpolates linearly: 0 yields `self`, 1 yields `other`.
    pub(crate) fn towards(self, other: MedianInterval, part: f64) -> MedianInterval {
        self.each(other, |from, to| from + (to - from) * part)
    }
}

/// Finds the two neighbours of `x` in a sorted list: their indices, and the fraction of the distance
/// from the first to the second. Outside the list both are the nearest end. `None` if the list is
/// empty.
pub(crate) fn between(
    places: impl Iterator<Item = f64> + Clone,
    x: f64,
) -> Option<(usize, usize, f64)> {
    let count = places.clone().count();
    let above = places.clone().position(|place| place >= x);
    let (above, last) = (above.unwrap_or(count), count.checked_sub(1)?);
    let (one, other) = (above.saturating_sub(1), above.min(last));
    let at = |index| places.clone().nth(index).unwrap_or(x);
    let (from, to) = (at(one), at(other));
    match to > from && x > from {
        true => Some((one, other, ((x - from) / (to - from)).min(1.0))),
        false => Some((other, other, 0.0)),
    }
}

/// Converts a count to a float, exactly up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
pub(crate) fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_found_and_values_outside_use_the_nearest_end() {
        let places = [1.0, 3.0, 7.0];
        let find = |x| between(places.into_iter(), x).expect("places");
        assert_eq!(find(0.5), (0, 0, 0.0));
        assert_eq!(find(1.0), (0, 0, 0.0));
        assert_eq!(find(2.0), (0, 1, 0.5));
        assert_eq!(find(3.0), (0, 1, 1.0));
        assert_eq!(find(4.0), (1, 2, 0.25));
        assert_eq!(find(9.0), (2, 2, 0.0));
        assert_eq!(between(std::iter::empty(), 1.0), None);
    }

    #[test]
    fn overlapping_intervals_agree() {
        let of = |low, high| MedianInterval {
            median: f64::midpoint(low, high),
            low,
            high,
        };
        assert!(of(1.0, 3.0).agrees(&of(2.0, 5.0)) && of(2.0, 5.0).agrees(&of(1.0, 3.0)));
        assert!(!of(1.0, 3.0).agrees(&of(3.1, 5.0)) && !of(3.1, 5.0).agrees(&of(1.0, 3.0)));
    }
}
