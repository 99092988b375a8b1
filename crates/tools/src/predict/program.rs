//! `dipole predict --trace`: what a traced program takes, superstep by superstep, with as many ranks as it
//! had and with other numbers of them.
//!
//! With P ranks in place of p each does p / P of the computation and of h, so that imbalance and skew
//! stay as they were; ranks of one node take turns on its cores.

use std::collections::BTreeMap;
use std::path::Path;

use dipole_bsp::model::Parameters;
use dipole_bsp::trace::{Step, TraceFile, is_trace_name, total};

use crate::trace::read;

/// One superstep of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Superstep {
    /// Computation of the busiest rank, and of all together.
    busiest_ns: f64,
    all_ns: f64,
    /// The most bytes that a rank sent or received.
    h_bytes: f64,
    /// Computation of the slowest rank, and the time in the call of the one that waited least.
    took_ns: f64,
}

/// A traced program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) link: String,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) supersteps: Vec<Superstep>,
}

/// What it takes with some number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forecast {
    pub(super) work_ns: f64,
    pub(super) h_bytes: f64,
    pub(super) ns: f64,
    /// Beside the same computation by one rank alone.
    pub(super) speed_up: f64,
}

impl Program {
    /// Reads the files of all ranks.
    pub(super) fn read(dir: &Path) -> Result<Program, String> {
        let place = dir.display();
        let cannot = |cause: std::io::Error| format!("cannot read {place}: {cause}");
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            if entry.file_name().to_str().is_some_and(is_trace_name) {
                let path = entry.path();
                let file = read(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
                files.push(file);
            }
        }
        Program::of(&files).map_err(|what| {
            format!("{place} {what}; run the program with DIPOLE_TRACE={place}, an empty folder")
        })
    }

    /// Of the supersteps that all ranks' files have.
    fn of(files: &[TraceFile]) -> Result<Program, String> {
        let Some(head) = files.first().map(|file| &file.header) else {
            return Err("has no traces".to_owned());
        };
        let is_same =
            |file: &TraceFile| (file.header.run, file.header.size) == (head.run, head.size);
        if !files.iter().all(is_same) {
            return Err("has traces of several runs".to_owned());
        }
        let count = files.len();
        if count != head.size as usize {
            return Err(format!("has traces of {count} of {} ranks", head.size));
        }
        let mut by_epoch: BTreeMap<u32, Vec<(u32, &Step)>> = BTreeMap::new();
        for file in files {
            let own = file.steps.iter().filter(|step| step.epoch >= head.first);
            for step in own {
                let all = by_epoch.entry(step.epoch).or_default();
                all.push((file.header.rank, step));
            }
        }
        let whole = by_epoch.values().filter(|all| all.len() == count);
        let supersteps: Vec<Superstep> = whole.map(|all| Superstep::of(all)).collect();
        if supersteps.is_empty() {
            return Err("has no superstep that all ranks have".to_owned());
        }
        Ok(Program {
            link: head.link.clone(),
            ranks: head.size,
            nodes: head.nodes,
            supersteps,
        })
    }

    /// How long it took.
    pub(super) fn took_ns(&self) -> f64 {
        self.supersteps.iter().map(|step| step.took_ns).sum()
    }

    /// What it takes with the ranks of the parameters, of whom so many compute at once, where of
    /// its own so many did.
    pub(super) fn forecast(&self, with: Parameters, (own, at_once): (u32, u32)) -> Forecast {
        let slower = f64::from(own) / f64::from(at_once.max(1));
        let share = f64::from(self.ranks) / f64::from(with.p.max(1));
        let mut forecast = Forecast {
            work_ns: 0.0,
            h_bytes: 0.0,
            ns: 0.0,
            speed_up: 0.0,
        };
        for step in &self.supersteps {
            let (work_ns, h_bytes) = (step.busiest_ns * slower, step.h_bytes * share);
            forecast.work_ns += work_ns;
            forecast.h_bytes += h_bytes;
            forecast.ns += with.superstep_ns(work_ns, h_bytes);
        }
        let all_ns: f64 = self.supersteps.iter().map(|step| step.all_ns).sum();
        let alone_ns = all_ns * f64::from(own) / f64::from(self.ranks);
        forecast.speed_up = alone_ns / forecast.ns.max(1.0);
        forecast
    }
}

impl Superstep {
    fn of(all: &[(u32, &Step)]) -> Superstep {
        let mut bytes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut add = |from: u32, to: u32, count: u64| {
            // What a rank has for itself crosses nothing.
            if from != to {
                let out = &mut bytes.entry(from).or_default().0;
                *out = out.saturating_add(count);
                let back = &mut bytes.entry(to).or_default().1;
                *back = back.saturating_add(count);
            }
        };
        for (rank, step) in all {
            step.put
                .iter()
                .for_each(|(to, count)| add(*rank, *to, *count));
            step.got
                .iter()
                .for_each(|(from, count)| add(*from, *rank, *count));
        }
        let h = bytes.values().map(|(out, back)| *out.max(back)).max();
        let compute = || all.iter().map(|(_, step)| step.compute_ns());
        let busiest = compute().max().unwrap_or(0);
        let in_call = all.iter().map(|(_, step)| step.sync_ns()).min();
        Superstep {
            busiest_ns: float(busiest),
            all_ns: float(total(compute())),
            h_bytes: float(h.unwrap_or(0)),
            took_ns: float(total([busiest, in_call.unwrap_or(0)])),
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "times and lengths are far below 2^53"
)]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use dipole_bsp::model::Basis;
    use dipole_bsp::trace::{Header, State};

    use super::*;

    fn file(rank: u32, steps: Vec<Step>) -> TraceFile {
        TraceFile {
            header: Header {
                state: State::Ended,
                rank,
                size: 2,
                nodes: 1,
                leader: 0,
                first: 3,
                run: 7,
                begun_ns: 0,
                begun_unix_ns: 0,
                link: "shm".to_owned(),
                host: "here".to_owned(),
            },
            sites: Vec::new(),
            modules: Vec::new(),
            stacks: Vec::new(),
            steps,
            is_wrapped: false,
            damaged_blocks: 0,
        }
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
        Program::of(&[one, other]).expect("whole")
    }

    #[test]
    fn a_superstep_is_that_of_the_busiest_and_what_only_one_rank_has_does_not_count() {
        let program = program();
        assert_eq!(program.supersteps.len(), 1);
        let expected = Superstep {
            busiest_ns: 1000.0,
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
        let same = program.forecast(parameters(2), (2, 2));
        assert_eq!(
            (same.work_ns, same.h_bytes, same.ns),
            (1000.0, 40.0, 1180.0)
        );
        let four = program.forecast(parameters(4), (2, 4));
        assert_eq!((four.work_ns, four.h_bytes, four.ns), (500.0, 20.0, 640.0));
        assert_eq!(four.speed_up, 1600.0 / 640.0);
        // Two cores, whoever takes turns on them.
        let crowded = program.forecast(parameters(4), (2, 2));
        assert_eq!((crowded.work_ns, crowded.h_bytes), (1000.0, 20.0));
    }

    #[test]
    fn what_is_no_whole_run_is_refused_with_the_reason() {
        let wrong = |files: &[TraceFile]| Program::of(files).expect_err("refused");
        assert!(wrong(&[]).contains("no traces"));
        assert!(wrong(&[file(0, Vec::new())]).contains("1 of 2 ranks"));
        assert!(wrong(&[file(0, Vec::new()), file(1, Vec::new())]).contains("no superstep"));
        let mut other = file(1, Vec::new());
        other.header.run = 8;
        assert!(wrong(&[file(0, Vec::new()), other]).contains("several runs"));
        let nowhere = Program::read(Path::new("/nonexistent")).expect_err("no folder");
        assert!(nowhere.contains("/nonexistent"));
    }
}
