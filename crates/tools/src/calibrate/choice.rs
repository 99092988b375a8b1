//! Selects the best slots.

use dipole_bench::statistics::mean_and_deviation;
use dipole_model::Slots;
use serde::Serialize;

/// Minimum benefit of pacing.
const LEAST_GAIN: f64 = 0.02;

/// Times of supersteps with certain slots, or without pacing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    pub(super) slots: Option<Slots>,
    /// Mean time per byte of the h-relation, followed by its standard deviation.
    pub(super) g_ns_per_byte: f64,
    pub(super) g_sd: f64,
    /// Ratio of retransmissions to packets.
    pub(super) repeats: f64,
}

impl Trial {
    /// Creates a trial from the times of supersteps with an h-relation of `h` bytes.
    pub(super) fn new(slots: Option<Slots>, times_ns: &[u64], h: usize, repeats: f64) -> Trial {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
        let g = times_ns.iter().map(|ns| *ns as f64 / h as f64);
        let (g_ns_per_byte, g_sd) = mean_and_deviation(&g.collect::<Vec<f64>>());
        Trial {
            slots,
            g_ns_per_byte,
            g_sd,
            repeats,
        }
    }

    /// Mean plus two standard deviations, because all processes wait for the slowest.
    fn cost(&self) -> f64 {
        self.g_ns_per_byte + 2.0 * self.g_sd
    }
}

/// Returns the best trial. A paced one must beat the unpaced ones by [`LEAST_GAIN`].
pub(super) fn best(trials: &[Trial]) -> Option<&Trial> {
    let least = |paced: bool| {
        let own = trials.iter().filter(|trial| trial.slots.is_some() == paced);
        own.min_by(|one, other| one.cost().total_cmp(&other.cost()))
    };
    match (least(false), least(true)) {
        (Some(unpaced), Some(paced)) if paced.cost() > unpaced.cost() * (1.0 - LEAST_GAIN) => {
            Some(unpaced)
        }
        (unpaced, paced) => paced.or(unpaced),
    }
}

#[cfg(test)]
mod tests {
    use dipole_model::Medium;

    use super::*;

    fn trial(epsilon_ns: u64, times_ns: &[u64]) -> Trial {
        let slots = (epsilon_ns > 0).then_some(Slots {
            bytes: 1000,
            epsilon_ns,
            medium: Medium::Switch,
        });
        Trial::new(slots, times_ns, 100, 0.0)
    }

    fn chosen(trials: &[Trial]) -> Option<u64> {
        best(trials)
            .expect("one")
            .slots
            .map(|slots| slots.epsilon_ns)
    }

    #[test]
    fn variation_counts_as_well_as_time() {
        let all = [
            trial(0, &[900, 1500, 1400]),
            trial(8, &[900, 1200, 960]),
            trial(9, &[1000, 1010, 1020]),
            trial(12, &[1300, 1300, 1300]),
        ];
        assert_eq!(chosen(&all), Some(9));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn pacing_without_benefit_is_not_chosen() {
        let all = [trial(0, &[1000, 1000, 1000]), trial(9, &[990, 990, 990])];
        assert_eq!(chosen(&all), None);
        let all = [trial(0, &[1000, 1000, 1000]), trial(9, &[970, 970, 970])];
        assert_eq!(chosen(&all), Some(9));
    }

    #[test]
    fn a_trial_has_time_per_byte_and_its_deviation() {
        let trial = trial(0, &[100, 300]);
        assert_eq!(trial.g_ns_per_byte, 2.0);
        assert!((trial.g_sd - 2.0_f64.sqrt()).abs() < 1e-12);
    }
}
