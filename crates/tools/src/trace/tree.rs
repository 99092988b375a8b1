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
    #[serde(skip)]
    sums_ns: Vec<u64>,
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
        self.sums_ns.resize(superstep.steps.len(), 0);
        for (sum, own) in self.sums_ns.iter_mut().zip(superstep.compute_ns()) {
            *sum = sum.saturating_add(own);
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
        self.max_of_sums_ns = self.sums_ns.iter().copied().max().unwrap_or(0);
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
