//! Computes parameters from samples: one value per round, and the median over rounds with its
//! interval.
//!
//! Outliers are not removed, because medians within and over rounds are insensitive to single stalls.
//! They are counted.

use dipole_model::{Long, MedianInterval, PointToPoint, Short};

use crate::calibrate::side::{FRAGMENT_BYTES, LONG_BYTES, Metric, SHORT_BYTES, Sample};
use crate::estimate::Estimate;
use crate::statistics::{Spread, as_float};

/// Values above this multiple of the median of their sample are outliers.
const OUTLIER: f64 = 3.0;

/// Computes the parameters from all rounds. `None` if a round is incomplete.
pub fn of(
    place: &str,
    rounds: &[Vec<Sample>],
    cache_line_ns: Option<MedianInterval>,
) -> Option<PointToPoint> {
    let over_rounds = |value: &dyn Fn(&Round<'_>) -> Option<f64>| {
        let values: Option<Vec<f64>> = rounds.iter().map(|round| value(&Round(round))).collect();
        Some(Estimate::of(values?)?.measured())
    };
    let short = |bytes: usize| {
        let mut short = Short {
            bytes,
            trip_ns: over_rounds(&|round| round.median(Metric::Trip, bytes))?,
            o_s_ns: over_rounds(&|round| round.median(Metric::Send, bytes))?,
            o_r_ns: over_rounds(&|round| Some(round.work(bytes)? - round.pick_up()?))?,
            u_r_ns: over_rounds(&|round| round.pick_up())?,
            l_ns: over_rounds(&|round| {
                let trip = round.median(Metric::Trip, bytes)?;
                Some(trip - round.median(Metric::Send, bytes)? - round.work(bytes)?)
            })?,
            g_s_ns: over_rounds(&|round| round.median(Metric::SendGap, bytes))?,
            g_r_ns: over_rounds(&|round| round.median(Metric::ReceiveGap, bytes))?,
        };
        // Medians of parts need not add up to the median of the whole, so L is the rest.
        let others = [short.o_s_ns, short.o_r_ns, short.u_r_ns];
        let others: f64 = others.iter().map(|part| part.median).sum();
        let l_ns = &mut short.l_ns;
        l_ns.median = short.trip_ns.median - others;
        (l_ns.low, l_ns.high) = (l_ns.low.min(l_ns.median), l_ns.high.max(l_ns.median));
        Some(short)
    };
    let long = |bytes: usize| {
        let fragments = as_float(bytes as u64) / as_float(FRAGMENT_BYTES as u64);
        // Additional time per fragment.
        let added = |round: &Round<'_>, what| {
            let whole = round.median(what, bytes)?;
            Some((whole - round.median(what, FRAGMENT_BYTES)?) / (fragments - 1.0))
        };
        // Polling for the next fragment takes longer than waiting for it, but the receiver cannot
        // work on a fragment for longer than the time until the next one.
        let work = |round: &Round<'_>| {
            let gap = added(round, Metric::Trip)?;
            Some(added(round, Metric::Work)?.min(gap))
        };
        Some(Long {
            bytes,
            trip_ns: over_rounds(&|round| round.median(Metric::Trip, bytes))?,
            work_ns: over_rounds(&work)?,
            g_s_ns: over_rounds(&|round| added(round, Metric::Send))?,
            g_r_ns: over_rounds(&|round| added(round, Metric::Trip))?,
        })
    };
    Some(PointToPoint {
        place: place.to_owned(),
        rounds: u32::try_from(rounds.len()).ok()?,
        fragment_bytes: FRAGMENT_BYTES,
        cache_line_ns,
        wire: None,
        short: SHORT_BYTES.into_iter().map(short).collect::<Option<_>>()?,
        long: LONG_BYTES.into_iter().map(long).collect::<Option<_>>()?,
    })
}

/// Counts the outliers and all values.
pub(super) fn outliers(rounds: &[Vec<Sample>]) -> (usize, usize) {
    let (mut far, mut all) = (0, 0);
    for sample in rounds.iter().flatten() {
        let median = Spread::of(sample.ns.iter().copied()).map_or(0.0, |spread| spread.median);
        far += (sample.ns.iter())
            .filter(|ns| **ns > OUTLIER * median)
            .count();
        all += sample.ns.len();
    }
    (far, all)
}

struct Round<'a>(&'a [Sample]);

impl Round<'_> {
    fn median(&self, what: Metric, bytes: usize) -> Option<f64> {
        let sample = (self.0.iter()).find(|it| (it.what, it.bytes) == (what, bytes))?;
        Some(Spread::of(sample.ns.iter().copied())?.median)
    }

    /// Returns the time to pick up a message, which does not depend on the length, as nothing is copied.
    fn pick_up(&self) -> Option<f64> {
        let all = self.0.iter().filter(|it| it.what == Metric::PickUp);
        Some(Spread::of(all.flat_map(|it| it.ns.iter().copied()))?.median)
    }

    /// Returns `O_r + U_r`, at least the time of the pick-up, which is a part of it.
    fn work(&self, bytes: usize) -> Option<f64> {
        Some(self.median(Metric::Work, bytes)?.max(self.pick_up()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of a link with these costs, including a stall.
    fn samples(drift: f64) -> Vec<Sample> {
        let mut all = Vec::new();
        for bytes in SHORT_BYTES.into_iter().chain(LONG_BYTES) {
            let length = as_float(bytes as u64);
            let (send, work) = (500.0 + 0.1 * length, 300.0 + 0.2 * length);
            let first = length.min(as_float(FRAGMENT_BYTES as u64));
            let trip = 2000.0 + first + 0.5 * (length - first) + drift;
            let mut tell = |what, ns| {
                let ns = vec![ns, ns, ns * 50.0];
                all.push(Sample { what, bytes, ns });
            };
            tell(Metric::Trip, trip);
            tell(Metric::Send, send);
            tell(Metric::Work, work);
            tell(Metric::SendGap, 700.0);
            tell(Metric::ReceiveGap, 800.0);
            tell(Metric::PickUp, 90.0);
        }
        all
    }

    #[test]
    fn parameters_are_found_again_and_stalls_do_not_move_them() {
        let rounds: Vec<_> = [0.0, 3.0, -2.0].map(samples).into();
        let found = of("node", &rounds, None).expect("all was measured");
        let one = found.short[0];
        assert!((one.o_s_ns.median - 500.1).abs() < 1e-9, "{one:?}");
        assert!((one.u_r_ns.median - 90.0).abs() < 1e-9, "{one:?}");
        assert!((one.o_r_ns.median - 210.2).abs() < 1e-9, "{one:?}");
        assert!((one.l_ns.median - 1200.7).abs() < 1e-9, "{one:?}");
        assert_eq!((one.trip_ns.low, one.trip_ns.high), (1999.0, 2004.0));
        assert_eq!((one.g_s_ns.median, one.g_r_ns.median), (700.0, 800.0));
        let fragment = as_float(FRAGMENT_BYTES as u64);
        for long in &found.long {
            assert!((long.g_r_ns.median - 0.5 * fragment).abs() < 1e-6);
            assert!((long.g_s_ns.median - 0.1 * fragment).abs() < 1e-6);
            assert!((long.work_ns.median - 0.2 * fragment).abs() < 1e-6);
        }
        let expected = 2000.0 + fragment + 0.5 * 3.5 * fragment;
        let predicted = found.predict(FRAGMENT_BYTES * 9 / 2).expect("measured").ns;
        assert!(
            (predicted.median - expected).abs() < 1.0,
            "{predicted:?} {expected}"
        );
        assert_eq!(outliers(&rounds).0 * 3, outliers(&rounds).1);
    }

    #[test]
    fn what_was_not_measured_yields_nothing() {
        let mut incomplete = samples(0.0);
        incomplete.retain(|sample| (sample.what, sample.bytes) != (Metric::Work, 64));
        assert_eq!(of("node", &[samples(0.0), incomplete], None), None);
        assert_eq!(of("node", &[], None), None);
    }
}
