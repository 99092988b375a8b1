//! An explicit-state model checker for the real machine. `docs/design/model-checking.md` describes
//! its abstractions and its notion of fairness.

pub mod action;
pub mod explore;
pub mod fair;
pub mod host;
pub mod key;
pub mod memory;
pub mod pipes;
pub mod scenario;
pub mod shared;
pub mod world;

use explore::{Graph, System, explore};
use fair::{Stall, Verdict, judge};
use pipes::{Exchange, Pipes};
use scenario::Scenario;
use world::World;

pub struct Run<S> {
    pub graph: Graph<S>,
    pub verdict: Verdict,
}

/// Explores a scenario, evaluates it, and prints one line and the shortest trace to each kind of
/// stall.
pub fn run(name: &str, scenario: Scenario) -> Run<World> {
    let most = scenario.max_states;
    run_system(name, World::new(scenario), most)
}

/// Explores a scenario of processes of one node.
pub fn run_pipes(name: &str, scenario: Exchange) -> Run<Pipes> {
    run_system(name, Pipes::new(scenario), MAX_STATES)
}

const MAX_STATES: usize = 4_000_000;

fn run_system<S: System>(name: &str, initial: S, max_states: usize) -> Run<S> {
    let begun = std::time::Instant::now();
    let graph = explore(initial, max_states);
    let verdict = judge(&graph);
    let count = |kind| {
        verdict
            .stuck
            .iter()
            .filter(|stuck| stuck.kind == kind)
            .count()
    };
    let found = match (
        &graph.violation,
        count(Stall::Deadlock),
        count(Stall::Livelock),
    ) {
        (Some(_), _, _) => "VIOLATION".into(),
        (None, 0, 0) => "no deadlock, no livelock".to_string(),
        (None, dead, live) => format!("{dead} deadlocks, {live} livelocks"),
    };
    let scope = if graph.complete { "all" } else { "first" };
    println!(
        "{name}: {scope} {} states, {} transitions, {} cyclic components, depth {}, {:.1} s \
         (explored in {:.1} s): {found}",
        graph.nodes.len(),
        graph.transitions(),
        verdict.components,
        graph.depth(),
        begun.elapsed().as_secs_f64(),
        graph.elapsed.as_secs_f64(),
    );
    if let Some(violation) = &graph.violation {
        let mut path = graph.path(violation.state);
        path.push(violation.action);
        println!("{}\n{}", violation.what, graph.describe(&path));
    }
    for kind in [Stall::Deadlock, Stall::Livelock] {
        if let Some(stuck) = verdict.stuck.iter().find(|stuck| stuck.kind == kind) {
            let state = *stuck.states.iter().min().expect("not empty");
            println!("  {kind:?} of {} states, reached by", stuck.states.len());
            print!("{}", graph.describe(&graph.path(state)));
        }
    }
    Run { graph, verdict }
}

impl<S: System> Run<S> {
    /// Asserts that every state was visited and that no run stalls.
    pub fn assert_sound(&self) {
        self.assert_safe();
        assert!(self.graph.complete, "not all states were visited");
        assert!(self.verdict.stuck.is_empty(), "see the trace above");
        assert!(
            self.graph.nodes.iter().any(|node| node.done),
            "it never finishes"
        );
    }

    /// Asserts that no step violated an invariant.
    pub fn assert_safe(&self) {
        if let Some(violation) = &self.graph.violation {
            panic!("{}; see the trace above", violation.what);
        }
    }

    pub fn assert_absent(&self, kind: Stall) {
        assert!(self.graph.complete, "not all states were visited");
        assert!(!self.verdict.has(kind), "a {kind:?} was found");
    }

    pub fn assert_found(&self, kind: Stall) {
        self.assert_safe();
        assert!(self.verdict.has(kind), "no {kind:?} was found");
    }
}
