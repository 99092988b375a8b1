//! What messages and supersteps will take, computed from parameters that were measured: no I/O, no
//! clock.
//!
//! Two models: [`PointToPoint`] for one message from one process to another, and [`Machine`] for
//! supersteps of many; by the latter [`Collectives`] choose their algorithms.
//! [`profile`](crate::profile) keeps what they are made of.

mod collectives;
mod point_to_point;
mod superstep;

pub use collectives::Collectives;
pub use point_to_point::{Long, PointToPoint, Prediction, Regime, Short};
pub use superstep::{Basis, Cost, Machine, Parameters};

use serde::{Deserialize, Serialize};

/// A measured number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The median of all rounds.
    pub median: f64,
    /// Between this and `high` lies the median of all that could be measured, with 95 % confidence.
    pub low: f64,
    /// See there.
    pub high: f64,
}

impl Measured {
    /// A number known without doubt.
    #[must_use]
    pub fn exactly(value: f64) -> Measured {
        Measured {
            median: value,
            low: value,
            high: value,
        }
    }

    /// Whether two measurements may be of the same number: their intervals have a part in common.
    #[must_use]
    pub fn agrees(&self, other: &Measured) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    fn each(self, other: Measured, of: impl Fn(f64, f64) -> f64) -> Measured {
        Measured {
            median: of(self.median, other.median),
            low: of(self.low, other.low),
            high: of(self.high, other.high),
        }
    }

    /// The share `part` of the way from this one to another.
    fn towards(self, other: Measured, part: f64) -> Measured {
        self.each(other, |from, to| from + (to - from) * part)
    }
}

/// Between which two of sorted places `x` lies, and how far from the first to the second; places
/// beyond the ends count as the ends. `None` if there are no places.
fn between(places: impl Iterator<Item = f64> + Clone, x: f64) -> Option<(usize, usize, f64)> {
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

/// A count as a float: exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_between_two_measured_ones_are_found_and_none_lie_beyond_the_ends() {
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
    fn intervals_agree_where_they_meet() {
        let of = |low, high| Measured {
            median: f64::midpoint(low, high),
            low,
            high,
        };
        assert!(of(1.0, 3.0).agrees(&of(2.0, 5.0)) && of(2.0, 5.0).agrees(&of(1.0, 3.0)));
        assert!(!of(1.0, 3.0).agrees(&of(3.1, 5.0)) && !of(3.1, 5.0).agrees(&of(1.0, 3.0)));
    }
}
