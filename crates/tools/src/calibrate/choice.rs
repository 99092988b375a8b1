//! Which slots are the best of those that were tried.

use dipole_bsp::superstep::pace::Slots;
use serde::Serialize;

/// Pacing that gains less is left out.
const LEAST_GAIN: f64 = 0.02;

/// What supersteps took that were paced by some slots, or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Trial {
    pub(super) slots: Option<Slots>,
    /// Time per byte of the h-relation, mean and standard deviation.
    pub(super) g_ns_per_byte: f64,
    pub(super) g_sd: f64,
    /// Packets sent again, by all.
    pub(super) repeats: f64,
}

impl Trial {
    /// Of supersteps that moved `h` bytes each and took so long.
    pub(super) fn new(slots: Option<Slots>, times_ns: &[u64], h: usize, repeats: f64) -> Trial {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
        let g = times_ns.iter().map(|ns| *ns as f64 / h as f64);
        let g: Vec<f64> = g.collect();
        #[allow(clippy::cast_precision_loss, reason = "few")]
        let count = g.len() as f64;
        let mean = g.iter().sum::<f64>() / count;
        let squares = g.iter().map(|g| (g - mean).powi(2)).sum::<f64>();
        Trial {
            slots,
            g_ns_per_byte: mean,
            g_sd: (squares / (count - 1.0).max(1.0)).sqrt(),
            repeats,
        }
    }

    /// Short and nearly always the same: who waits for the slowest feels the scatter too.
    fn cost(&self) -> f64 {
        self.g_ns_per_byte + 2.0 * self.g_sd
    }
}

/// The best trial; one that is not paced unless pacing gains something.
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
    use dipole_bsp::superstep::pace::Medium;

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
    fn scatter_counts_as_well_as_time() {
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
    fn pacing_is_off_where_it_gains_nothing() {
        let all = [trial(0, &[1000, 1000, 1000]), trial(9, &[990, 990, 990])];
        assert_eq!(chosen(&all), None);
        let all = [trial(0, &[1000, 1000, 1000]), trial(9, &[970, 970, 970])];
        assert_eq!(chosen(&all), Some(9));
    }

    #[test]
    fn a_trial_tells_time_per_byte_and_its_deviation() {
        let trial = trial(0, &[100, 300]);
        assert_eq!(trial.g_ns_per_byte, 2.0);
        assert!((trial.g_sd - 2.0_f64.sqrt()).abs() < 1e-12);
    }
}
