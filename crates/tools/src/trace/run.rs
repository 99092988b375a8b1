//! The supersteps of a run, for all ranks.

use std::collections::BTreeMap;

use dipole_bsp::trace::{Step, TraceFile, total};

use super::cores::{self, CoreGroup, LostCores};

/// The trace files of all ranks of a run.
pub(crate) struct Run<'a> {
    pub(crate) files: &'a [TraceFile],
    /// The calls that ended supersteps, in order of first appearance.
    pub(crate) calls: Vec<String>,
    /// The supersteps that all ranks' files contain.
    pub(crate) supersteps: Vec<Superstep<'a>>,
    /// Ranks that share cores.
    pub(crate) groups: Vec<CoreGroup>,
}

/// A superstep. All lists are indexed by rank.
pub(crate) struct Superstep<'a> {
    /// Its number; the program's first is 0.
    pub(crate) number: u32,
    /// Index of the call that ended it.
    pub(crate) call: usize,
    pub(crate) steps: Vec<&'a Step>,
    /// Bytes sent and received by the rank.
    pub(crate) out: Vec<u64>,
    pub(crate) inward: Vec<u64>,
}

impl<'a> Run<'a> {
    /// Builds the run from the files of all ranks, in their order.
    pub(crate) fn of(files: &'a [TraceFile]) -> Run<'a> {
        let first = files[0].header.first;
        let mut by_epoch: BTreeMap<u32, Vec<&Step>> = BTreeMap::new();
        for file in files {
            for step in file.steps.iter().filter(|step| step.epoch >= first) {
                by_epoch.entry(step.epoch).or_default().push(step);
            }
        }
        by_epoch.retain(|_, steps| steps.len() == files.len());
        let mut calls: Vec<String> = Vec::new();
        let supersteps = by_epoch.into_iter().map(|(epoch, steps)| {
            let site = files[0].sites[steps[0].site as usize].to_string();
            let call = calls.iter().position(|known| *known == site);
            let call = call.unwrap_or_else(|| {
                calls.push(site);
                calls.len() - 1
            });
            let (out, inward) = volumes(&steps);
            Superstep {
                number: epoch - first,
                call,
                steps,
                out,
                inward,
            }
        });
        let supersteps = supersteps.collect();
        Run {
            files,
            calls,
            supersteps,
            groups: cores::groups(files),
        }
    }

    /// Keeps only the supersteps of a range, if there is one.
    pub(crate) fn keep(&mut self, range: Option<(u32, u32)>) -> Result<(), String> {
        let (first, last) = range.unwrap_or((0, u32::MAX));
        let is_wanted = |number: u32| (first..=last).contains(&number);
        self.supersteps.retain(|one| is_wanted(one.number));
        match range {
            Some(_) if self.supersteps.is_empty() => Err(format!(
                "no superstep from {first} to {last} is in all ranks' files"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.files.len()
    }

    /// True if more packets were repeated than arrived twice. Otherwise they were only late.
    pub(crate) fn has_loss(&self) -> bool {
        let steps = || self.supersteps.iter().flat_map(|one| &one.steps);
        let repeats = total(steps().map(|step| u64::from(step.repeats)));
        repeats > total(steps().map(|step| u64::from(step.duplicates)))
    }
}

/// Bytes sent and received by each rank.
fn volumes(steps: &[&Step]) -> (Vec<u64>, Vec<u64>) {
    let (mut out, mut inward) = (vec![0_u64; steps.len()], vec![0_u64; steps.len()]);
    let mut add = |from: usize, to: usize, bytes: u64| {
        // Bytes that a rank sends to itself cross nothing.
        if from == to {
            return;
        }
        if let Some(sum) = out.get_mut(from) {
            *sum = sum.saturating_add(bytes);
        }
        if let Some(sum) = inward.get_mut(to) {
            *sum = sum.saturating_add(bytes);
        }
    };
    for (rank, step) in steps.iter().enumerate() {
        step.put
            .iter()
            .for_each(|(to, bytes)| add(rank, *to as usize, *bytes));
        step.get
            .iter()
            .for_each(|(of, bytes)| add(*of as usize, rank, *bytes));
    }
    (out, inward)
}

impl Superstep<'_> {
    pub(crate) fn compute_ns(&self) -> impl Iterator<Item = u64> {
        self.steps.iter().map(|step| step.compute_ns())
    }

    /// How long the ranks computed, without the time in which they were preempted.
    pub(crate) fn work_ns(&self) -> impl Iterator<Item = u64> {
        self.steps.iter().map(|step| step.work_ns())
    }

    /// Time that was lost for want of cores.
    pub(crate) fn lost(&self, groups: &[CoreGroup]) -> LostCores {
        cores::lost(&self.steps, groups)
    }

    /// The rank that computed longest, and how long.
    pub(crate) fn slowest(&self) -> (usize, u64) {
        greatest(self.compute_ns())
    }

    pub(crate) fn mean_compute_ns(&self) -> u64 {
        total(self.compute_ns()) / self.steps.len() as u64
    }

    /// The time in the call of the rank that waited least.
    pub(crate) fn communicate_ns(&self) -> u64 {
        let times = self.steps.iter().map(|step| step.sync_ns());
        times.min().unwrap_or(0)
    }

    /// The larger of bytes sent and received, for each rank.
    pub(crate) fn h(&self) -> impl Iterator<Item = u64> {
        let both = self.out.iter().zip(&self.inward);
        both.map(|(out, inward)| *out.max(inward))
    }

    /// The rank with the most bytes, and how many.
    pub(crate) fn widest(&self) -> (usize, u64) {
        greatest(self.h())
    }

    pub(crate) fn mean_h(&self) -> f64 {
        self.h().map(float).sum::<f64>() / float(self.steps.len() as u64)
    }

    pub(crate) fn repeats(&self) -> impl Iterator<Item = u64> {
        self.steps.iter().map(|step| u64::from(step.repeats))
    }

    pub(crate) fn stalls(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.stalls)).sum()
    }

    /// How long ranks waited for each other, beyond the other's longer computation.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        let all = self.steps.iter().enumerate();
        all.flat_map(move |(rank, step)| {
            let waits = step.waits.iter();
            waits.filter_map(move |(other, ns)| {
                let other = *other as usize;
                let theirs = self.steps.get(other)?.compute_ns();
                let late_ns = theirs.saturating_sub(step.compute_ns());
                let beyond_ns = ns.saturating_sub(late_ns);
                (beyond_ns > 0 && other != rank).then_some((rank, other, beyond_ns))
            })
        })
    }
}

/// True if a part is at least this percentage of the whole.
pub(crate) fn is_at_least(part: u64, percent: u64, whole: u64) -> bool {
    u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

/// Index and value of the first maximum.
pub(crate) fn greatest(values: impl Iterator<Item = u64>) -> (usize, u64) {
    let values = values.enumerate();
    let found = values.max_by_key(|(at, value)| (*value, std::cmp::Reverse(*at)));
    found.unwrap_or_default()
}

#[allow(clippy::cast_precision_loss, reason = "for a reader")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

pub(crate) fn milliseconds(ns: u64) -> String {
    format!("{:.3}", float(ns) / 1e6)
}
