//! The cluster: engines on a simulated network, virtual time, faults, and the order of events.

mod faults;
mod turn;

use std::net::SocketAddr;

use dipole_engine::AnyLink;
use dipole_engine::{Engine, Holdings};
use dipole_link::sim::{Network, SharedMemory};
use dipole_proto::Instant;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use turn::Process;

use crate::app::{Flow, Inlet};
use crate::ledger::{Ledger, Life};
use crate::memory::Regions;
use crate::payload::LONGEST_BYTES;
use crate::scenario::{Fault, Narrow, NodePlan, SECOND, Scenario, Stuck, interface_address};
use crate::stranger::Stranger;
use crate::totals::Totals;
use crate::trace::{Trace, What};

/// Virtual time within which some message must be received, or everything be finished, once faults
/// have stopped. (A pool that holds one message, together with interfaces that reorder packets,
/// costs a time-out per message.)
const PROGRESS_NS: u64 = 60 * SECOND;
/// Stages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Faults are injected.
    Storm,
    /// No more faults; idle receivers still do not read.
    Calm,
    /// All receivers read their messages.
    AllRead,
    /// Nothing is sent any more; all memory must be released.
    Quiet,
    /// All edges were closed; both sides must forget them, and all credit must return.
    Closed,
    /// All processes have disconnected.
    Over,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Storm => "storm",
            Stage::Calm => "calm",
            Stage::AllRead => "all read",
            Stage::Quiet => "quiet",
            Stage::Closed => "closed",
            Stage::Over => "over",
        }
    }
}

/// A run that violated a rule.
#[derive(Debug)]
pub struct Violation {
    pub at_ns: u64,
    pub what: String,
    pub trace: String,
}

/// Statistics of a successful run.
#[derive(Debug)]
pub struct Outcome {
    pub totals: Totals,
    pub hash: u64,
}

/// A machine in the cluster.
#[derive(Debug)]
pub struct Node {
    pub process: Option<Process>,
    lives: u32,
    paused_until_ns: u64,
    /// Its application makes no calls.
    pub is_stuck: bool,
    /// Time until which the process is busy.
    free_at_ns: u64,
    /// When its application must be called.
    pub app_at_ns: u64,
    pub inlets: Vec<Inlet>,
    /// Upper limit of credit that it may have granted.
    credit_bound: u64,
    activations: (u64, u32),
}

/// State of the whole simulation.
pub struct World {
    pub scenario: Scenario,
    pub network: Network,
    /// The shared memory of each node.
    memories: Vec<SharedMemory>,
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    /// Small and bulk address of each interface of each node.
    addresses: Vec<Vec<[SocketAddr; 2]>>,
    pub flows: Vec<Flow>,
    pub ledger: Ledger,
    pub regions: Regions,
    pub trace: Trace,
    pub totals: Totals,
    pub stage: Stage,
    pub stage_since_ns: u64,
    /// When an expected message was last received.
    pub read_at_ns: u64,
    next_fault: usize,
    pub turns: u64,
    /// Tries to join a cluster with a key when the faults are over.
    stranger: Option<Stranger>,
    pub dice: ChaCha8Rng,
}

/// Runs a scenario to its end.
pub fn run(scenario: Scenario, verbose: bool) -> Result<Outcome, Violation> {
    let mut world = World::new(scenario, verbose);
    match world.run() {
        Ok(()) => Ok(world.outcome()),
        Err(what) => {
            if verbose {
                world.tell_machines();
            }
            Err(Violation {
                at_ns: world.now_ns,
                what,
                trace: world.trace.report(),
            })
        }
    }
}

impl World {
    /// Prints the state of every protocol machine, when a seed is replayed.
    fn tell_machines(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(process) = &node.process {
                eprintln!("node {}: {:?}", index + 1, process.engine.machine());
            }
        }
    }

    fn new(scenario: Scenario, verbose: bool) -> World {
        let network = Network::new(scenario.seed ^ 0x5EED, scenario.network.clone());
        let mut trace = Trace::new(verbose);
        if verbose {
            eprintln!("{scenario:#?}");
        }
        trace.note(0, 0, What::Stage(Stage::Storm.name()));
        let nodes = scenario
            .nodes
            .iter()
            .enumerate()
            .map(|(index, plan)| {
                let flows = || scenario.flows.iter().filter(|flow| flow.to == index);
                // A window, or a message beyond it once all earlier ones have been read.
                let window =
                    u64::from(plan.config.initial_credit_bytes).max(plan.config.edge_window_bytes);
                let edge_bound = window.max(LONGEST_BYTES as u64 + 64);
                // A process that gave up a peer reconnects over another interface with another
                // session, while the peer has no reason to give up the old one.
                let sessions = 1 + u64::from(scenario.lost_network.is_some());
                // A closed edge may have unread messages when it is reopened.
                let lives = 1 + u64::from(flows().any(|flow| flow.edge_messages > 0));
                let edge_bound = sessions * lives * edge_bound;
                // Answers have their own edges, one from each process.
                let answering = match scenario.has_regions {
                    true => scenario.nodes.len() as u64 * lives * sessions,
                    false => 0,
                };
                Node {
                    process: None,
                    lives: 0,
                    paused_until_ns: 0,
                    is_stuck: false,
                    free_at_ns: 0,
                    app_at_ns: 0,
                    inlets: plan.endpoints.iter().cloned().map(Inlet::new).collect(),
                    credit_bound: flows().count() as u64 * edge_bound + answering * window,
                    activations: (0, 0),
                }
            })
            .collect();
        let addresses = scenario.nodes.iter().map(NodePlan::addresses).collect();
        let memories = (0..scenario.nodes.len() as u64)
            .map(|node| SharedMemory::new(scenario.seed << 8 ^ node, scenario.memory.clone()))
            .collect();
        World {
            network,
            memories,
            addresses,
            now_ns: 1,
            nodes,
            flows: scenario.flows.iter().cloned().map(Flow::new).collect(),
            ledger: Ledger::default(),
            regions: Regions::default(),
            trace,
            totals: Totals::default(),
            stage: Stage::Storm,
            stage_since_ns: 0,
            read_at_ns: 0,
            next_fault: 0,
            turns: 0,
            stranger: None,
            dice: ChaCha8Rng::seed_from_u64(!scenario.seed),
            scenario,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.begin(node);
        }
        while self.stage != Stage::Over {
            self.now_ns = self.now_ns.max(self.next_ns());
            self.network.advance(self.now_ns);
            for memory in &self.memories {
                memory.advance(self.now_ns);
            }
            self.faults();
            for node in 0..self.nodes.len() {
                if self.wake_ns(node) <= self.now_ns {
                    self.activate(node)?;
                }
            }
            if let Some(stranger) = &mut self.stranger {
                stranger.turn(self.now_ns)?;
            }
            self.stages()?;
        }
        self.farewell()
    }

    /// Time of the next event.
    fn next_ns(&self) -> u64 {
        let fault = self.scenario.faults.get(self.next_fault).map(|(at, _)| *at);
        let stage = match self.stage {
            Stage::Storm => self.scenario.calm_at_ns,
            _ => self.progress_due_ns(),
        };
        (0..self.nodes.len())
            .map(|node| self.wake_ns(node))
            .chain(fault)
            .chain(self.stranger.as_ref().map(|it| it.wake_ns(&self.network)))
            .chain(self.network.next_event_ns())
            .min()
            .unwrap_or(stage)
            .min(stage)
    }

    fn wake_ns(&self, index: usize) -> u64 {
        let node = &self.nodes[index];
        let Some(process) = &node.process else {
            return u64::MAX;
        };
        let mut interfaces = self.addresses[index].iter().flatten();
        let waiting = interfaces.any(|address| self.network.waiting(*address) > 0);
        let wanted = if waiting {
            0
        } else {
            let readable_ns = self
                .memory(index)
                .readable_ns(&self.scenario.nodes[index].socket());
            let own = process.deadline_ns.min(node.app_at_ns);
            own.min(readable_ns.unwrap_or(u64::MAX))
        };
        wanted.max(node.free_at_ns).max(node.paused_until_ns)
    }

    /// The shared memory of a process's node.
    pub fn memory(&self, index: usize) -> &SharedMemory {
        &self.memories[self.scenario.nodes[index].place.node]
    }

    fn stages(&mut self) -> Result<(), String> {
        let next = match self.stage {
            Stage::Storm => {
                if self.now_ns < self.scenario.calm_at_ns {
                    return Ok(());
                }
                self.end_storm();
                Stage::Calm
            }
            Stage::Calm | Stage::AllRead => {
                let idle_too = self.stage == Stage::AllRead;
                let open = self.open_work(idle_too);
                if self.is_late() && open.is_some() {
                    return Err(format!(
                        "nothing was read for {} s, long after the last fault: {}",
                        PROGRESS_NS / SECOND,
                        open.unwrap_or_default()
                    ));
                }
                match (open, idle_too) {
                    (Some(_), _) => return Ok(()),
                    (None, false) => Stage::AllRead,
                    (None, true) => Stage::Quiet,
                }
            }
            Stage::Quiet => match self.unquiet() {
                None => {
                    self.close_edges();
                    Stage::Closed
                }
                Some(what) if self.is_late() => {
                    return Err(format!("everything has arrived, but {what}"));
                }
                Some(_) => return Ok(()),
            },
            Stage::Closed => match self.unforgotten().or_else(|| self.unquiet()) {
                None => Stage::Over,
                Some(what) if self.is_late() => {
                    return Err(format!("all edges were closed, but {what}"));
                }
                Some(_) => return Ok(()),
            },
            Stage::Over => return Ok(()),
        };
        self.stage = next;
        self.stage_since_ns = self.now_ns;
        self.trace.note(self.now_ns, 0, What::Stage(next.name()));
        for node in &mut self.nodes {
            node.app_at_ns = self.now_ns;
            if next == Stage::AllRead {
                (node.is_stuck, node.paused_until_ns) = (false, 0);
            }
        }
        Ok(())
    }

    fn is_late(&self) -> bool {
        self.now_ns >= self.progress_due_ns()
    }

    fn progress_due_ns(&self) -> u64 {
        // A session that the peer has lost is detected only after a long idle time.
        let idle_ns = match self.stage == Stage::Closed && self.has_lost_sessions() {
            true => {
                let configs = self.scenario.nodes.iter().map(|node| &node.config);
                let each = configs.map(|it| 2 * (it.idle_check_ns + it.peer_timeout_ns));
                each.max().unwrap_or(0)
            }
            false => 0,
        };
        self.stage_since_ns.max(self.read_at_ns) + PROGRESS_NS + idle_ns
    }

    /// True if a process may have a session that its peer no longer has, because the peer has ended,
    /// with a goodbye that may be lost, or has given up the session.
    pub fn has_lost_sessions(&self) -> bool {
        let gone = self.totals.sessions_gone.iter().sum::<u64>();
        self.totals.crashes + self.totals.goodbyes + gone > 0
    }

    fn open_work(&mut self, idle_too: bool) -> Option<String> {
        let flow = self
            .flows
            .iter()
            .position(|flow| !flow.is_done() && (idle_too || !self.is_idle_flow(flow)));
        if let Some(index) = flow {
            return Some(format!("flow {index} is not done: {:?}", self.flows[index]));
        }
        let stranger = self.stranger.as_ref().and_then(Stranger::open);
        stranger.or_else(|| self.ledger.open(idle_too))
    }

    /// True if this process gets stuck.
    pub fn sticks(&self, node: usize) -> bool {
        self.scenario.stuck.is_some_and(|stuck| stuck.node == node)
    }

    /// True if this flow is not completely sent or received before the end.
    pub fn is_idle_flow(&self, flow: &Flow) -> bool {
        if self.sticks(flow.plan.from) || self.sticks(flow.plan.to) {
            return true;
        }
        self.nodes[flow.plan.to]
            .inlets
            .iter()
            .any(|inlet| inlet.plan.id == flow.plan.target && inlet.plan.reader.is_idle())
    }

    fn unquiet(&mut self) -> Option<String> {
        self.nodes.iter_mut().enumerate().find_map(|(index, node)| {
            let process = node.process.as_mut()?;
            let frames = self.scenario.nodes[index].config.frames as usize;
            let what = if !process.engine.is_acknowledged() {
                "not everything it sent is acknowledged".to_owned()
            } else if process.engine.free_frames() != frames {
                format!(
                    "{} of {frames} frames are free",
                    process.engine.free_frames()
                )
            } else if process.engine.holdings().pool_bytes != 0 {
                format!(
                    "its pool still holds {} bytes",
                    process.engine.holdings().pool_bytes
                )
            } else {
                return None;
            };
            Some(format!("node {}: {what}", index + 1))
        })
    }

    fn close_edges(&mut self) {
        for flow in &mut self.flows {
            let process = &mut self.nodes[flow.plan.from].process;
            if let (Some(edge), Some(process)) = (flow.edge.take(), process) {
                process.engine.close_edge(edge);
            }
        }
    }

    /// Describes resources that a process holds now but did not hold at its start.
    fn unforgotten(&self) -> Option<String> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter_map(|(index, node)| {
                let holdings = node.process.as_ref()?.engine.holdings();
                let what = format!("node {} holds {holdings:?}", index + 1);
                (holdings != Holdings::default()).then_some(what)
            })
            .next()
    }

    /// All processes disconnect; nothing may be left behind.
    fn farewell(&mut self) -> Result<(), String> {
        self.regions.check()?;
        for index in 0..self.nodes.len() {
            let Some(process) = &mut self.nodes[index].process else {
                continue;
            };
            let now = Instant(self.now_ns);
            process.engine.send_goodbye();
            process
                .engine
                .step(now, true)
                .map_err(|error| error.to_string())?;
            let frames = self.scenario.nodes[index].config.frames as usize;
            let machine = process.engine.machine();
            let left = (
                frames - process.engine.free_frames(),
                process.engine.holdings().pool_bytes,
                machine.credit_committed(),
                machine.peers().count(),
            );
            if left != (0, 0, 0, 0) {
                return Err(format!(
                    "node {} disconnected but keeps (frames, pool, credit, peers) {left:?}",
                    index + 1
                ));
            }
            self.totals.add_machine(machine.stats());
        }
        Ok(())
    }

    fn outcome(mut self) -> Outcome {
        self.totals.runs = 1;
        self.totals.virtual_ms = self.now_ns / 1_000_000;
        self.totals.add_network(&self.network.stats());
        Outcome {
            hash: self.trace.hash(),
            totals: self.totals,
        }
    }

    fn begin(&mut self, index: usize) {
        let plan = &self.scenario.nodes[index];
        let port = self
            .network
            .attach_interfaces(&self.addresses[index])
            .expect("the previous process has left");
        let node = &mut self.nodes[index];
        node.lives += 1;
        let salt = self.scenario.seed << 16 ^ (index as u64) << 8 ^ u64::from(node.lives);
        let mut dice = ChaCha8Rng::seed_from_u64(salt);
        let incarnation = dice.next_u64();
        let secret = [dice.next_u64(), dice.next_u64()];
        let mut engine = Engine::new(
            AnyLink::from(port),
            plan.config.clone(),
            incarnation,
            secret,
            self.scenario.keys.get(index),
        );
        if let Some((directory, bytes)) = &self.scenario.recording {
            let options = dipole_record::Options {
                directory: directory.clone(),
                bytes: *bytes,
                since_1970_ns: 0,
            };
            let started = engine.record(options, Instant(self.now_ns));
            started.expect("room for a recording");
        }
        if plan.shares_memory {
            let memory = &self.memories[plan.place.node];
            engine
                .open_simulated(memory, &plan.socket())
                .expect("the previous process has left");
        }
        node.process = Some(Process {
            engine,
            life: node.lives,
            incarnation,
            hits_in_row: 0,
            deadline_ns: 0,
        });
        node.app_at_ns = self.now_ns;
        for inlet in &mut node.inlets {
            inlet.is_open = false;
        }
        self.trace
            .note(self.now_ns, index, What::Began { life: node.lives });
        self.ledger.born(Life {
            node: index,
            life: node.lives,
        });
    }

    fn end(&mut self, index: usize, orderly: bool) {
        let Some(mut process) = self.nodes[index].process.take() else {
            return;
        };
        if orderly {
            process.engine.send_goodbye();
            let _lost_anyway = process.engine.step(Instant(self.now_ns), true);
            self.totals.goodbyes += 1;
            self.trace.note(self.now_ns, index, What::Left);
        } else {
            self.totals.crashes += 1;
            self.trace.note(self.now_ns, index, What::Crashed);
        }
        self.totals.add_machine(process.engine.machine().stats());
        self.regions.close_all(index);
        for flow in 0..self.flows.len() {
            if self.flows[flow].plan.from == index {
                if let Some(stream) = self.flows[flow].stream {
                    self.ledger.told_gone(stream);
                }
                self.flows[flow].forget_session(self.now_ns);
                self.regions.forget(flow, &mut self.flows[flow].asking);
            }
        }
    }

    /// Applies the faults that are due.
    fn faults(&mut self) {
        while let Some((at_ns, fault)) = self.scenario.faults.get(self.next_fault)
            && *at_ns <= self.now_ns
        {
            let fault = fault.clone();
            self.next_fault += 1;
            self.strike(fault);
        }
    }

    /// All interfaces, with their nodes.
    fn interfaces(&self) -> Vec<(usize, std::net::IpAddr)> {
        let mut interfaces = Vec::new();
        for plan in &self.scenario.nodes {
            for network in &plan.interfaces {
                let node = plan.place.node;
                interfaces.push((node, interface_address(node, *network)));
            }
        }
        interfaces
    }

    fn node_of(&self, index: usize) -> usize {
        self.scenario.nodes[index].place.node
    }

    /// Disables all interfaces of a network.
    fn lose_network(&mut self, lost: u8) {
        for node in 0..self.nodes.len() {
            let ip = interface_address(node, lost);
            self.network
                .change(|config| config.set_interface(ip, false));
        }
    }

    /// Ends all faults and repairs the network.
    fn end_storm(&mut self) {
        let calm_path = self.scenario.calm_path;
        self.network.change(|config| {
            config.path = calm_path;
            config.heal();
            config.dead_interfaces.clear();
        });
        if let Some((_, lost)) = self.scenario.lost_network {
            self.lose_network(lost);
        }
        for machine in 0..self.nodes.len() {
            self.follow_addresses(machine);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].paused_until_ns < u64::MAX {
                self.nodes[index].paused_until_ns = 0;
            }
            if self.nodes[index].process.is_none() {
                self.begin(index);
            }
        }
        if !self.scenario.keys.is_empty() {
            self.stranger = Some(Stranger::come(&self.scenario, &self.network, self.now_ns));
        }
    }

    /// True with a probability of `share` thousandths.
    pub fn permille(&mut self, share: u32) -> bool {
        share > 0 && self.dice.random_range(0..1000) < share
    }
}
