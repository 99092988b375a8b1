//! The cost of a run's supersteps by call, and its causes.

use dipole_bsp::trace::{Clocks, total};
use serde::Serialize;

use super::causes::Losses;
use super::files::notes;
use super::prediction::Predictions;
use super::run::{Run, Superstep, float, is_at_least};
use super::tree::{self, Node};

/// Explains the columns of the calls.
pub(super) const LEGEND: &str = "compute: the slowest rank of each superstep; used: the mean of the ranks, as a share of that; \
                      h: bytes of the rank that sent or received most; mean: of all ranks; repeats: packets \
                      sent again; stalls: waits for room to send";

/// The supersteps ended by one call.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Profile {
    pub(crate) call: String,
    pub(crate) supersteps: u64,
    /// Sum over supersteps of the slowest rank's computation.
    pub(crate) compute_ns: u64,
    /// Its mean over ranks, divided by that.
    pub(crate) utilisation: f64,
    /// Sum over supersteps of the time in the call of the rank that waited least.
    pub(crate) communicate_ns: u64,
    /// Sum of the predicted communication times in ns.
    pub(crate) predicted_communicate_ns: f64,
    /// Sum over supersteps of the most bytes that a rank sent or received, and of their mean.
    pub(crate) h_bytes: u64,
    pub(crate) mean_bytes: f64,
    pub(crate) repeats: u64,
    pub(crate) stalls: u64,
    /// Main causes of lost time, as text; empty if little was lost.
    pub(crate) reasons: Vec<String>,
}

/// Uncertainty of a node's clock where times of nodes are compared.
#[derive(Debug, Serialize)]
pub(crate) struct ClockError {
    pub(crate) rank: u32,
    pub(crate) error_ns: u64,
}

/// Totals of the whole program.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) ranks: u32,
    pub(crate) nodes: u32,
    pub(crate) link: String,
    pub(crate) supersteps: u64,
    /// Computation of the rank that computed most: the maximum of sums.
    pub(crate) max_of_sums_ns: u64,
    /// Sum of the slowest rank's computation in each superstep: the sum of maxima.
    pub(crate) sum_of_max_ns: u64,
    pub(crate) communicate_ns: u64,
    pub(crate) calls: Vec<Profile>,
    pub(crate) predictions: Predictions,
    /// Times by call site, as a tree.
    pub(crate) tree: Node,
    /// Functions on the path to the most expensive call.
    pub(crate) hottest: String,
    pub(crate) clocks: Vec<ClockError>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn summarise(run: &Run<'_>, clocks: Option<&Clocks>) -> Summary {
    let head = &run.files[0].header;
    let mut notes = notes(run.files);
    if clocks.is_none() {
        notes.push(
            "the clocks of nodes cannot be compared: no superstep is in all files".to_owned(),
        );
    }
    let predictions = Predictions::of(run);
    let (tree, missing) = tree::of(run);
    for path in missing {
        notes.push(format!(
            "functions of {path} have no names: the file is missing here, or has changed since the run"
        ));
    }
    let mut calls: Vec<Profile> = run
        .calls
        .iter()
        .enumerate()
        .map(|(at, call)| {
            let own = || run.supersteps.iter().filter(move |one| one.call == at);
            let mut profile = Profile {
                call: call.clone(),
                ..Profile::default()
            };
            own().for_each(|superstep| profile.add(superstep));
            profile
        })
        .collect();
    for (superstep, ns) in run.supersteps.iter().zip(&predictions.communicate_ns) {
        calls[superstep.call].predicted_communicate_ns += ns;
    }
    let is_model = predictions.parameters.is_some();
    let predicted = is_model.then_some(&predictions.communicate_ns[..]);
    let all_ns = total(calls.iter().map(Profile::time_ns));
    for (at, call) in calls.iter_mut().enumerate() {
        call.utilisation = match call.compute_ns {
            0 => 1.0,
            most => call.utilisation / float(most),
        };
        // Losses of a call that hardly counts are noise.
        let counts = is_at_least(call.time_ns(), 1, all_ns) || call.repeats > 0;
        if counts {
            call.reasons = Losses::of(run, at, predicted).reasons();
        }
    }
    calls.sort_by_key(|call| std::cmp::Reverse(call.time_ns()));
    Summary {
        ranks: head.size,
        nodes: head.nodes,
        link: head.link.clone(),
        supersteps: run.supersteps.len() as u64,
        max_of_sums_ns: tree.max_of_sums_ns,
        sum_of_max_ns: total(calls.iter().map(|call| call.compute_ns)),
        communicate_ns: total(calls.iter().map(|call| call.communicate_ns)),
        calls,
        hottest: tree.hottest(),
        predictions,
        tree,
        clocks: clocks.map_or_else(Vec::new, |clocks| {
            let errors = clocks.errors();
            errors
                .map(|(rank, error_ns)| ClockError { rank, error_ns })
                .collect()
        }),
        notes,
    }
}

impl Summary {
    /// Number and placement of the ranks.
    pub(crate) fn place(&self) -> String {
        let Summary { ranks, link, .. } = self;
        let nodes = match self.nodes {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        };
        format!("{ranks} ranks on {nodes} ({link})")
    }
}

impl Profile {
    fn time_ns(&self) -> u64 {
        total([self.compute_ns, self.communicate_ns])
    }

    /// Adds one superstep of all ranks.
    fn add(&mut self, superstep: &Superstep<'_>) {
        let (most_ns, most_bytes) = (superstep.slowest().1, superstep.widest().1);
        let ranks = float(superstep.steps.len() as u64);
        self.supersteps += 1;
        self.utilisation += superstep.compute_ns().map(float).sum::<f64>() / ranks;
        self.mean_bytes += superstep.mean_h();
        for (sum, own) in [
            (&mut self.compute_ns, most_ns),
            (&mut self.communicate_ns, superstep.communicate_ns()),
            (&mut self.h_bytes, most_bytes),
        ] {
            *sum = sum.saturating_add(own);
        }
        self.stalls += superstep.stalls();
        self.repeats += superstep.repeats().sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use dipole_bsp::trace::{Step, TraceFile};

    use super::super::files::check;
    use super::*;

    /// Ranks of one run; a superstep of a rank is its computation, bytes to rank 0 and retransmissions.
    fn run(ranks: &[&[(u64, u64, u32)]]) -> Vec<TraceFile> {
        let size = u32::try_from(ranks.len()).expect("few");
        let file = |(rank, steps): (u32, &&[(u64, u64, u32)])| {
            let mut file = crate::trace::tests::file(rank);
            file.header.size = size;
            file.steps = (1..)
                .zip(*steps)
                .map(|(epoch, (compute_ns, bytes, repeats))| Step {
                    epoch,
                    entered_ns: *compute_ns,
                    barrier_ns: 10,
                    repeats: *repeats,
                    put: vec![(0, *bytes)],
                    ..Step::default()
                })
                .collect();
            file
        };
        (0..).zip(ranks).map(file).collect()
    }

    fn summary(files: &[TraceFile]) -> Summary {
        summarise(&Run::of(files), Clocks::of(files).as_ref())
    }

    #[test]
    fn a_slow_rank_is_named_and_even_ranks_are_not() {
        let found = summary(&run(&[
            &[(100, 0, 0); 9],
            &[(900, 0, 0); 9],
            &[(110, 0, 0); 9],
        ]));
        assert_eq!(
            (found.supersteps, found.sum_of_max_ns, found.max_of_sums_ns),
            (9, 8100, 8100)
        );
        assert_eq!(found.calls[0].call, "lu.c:30");
        assert!(
            found.calls[0].reasons[0].contains("wait for rank 1;"),
            "{found:?}"
        );
        let even = summary(&run(&[&[(100, 0, 0); 9], &[(101, 0, 0); 9]]));
        assert_eq!(even.calls[0].reasons, [""; 0]);
    }

    #[test]
    fn ranks_that_are_slow_in_turns_are_an_imbalance_that_the_sums_hide() {
        let found = summary(&run(&[
            &[(900, 0, 0), (100, 0, 0)],
            &[(100, 0, 0), (900, 0, 0)],
        ]));
        assert_eq!((found.sum_of_max_ns, found.max_of_sums_ns), (1800, 1000));
        assert!(
            found.calls[0].reasons[0].starts_with("imbalance"),
            "{found:?}"
        );
    }

    #[test]
    fn loss_and_skewed_bytes_name_their_rank() {
        let even = [(100, 0, 0); 4];
        let found = summary(&run(&[
            &even,
            &[(100, 5000, 0); 4],
            &[(100, 5000, 2); 4],
            &even,
        ]));
        let call = &found.calls[0];
        assert_eq!((call.h_bytes, call.repeats), (40_000, 8));
        assert!(
            call.reasons
                .iter()
                .any(|reason| reason.contains("8 of them by rank 2"))
        );
        assert!(
            call.reasons
                .iter()
                .any(|reason| reason.starts_with("skewed h: rank 0"))
        );
    }

    #[test]
    fn other_runs_and_missing_ranks_are_refused() {
        let mut files = run(&[&[], &[], &[]]);
        files[1].header.run = 6;
        assert!(check(&files).is_err());
        files.remove(1);
        assert!(check(&files).is_err());
    }

    #[test]
    fn waiting_for_a_rank_that_is_not_late_is_a_slow_link_and_for_a_late_one_is_not() {
        let waiting = |late_ns: u64| {
            let mut files = run(&[
                &[(100, 9, 0); 5],
                &[(100, 9, 0); 5],
                &[(100 + late_ns, 9, 0); 5],
            ]);
            for (rank, file) in files.iter_mut().enumerate() {
                file.header.nodes = 3;
                for step in &mut file.steps {
                    step.barrier_ns = 900;
                    let other = if rank == 2 { 0 } else { 2 };
                    step.waits = vec![(other, 800)];
                }
            }
            summary(&files).calls[0].reasons.clone()
        };
        let found = waiting(0);
        assert!(
            found[0].starts_with("slow link: 100 %") && found[0].contains("rank 2;"),
            "{found:?}"
        );
        let found = waiting(5000);
        assert!(found[0].starts_with("slow rank"), "{found:?}");
    }

    #[test]
    fn the_superstep_that_took_longest_beyond_its_kind_is_told_first_with_its_reason() {
        let mut files = run(&[&[(100, 9, 0); 9], &[(100, 9, 0); 9], &[(100, 9, 0); 9]]);
        for file in &mut files {
            file.steps[4].barrier_ns = 5000;
            file.steps[7].barrier_ns = 3000;
        }
        files[1].steps[4].repeats = 3;
        files[2].steps[6].entered_ns += 1500;
        let found = summary(&files);
        let told = &found.predictions.largest;
        let numbers: Vec<u32> = told.iter().map(|one| one.superstep).collect();
        assert_eq!(numbers, [4, 7, 6]);
        for (one, word) in
            told.iter()
                .zip(["loss: 3 packets", "something else", "slow rank: rank 2"])
        {
            assert!(one.reason.starts_with(word), "{one:?}");
        }
    }
}
