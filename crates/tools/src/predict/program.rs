//! `dipole predict --trace`: predicts a traced program, superstep by superstep, with its own number of
//! ranks and with others.
//!
//! With P ranks instead of p, each does p / P of the computation and of h, so imbalance and skew stay
//! the same. The ranks of a node share its cores. Computation is that of the slowest rank of each
//! superstep. The interval spans the machine as calibrated and as it was during the traced run.

use std::path::Path;

use dipole_bsp::trace::total;
use dipole_model::{Parameters, Sums, half_width};

use crate::output::Failure;
use crate::trace::{self, Run, float, load};

/// One superstep of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Superstep {
    /// Index of the call that ended it.
    kind: usize,
    /// Computation of the slowest rank, the same without preemption, and the sum over ranks.
    busiest_ns: f64,
    undisturbed_ns: f64,
    all_ns: f64,
    /// Most bytes that a rank sent or received.
    h_bytes: f64,
    /// Computation of the slowest rank, followed by the shortest time in the call.
    took_ns: f64,
}

/// Costs of a traced program, as input of a prediction.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) link: String,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) supersteps: Vec<Superstep>,
}

/// Prediction for a number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forecast {
    pub(super) work_ns: f64,
    pub(super) h_bytes: f64,
    pub(super) ns: f64,
    /// Interval in which 95 % of runs are expected, if the spread is known.
    pub(super) interval: Option<(f64, f64)>,
    /// Relative to the same computation by a single rank.
    pub(super) speed_up: f64,
}

impl Program {
    /// Reads the files of all ranks, and keeps only the supersteps of a range, if any.
    pub(super) fn read(dir: &Path, range: Option<(u32, u32)>) -> Result<Program, Failure> {
        let files = load(dir)?;
        let mut run = Run::of(&files);
        run.keep(range)?;
        if run.supersteps.is_empty() {
            let place = dir.display();
            return Err(format!("{place} has no superstep that all ranks have").into());
        }
        Ok(Program::of(&run))
    }

    fn of(run: &Run<'_>) -> Program {
        let head = &run.files[0].header;
        Program {
            link: head.link.clone(),
            ranks: head.size,
            nodes: head.nodes,
            supersteps: run.supersteps.iter().map(Superstep::of).collect(),
        }
    }

    /// Returns the measured duration.
    pub(super) fn took_ns(&self) -> f64 {
        self.supersteps.iter().map(|step| step.took_ns).sum()
    }

    /// Predicts the program with the ranks of the parameters, of which `at_once` compute at the same
    /// time; in the traced program `own` did.
    pub(super) fn forecast(
        &self,
        with: Parameters,
        traced: Option<Parameters>,
        (own, at_once): (u32, u32),
    ) -> Forecast {
        let slower = f64::from(own) / f64::from(at_once.max(1));
        let share = f64::from(self.ranks) / f64::from(with.p.max(1));
        let sum = |of: fn(&Superstep) -> f64| self.supersteps.iter().map(of).sum::<f64>();
        let times: Vec<(usize, f64)> = self
            .supersteps
            .iter()
            .map(|step| (step.kind, step.took_ns))
            .collect();
        // The machine as it was during the run, in the terms of the parameters of that run.
        let beyond_ns = traced.map_or(0.0, |traced| {
            let modelled_ns = |step: &Superstep| traced.superstep_ns(step.busiest_ns, step.h_bytes);
            let all = self.supersteps.iter();
            all.map(|step| step.took_ns - modelled_ns(step)).sum()
        });
        let sums = Sums {
            supersteps: float(self.supersteps.len() as u64),
            work_ns: sum(|step| step.busiest_ns) * slower,
            undisturbed_ns: sum(|step| step.undisturbed_ns) * slower,
            h_bytes: sum(|step| step.h_bytes) * share,
            beyond_ns,
            spread_ns: half_width(&times).map(|half_ns| half_ns * slower.max(1.0)),
        };
        let told = with.forecast(&sums);
        let mut forecast = Forecast {
            work_ns: sums.work_ns,
            h_bytes: sums.h_bytes,
            ns: told.ns,
            interval: told.interval,
            speed_up: 0.0,
        };
        let all_ns: f64 = self.supersteps.iter().map(|step| step.all_ns).sum();
        let alone_ns = all_ns * f64::from(own) / f64::from(self.ranks);
        forecast.speed_up = alone_ns / forecast.ns.max(1.0);
        forecast
    }
}

impl Superstep {
    fn of(one: &trace::Superstep<'_>) -> Superstep {
        let busiest_ns = one.slowest().1;
        Superstep {
            kind: one.call,
            busiest_ns: float(busiest_ns),
            undisturbed_ns: float(one.work_ns().max().unwrap_or(0)),
            all_ns: float(total(one.compute_ns())),
            h_bytes: float(one.widest().1),
            took_ns: float(total([busiest_ns, one.communicate_ns()])),
        }
    }
}

#[cfg(test)]
mod tests {
    use dipole_bsp::trace::{Step, TraceFile};
    use dipole_model::Basis;

    use super::*;

    fn file(rank: u32, steps: Vec<Step>) -> TraceFile {
        let mut file = trace::tests::file(rank);
        (file.header.size, file.header.first) = (2, 3);
        file.steps = steps;
        file
    }

    fn step(epoch: u32, compute_ns: u64, sync_ns: u64, put: &[(u32, u64)]) -> Step {
        Step {
            epoch,
            entered_ns: compute_ns,
            exchange_ns: sync_ns,
            put: put.to_vec(),
            ..Step::default()
        }
    }

    fn parameters(p: u32) -> Parameters {
        Parameters {
            p,
            l_ns: 100.0,
            g_ns_per_byte: 2.0,
            l_ci_ns: 3.0,
            g_sd: 0.0,
            contention: None,
            s_mflops: 1000.0,
            basis: Basis::Measured,
        }
    }

    fn program() -> Program {
        let one = file(
            0,
            vec![step(2, 9, 9, &[]), step(3, 1000, 500, &[(1, 40), (0, 99)])],
        );
        let other = file(1, vec![step(3, 600, 900, &[(0, 10)]), step(4, 1, 1, &[])]);
        Program::of(&Run::of(&[one, other]))
    }

    #[test]
    fn a_superstep_is_that_of_the_busiest_and_what_only_one_rank_has_does_not_count() {
        let program = program();
        assert_eq!(program.supersteps.len(), 1);
        let expected = Superstep {
            kind: 0,
            busiest_ns: 1000.0,
            undisturbed_ns: 1000.0,
            all_ns: 1600.0,
            h_bytes: 40.0,
            took_ns: 1500.0,
        };
        assert_eq!(program.supersteps[0], expected);
        assert_eq!(program.took_ns(), 1500.0);
    }

    #[test]
    fn other_numbers_of_ranks_share_the_work_as_far_as_there_are_cores() {
        let program = program();
        let same = program.forecast(parameters(2), None, (2, 2));
        assert_eq!(
            (same.work_ns, same.h_bytes, same.ns),
            (1000.0, 40.0, 1180.0)
        );
        let four = program.forecast(parameters(4), None, (2, 4));
        assert_eq!((four.work_ns, four.h_bytes, four.ns), (500.0, 20.0, 640.0));
        assert_eq!(four.speed_up, 1600.0 / 640.0);
        // Two cores, shared by all ranks.
        let crowded = program.forecast(parameters(4), None, (2, 2));
        assert_eq!((crowded.work_ns, crowded.h_bytes), (1000.0, 20.0));
    }

    #[test]
    fn supersteps_of_a_range_are_taken_and_an_empty_one_is_refused() {
        let steps = || vec![step(3, 1, 1, &[]), step(4, 5, 1, &[])];
        let files = [file(0, steps()), file(1, steps())];
        let mut run = Run::of(&files);
        run.keep(Some((1, 9))).expect("there is one");
        assert_eq!(Program::of(&run).took_ns(), 6.0);
        let error = run.keep(Some((2, 9))).expect_err("no such superstep");
        assert!(error.contains("from 2 to 9"), "{error}");
        assert!(Program::read(Path::new("/nonexistent"), None).is_err());
    }
}
