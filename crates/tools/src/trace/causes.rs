//! Why the supersteps of a call took longer than they had to.
//!
//! Work is computation without the time in which a rank was preempted, so that a rank without a core
//! is not called slow. Differences of work are a slow rank or an imbalance; what computation took
//! beyond the work of the busiest rank is lost to ranks that share cores, or to other programs.

use dipole_bsp::trace::total;

use super::cores::{LostCores, crowded_words};
use super::prediction::{awaited, awaited_words};
use super::run::{Run, Superstep, float, greatest, is_at_least, milliseconds};

/// Sums of one rank over supersteps.
#[derive(Clone, Debug, Default, PartialEq)]
struct RankSums {
    compute_ns: u64,
    work_ns: u64,
    cpu_ns: u64,
    preempted_ns: u64,
    repeats: u64,
    /// Number of supersteps in which it worked longest.
    longest: u64,
    /// Bytes in supersteps in which it had the most.
    skew_bytes: u64,
}

/// Losses of the supersteps of one call.
pub(super) struct Losses<'a> {
    run: &'a Run<'a>,
    supersteps: Vec<&'a Superstep<'a>>,
    /// Predicted communication of each, if there is a model.
    predicted_ns: Option<Vec<f64>>,
    by_rank: Vec<RankSums>,
    cores: LostCores,
    /// Time that others waited because one rank worked longer than the mean.
    late_ns: u64,
    time_ns: u64,
    h_bytes: u64,
    mean_bytes: f64,
    repeats: u64,
    duplicates: u64,
}

impl<'a> Losses<'a> {
    /// Sums up the supersteps of a call, by its index.
    pub(super) fn of(run: &'a Run<'a>, call: usize, predicted_ns: Option<&[f64]>) -> Losses<'a> {
        let is_own = |(_, one): &(usize, &Superstep<'a>)| one.call == call;
        let own = || run.supersteps.iter().enumerate().filter(is_own);
        let mut losses = Losses {
            run,
            supersteps: own().map(|(_, one)| one).collect(),
            predicted_ns: predicted_ns.map(|all| own().map(|(at, _)| all[at]).collect()),
            by_rank: vec![RankSums::default(); run.ranks()],
            cores: LostCores::default(),
            late_ns: 0,
            time_ns: 0,
            h_bytes: 0,
            mean_bytes: 0.0,
            repeats: 0,
            duplicates: 0,
        };
        own().for_each(|(_, superstep)| losses.add(superstep));
        losses
    }

    fn add(&mut self, superstep: &Superstep<'_>) {
        let lost = superstep.lost(&self.run.groups);
        let (longest, most_ns) = greatest(superstep.work_ns());
        let mean_ns = total(superstep.work_ns()) / superstep.steps.len() as u64;
        let (widest, most_bytes) = superstep.widest();
        for (sum, own) in [
            (&mut self.cores.crowded_ns, lost.crowded_ns),
            (&mut self.cores.busy_ns, lost.busy_ns),
            (&mut self.late_ns, most_ns - mean_ns.min(most_ns)),
            (
                &mut self.time_ns,
                total([superstep.slowest().1, superstep.communicate_ns()]),
            ),
            (&mut self.h_bytes, most_bytes),
            (&mut self.by_rank[widest].skew_bytes, most_bytes),
        ] {
            *sum = sum.saturating_add(own);
        }
        self.by_rank[longest].longest += 1;
        self.mean_bytes += superstep.mean_h();
        for (rank, step) in self.by_rank.iter_mut().zip(&superstep.steps) {
            let work_ns = step.work_ns();
            for (sum, own) in [
                (&mut rank.compute_ns, step.compute_ns()),
                (&mut rank.work_ns, work_ns),
                (
                    &mut rank.cpu_ns,
                    step.cpu_ns.unwrap_or(work_ns).min(work_ns),
                ),
                (&mut rank.preempted_ns, step.preempted_ns()),
                (&mut rank.repeats, u64::from(step.repeats)),
                (&mut self.repeats, u64::from(step.repeats)),
                (&mut self.duplicates, u64::from(step.duplicates)),
            ] {
                *sum = sum.saturating_add(own);
            }
        }
    }

    /// The causes and remedies, as text.
    pub(super) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        self.name_cores(&mut reasons);
        self.name_work(&mut reasons);
        if self.has_loss() {
            let (rank, repeats) = self.largest(|rank| rank.repeats);
            let needless = match self.duplicates {
                0 => String::new(),
                count => format!(", {count} of which had not been lost"),
            };
            reasons.push(format!(
                "loss: {} packets were sent again{needless}, {repeats} of them by rank {rank}; \
                 `dipole doctor` looks for full queues and bad links on its way",
                self.repeats
            ));
        }
        reasons.extend(self.slow_link());
        if self.is_skewed() {
            let (rank, bytes) = self.largest(|rank| rank.skew_bytes);
            let owner = match is_at_least(bytes, 70, self.h_bytes) {
                true => format!("rank {rank}"),
                false => format!("now one rank and now another, rank {rank} most often,"),
            };
            reasons.push(format!(
                "skewed h: {owner} sends or receives {:.1} times as much as the mean; spread the \
                 bytes, as a two-phase broadcast does",
                float(self.h_bytes) / self.mean_bytes
            ));
        }
        reasons
    }

    fn largest(&self, of: fn(&RankSums) -> u64) -> (usize, u64) {
        greatest(self.by_rank.iter().map(of))
    }

    /// Names what took the cores of ranks that were ready to compute.
    fn name_cores(&self, reasons: &mut Vec<String>) {
        if is_at_least(self.cores.crowded_ns, 10, self.time_ns)
            && let Some(group) = self.run.groups.iter().find(|group| group.is_crowded())
        {
            let lost = format!("{} ms are lost", milliseconds(self.cores.crowded_ns));
            reasons.push(crowded_words(group, &lost));
        }
        if is_at_least(self.cores.busy_ns, 10, self.time_ns) {
            let (rank, preempted_ns) = self.largest(|rank| rank.preempted_ns);
            let sums = &self.by_rank[rank];
            reasons.push(format!(
                "busy machine: {} ms are lost since other programs used the cores of ranks, those of rank \
                 {rank} most: it needed {} ms, and waited {} ms for a core; its work is not the cause, look \
                 what else runs on its node (`dipole load`)",
                milliseconds(self.cores.busy_ns),
                milliseconds(sums.work_ns),
                milliseconds(preempted_ns)
            ));
        }
    }

    /// Names differences of work: of one rank in all supersteps, and of others.
    fn name_work(&self, reasons: &mut Vec<String>) {
        let work_ns: u64 = total(
            self.supersteps
                .iter()
                .map(|one| one.work_ns().max().unwrap_or(0)),
        );
        let is_uneven = is_at_least(self.late_ns, 20, work_ns);
        if !is_uneven || !is_at_least(self.late_ns, 10, self.time_ns) {
            return;
        }
        let (slowest, most_ns) = self.largest(|rank| rank.work_ns);
        let others = self.by_rank.iter().enumerate();
        let others = others.filter(|(rank, _)| *rank != slowest);
        let second_ns = others.map(|(_, sums)| sums.work_ns).max().unwrap_or(0);
        // The mean contains the rank itself.
        let ranks = self.by_rank.len() as u64;
        let own_ns = (most_ns - second_ns) / ranks * (ranks - 1);
        let other_ns = self.late_ns.saturating_sub(own_ns);
        let counts = |ns| is_at_least(ns, 30, self.late_ns) && is_at_least(ns, 8, self.time_ns);
        if counts(own_ns) {
            let sums = &self.by_rank[slowest];
            let remedy = match is_at_least(sums.cpu_ns, 50, sums.work_ns) {
                true => "give it less work, or look whether its core is slower",
                false => {
                    "it computed for less than half of that time, and slept otherwise: look at its files \
                     and locks, or give it less work"
                }
            };
            reasons.push(format!(
                "slow rank: {} ms are lost since the others wait for rank {slowest}; {remedy}",
                milliseconds(own_ns)
            ));
        }
        if counts(other_ns) {
            let (often, times) = self.largest(|rank| rank.longest);
            let who = match is_at_least(times, 90, self.supersteps.len() as u64) {
                true => "some ranks always have more work than others".to_owned(),
                false => format!(
                    "now one rank computes longest and now another, rank {often} most often"
                ),
            };
            reasons.push(format!(
                "imbalance: {} ms are lost since {who}; divide the work of each superstep evenly, or join \
                 supersteps",
                milliseconds(other_ns)
            ));
        }
    }

    /// Packets were lost: more were repeated than arrived twice, in this call and in the run.
    fn has_loss(&self) -> bool {
        self.repeats > self.duplicates && self.run.has_loss()
    }

    fn is_skewed(&self) -> bool {
        self.mean_bytes > 0.0 && float(self.h_bytes) >= 2.0 * self.mean_bytes
    }

    /// Names communication that takes long although no rank is waited for more than the others.
    fn slow_for_all(&self) -> Option<String> {
        let communicate_ns = total(self.supersteps.iter().map(|one| one.communicate_ns()));
        let lost = milliseconds(communicate_ns);
        match &self.predicted_ns {
            Some(all) => Some(format!(
                "slow communication: {lost} ms, predicted {:.3} ms, and the ranks waited for each \
                 other alike; `dipole doctor` looks at this machine and its links, `dipole bench` \
                 compares them with plain sockets",
                all.iter().sum::<f64>() * 1e-6
            )),
            None => is_at_least(communicate_ns, 50, self.time_ns).then(|| {
                format!(
                    "communication: {lost} ms, more than the computation, and the ranks waited for each \
                     other alike; after `dipole calibrate` it is compared with a prediction"
                )
            }),
        }
    }

    /// Names a rank whose messages take long, judged by supersteps that nothing else disturbed.
    fn slow_link(&self) -> Option<String> {
        let is_calm = |superstep: &Superstep<'_>| {
            let lost = superstep.lost(&self.run.groups);
            let time_ns = total([superstep.slowest().1, superstep.communicate_ns()]);
            superstep.repeats().sum::<u64>() == 0 && !is_at_least(lost.busy_ns, 10, time_ns.max(1))
        };
        let calm: Vec<usize> = (0..self.supersteps.len())
            .filter(|at| is_calm(self.supersteps[*at]))
            .collect();
        if calm.is_empty() || calm.len() * 4 < self.supersteps.len() {
            return None;
        }
        let own = || calm.iter().map(|at| self.supersteps[*at]);
        let communicate_ns = total(own().map(Superstep::communicate_ns));
        let time_ns = total([total(own().map(|one| one.slowest().1)), communicate_ns]);
        // With a prediction, only communication that took twice as long counts as slow.
        let is_slow = self.predicted_ns.as_ref().is_none_or(|all| {
            let predicted_ns: f64 = calm.iter().map(|at| all[*at]).sum();
            float(communicate_ns) > 2.0 * predicted_ns
        });
        if !is_slow || !is_at_least(communicate_ns, 20, time_ns) {
            return None;
        }
        let Some((rank, share)) = awaited(own()) else {
            return self.slow_for_all();
        };
        // Without a prediction, more bytes explain a longer wait.
        let (widest, _) = self.largest(|rank| rank.skew_bytes);
        if self.is_skewed() && self.predicted_ns.is_none() && widest == rank {
            return None;
        }
        let groups = &self.run.groups;
        let own_group = groups.iter().find(|group| group.ranks.contains(&rank));
        if let Some(group) = own_group.filter(|group| group.is_crowded()) {
            let lost = format!("{share} % of what ranks waited they waited for rank {rank}");
            let is_named = is_at_least(self.cores.crowded_ns, 10, self.time_ns);
            return (!is_named).then(|| crowded_words(group, &lost));
        }
        Some(awaited_words(rank, share, self.run.files[0].header.nodes))
    }
}
