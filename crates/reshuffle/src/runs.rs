//! Indices of one dimension that two processes share, one before and one after the reshuffle, as runs:
//! pieces without gaps in both parts.
//!
//! Both distributions repeat, and so do the shared indices. So only the runs of the first period are
//! stored, however long the dimension is.

use crate::distribution::Dimension;

/// Consecutive indices on both sides, repeated at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: Position,
    length: usize,
    /// The number of repetitions, and the distance between them.
    repeats: usize,
    step: Position,
}

/// An index within a period, and its positions on this side and on the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    index: usize,
    own: usize,
    other: usize,
}

impl Position {
    fn scaled(self, by: usize) -> Position {
        Position {
            index: self.index * by,
            own: self.own * by,
            other: self.other * by,
        }
    }

    fn advanced(self, step: Position, times: usize) -> Position {
        Position {
            index: self.index + step.index * times,
            own: self.own + step.own * times,
            other: self.other + step.other * times,
        }
    }

    /// The distance from an earlier position.
    fn since(self, before: Position) -> Position {
        Position {
            index: self.index - before.index,
            own: self.own - before.own,
            other: self.other - before.other,
        }
    }
}

impl Run {
    fn one(first: Position, length: usize) -> Run {
        Run {
            first,
            length,
            repeats: 1,
            step: Position::default(),
        }
    }

    fn count(&self) -> usize {
        self.length * self.repeats
    }

    /// The number of repetitions that begin below an index of the period.
    fn begun_below(&self, end: usize) -> usize {
        let left = end.saturating_sub(self.first.index);
        let step = self.step.index.max(self.length).max(1);
        left.div_ceil(step).min(self.repeats)
    }

    /// The number of its indices below an index of the period.
    fn count_below(&self, end: usize) -> usize {
        let left = end.saturating_sub(self.first.index);
        let step = self.step.index.max(self.length).max(1);
        let whole = (left / step).min(self.repeats);
        match whole == self.repeats {
            true => self.count(),
            false => whole * self.length + (left % step).min(self.length),
        }
    }
}

/// Runs of equal length at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Start of the first run on both sides.
    pub(crate) own: usize,
    pub(crate) other: usize,
    pub(crate) length: usize,
    pub(crate) count: usize,
    /// Distance between runs on both sides.
    pub(crate) own_step: usize,
    pub(crate) other_step: usize,
}

/// Shared indices of one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    runs: Vec<Run>,
    extent: usize,
    period: usize,
    /// Length of a period on both sides.
    own_step: usize,
    other_step: usize,
}

/// The indices that the process at `coordinate` of `own` shares with each process of `other`.
pub(crate) fn shared(own: &Dimension, coordinate: usize, other: &Dimension) -> Vec<Runs> {
    let extent = own.extent;
    let turns = [own, other].map(|it| it.block.saturating_mul(it.processes));
    // A period that exceeds the extent never repeats.
    let period = least_common_multiple(turns[0], turns[1]).min(extent.max(1));
    let repeats = period < extent;
    let step = |it: &Dimension| if repeats { period / it.processes } else { 0 };
    let empty = Runs {
        runs: Vec::new(),
        extent,
        period,
        own_step: step(own),
        other_step: step(other),
    };
    let mut all = vec![empty; other.processes];
    let mut block = own.block.saturating_mul(coordinate);
    while block < period {
        let end = block.saturating_add(own.block).min(period);
        let mut index = block;
        while index < end {
            let next = (index / other.block + 1)
                .saturating_mul(other.block)
                .min(end);
            let first = Position {
                index,
                own: own.position(index),
                other: other.position(index),
            };
            all[other.owner(index)].push(first, next - index);
            index = next;
        }
        block = block.saturating_add(turns[0]);
    }
    all.iter_mut().for_each(Runs::finish);
    all
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

impl Runs {
    /// Adds a run, or extends the last one if it continues there on both sides.
    fn push(&mut self, first: Position, length: usize) {
        if let Some(last) = self.runs.last_mut()
            && last.repeats == 1
        {
            let next = Position {
                index: last.length,
                own: last.length,
                other: last.length,
            };
            if first == last.first.advanced(next, 1) {
                last.length += length;
                return;
            }
        }
        self.merge_last();
        self.runs.push(Run::one(first, length));
    }

    /// Merges the last run with equal ones before it.
    fn merge_last(&mut self) {
        if let [.., before, last] = &mut self.runs[..]
            && before.length == last.length
        {
            let step = last
                .first
                .since(before.first.advanced(before.step, before.repeats - 1));
            if before.repeats == 1 || before.step == step {
                (before.step, before.repeats) = (step, before.repeats + 1);
                self.runs.pop();
            }
        }
    }

    /// Called once all runs have been added.
    fn finish(&mut self) {
        self.merge_last();
        // Periods that are contiguous on both sides form one run.
        let length: usize = self.runs.iter().map(Run::count).sum();
        let is_whole = length == self.own_step && length == self.other_step && length > 0;
        let is_same =
            |run: &Run| run.first.own == run.first.other && run.step.own == run.step.other;
        if is_whole && self.runs.iter().all(is_same) {
            // The complete part on both sides, in order.
            let length = self.count();
            *self = Runs {
                runs: vec![Run::one(Position::default(), length)],
                extent: length,
                period: length,
                own_step: 0,
                other_step: 0,
            };
        }
    }

    /// The number of indices.
    pub(crate) fn count(&self) -> usize {
        let (periods, rest) = (self.extent / self.period, self.extent % self.period);
        let whole: usize = self.runs.iter().map(Run::count).sum();
        let last: usize = self.runs.iter().map(|run| run.count_below(rest)).sum();
        whole * periods + last
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The number of runs in all [`groups`](Self::groups).
    pub(crate) fn run_count(&self) -> usize {
        let (periods, rest) = (self.extent / self.period, self.extent % self.period);
        let whole: usize = self.runs.iter().map(|run| run.repeats).sum();
        let last: usize = self.runs.iter().map(|run| run.begun_below(rest)).sum();
        whole * periods + last
    }

    /// Calls `each` with groups of runs, in the order of the array.
    #[inline]
    pub(crate) fn groups(&self, mut each: impl FnMut(Group)) {
        let (mut at, mut own, mut other) = (0, 0, 0);
        while at < self.extent {
            let left = self.extent - at;
            for run in &self.runs {
                let begun = run.begun_below(left);
                if begun == 0 {
                    continue;
                }
                let last = run.first.advanced(run.step, begun - 1);
                let cut = run.length.min(left - last.index);
                let whole = if cut == run.length { begun } else { begun - 1 };
                let group = |at: Position, length, count| Group {
                    own: at.own + own,
                    other: at.other + other,
                    length,
                    count,
                    own_step: run.step.own,
                    other_step: run.step.other,
                };
                if whole > 0 {
                    each(group(run.first, run.length, whole));
                }
                if whole < begun {
                    each(group(last, cut, 1));
                }
            }
            at += self.period;
            (own, other) = (own + self.own_step, other + self.other_step);
        }
    }

    /// Calls `each` with the start on both sides and the length of each run, in the order of the array.
    #[inline]
    pub(crate) fn each(&self, mut each: impl FnMut(usize, usize, usize)) {
        self.groups(|group| {
            for at in 0..group.count {
                let own = group.own + at * group.own_step;
                each(own, group.other + at * group.other_step, group.length);
            }
        });
    }

    /// True if these are the complete parts of both sides, in order, with `own` and `other` indices.
    pub(crate) fn is_all(&self, own: usize, other: usize) -> bool {
        let one = Run::one(Position::default(), own);
        own == other && self.period >= self.extent && self.runs == [one]
    }

    /// Returns the runs with `by` positions for each index.
    pub(crate) fn scaled(&self, by: usize) -> Runs {
        let run = |run: &Run| Run {
            first: run.first.scaled(by),
            length: run.length * by,
            repeats: run.repeats,
            step: run.step.scaled(by),
        };
        Runs {
            runs: self.runs.iter().map(run).collect(),
            extent: self.extent * by,
            period: self.period * by,
            own_step: self.own_step * by,
            other_step: self.other_step * by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dimension(extent: usize, processes: usize, block: usize) -> Dimension {
        Dimension {
            extent,
            processes,
            block,
        }
    }

    proptest! {
        #[test]
        fn runs_are_the_shared_indices_in_order(
            extent in 0_usize..400,
            sides in [(1_usize..6, 1_usize..20), (1_usize..6, 1_usize..20)],
        ) {
            let [own, other] = sides.map(|(processes, block)| dimension(extent, processes, block));
            for coordinate in 0..own.processes {
                for (peer, runs) in shared(&own, coordinate, &other).iter().enumerate() {
                    let shares = |index: &usize| {
                        own.owner(*index) == coordinate && other.owner(*index) == peer
                    };
                    let wanted = (0..extent).filter(shares);
                    let wanted: Vec<_> = wanted.map(|at| (own.position(at), other.position(at))).collect();
                    let mut found = Vec::new();
                    runs.each(|here, there, length| {
                        found.extend((0..length).map(|at| (here + at, there + at)));
                    });
                    prop_assert_eq!(&found, &wanted);
                    prop_assert_eq!(runs.count(), wanted.len());
                    let mut run_count = 0;
                    runs.each(|_, _, _| run_count += 1);
                    prop_assert_eq!(runs.run_count(), run_count);
                }
            }
        }
    }

    #[test]
    fn equal_runs_at_equal_distances_are_merged() {
        let (cyclic, parts) = (dimension(999_999, 3, 1), dimension(999_999, 3, 333_333));
        for runs in shared(&cyclic, 1, &parts)
            .iter()
            .chain(&shared(&parts, 1, &cyclic))
        {
            assert_eq!((runs.runs.len(), runs.count()), (1, 111_111));
        }
        let same = shared(&cyclic, 1, &cyclic);
        assert!(same[1].is_all(333_333, 333_333) && same[0].is_empty());
    }
}
