//! The graph and its rules. Source: DP §2, DP-II §2.
//!
//! `DPG = (N, EP, NID, P, E)`: nodes, endpoints, processes, the node of each process, and edges. Two
//! processes of one node share no endpoint, and an edge joins endpoints of different processes. All
//! faults of a file are reported at once, each with its line.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use dipole_node::Address;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::collective::{Collective, FileBroadcast, FileReduce, Group};
use super::edge::{Edge, Owners};

/// A process: a node and its endpoints on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) node: u32,
    pub(super) endpoints: Vec<u32>,
}

/// A graph that passed all checks.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub(super) file: PathBuf,
    pub(super) nodes: Vec<u32>,
    pub(super) processes: Vec<Process>,
    pub(super) edges: Vec<Edge>,
    /// Broadcasts and reductions, by groups of endpoints that make them together.
    pub(super) groups: Vec<Group>,
    pub(super) warnings: Vec<Fault>,
}

/// A fault in a file, with its line and advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    file: PathBuf,
    line: Option<usize>,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.what),
            None => write!(f, "{}: {}", self.file.display(), self.what),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: Option<Vec<Spanned<u32>>>,
    #[serde(default)]
    edges: Vec<Spanned<String>>,
    #[serde(default)]
    process: Vec<Spanned<FileProcess>>,
    #[serde(default)]
    broadcast: Vec<Spanned<FileBroadcast>>,
    #[serde(default)]
    reduce: Vec<Spanned<FileReduce>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProcess {
    name: Option<Spanned<String>>,
    node: Spanned<u32>,
    endpoints: Vec<Spanned<u32>>,
}

impl Graph {
    /// Reads and checks a file.
    pub(super) fn load(path: &Path) -> Result<Graph, Vec<Fault>> {
        let text = dipole_naming::files::read_text(path).map_err(|cause| {
            vec![Fault {
                file: path.to_owned(),
                line: None,
                what: format!("cannot be read: {cause}"),
            }]
        })?;
        Graph::parse(path, &text)
    }

    /// Parses and checks a text.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Graph, Vec<Fault>> {
        let mut check = Check {
            path,
            text,
            faults: Vec::new(),
        };
        let file: File = match toml::from_str(text) {
            Ok(file) => file,
            Err(error) => {
                check.fault(error.span(), error.message().to_owned());
                return Err(check.faults);
            }
        };
        let nodes = check.nodes(file.nodes.as_deref());
        let processes = check.processes(&file.process, nodes.as_ref());
        let (owners, of_process) = processes;
        let edges = check.edges(&file.edges, &owners);
        let groups = check.groups(&file, &owners, &edges);
        if of_process.is_empty() {
            check.fault(
                None,
                "the graph has no processes; add a [[process]] with node and endpoints".into(),
            );
        }
        if !check.faults.is_empty() {
            return Err(check.faults);
        }
        let used: BTreeSet<u32> = of_process.iter().map(|process| process.node).collect();
        let nodes = nodes.unwrap_or(used).into_iter().collect();
        let mut graph = Graph {
            file: path.to_owned(),
            nodes,
            processes: of_process,
            edges,
            groups,
            warnings: Vec::new(),
        };
        let lonely = graph.lonely();
        if !lonely.is_empty() {
            let names: Vec<String> = lonely.iter().map(ToString::to_string).collect();
            check.fault(
                None,
                format!("warning: no edge touches {}", names.join(", ")),
            );
        }
        graph.warnings = check.faults;
        Ok(graph)
    }

    /// All endpoints with the index of their process.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = (usize, Address)> {
        self.processes
            .iter()
            .enumerate()
            .flat_map(|(index, process)| {
                let address = |endpoint: &u32| Address::new(process.node, *endpoint);
                process
                    .endpoints
                    .iter()
                    .map(move |endpoint| (index, address(endpoint)))
            })
    }

    /// The process of an endpoint.
    pub(super) fn owner(&self, address: Address) -> Option<usize> {
        self.endpoints()
            .find(|(_, found)| *found == address)
            .map(|(index, _)| index)
    }

    /// The targets of an endpoint.
    pub(super) fn targets(&self, from: Address) -> impl Iterator<Item = Address> {
        self.edges
            .iter()
            .filter(move |edge| edge.from == from)
            .map(|edge| edge.to)
    }

    /// The sources of an endpoint.
    pub(super) fn sources(&self, to: Address) -> impl Iterator<Item = Address> {
        self.edges
            .iter()
            .filter(move |edge| edge.to == to)
            .map(|edge| edge.from)
    }

    /// All broadcasts and reductions with their groups.
    pub(super) fn collectives(&self) -> impl Iterator<Item = (&Group, &Collective)> {
        let groups = self.groups.iter();
        groups.flat_map(|group| group.calls.iter().map(move |call| (group, call)))
    }

    /// The group of an endpoint.
    pub(super) fn group(&self, address: Address) -> Option<&Group> {
        self.groups
            .iter()
            .find(|group| group.members.contains(&address))
    }

    fn lonely(&self) -> Vec<Address> {
        let touched = |address: &Address| {
            self.edges
                .iter()
                .any(|edge| edge.from == *address || edge.to == *address)
                || self.group(*address).is_some()
        };
        self.endpoints()
            .map(|(_, address)| address)
            .filter(|address| !touched(address))
            .collect()
    }
}

struct Check<'a> {
    path: &'a Path,
    text: &'a str,
    faults: Vec<Fault>,
}

impl Check<'_> {
    fn fault(&mut self, at: Option<Range<usize>>, what: String) {
        let line = at.map(|at| self.line(at.start));
        self.faults.push(Fault {
            file: self.path.to_owned(),
            line,
            what: dipole_naming::lines::printable(&what),
        });
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        before.filter(|byte| **byte == b'\n').count() + 1
    }

    fn nodes(&mut self, given: Option<&[Spanned<u32>]>) -> Option<BTreeSet<u32>> {
        let mut nodes = BTreeSet::new();
        for node in given? {
            if *node.get_ref() == 0 {
                self.fault(
                    Some(node.span()),
                    "node 0 does not exist; nodes begin at 1".into(),
                );
            } else if !nodes.insert(*node.get_ref()) {
                let what = format!("node {} is listed twice; take one away", node.get_ref());
                self.fault(Some(node.span()), what);
            }
        }
        Some(nodes)
    }

    fn processes(
        &mut self,
        given: &[Spanned<FileProcess>],
        nodes: Option<&BTreeSet<u32>>,
    ) -> (Owners, Vec<Process>) {
        let mut owners = Owners::new();
        let mut processes: Vec<Process> = Vec::new();
        for (index, spanned) in given.iter().enumerate() {
            let process = spanned.get_ref();
            let node = *process.node.get_ref();
            let name = match &process.name {
                Some(name) => name.get_ref().clone(),
                None => format!("P{}", index + 1),
            };
            if let Some(given) = &process.name
                && name.contains(char::is_control)
            {
                let what = format!("the name {name} has control characters; remove them");
                self.fault(Some(given.span()), what);
            }
            if processes.iter().any(|other| other.name == name) {
                let at = process.name.as_ref().map_or(spanned.span(), Spanned::span);
                self.fault(
                    Some(at),
                    format!("a second process is named {name}; rename one"),
                );
            }
            if node == 0 {
                self.fault(
                    Some(process.node.span()),
                    "node 0 does not exist; nodes begin at 1".into(),
                );
            } else if nodes.is_some_and(|nodes| !nodes.contains(&node)) {
                let what = format!(
                    "process {name} is on node {node}, which `nodes` does not list; add it there"
                );
                self.fault(Some(process.node.span()), what);
            }
            for endpoint in &process.endpoints {
                let address = Address::new(node, *endpoint.get_ref());
                let what = match owners.insert(address, index) {
                    None => continue,
                    Some(owner) if owner == index => {
                        format!("process {name} has endpoint {address} twice; take one away")
                    }
                    Some(owner) => {
                        owners.insert(address, owner);
                        let other = &processes[owner].name;
                        format!(
                            "endpoint {address} belongs to process {other} already: two processes \
                             of a node share none; give {name} another DPID"
                        )
                    }
                };
                self.fault(Some(endpoint.span()), what);
            }
            processes.push(Process {
                name,
                node,
                endpoints: process
                    .endpoints
                    .iter()
                    .map(|endpoint| *endpoint.get_ref())
                    .collect(),
            });
        }
        (owners, processes)
    }

    fn edges(&mut self, given: &[Spanned<String>], owners: &Owners) -> Vec<Edge> {
        let mut edges: Vec<Edge> = Vec::new();
        for spanned in given {
            let text = spanned.get_ref();
            match edge(text, owners) {
                Err(what) => self.fault(Some(spanned.span()), what),
                Ok(edge) if edges.contains(&edge) => {
                    self.fault(
                        Some(spanned.span()),
                        format!("edge {text} is there twice; take one away"),
                    );
                }
                Ok(edge) => edges.push(edge),
            }
        }
        edges
    }
}

impl Check<'_> {
    /// Groups the endpoints of broadcasts and reductions. Those of the same endpoints form one group.
    fn groups(&mut self, file: &File, owners: &Owners, edges: &[Edge]) -> Vec<Group> {
        let broadcasts = file.broadcast.iter();
        let broadcasts = broadcasts.map(|it| (it.span(), it.get_ref().read()));
        let reductions = file.reduce.iter();
        let reductions = reductions.map(|it| (it.span(), it.get_ref().read()));
        let mut groups: Vec<Group> = Vec::new();
        for (at, read) in broadcasts.chain(reductions) {
            let checked = read.and_then(|read| {
                read.check(owners, edges)?;
                Group::add(&mut groups, read)
            });
            if let Err(what) = checked {
                self.fault(Some(at), what);
            }
        }
        groups
    }
}

fn edge(text: &str, owners: &Owners) -> Result<Edge, String> {
    let Some((from, to)) = text.split_once("->") else {
        return Err(format!(
            "`{text}` is not an edge: expected NID:DPID -> NID:DPID, as in 1:7 -> 2:3"
        ));
    };
    let address = |text: &str| {
        text.trim()
            .parse::<Address>()
            .map_err(|cause| cause.to_string())
    };
    let edge = Edge {
        from: address(from)?,
        to: address(to)?,
    };
    let owner = |end: Address| {
        owners.get(&end).ok_or_else(|| {
            format!("edge {text}: no process has endpoint {end}; add it to the endpoints of one")
        })
    };
    if edge.from == edge.to {
        return Err(format!(
            "edge {text} leads from an endpoint to itself; it needs two endpoints"
        ));
    }
    if owner(edge.from)? == owner(edge.to)? {
        return Err(format!(
            "edge {text} stays inside one process; an edge joins endpoints of two processes"
        ));
    }
    Ok(edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = include_str!("../../../../examples/graphs/paper.toml");

    fn faults(text: &str) -> Vec<String> {
        match Graph::parse(Path::new("g.toml"), text) {
            Ok(graph) => graph.warnings,
            Err(faults) => faults,
        }
        .iter()
        .map(ToString::to_string)
        .collect()
    }

    #[test]
    fn the_example_of_the_paper_keeps_the_rules() {
        let graph = Graph::parse(Path::new("paper.toml"), PAPER).expect("it is right");
        assert_eq!(graph.nodes, [1, 2, 3, 4]);
        assert_eq!(graph.processes.len(), 3);
        assert_eq!(graph.edges.len(), 4);
        let both: Vec<Address> = graph.targets(Address::new(1, 2)).collect();
        assert_eq!(both, [Address::new(2, 2), Address::new(1, 6)]);
        assert_eq!(graph.sources(Address::new(1, 6)).count(), 2);
        assert!(
            graph.groups.is_empty(),
            "an endpoint with two edges is not a broadcast"
        );
        assert_eq!(
            graph.warnings.len(),
            1,
            "three endpoints of P3 have no edge"
        );
    }

    #[test]
    fn every_fault_is_told_with_its_line_and_what_to_do() {
        let text = "nodes = [1, 1]\nedges = [\n\"1:1 -> 1:2\",\n\"1:1 -> 9:9\",\n\"1:1\",\n\"1:3 -> 1:1\",\n\"1:3 -> 1:1\",\n\"1:1 -> 1:1\",\n]\n\
                    [[process]]\nnode = 1\nendpoints = [1, 2, 2]\n[[process]]\nnode = 5\nendpoints = []\n\
                    [[process]]\nname = \"P1\"\nnode = 1\nendpoints = [2, 3]\n";
        let found = faults(text);
        for wanted in [
            "g.toml:1: node 1 is listed twice",
            "g.toml:3: edge 1:1 -> 1:2 stays inside one process",
            "g.toml:4: edge 1:1 -> 9:9: no process has endpoint 9:9",
            "g.toml:5: `1:1` is not an edge",
            "g.toml:7: edge 1:3 -> 1:1 is there twice",
            "g.toml:8: edge 1:1 -> 1:1 leads from an endpoint to itself",
            "g.toml:12: process P1 has endpoint 1:2 twice",
            "g.toml:14: process P2 is on node 5",
            "g.toml:17: a second process is named P1",
            "g.toml:19: endpoint 1:2 belongs to process P1 already",
        ] {
            assert!(
                found.iter().any(|fault| fault.starts_with(wanted)),
                "{wanted}: {found:#?}"
            );
        }
        assert_eq!(found.len(), 10, "{found:#?}");
    }

    #[test]
    fn what_is_no_toml_or_no_graph_is_told_with_its_line() {
        assert!(
            faults("nodes = [1,\nx]")[0].starts_with("g.toml:2: "),
            "{:?}",
            faults("nodes = [1,\nx]")
        );
        let unknown = faults("nods = [1]");
        assert!(unknown[0].contains("nods"), "{unknown:?}");
        assert!(faults("")[0].contains("the graph has no processes"));
    }
}
