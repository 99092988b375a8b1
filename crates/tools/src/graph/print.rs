//! Prints a graph as a table, and as JSON for scripts.

use dipole_node::Address;
use serde::Serialize;

use super::collective::{Function, Kind};
use super::edge::Edge;
use super::model::{Graph, Process};
use crate::output;

/// A graph, for `--json`.
#[derive(Debug, Serialize)]
pub(super) struct GraphSummary<'a> {
    nodes: &'a [u32],
    processes: &'a [Process],
    edges: Vec<[String; 2]>,
    broadcasts: Vec<BroadcastSummary>,
    reductions: Vec<ReductionSummary>,
}

#[derive(Debug, Serialize)]
struct BroadcastSummary {
    from: String,
    to: Vec<String>,
    /// The messages of one broadcast.
    tree: Vec<[String; 2]>,
}

#[derive(Debug, Serialize)]
struct ReductionSummary {
    from: Vec<String>,
    to: String,
    with: Function,
    /// The messages of one reduction.
    tree: Vec<[String; 2]>,
}

fn pairs(edges: &[Edge]) -> Vec<[String; 2]> {
    let pairs = edges.iter();
    pairs
        .map(|edge| [edge.from.to_string(), edge.to.to_string()])
        .collect()
}

pub(super) fn summary(graph: &Graph) -> GraphSummary<'_> {
    let mut summary = GraphSummary {
        nodes: &graph.nodes,
        processes: &graph.processes,
        edges: pairs(&graph.edges),
        broadcasts: Vec::new(),
        reductions: Vec::new(),
    };
    for (group, call) in graph.collectives() {
        let root = call.root.to_string();
        let others = call.others.iter().map(ToString::to_string).collect();
        let tree = pairs(&call.tree(group));
        match call.kind {
            Kind::Broadcast => summary.broadcasts.push(BroadcastSummary {
                from: root,
                to: others,
                tree,
            }),
            Kind::Reduce(with) => summary.reductions.push(ReductionSummary {
                from: others,
                to: root,
                with,
                tree,
            }),
        }
    }
    summary
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
    let mut text = format!(
        "{table}\n{} nodes, {} processes, {} endpoints, {} edges",
        graph.nodes.len(),
        graph.processes.len(),
        graph.endpoints().count(),
        graph.edges.len()
    );
    for (group, call) in graph.collectives() {
        let messages = call.tree(group);
        let messages = messages
            .iter()
            .map(|edge| format!("{} -> {}", edge.from, edge.to));
        let messages: Vec<String> = messages.collect();
        text += &format!("\n{}: {}", call.name(), messages.join(", "));
    }
    text
}

fn list(addresses: impl Iterator<Item = Address>) -> String {
    let names: Vec<String> = addresses.map(|address| address.to_string()).collect();
    names.join(", ")
}
