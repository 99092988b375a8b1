//! The call graph of a run: the cost of the supersteps below each function (thesis, figure 6.8).
//!
//! All ranks of a BSP program make the same calls, so rank 0's stacks represent all.

use dipole_bsp::trace::total;
use serde::Serialize;

use super::run::{Run, Superstep, float};
use super::symbols::{Function, Symbols};

/// A function, or a call that ends supersteps, with everything below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Line of the next call in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<String>,
    pub(crate) supersteps: u64,
    /// Sum over supersteps of the slowest rank's computation: the sum of maxima.
    pub(crate) compute_ns: u64,
    /// Computation of the rank that computed most below this: the maximum of sums.
    pub(crate) max_of_sums_ns: u64,
    /// The mean rank's computation.
    pub(crate) mean_compute_ns: u64,
    pub(crate) communicate_ns: u64,
    pub(crate) h_bytes: u64,
    pub(crate) mean_h_bytes: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) below: Vec<Node>,
    /// The same of each rank (thesis, figure 6.9).
    pub(crate) ranks: Vec<RankPart>,
}

/// A rank's part of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RankPart {
    pub(crate) compute_ns: u64,
    /// Computation without the time in which it was preempted.
    pub(crate) work_ns: u64,
    /// Time in the calls that end supersteps.
    pub(crate) in_calls_ns: u64,
    /// Part of that in which it waited for other ranks.
    pub(crate) waited_ns: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) repeats: u64,
    pub(crate) ack_requests: u64,
    pub(crate) stalls: u64,
}

impl Node {
    pub(crate) fn time_ns(&self) -> u64 {
        total([self.compute_ns, self.communicate_ns])
    }

    /// Mean rank's share of the slowest rank's computation.
    pub(crate) fn used(&self) -> f64 {
        match self.compute_ns {
            0 => 1.0,
            most => float(self.mean_compute_ns) / float(most),
        }
    }

    fn add(&mut self, superstep: &Superstep<'_>) {
        self.supersteps += 1;
        for (sum, own) in [
            (&mut self.compute_ns, superstep.slowest().1),
            (&mut self.mean_compute_ns, superstep.mean_compute_ns()),
            (&mut self.communicate_ns, superstep.communicate_ns()),
            (&mut self.h_bytes, superstep.widest().1),
        ] {
            *sum = sum.saturating_add(own);
        }
        self.mean_h_bytes += superstep.mean_h();
        let ranks = superstep.steps.len();
        self.ranks.resize(ranks, RankPart::default());
        for (rank, part) in self.ranks.iter_mut().enumerate() {
            let step = superstep.steps[rank];
            for (sum, own) in [
                (&mut part.compute_ns, step.compute_ns()),
                (&mut part.work_ns, step.work_ns()),
                (&mut part.in_calls_ns, step.sync_ns()),
                (
                    &mut part.waited_ns,
                    total(step.waits.iter().map(|(_, ns)| *ns)),
                ),
                (&mut part.sent_bytes, superstep.out[rank]),
                (&mut part.received_bytes, superstep.inward[rank]),
                (&mut part.repeats, u64::from(step.repeats)),
                (&mut part.ack_requests, u64::from(step.ack_requests)),
                (&mut part.stalls, u64::from(step.stalls)),
            ] {
                *sum = sum.saturating_add(own);
            }
        }
    }

    fn child(&mut self, name: &str, place: Option<&str>) -> &mut Node {
        let is_it = |node: &Node| node.name == name && node.place.as_deref() == place;
        let at = self.below.iter().position(is_it).unwrap_or_else(|| {
            self.below.push(Node {
                name: name.to_owned(),
                place: place.map(str::to_owned),
                ..Node::default()
            });
            self.below.len() - 1
        });
        &mut self.below[at]
    }

    /// Sorts by cost, highest first.
    fn finish(&mut self) {
        let sums = self.ranks.iter().map(|part| part.compute_ns);
        self.max_of_sums_ns = sums.max().unwrap_or(0);
        self.below.iter_mut().for_each(Node::finish);
        self.below
            .sort_by_key(|node| std::cmp::Reverse(node.time_ns()));
    }

    /// All nodes with their depth, parents first, and whether they are on the most expensive path.
    pub(crate) fn rows(&self) -> Vec<(usize, bool, &Node)> {
        let mut rows = Vec::new();
        let mut waiting = vec![(0, true, self)];
        while let Some((depth, is_hot, node)) = waiting.pop() {
            rows.push((depth, is_hot, node));
            let below = node.below.iter().enumerate().rev();
            waiting.extend(below.map(|(at, child)| (depth + 1, is_hot && at == 0, child)));
        }
        rows
    }

    /// The path from the root to the most expensive call.
    pub(crate) fn hottest(&self) -> String {
        let hot = self.rows().into_iter().filter(|(_, is_hot, _)| *is_hot);
        let names: Vec<&str> = hot.map(|(.., node)| node.name.as_str()).collect();
        names.join(" > ")
    }
}

/// The call graph, and the files whose functions have no names; a single unnamed function if no stacks
/// were recorded.
pub(crate) fn of(run: &Run<'_>) -> (Node, Vec<String>) {
    let file = &run.files[0];
    let mut symbols = Symbols::of(&file.modules);
    let stacks: Vec<Vec<Function>> = file
        .stacks
        .iter()
        .map(|stack| symbols.calls(stack))
        .collect();
    let mut top = Node {
        name: "program".to_owned(),
        ..Node::default()
    };
    for superstep in &run.supersteps {
        top.add(superstep);
        let number = superstep.steps[0].stack as usize;
        let calls = number.checked_sub(1).and_then(|at| stacks.get(at));
        let mut node = &mut top;
        for call in calls.into_iter().flatten() {
            node = node.child(&call.name, None);
            node.add(superstep);
        }
        node = node.child(&run.calls[superstep.call], None);
        node.add(superstep);
    }
    top.finish();
    // Usually everything is below `main`.
    while let [only] = &top.below[..]
        && !only.below.is_empty()
        && top.name == "program"
    {
        top = only.clone();
    }
    (top, symbols.missing)
}
