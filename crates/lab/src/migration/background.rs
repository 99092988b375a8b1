//! The work of others on the nodes: how many processes compute there, and when.
//!
//! It is drawn from a seed before the measurement, so that all columns of the table meet the same.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Mean time for which a node is busy, and for which it is free, in seconds of the thesis.
const MEAN_BUSY_S: f64 = 1800.0;
const MEAN_FREE_S: f64 = 2700.0;
/// Maximum number of processes of others on a busy node.
const MAX_PROCESSES: u32 = 4;

/// A change of the work on a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) at: Duration,
    /// Index of the node.
    pub(super) node: usize,
    /// Processes that compute from then on.
    pub(super) processes: u32,
}

/// The changes on all nodes, in order, from the start until `end`. `scale` is the length of a second of
/// the thesis.
pub(super) fn draw_changes(seed: u64, nodes: usize, end: Duration, scale: Duration) -> Vec<Change> {
    let mut changes = Vec::new();
    for node in 0..nodes {
        // Another number of nodes does not change the work on the first ones.
        let mut random = StdRng::seed_from_u64(seed ^ ((node as u64) << 32));
        let mut is_busy = random.random_bool(MEAN_BUSY_S / (MEAN_BUSY_S + MEAN_FREE_S));
        let mut at = Duration::ZERO;
        while at < end {
            let processes = match is_busy {
                true => random.random_range(1..=MAX_PROCESSES),
                false => 0,
            };
            changes.push(Change {
                at,
                node,
                processes,
            });
            let mean = if is_busy { MEAN_BUSY_S } else { MEAN_FREE_S };
            let uniform: f64 = random.random_range(f64::EPSILON..1.0);
            at += scale.mul_f64(-uniform.ln() * mean);
            is_busy = !is_busy;
        }
    }
    changes.sort_by_key(|change| (change.at, change.node));
    changes
}

/// A load average, as the kernel computes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    load: f64,
    /// The time after which a change has shown to 63 %.
    constant: Duration,
}

impl Average {
    /// The average after a long time with `processes`.
    pub(super) fn new(processes: u32, constant: Duration) -> Average {
        Average {
            load: f64::from(processes),
            constant,
        }
    }

    /// `processes` wanted to run for the time `passed`.
    pub(super) fn add(&mut self, processes: usize, passed: Duration) {
        let decay = (-passed.as_secs_f64() / self.constant.as_secs_f64()).exp();
        let processes = f64::from(u32::try_from(processes).unwrap_or(u32::MAX));
        self.load = self.load * decay + processes * (1.0 - decay);
    }

    /// The content of `/proc/loadavg`.
    pub(super) fn line(&self) -> String {
        let load = self.load;
        format!("{load:.2} {load:.2} {load:.2} 1/100 1000\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_others_depends_on_the_seed_and_on_nothing_else() {
        let second = Duration::from_secs(1);
        let day = Duration::from_secs(86_400);
        let changes = draw_changes(3, 4, day, second);
        assert_eq!(changes, draw_changes(3, 4, day, second));
        assert_ne!(changes, draw_changes(4, 4, day, second));
        let of = |changes: &[Change], node| -> Vec<Change> {
            let own = changes.iter().filter(|change| change.node == node);
            own.copied().collect()
        };
        let more = draw_changes(3, 9, day, second);
        for node in 0..4 {
            let own = of(&changes, node);
            assert_eq!(own, of(&more, node));
            assert_eq!(own[0].at, Duration::ZERO);
            assert!(own.len() > 20, "{own:?}");
            // A node is busy and free in turn.
            for pair in own.windows(2) {
                assert!(
                    (pair[0].processes == 0) != (pair[1].processes == 0),
                    "{own:?}"
                );
            }
        }
        assert!(changes.windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    #[test]
    fn a_load_average_follows_within_its_time() {
        let mut average = Average::new(2, Duration::from_secs(5));
        average.add(2, Duration::from_secs(60));
        assert_eq!(average.line(), "2.00 2.00 2.00 1/100 1000\n");
        average.add(0, Duration::from_secs(5));
        assert!(average.line().starts_with("0.74 "), "{}", average.line());
        for _ in 0..50 {
            average.add(4, Duration::from_millis(100));
        }
        assert!(average.line().starts_with("2.80 "), "{}", average.line());
    }
}
