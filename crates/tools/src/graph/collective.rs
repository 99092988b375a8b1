//! Broadcasts and reductions of a graph: an endpoint as the root of a broadcast tree, or as the
//! destination of a reduction (DP §2).
//!
//! Endpoints that broadcast or reduce together form a group of `dipole-group`, whose tree sends one
//! message to and from each node.

use std::collections::BTreeSet;

use dipole_group::{Combine, Members};
use dipole_node::Address;
use serde::{Deserialize, Serialize};

use super::edge::{Edge, Owners};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileBroadcast {
    from: String,
    to: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileReduce {
    from: Vec<String>,
    to: String,
    #[serde(default)]
    with: Function,
}

/// The function of a reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Function {
    #[default]
    Sum,
    Min,
    Max,
}

impl Function {
    pub(super) fn name(self) -> &'static str {
        match self {
            Function::Sum => "sum",
            Function::Min => "min",
            Function::Max => "max",
        }
    }

    pub(super) fn combine(self) -> Combine {
        match self {
            Function::Sum => Combine::Sum,
            Function::Min => Combine::Min,
            Function::Max => Combine::Max,
        }
    }

    /// The number that changes no result.
    pub(super) fn neutral(self) -> u64 {
        match self {
            Function::Min => u64::MAX,
            Function::Sum | Function::Max => 0,
        }
    }

    pub(super) fn of(self, numbers: impl Iterator<Item = u64>) -> u64 {
        numbers.fold(self.neutral(), |left, right| match self {
            Function::Sum => left.wrapping_add(right),
            Function::Min => left.min(right),
            Function::Max => left.max(right),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Broadcast,
    Reduce(Function),
}

/// A broadcast or reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collective {
    pub(super) kind: Kind,
    /// The sender of a broadcast, or the destination of a reduction.
    pub(super) root: Address,
    pub(super) others: Vec<Address>,
}

/// Endpoints that make the same calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// In rank order.
    pub(super) members: Vec<Address>,
    pub(super) calls: Vec<Collective>,
}

fn address(text: &str) -> Result<Address, String> {
    let found = text.trim().parse::<Address>();
    found.map_err(|_| format!("`{text}` is not an endpoint: expected NID:DPID, as in 1:7"))
}

impl FileBroadcast {
    pub(super) fn read(&self) -> Result<Collective, String> {
        Collective::new(Kind::Broadcast, &self.from, &self.to)
    }
}

impl FileReduce {
    pub(super) fn read(&self) -> Result<Collective, String> {
        Collective::new(Kind::Reduce(self.with), &self.to, &self.from)
    }
}

impl Collective {
    fn new(kind: Kind, root: &str, others: &[String]) -> Result<Collective, String> {
        let others: Result<Vec<Address>, String> =
            others.iter().map(|text| address(text)).collect();
        Ok(Collective {
            kind,
            root: address(root)?,
            others: others?,
        })
    }

    fn members(&self) -> impl Iterator<Item = Address> {
        std::iter::once(self.root).chain(self.others.iter().copied())
    }

    /// How messages about it name it.
    pub(super) fn name(&self) -> String {
        match self.kind {
            Kind::Broadcast => format!("broadcast from {}", self.root),
            Kind::Reduce(function) => format!("reduction ({}) to {}", function.name(), self.root),
        }
    }

    /// The operation, as results name it.
    pub(super) fn operation(&self) -> &'static str {
        match self.kind {
            Kind::Broadcast => "broadcast",
            Kind::Reduce(_) => "reduce",
        }
    }

    /// Checks the endpoints.
    pub(super) fn check(&self, owners: &Owners, edges: &[Edge]) -> Result<(), String> {
        let name = self.name();
        if self.others.is_empty() {
            return Err(format!("the {name} has no other endpoints; add some"));
        }
        let mut processes = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for member in self.members() {
            let owner = owners.get(&member).ok_or_else(|| {
                format!(
                    "the {name}: no process has endpoint {member}; add it to the endpoints of one"
                )
            })?;
            if !seen.insert(member) {
                return Err(format!(
                    "the {name} has endpoint {member} twice; take one away"
                ));
            }
            if !processes.insert(owner) {
                return Err(format!(
                    "the {name} has two endpoints of the process of {member}; one of each process \
                     is enough"
                ));
            }
            let edge = edges
                .iter()
                .find(|edge| edge.from == member || edge.to == member);
            if let Some(edge) = edge {
                return Err(format!(
                    "endpoint {member} takes part in the {name} and has the edge {} -> {}; give \
                     one of them another endpoint",
                    edge.from, edge.to
                ));
            }
        }
        Ok(())
    }

    /// The messages of one call: sender and receiver.
    pub(super) fn tree(&self, group: &Group) -> Vec<Edge> {
        let members = Members::first(group.members.clone());
        let root = group.members.iter().position(|it| *it == self.root);
        let pairs = members.tree(root.unwrap_or(usize::MAX)).into_iter();
        let pairs = pairs.map(|(above, below)| (group.members[above], group.members[below]));
        let edges = pairs.map(|(above, below)| match self.kind {
            Kind::Broadcast => Edge {
                from: above,
                to: below,
            },
            Kind::Reduce(_) => Edge {
                from: below,
                to: above,
            },
        });
        edges.collect()
    }

    /// The pairs of endpoints between which it carries data, whatever the tree.
    pub(super) fn pairs(&self) -> impl Iterator<Item = Edge> {
        self.others.iter().map(|other| match self.kind {
            Kind::Broadcast => Edge {
                from: self.root,
                to: *other,
            },
            Kind::Reduce(_) => Edge {
                from: *other,
                to: self.root,
            },
        })
    }
}

impl Group {
    /// Adds a broadcast or reduction to the group of the same endpoints.
    pub(super) fn add(groups: &mut Vec<Group>, call: Collective) -> Result<(), String> {
        let members: BTreeSet<Address> = call.members().collect();
        for group in &mut *groups {
            let others: BTreeSet<Address> = group.members.iter().copied().collect();
            if others == members {
                group.calls.push(call);
                return Ok(());
            }
            if let Some(both) = members.intersection(&others).next() {
                return Err(format!(
                    "endpoint {both} takes part in the {} and in the {}, which have different \
                     endpoints; give one of them another endpoint",
                    group.calls[0].name(),
                    call.name()
                ));
            }
        }
        groups.push(Group {
            members: call.members().collect(),
            calls: vec![call],
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::graph::model::Graph;

    const PROCESSES: &str = "[[process]]\nnode = 1\nendpoints = [1, 2, 3]\n\
                             [[process]]\nnode = 2\nendpoints = [1, 2]\n\
                             [[process]]\nnode = 2\nendpoints = [3]\n";

    fn graph(text: &str) -> Result<Graph, Vec<String>> {
        Graph::parse(Path::new("g.toml"), &format!("{text}\n{PROCESSES}"))
            .map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn calls_of_the_same_endpoints_form_a_group_with_one_tree() {
        let text = "[[broadcast]]\nfrom = \"1:1\"\nto = [\"2:1\", \"2:3\"]\n\
                    [[reduce]]\nfrom = [\"2:3\", \"2:1\"]\nto = \"1:1\"\nwith = \"max\"\n";
        let graph = graph(text).expect("it is right");
        assert_eq!(graph.groups.len(), 1);
        let group = &graph.groups[0];
        let names: Vec<String> = group.calls.iter().map(Collective::name).collect();
        assert_eq!(names, ["broadcast from 1:1", "reduction (max) to 1:1"]);
        let trees: Vec<Vec<(Address, Address)>> = group
            .calls
            .iter()
            .map(|call| call.tree(group).iter().map(|it| (it.from, it.to)).collect())
            .collect();
        let at = Address::new;
        assert_eq!(trees[0], [(at(1, 1), at(2, 1)), (at(2, 1), at(2, 3))]);
        assert_eq!(trees[1], [(at(2, 1), at(1, 1)), (at(2, 3), at(2, 1))]);
    }

    #[test]
    fn endpoints_that_cannot_broadcast_are_refused_with_their_line() {
        let broadcast = |to: &str| format!("[[broadcast]]\nfrom = \"1:1\"\nto = [{to}]\n");
        let cases = [
            (
                broadcast(""),
                "g.toml:1: the broadcast from 1:1 has no other",
            ),
            (broadcast("\"2\""), "g.toml:1: `2` is not an endpoint"),
            (
                broadcast("\"9:9\""),
                "g.toml:1: the broadcast from 1:1: no process has endpoint 9:9",
            ),
            (
                broadcast("\"2:1\", \"2:1\""),
                "g.toml:1: the broadcast from 1:1 has endpoint 2:1 twice",
            ),
            (
                broadcast("\"2:1\", \"2:2\""),
                "g.toml:1: the broadcast from 1:1 has two endpoints of",
            ),
            (
                format!("edges = [\"1:2 -> 2:1\"]\n{}", broadcast("\"2:1\"")),
                "g.toml:2: endpoint 2:1 takes part in the broadcast from 1:1 and has the edge 1:2 -> 2:1",
            ),
            (
                broadcast("\"2:1\"") + "[[reduce]]\nfrom = [\"2:3\"]\nto = \"1:1\"\n",
                "g.toml:4: endpoint 1:1 takes part in the broadcast from 1:1 and in the reduction (sum) to 1:1",
            ),
            (
                "[[reduce]]\nfrom = [\"2:3\"]\nto = \"1:1\"\nwith = \"xor\"\n".into(),
                "g.toml:4: unknown variant `xor`",
            ),
        ];
        for (text, wanted) in cases {
            let faults = graph(&text).expect_err(wanted);
            assert!(faults[0].starts_with(wanted), "{wanted}: {faults:?}");
        }
    }

    #[test]
    fn functions_agree_with_those_of_groups() {
        for function in [Function::Sum, Function::Min, Function::Max] {
            let numbers = [u64::MAX, 7, 3];
            let mut bytes = function.neutral().to_le_bytes();
            let combine = function.combine().bytes::<u64>();
            for number in numbers {
                combine(&mut bytes, &number.to_le_bytes());
            }
            let expected = function.of(numbers.into_iter());
            assert_eq!(u64::from_le_bytes(bytes), expected, "{function:?}");
        }
    }
}
