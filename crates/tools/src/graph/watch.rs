//! Shows the endpoints and edges that exist on this machine's nodes, with the traffic of each edge
//! since the last sample.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use dipole_naming::environment::default_runtime_dir;
use dipole_node::registry::{EdgeTraffic, Registry};
use dipole_node::{Address, NodeId};
use serde::Serialize;

use super::Done;
use super::model::Graph;
use crate::output::table;

/// Endpoints and edges at one time.
#[derive(Debug, Serialize)]
struct Look {
    endpoints: Vec<SeenEndpoint>,
    edges: Vec<SeenEdge>,
    /// Parts of the given graph that do not exist now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SeenEndpoint {
    endpoint: String,
    pid: u32,
    command: String,
    /// True if it is part of the given graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<bool>,
}

#[derive(Debug, Serialize)]
struct SeenEdge {
    from: String,
    to: String,
    link: &'static str,
    messages: u64,
    bytes: u64,
    messages_per_s: f64,
    bytes_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<bool>,
}

/// Samples at intervals, until interrupted or `times` times.
pub(super) fn watch(
    graph: Option<&Graph>,
    every: Duration,
    times: Option<u64>,
    json: bool,
) -> Done {
    let runtime = default_runtime_dir();
    let redraw = std::io::stdout().is_terminal() && !json;
    let mut before: BTreeMap<(Address, Address), EdgeTraffic> = BTreeMap::new();
    let mut last = Instant::now();
    let mut looks = 0_u64;
    loop {
        let registries = registries(&runtime, graph)?;
        for registry in &registries {
            registry.watch()?;
        }
        if looks == 0 {
            // The first sample only requests statistics, which are available a little later.
            std::thread::sleep(every.min(Duration::from_millis(500)));
        }
        let seconds = last.elapsed().as_secs_f64();
        last = Instant::now();
        let (look, now) = look(
            &registries,
            graph,
            &before,
            if looks == 0 { None } else { Some(seconds) },
        )?;
        before = now;
        let mut out = std::io::stdout().lock();
        if json {
            writeln!(out, "{}", serde_json::to_string(&look)?)?;
        } else {
            if redraw {
                // Moves the cursor home and clears the rest of the screen.
                write!(out, "\x1b[H\x1b[J")?;
            }
            writeln!(out, "{}", text(&look, graph.is_some()))?;
        }
        out.flush()?;
        drop(out);
        looks += 1;
        if times.is_some_and(|times| looks >= times) {
            for registry in &registries {
                registry.unwatch();
            }
            return Ok(true);
        }
        std::thread::sleep(every);
    }
}

/// The registries of the graph's nodes, or of all nodes in the runtime directory.
fn registries(
    runtime: &Path,
    graph: Option<&Graph>,
) -> Result<Vec<Registry>, Box<dyn std::error::Error>> {
    let mut nodes: BTreeSet<u32> = graph
        .into_iter()
        .flat_map(|graph| graph.nodes.clone())
        .collect();
    if graph.is_none() {
        for entry in std::fs::read_dir(runtime).into_iter().flatten() {
            let name = entry?.file_name();
            nodes.extend(
                name.to_str()
                    .and_then(|name| name.strip_prefix("node-")?.parse::<u32>().ok()),
            );
        }
    }
    let open = nodes
        .into_iter()
        .map(|node| Registry::open(runtime, NodeId(node)));
    Ok(open.collect::<Result<Vec<_>, _>>()?)
}

type Traffic = BTreeMap<(Address, Address), EdgeTraffic>;

fn look(
    registries: &[Registry],
    graph: Option<&Graph>,
    before: &Traffic,
    seconds: Option<f64>,
) -> Result<(Look, Traffic), Box<dyn std::error::Error>> {
    let mut look = Look {
        endpoints: Vec::new(),
        edges: Vec::new(),
        missing: Vec::new(),
    };
    let mut now = Traffic::new();
    for registry in registries {
        for survey in registry.survey()? {
            let address = |endpoint| Address {
                node: registry.node(),
                endpoint,
            };
            look.endpoints
                .extend(survey.endpoints.iter().map(|endpoint| SeenEndpoint {
                    endpoint: address(*endpoint).to_string(),
                    pid: survey.owner.pid,
                    command: survey.owner.command.clone(),
                    expected: graph.map(|graph| graph.owner(address(*endpoint)).is_some()),
                }));
            now.extend(
                survey
                    .edges
                    .iter()
                    .map(|edge| ((address(edge.source), edge.target), *edge)),
            );
        }
    }
    for ((from, to), edge) in &now {
        let old = before.get(&(*from, *to));
        let rate = |count: fn(&EdgeTraffic) -> u64| match (old, seconds) {
            // It was opened again since and counts from zero.
            (Some(old), Some(seconds)) if seconds > 0.0 => {
                let more = count(edge).checked_sub(count(old)).unwrap_or(count(edge));
                #[allow(clippy::cast_precision_loss, reason = "a rate for a reader")]
                let rate = more as f64 / seconds;
                rate
            }
            _ => 0.0,
        };
        look.edges.push(SeenEdge {
            from: from.to_string(),
            to: to.to_string(),
            link: if edge.local { "shm" } else { "packets" },
            messages: edge.messages,
            bytes: edge.bytes,
            messages_per_s: rate(|edge| edge.messages),
            bytes_per_s: rate(|edge| edge.bytes),
            expected: graph.map(|graph| is_in(graph, *from, *to)),
        });
    }
    if let Some(graph) = graph {
        let there: BTreeSet<&str> = look
            .endpoints
            .iter()
            .map(|seen| seen.endpoint.as_str())
            .collect();
        let endpoints = graph.endpoints().map(|(_, address)| address.to_string());
        let absent = endpoints.filter(|name| !there.contains(name.as_str()));
        let mut missing: Vec<String> = absent.map(|name| format!("endpoint {name}")).collect();
        let edges = graph
            .edges
            .iter()
            .filter(|edge| !now.contains_key(&(edge.from, edge.to)));
        missing.extend(edges.map(|edge| format!("edge {} -> {}", edge.from, edge.to)));
        for (group, call) in graph.collectives() {
            let tree = call.tree(group).into_iter();
            let absent = tree.filter(|edge| !now.contains_key(&(edge.from, edge.to)));
            let operation = call.operation();
            missing.extend(absent.map(|edge| format!("{operation} {} -> {}", edge.from, edge.to)));
        }
        look.missing = missing;
    }
    Ok((look, now))
}

/// True for an edge of the graph, and between members of a group, which also need others than those
/// of their trees.
fn is_in(graph: &Graph, from: Address, to: Address) -> bool {
    let group = graph.group(from);
    graph.targets(from).any(|target| target == to)
        || group.is_some_and(|group| group.members.contains(&to))
}

fn text(look: &Look, has_graph: bool) -> String {
    let mark = |expected: Option<bool>| expected.map(|is| if is { "yes" } else { "no" });
    let headed = |mut names: Vec<&'static str>| {
        names.extend(has_graph.then_some("in the graph"));
        table(names)
    };
    let mut endpoints = headed(vec!["endpoint", "pid", "command"]);
    for seen in &look.endpoints {
        let mut row = vec![
            seen.endpoint.clone(),
            seen.pid.to_string(),
            shortened(&seen.command),
        ];
        row.extend(mark(seen.expected).map(str::to_owned));
        endpoints.add_row(row);
    }
    let mut edges = headed(vec!["edge", "link", "messages", "msg/s", "MB/s"]);
    for seen in &look.edges {
        let mut row = vec![
            format!("{} -> {}", seen.from, seen.to),
            seen.link.to_owned(),
            seen.messages.to_string(),
            format!("{:.0}", seen.messages_per_s),
            format!("{:.3}", seen.bytes_per_s / 1e6),
        ];
        row.extend(mark(seen.expected).map(str::to_owned));
        edges.add_row(row);
    }
    let mut text = format!("{endpoints}\n{edges}");
    if !look.missing.is_empty() {
        text += &format!("\nof the graph, not there now: {}", look.missing.join(", "));
    }
    text
}

/// Shortens a command for a table; its end distinguishes commands of the same program.
fn shortened(command: &str) -> String {
    const BEGIN: usize = 16;
    const END: usize = 31;
    let letters: Vec<char> = command.chars().collect();
    if letters.len() <= BEGIN + 1 + END {
        return command.to_owned();
    }
    let (begin, end) = (&letters[..BEGIN], &letters[letters.len() - END..]);
    begin.iter().chain(&['…']).chain(end).collect()
}
