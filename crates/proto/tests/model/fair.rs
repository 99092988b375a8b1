//! Runs that never finish: deadlocks and livelocks.
//!
//! A livelock is a strongly connected component of unfinished states in which a *fair* run can stay
//! forever. A run is fair if a thread's call happens eventually when it is always possible, each
//! single packet is delivered eventually when that is always possible, and a host's timers fire
//! eventually when they could again and again. Losses and duplicates are limited in number, so no
//! cycle contains them.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::action::{Action, FAIR_CLASSES, TIMER_CLASSES};
use super::explore::{Edge, Graph, MAX_TOKENS, System};

/// How a run stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Nothing arrives any more; at most, timers fire without effect.
    Deadlock,
    /// Packets are exchanged forever without progress.
    Livelock,
}

pub struct Stuck {
    pub kind: Stall,
    /// The states in which a fair run can stay.
    pub states: Vec<u32>,
}

pub struct Verdict {
    /// Strongly connected components with a cycle, among unfinished states.
    pub components: usize,
    pub stuck: Vec<Stuck>,
}

impl Verdict {
    pub fn has(&self, kind: Stall) -> bool {
        self.stuck.iter().any(|stuck| stuck.kind == kind)
    }
}

/// Finds all stalls of a state graph.
pub fn judge<S: System>(graph: &Graph<S>) -> Verdict {
    let unfinished: Vec<u32> = (0..graph.nodes.len() as u32)
        .filter(|state| {
            let node = &graph.nodes[*state as usize];
            node.expanded && !node.done
        })
        .collect();
    let mut component_of = vec![NONE; graph.nodes.len()];
    let mut verdict = Verdict {
        components: 0,
        stuck: Vec::new(),
    };
    let mut work = components(graph, &unfinished, &mut component_of);
    verdict.components = work.iter().filter(|part| has_cycle(graph, part)).count();
    while let Some(part) = work.pop() {
        if let Some(stuck) = as_deadlock(graph, &part) {
            verdict.stuck.push(stuck);
            continue;
        }
        if !has_cycle(graph, &part) {
            continue;
        }
        let mut rest = without_waiting_hosts(graph, &part, &mut component_of);
        if rest.len() == part.len() {
            rest = without_waiting_packets(graph, &part, &mut component_of);
        }
        if rest.len() < part.len() {
            work.extend(components(graph, &rest, &mut component_of));
            continue;
        }
        let kind = kind_of(graph, &part, &mut component_of);
        verdict.stuck.push(Stuck { kind, states: part });
    }
    // The nearest first, because its trace is the shortest.
    verdict
        .stuck
        .sort_by_key(|stuck| stuck.states.iter().min().copied());
    verdict
}

const NONE: u32 = u32::MAX;

fn components<S: System>(graph: &Graph<S>, states: &[u32], index_of: &mut [u32]) -> Vec<Vec<u32>> {
    for (index, state) in states.iter().enumerate() {
        index_of[*state as usize] = index as u32;
    }
    let mut part = DiGraph::<(), ()>::with_capacity(states.len(), states.len());
    for _ in states {
        part.add_node(());
    }
    for (index, state) in states.iter().enumerate() {
        for edge in graph.edges(*state) {
            let target = index_of[edge.target as usize];
            if target != NONE {
                part.add_edge(NodeIndex::new(index), NodeIndex::new(target as usize), ());
            }
        }
    }
    for state in states {
        index_of[*state as usize] = NONE;
    }
    let found = kosaraju_scc(&part).into_iter();
    found
        .map(|nodes| nodes.into_iter().map(|node| states[node.index()]).collect())
        .collect()
}

fn has_cycle<S: System>(graph: &Graph<S>, part: &[u32]) -> bool {
    part.len() > 1
        || graph
            .edges(part[0])
            .iter()
            .any(|edge| edge.target == part[0])
}

/// A single unfinished state that no step which must happen leaves.
fn as_deadlock<S: System>(graph: &Graph<S>, part: &[u32]) -> Option<Stuck> {
    let [state] = *part else {
        return None;
    };
    let leaves = |edge: &Edge| edge.target != state && edge.action.is_due();
    (!graph.edges(state).iter().any(leaves)).then(|| Stuck {
        kind: Stall::Deadlock,
        states: vec![state],
    })
}

/// A livelock if packets arrive in it; otherwise only timers fire.
fn kind_of<S: System>(graph: &Graph<S>, part: &[u32], marks: &mut [u32]) -> Stall {
    mark(part, marks, 0);
    let arrives = part.iter().any(|state| {
        let mut edges = graph.edges(*state).iter();
        edges.any(|edge| {
            matches!(edge.action, Action::Deliver(_)) && marks[edge.target as usize] != NONE
        })
    });
    mark(part, marks, NONE);
    if arrives {
        Stall::Livelock
    } else {
        Stall::Deadlock
    }
}

/// The states of a component in which a fair run can stay with respect to timers and calls.
///
/// A thread's call that is possible in all states must happen inside the component, or no run in it
/// is fair. A host's timers fire if they are possible again and again: if no such step stays inside,
/// the states in which they could fire are removed.
fn without_waiting_hosts<S: System>(graph: &Graph<S>, part: &[u32], marks: &mut [u32]) -> Vec<u32> {
    mark(part, marks, 0);
    let mut always = [true; FAIR_CLASSES];
    let mut inside = [false; FAIR_CLASSES];
    let possible = |state: u32| {
        let mut possible = [false; FAIR_CLASSES];
        for class in graph
            .edges(state)
            .iter()
            .filter_map(|edge| edge.action.fair_class())
        {
            possible[class] = true;
        }
        possible
    };
    for state in part {
        let possible = possible(*state);
        for class in 0..FAIR_CLASSES {
            always[class] &= possible[class];
        }
        for edge in graph.edges(*state) {
            if let Some(class) = edge.action.fair_class() {
                inside[class] |= marks[edge.target as usize] != NONE;
            }
        }
    }
    mark(part, marks, NONE);
    if (0..FAIR_CLASSES).any(|class| always[class] && !inside[class]) {
        return Vec::new();
    }
    let waits = |state: u32| {
        let possible = possible(state);
        (0..TIMER_CLASSES).any(|class| possible[class] && !inside[class])
    };
    part.iter()
        .copied()
        .filter(|state| !waits(*state))
        .collect()
}

fn mark(part: &[u32], marks: &mut [u32], value: u32) {
    for state in part {
        marks[*state as usize] = value;
    }
}

/// The states of a component in which no packet waits for a delivery outside it: for each packet a
/// path inside leads to its delivery, or to a state in which it cannot be delivered.
fn without_waiting_packets<S: System>(
    graph: &Graph<S>,
    part: &[u32],
    index_of: &mut [u32],
) -> Vec<u32> {
    for (index, state) in part.iter().enumerate() {
        index_of[*state as usize] = index as u32;
    }
    // Backwards from the deliveries, over pairs of state and packet.
    let mut before: Vec<Vec<u32>> = vec![Vec::new(); part.len() * MAX_TOKENS];
    let mut served = vec![false; part.len() * MAX_TOKENS];
    let mut work = Vec::new();
    for (index, state) in part.iter().enumerate() {
        let node = &graph.nodes[*state as usize];
        for token in 0..usize::from(node.tokens) {
            let here = index * MAX_TOKENS + token;
            let mut reached = node.deliverable & (1 << token) == 0;
            for edge in graph.edges(*state) {
                let target = index_of[edge.target as usize];
                if target == NONE {
                    continue;
                }
                reached |= edge.action == Action::Deliver(token as u8);
                if let Some(after) = edge.token_after(token) {
                    before[target as usize * MAX_TOKENS + after].push(here as u32);
                }
            }
            if reached {
                served[here] = true;
                work.push(here);
            }
        }
    }
    while let Some(pair) = work.pop() {
        for earlier in &before[pair] {
            if !served[*earlier as usize] {
                served[*earlier as usize] = true;
                work.push(*earlier as usize);
            }
        }
    }
    mark(part, index_of, NONE);
    let fine = |(index, state): (usize, &u32)| {
        let tokens = usize::from(graph.nodes[*state as usize].tokens);
        (0..tokens)
            .all(|token| served[index * MAX_TOKENS + token])
            .then_some(*state)
    };
    part.iter().enumerate().filter_map(fine).collect()
}
