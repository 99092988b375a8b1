//! Visits every state that a world can reach, breadth first, and keeps the graph.
//!
//! Whole states are only in the queue. Visited states are identified by a 128-bit hash of their
//! canonical form, and the graph uses four-byte numbers.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::action::Action;

/// The new position of a packet in flight, or none if it is gone.
pub const GONE: u8 = 15;
/// Most packets in flight in both directions together.
pub const MAX_TOKENS: usize = 8;

/// A model that can be explored: two processes and what is in flight between them.
pub trait System: Clone {
    /// Adds all possible steps to `actions`.
    fn actions(&self, actions: &mut Vec<Action>);
    /// Takes a step. Returns the invariant that it violates, if it violates one.
    fn apply(&mut self, action: Action) -> Result<(), String>;
    /// Brings the state into its canonical form and returns its key.
    fn normalize(&mut self) -> u128;
    /// Returns the number of packets in flight.
    fn tokens(&self) -> usize;
    /// Returns the number of packets that can be delivered now.
    fn deliverable(&self) -> u8;
    /// Remembers the positions of all packets in flight before a step.
    fn mark_tokens(&mut self);
    /// The new position of each packet of the previous state, four bits each.
    fn moved(&self) -> u32;
    /// Nothing remains to be done.
    fn is_done(&self) -> bool;
    fn describe(&self, action: Action) -> String;
    /// Describes the state, for the end of a trace.
    fn describe_state(&self) -> String;
}

/// A step between two states.
#[derive(Clone, Copy)]
pub struct Edge {
    pub target: u32,
    pub action: Action,
    /// Position of each packet in flight after the step, four bits each.
    moved: u32,
}

impl Edge {
    pub fn token_after(&self, token: usize) -> Option<usize> {
        let position = (self.moved >> (4 * token)) as u8 & 15;
        (position != GONE).then_some(usize::from(position))
    }
}

/// The stored part of a state.
#[derive(Clone, Copy, Default)]
pub struct Node {
    first_edge: u32,
    edges: u32,
    parent: u32,
    by: Action,
    depth: u32,
    /// Number of packets in flight.
    pub tokens: u8,
    /// Number of packets that can be delivered now.
    pub deliverable: u8,
    /// Nothing remains to be done.
    pub done: bool,
    /// All its steps are known.
    pub expanded: bool,
}

/// A step that violated an invariant.
pub struct Violation {
    pub what: String,
    pub state: u32,
    pub action: Action,
}

pub struct Graph<S> {
    pub nodes: Vec<Node>,
    edges: Vec<Edge>,
    pub violation: Option<Violation>,
    /// Every reachable state has been visited.
    pub complete: bool,
    pub elapsed: Duration,
    initial: S,
}

impl<S: System> Graph<S> {
    pub fn edges(&self, state: u32) -> &[Edge] {
        let node = &self.nodes[state as usize];
        &self.edges[node.first_edge as usize..(node.first_edge + node.edges) as usize]
    }

    pub fn transitions(&self) -> usize {
        self.edges.len()
    }

    pub fn depth(&self) -> u32 {
        self.nodes.iter().map(|node| node.depth).max().unwrap_or(0)
    }

    /// The steps that lead to a state.
    pub fn path(&self, mut state: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        while state != 0 {
            let node = &self.nodes[state as usize];
            actions.push(node.by);
            state = node.parent;
        }
        actions.reverse();
        actions
    }

    /// Describes a run step by step.
    pub fn describe(&self, actions: &[Action]) -> String {
        let mut world = self.initial.clone();
        let mut lines = String::new();
        for (index, action) in actions.iter().enumerate() {
            let what = world.describe(*action);
            let outcome = match world.apply(*action) {
                Ok(()) => String::new(),
                Err(violation) => format!("  !! {violation}"),
            };
            world.normalize();
            lines += &format!("  {:3}. {what}{outcome}\n", index + 1);
        }
        lines + &world.describe_state()
    }
}

/// Visits all states, or `max_states` of them.
pub fn explore<S: System>(mut initial: S, max_states: usize) -> Graph<S> {
    let begun = Instant::now();
    let key = initial.normalize();
    let mut graph = Graph {
        nodes: vec![node_of(&initial, 0, Action::default(), 0)],
        edges: Vec::new(),
        violation: None,
        complete: true,
        elapsed: Duration::ZERO,
        initial: initial.clone(),
    };
    let mut seen = HashMap::from([(key, 0)]);
    let mut queue = VecDeque::from([(0_u32, initial)]);
    let mut actions = Vec::new();
    'all: while let Some((state, world)) = queue.pop_front() {
        if graph.nodes.len() >= max_states {
            graph.complete = false;
            break;
        }
        let here = graph.nodes[state as usize];
        let first_edge = graph.edges.len() as u32;
        world.actions(&mut actions);
        for action in actions.drain(..) {
            let mut next = world.clone();
            next.mark_tokens();
            if let Err(what) = next.apply(action) {
                graph.violation = Some(Violation {
                    what,
                    state,
                    action,
                });
                break 'all;
            }
            let key = next.normalize();
            let moved = next.moved();
            let found = graph.nodes.len() as u32;
            let target = *seen.entry(key).or_insert(found);
            if target == state && action.is_attempt() {
                // It would change nothing: not enabled.
                continue;
            }
            if target == found {
                graph
                    .nodes
                    .push(node_of(&next, state, action, here.depth + 1));
                queue.push_back((found, next));
            }
            graph.edges.push(Edge {
                target,
                action,
                moved,
            });
        }
        let node = &mut graph.nodes[state as usize];
        node.first_edge = first_edge;
        node.edges = graph.edges.len() as u32 - first_edge;
        node.expanded = true;
    }
    graph.elapsed = begun.elapsed();
    graph
}

fn node_of<S: System>(world: &S, parent: u32, by: Action, depth: u32) -> Node {
    Node {
        parent,
        by,
        depth,
        tokens: world.tokens() as u8,
        deliverable: world.deliverable(),
        done: world.is_done(),
        ..Node::default()
    }
}
