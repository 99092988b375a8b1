//! Prints a graph as a table, and as JSON for scripts.

use dipole_node::Address;
use serde::Serialize;

use super::model::{Graph, Process};
use crate::output;

/// A graph, for `--json`.
#[derive(Debug, Serialize)]
pub(super) struct GraphSummary<'a> {
    nodes: &'a [u32],
    processes: &'a [Process],
    edges: Vec<[String; 2]>,
    broadcast_roots: Vec<String>,
    reduction_targets: Vec<String>,
}

pub(super) fn summary(graph: &Graph) -> GraphSummary<'_> {
    let (roots, targets) = graph.groups();
    let names = |all: Vec<Address>| all.iter().map(ToString::to_string).collect();
    let edges = graph.edges.iter();
    GraphSummary {
        nodes: &graph.nodes,
        processes: &graph.processes,
        edges: edges
            .map(|edge| [edge.from.to_string(), edge.to.to_string()])
            .collect(),
        broadcast_roots: names(roots),
        reduction_targets: names(targets),
    }
}

/// One row for each endpoint.
pub(super) fn table(graph: &Graph) -> String {
    let mut table = output::table(["process", "node", "endpoint", "sends to", "receives from"]);
    let mut last = None;
    for (index, address) in graph.endpoints() {
        let process = &graph.processes[index];
        let first = last.replace(index) != Some(index);
        let (name, node) = match first {
            true => (process.name.clone(), process.node.to_string()),
            false => (String::new(), String::new()),
        };
        table.add_row([
            name,
            node,
            address.endpoint.to_string(),
            list(graph.targets(address)),
            list(graph.sources(address)),
        ]);
    }
    let (roots, targets) = graph.groups();
    let mut text = format!(
        "{table}\n{} nodes, {} processes, {} endpoints, {} edges",
        graph.nodes.len(),
        graph.processes.len(),
        graph.endpoints().count(),
        graph.edges.len()
    );
    if !roots.is_empty() {
        text += &format!("; broadcast from {}", list(roots.into_iter()));
    }
    if !targets.is_empty() {
        text += &format!("; reduction to {}", list(targets.into_iter()));
    }
    text
}

fn list(addresses: impl Iterator<Item = Address>) -> String {
    let names: Vec<String> = addresses.map(|address| address.to_string()).collect();
    names.join(", ")
}
