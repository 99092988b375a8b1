//! Runs a graph: starts each of its processes on this machine, on a node with the right NID. Every
//! edge carries numbered messages, which are checked. [`group`] plays broadcasts and
//! reductions.
//!
//! Each NID gets its own loopback address. Processes of one node use shared memory, and those of
//! different nodes UDP, as on a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_naming::threads;
use dipole_node::{Address, Config, Endpoint, EndpointId, Node, SendError};
use tempfile::NamedTempFile;

use super::model::Graph;
use super::report::{EdgeResult, PATIENCE, Pace, Report};
use super::{Done, group};
use crate::output::table;

const MESSAGE_BYTES: usize = 16;
const EDGE: &str = "edge";
/// Flag in a message's first word: the last message of its sender.
const LAST: u64 = 1 << 63;

/// Data that are expected to arrive: operation, source and destination.
type Expected = (String, String, String);

fn expected(graph: &Graph) -> Vec<Expected> {
    let edges = graph.edges.iter().map(|edge| (EDGE, *edge));
    let of_groups = graph.collectives().flat_map(|(_, call)| {
        let pairs = call.pairs();
        pairs.map(move |pair| (call.operation(), pair))
    });
    let all = edges.chain(of_groups);
    all.map(|(operation, pair)| {
        (
            operation.to_owned(),
            pair.from.to_string(),
            pair.to.to_string(),
        )
    })
    .collect()
}

/// Starts all processes and checks their reports.
pub(super) fn run(graph: &Graph, seconds: f64, rate: f64, json: bool, out: &mut dyn Write) -> Done {
    let mut hosts = NamedTempFile::new()?;
    // A port per run, so that several graphs can run at once.
    let port = 20_000 + std::process::id() % 20_000;
    for (index, node) in graph.nodes.iter().enumerate() {
        writeln!(hosts, "{node} {} port={port}", loopback(index)?)?;
    }
    let own = std::env::current_exe()?;
    let mut players = Vec::new();
    for (index, process) in graph.processes.iter().enumerate() {
        let child = Command::new(&own)
            .arg("graph")
            .arg(&graph.file)
            .args(["--play", &index.to_string()])
            .args([
                "--seconds",
                &seconds.to_string(),
                "--rate",
                &rate.to_string(),
            ])
            .env("DIPOLE_NID", process.node.to_string())
            .env("DIPOLE_HOSTS", hosts.path())
            .env_remove("DIPOLE_BIND")
            // Closed when this process dies, which ends the players.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        players.push(Player {
            name: process.name.clone(),
            child,
        });
    }
    let mut received = BTreeMap::new();
    let mut lost = BTreeSet::new();
    let mut complete = true;
    for player in &mut players {
        let out = player
            .child
            .stdout
            .take()
            .ok_or("a player without output")?;
        for line in BufReader::new(out).lines() {
            match serde_json::from_str(&line?)? {
                Report::Edge(one) => {
                    let key = (one.operation.clone(), one.from.clone(), one.to.clone());
                    received.insert(key, one);
                }
                Report::Lost { endpoint } => {
                    if lost.insert(endpoint.clone()) {
                        eprintln!("dipole graph: endpoint {endpoint} was lost; its group went on");
                    }
                }
            }
        }
        let status = player.child.wait()?;
        if !status.success() {
            eprintln!("dipole graph: process {} failed: {status}", player.name);
            complete = false;
        }
    }
    complete &= print_results(&expected(graph), &received, json, out)?;
    Ok(complete)
}

/// Prints what arrived; true if that is everything.
fn print_results(
    expected: &[Expected],
    received: &BTreeMap<Expected, EdgeResult>,
    json: bool,
    out: &mut dyn Write,
) -> Done {
    let mut complete = true;
    let mut table = table(["edge", "sent", "received", "msg/s", "result"]);
    for key in expected {
        let (operation, from, to) = key;
        let name = match operation.as_str() {
            EDGE => format!("{from} -> {to}"),
            operation => format!("{operation} {from} -> {to}"),
        };
        let Some(one) = received.get(key) else {
            complete = false;
            table.add_row([name, "-".into(), "-".into(), "-".into(), "no result".into()]);
            continue;
        };
        let whole = one.in_order && one.sent == one.received;
        complete &= whole;
        if json {
            writeln!(out, "{}", serde_json::to_string(one)?)?;
        }
        let result = match (whole, operation.as_str()) {
            (false, _) => "NOT ALL",
            (true, "reduce") => "all, right",
            (true, _) => "all, in order",
        };
        #[allow(clippy::cast_precision_loss, reason = "a rate for a reader")]
        let rate = one.received as f64 / one.seconds.max(1e-9);
        table.add_row([
            name,
            one.sent.to_string(),
            one.received.to_string(),
            format!("{rate:.0}"),
            result.into(),
        ]);
    }
    if !json {
        writeln!(out, "{table}")?;
    }
    Ok(complete)
}

/// A process that is killed with this one.
struct Player {
    name: String,
    child: Child,
}

impl Drop for Player {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// 127.0.0.1, 127.0.0.2, and so on.
fn loopback(index: usize) -> Result<Ipv4Addr, Box<dyn std::error::Error>> {
    let number = u16::try_from(index + 1).map_err(|_| "more nodes than loopback addresses")?;
    let [high, low] = number.to_be_bytes();
    Ok(Ipv4Addr::new(127, 0, high, low))
}

/// Body of one process of the graph.
pub(super) fn play(
    graph: &Graph,
    index: usize,
    seconds: f64,
    rate: f64,
    out: &mut dyn Write,
) -> Done {
    let process = graph.processes.get(index).ok_or("no such process")?;
    threads::start("dipole-parent", || {
        // The end of this input means that the parent is gone.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    })?;
    let node = Node::open(Config::from_env()?)?;
    let mut endpoints = Vec::new();
    let mut memberships = Vec::new();
    for endpoint in &process.endpoints {
        let address = Address::new(process.node, *endpoint);
        match graph.group(address) {
            // The group opens the endpoint.
            Some(group) => memberships.push((address, group)),
            None => endpoints.push((address, node.endpoint(EndpointId(*endpoint))?)),
        }
    }
    for (address, endpoint) in &endpoints {
        for target in graph.targets(*address) {
            endpoint.target(target)?;
        }
    }
    let pace = Pace {
        until: Instant::now() + Duration::from_secs_f64(seconds),
        between: Duration::from_secs_f64(1.0 / rate),
    };
    let results: Vec<Result<Vec<Report>, String>> = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (address, group) in memberships {
            let node = &node;
            running.push(scope.spawn(move || group::take_part(node, group, address, pace)));
        }
        for (address, endpoint) in &endpoints {
            let sources: Vec<Address> = graph.sources(*address).collect();
            if !sources.is_empty() {
                running.push(scope.spawn(move || receive_all(endpoint, &sources)));
            }
            if graph.targets(*address).next().is_some() {
                running.push(scope.spawn(move || send_all(endpoint, pace).map(|()| Vec::new())));
            }
        }
        let joined = running.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread panicked".into()))
        });
        joined.collect()
    });
    for result in results {
        for received in result? {
            writeln!(out, "{}", serde_json::to_string(&received)?)?;
        }
    }
    drop(endpoints);
    node.close(PATIENCE)?;
    Ok(true)
}

/// Sends numbered messages until the time is over, then marks the last one.
fn send_all(endpoint: &Endpoint, pace: Pace) -> Result<(), String> {
    let mut next = Instant::now();
    let mut number = 0_u64;
    loop {
        let now = Instant::now();
        let last = now >= pace.until;
        let mut message = [0; MESSAGE_BYTES];
        let word = if last { number | LAST } else { number };
        message[..8].copy_from_slice(&word.to_le_bytes());
        endpoint
            .send_timeout(&message, PATIENCE)
            .map_err(|error| error.to_string())?;
        number += 1;
        if last {
            return match endpoint.drain(PATIENCE) {
                // A receiver that has its last message may leave; its own report counts.
                Ok(()) | Err(SendError::PeerGone { .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
        }
        next += pace.between;
        if let Some(pause) = next.min(pace.until).checked_duration_since(Instant::now()) {
            std::thread::sleep(pause);
        }
    }
}

/// Receives until every source has sent its last message.
fn receive_all(endpoint: &Endpoint, sources: &[Address]) -> Result<Vec<Report>, String> {
    let begun = Instant::now();
    let mut received: BTreeMap<Address, EdgeResult> = sources
        .iter()
        .map(|source| {
            let none = EdgeResult {
                operation: EDGE.to_owned(),
                from: source.to_string(),
                to: endpoint.address().to_string(),
                sent: 0,
                received: 0,
                in_order: true,
                seconds: 0.0,
            };
            (*source, none)
        })
        .collect();
    let mut open = sources.len();
    while open > 0 {
        let message = endpoint
            .receive_timeout(PATIENCE)
            .map_err(|error| error.to_string())?;
        let known = received.get_mut(&message.source());
        let one = known.ok_or_else(|| {
            format!(
                "{} sends to {} though no edge leads there",
                message.source(),
                endpoint.address()
            )
        })?;
        let word = message
            .get(..8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_le_bytes);
        let word = word.ok_or("a message too short to have a number")?;
        one.in_order &= word & !LAST == one.received;
        one.received += 1;
        if word & LAST != 0 {
            one.sent = (word & !LAST) + 1;
            one.seconds = begun.elapsed().as_secs_f64();
            open -= 1;
        }
    }
    Ok(received.into_values().map(Report::Edge).collect())
}
