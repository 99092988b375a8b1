//! Samples of processes' counters, and rates between two samples.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use dipole_bsp::trace::{Step, TraceFile, is_trace_name, total};
use dipole_launch::load::{self, NodeLoad};
use dipole_naming::job::node_from_env;
use dipole_node::registry::{EdgeTraffic, Registry};
use dipole_node::{Address, NodeId};
use serde::Serialize;

use crate::output::Failure;
use crate::processes::{Found, all};

/// State of all processes at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Now {
    pub(super) processes: Vec<Process>,
    pub(super) ranks: Vec<Rank>,
    /// Load of all nodes, best first, if this node has an agent.
    pub(super) nodes: Vec<NodeLoad>,
}

/// State of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Process {
    pub(super) node: u32,
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) endpoints: Vec<String>,
    pub(super) peers: u64,
    pub(super) messages_sent: u64,
    pub(super) messages_received: u64,
    pub(super) messages_out_per_s: f64,
    pub(super) messages_in_per_s: f64,
    /// Bytes of messages.
    pub(super) bytes_out_per_s: f64,
    pub(super) bytes_in_per_s: f64,
    pub(super) repeats_per_s: f64,
    pub(super) prods_per_s: f64,
    /// Bytes received but not yet read.
    pub(super) unread_bytes: u64,
    /// Memory of messages that wait for a matching receive of an MPI rank.
    pub(super) unexpected_bytes: u64,
    /// Number of peers per link.
    pub(super) links: BTreeMap<String, u64>,
    /// Why no faster links are used.
    pub(super) why: Vec<String>,
    pub(super) edges: Vec<Edge>,
}

/// An edge that begins in a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) link: &'static str,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) messages_per_s: f64,
    pub(super) bytes_per_s: f64,
}

/// A rank of a traced program.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rank {
    pub(super) rank: u32,
    pub(super) host: String,
    /// Number of supersteps so far.
    pub(super) supersteps: u32,
    pub(super) supersteps_per_s: f64,
    /// The call that ended the last superstep.
    pub(super) call: String,
    /// Share of recent time spent computing.
    pub(super) computes: f64,
    /// The rank that it recently waited for most, if any.
    pub(super) waits_for: Option<u32>,
}

/// Previous counters of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    out: u64,
    inward: u64,
    repeats: u64,
    ack_requests: u64,
}

/// An edge: node and process at its start, the endpoint there, and its counters.
type OwnedEdge = ((NodeId, u32), Address, EdgeTraffic);

/// Takes samples, and remembers the previous one.
#[derive(Debug)]
pub(super) struct Sampler {
    runtime: PathBuf,
    traces: Option<PathBuf>,
    last: Option<Instant>,
    /// Previous counters of each process, by incarnation.
    counts: BTreeMap<u64, Counts>,
    edges: BTreeMap<(Address, Address), EdgeTraffic>,
    supersteps: BTreeMap<u32, u32>,
    registries: BTreeMap<u32, Registry>,
}

impl Counts {
    fn of(found: &Found) -> Counts {
        Counts {
            sent: found.value("messages sent"),
            received: found.value("messages received"),
            out: found.value("message bytes sent"),
            inward: found.value("message bytes received"),
            repeats: found.value("units repeated"),
            ack_requests: found.value("ack requests"),
        }
    }
}

/// Increase per second; a counter that restarted counts from 0.
fn rate(now: u64, then: Option<u64>, seconds: Option<f64>) -> f64 {
    let (Some(then), Some(seconds)) = (then, seconds.filter(|seconds| *seconds > 0.0)) else {
        return 0.0;
    };
    #[allow(clippy::cast_precision_loss, reason = "a rate for a reader")]
    let more = now.checked_sub(then).unwrap_or(now) as f64;
    more / seconds
}

impl Sampler {
    pub(super) fn new(runtime: PathBuf, traces: Option<PathBuf>) -> Sampler {
        Sampler {
            runtime,
            traces,
            last: None,
            counts: BTreeMap::new(),
            edges: BTreeMap::new(),
            supersteps: BTreeMap::new(),
            registries: BTreeMap::new(),
        }
    }

    /// The current state, with rates since the previous sample.
    pub(super) fn look(&mut self) -> Result<Now, Failure> {
        let at = Instant::now();
        let seconds = self.last.map(|last| (at - last).as_secs_f64());
        self.last = Some(at);
        let found = all(&self.runtime)?;
        let edges = self.edges(&found)?;
        let mut counts = BTreeMap::new();
        let mut processes = Vec::new();
        for one in found.iter().filter(|one| one.report.owner.is_some()) {
            let now = Counts::of(one);
            let then = self.counts.get(&one.report.incarnation).copied();
            counts.insert(one.report.incarnation, now);
            let per_s = |of: fn(&Counts) -> u64| rate(of(&now), then.as_ref().map(of), seconds);
            let mut links: BTreeMap<String, u64> = BTreeMap::new();
            let mut why = Vec::new();
            for link in &one.report.links {
                *links.entry(link.link.clone()).or_default() += 1;
                if !link.why.is_empty() && !why.contains(&link.why) {
                    why.push(link.why.clone());
                }
            }
            let pid = one.report.pid().unwrap_or(0);
            let own = edges.iter().filter(|(owner, ..)| *owner == (one.node, pid));
            processes.push(Process {
                node: one.node.0,
                pid,
                command: one.name().to_owned(),
                endpoints: one.chosen_endpoints(),
                peers: one.value("network peers") + one.value("shared-memory peers"),
                messages_sent: now.sent,
                messages_received: now.received,
                messages_out_per_s: per_s(|counts| counts.sent),
                messages_in_per_s: per_s(|counts| counts.received),
                bytes_out_per_s: per_s(|counts| counts.out),
                bytes_in_per_s: per_s(|counts| counts.inward),
                repeats_per_s: per_s(|counts| counts.repeats),
                prods_per_s: per_s(|counts| counts.ack_requests),
                unread_bytes: one.value("unread bytes"),
                unexpected_bytes: one.value("unexpected bytes"),
                links,
                why,
                edges: own
                    .map(|(_, from, edge)| {
                        let then = self.edges.get(&(*from, edge.target));
                        let per_s =
                            |of: fn(&EdgeTraffic) -> u64| rate(of(edge), then.map(of), seconds);
                        Edge {
                            from: from.to_string(),
                            to: edge.target.to_string(),
                            link: if edge.local { "shm" } else { "packets" },
                            messages: edge.messages,
                            bytes: edge.bytes,
                            messages_per_s: per_s(|edge| edge.messages),
                            bytes_per_s: per_s(|edge| edge.bytes),
                        }
                    })
                    .collect(),
            });
        }
        self.counts = counts;
        let edges = edges.into_iter();
        self.edges = edges
            .map(|(_, from, edge)| ((from, edge.target), edge))
            .collect();
        let ranks = self.ranks(seconds)?;
        Ok(Now {
            processes,
            ranks,
            nodes: loads(),
        })
    }

    /// Stops the request for edge statistics.
    pub(super) fn end(&self) {
        self.registries.values().for_each(Registry::unwatch);
    }

    /// All edges, with the process at their start, and the remote address.
    fn edges(&mut self, found: &[Found]) -> Result<Vec<OwnedEdge>, Failure> {
        let mut edges = Vec::new();
        let mut nodes: Vec<NodeId> = found.iter().map(|one| one.node).collect();
        nodes.dedup();
        for node in nodes {
            if !self.registries.contains_key(&node.0) {
                let registry = Registry::open(&self.runtime, node)?;
                self.registries.insert(node.0, registry);
            }
            let registry = &self.registries[&node.0];
            registry.watch()?;
            for survey in registry.survey()? {
                let owner = (node, survey.owner.pid);
                let address = |endpoint| Address { node, endpoint };
                let own = survey.edges.iter();
                edges.extend(own.map(|edge| (owner, address(edge.source), *edge)));
            }
        }
        Ok(edges)
    }

    /// Traced ranks, from the newest supersteps in their files.
    fn ranks(&mut self, seconds: Option<f64>) -> Result<Vec<Rank>, Failure> {
        let Some(folder) = &self.traces else {
            return Ok(Vec::new());
        };
        let entries = std::fs::read_dir(folder)
            .map_err(|cause| format!("cannot read {}: {cause}", folder.display()))?;
        let (mut ranks, mut supersteps) = (Vec::new(), BTreeMap::new());
        for entry in entries {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(is_trace_name) {
                continue;
            }
            let file = TraceFile::read_newest(&entry.path())
                .map_err(|cause| format!("{}: {cause}", entry.path().display()))?;
            let Some(last) = file.steps.last() else {
                continue;
            };
            let rank = file.header.rank;
            let done = last
                .epoch
                .saturating_add(1)
                .saturating_sub(file.header.first);
            let then = self.supersteps.get(&rank).copied();
            supersteps.insert(rank, done);
            ranks.push(Rank {
                rank,
                host: file.header.host.clone(),
                supersteps: done,
                supersteps_per_s: rate(done.into(), then.map(u64::from), seconds),
                call: file.sites[last.site as usize].to_string(),
                computes: computes(&file.steps),
                waits_for: awaited(&file.steps),
            });
        }
        ranks.sort_by_key(|rank| rank.rank);
        self.supersteps = supersteps;
        Ok(ranks)
    }
}

/// The load of all nodes, as the agent of this node knows it.
fn loads() -> Vec<NodeLoad> {
    let own = node_from_env().ok().flatten().unwrap_or(NodeId(1));
    let mut loads = load::request(own).unwrap_or_default();
    loads.sort_by(|one, other| other.priority().total_cmp(&one.priority()));
    loads
}

/// Share of the time of some supersteps that was computation.
fn computes(steps: &[Step]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a share for a reader")]
    let sum = |of: fn(&Step) -> u64| total(steps.iter().map(of)) as f64;
    let (compute, sync) = (sum(Step::compute_ns), sum(Step::sync_ns));
    match compute + sync > 0.0 {
        true => compute / (compute + sync),
        false => 0.0,
    }
}

/// The rank that was waited for most.
fn awaited(steps: &[Step]) -> Option<u32> {
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for (rank, ns) in steps.iter().flat_map(|step| &step.waits) {
        let sum = sums.entry(*rank).or_default();
        *sum = total([*sum, *ns]);
    }
    let most = sums.into_iter().max_by_key(|(_, ns)| *ns)?;
    Some(most.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_looks_and_count_again_from_0() {
        assert_eq!(rate(9, None, Some(1.0)), 0.0);
        assert_eq!(rate(9, Some(5), None), 0.0);
        assert_eq!(rate(9, Some(5), Some(2.0)), 2.0);
        assert_eq!(rate(4, Some(9), Some(2.0)), 2.0);
    }

    #[test]
    fn the_rank_waited_for_most_is_told() {
        let step = Step {
            entered_ns: 30,
            barrier_ns: 70,
            waits: vec![(1, 5), (2, 9)],
            ..Step::default()
        };
        assert_eq!(awaited(&[step.clone(), step.clone()]), Some(2));
        assert!((computes(&[step]) - 0.3).abs() < 1e-9);
        assert_eq!((awaited(&[]), computes(&[])), (None, 0.0));
    }
}
