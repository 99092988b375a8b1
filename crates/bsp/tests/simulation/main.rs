//! Random programs over the real protocol on a simulated network, in virtual time: packets are lost,
//! duplicated and delayed, ranks are slow, and one may crash.
//!
//! Each rank's program runs on its own thread, one at a time. A rank that waits returns control to the
//! simulation, which continues until the rank can continue. So a seed can be repeated exactly:
//! `DIPOLE_SEED=7 cargo test -p dipole-bsp --test simulation`.

#![allow(missing_docs, reason = "tests")]

mod carrier;
#[path = "../common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use carrier::{Outgoing, Pause, ROOM, RankState, SimulatedCarrier};
use common::{Program, run_rank};
use dipole_bsp::carrier::{Carrier, Connection};
use dipole_bsp::superstep::node_map::NodeMap;
use dipole_bsp::{Decision, Failure, Process, Standby};
use dipole_engine::AnyLink;
use dipole_engine::{Blocked, Destination, Engine, LongSend, OperationStart};
use dipole_link::sim::{Network, NetworkConfig, PathConfig};
use dipole_model::Machine;
use dipole_node::{Operation, RegionKey, Rights};
use dipole_proto::{Config, EdgeId, Instant, PeerId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ENDPOINT: u32 = 1;
const MICROSECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
/// Virtual time within which each program must end or fail.
const LONGEST_NS: u64 = 600 * SECOND;

/// A rank as the simulation sees it.
struct Rank {
    engine: Engine,
    state: Arc<Mutex<RankState>>,
    resumes: Sender<()>,
    peers: Vec<Option<PeerId>>,
    edges: Vec<Option<EdgeId>>,
    long: Option<LongSend>,
    deadline_ns: u64,
    pause: Option<(Pause, u64)>,
    ended: Option<Result<(), Failure>>,
    has_crashed: bool,
}

struct World {
    network: Network,
    now_ns: u64,
    ranks: Vec<Rank>,
    pauses: Receiver<(u32, Pause)>,
    crash: Option<(usize, u64)>,
}

fn address(rank: usize, port: u16) -> SocketAddr {
    let host = u8::try_from(rank + 1).expect("few ranks");
    SocketAddr::from(([10, 0, 0, host], port))
}

impl World {
    fn peer(&mut self, from: usize, to: usize) -> PeerId {
        let rank = &mut self.ranks[from];
        *rank.peers[to].get_or_insert_with(|| {
            let there = Destination {
                small: address(to, 7000),
                incarnation: to as u64 + 1,
            };
            let peer = rank.engine.connect(Instant(self.now_ns), there);
            peer.expect("room for another peer")
        })
    }

    /// Sends the data that a rank has queued, in order.
    fn send(&mut self, index: usize) {
        loop {
            let state = Arc::clone(&self.ranks[index].state);
            let mut state = state.lock().expect("one at a time");
            let Some((to, next)) = state.outgoing.front() else {
                return;
            };
            let to = *to as usize;
            let peer = self.peer(index, to);
            let now = Instant(self.now_ns);
            let rank = &mut self.ranks[index];
            let done = match rank.engine.is_open(peer) {
                Err(_) => {
                    // It may have been sent in part.
                    rank.long = None;
                    true
                }
                Ok(false) => return,
                Ok(true) => {
                    let edge = *rank.edges[to].get_or_insert_with(|| {
                        let edge = rank.engine.edge(peer, ENDPOINT, ENDPOINT);
                        edge.expect("an edge to an open peer")
                    });
                    match next {
                        Outgoing::Message(message) => rank.send_one(now, edge, message),
                        Outgoing::Write(key, offset, bytes) => {
                            rank.write_one(now, edge, (*key, *offset), bytes)
                        }
                    }
                }
            };
            if !done {
                return;
            }
            state.outgoing.pop_front();
        }
    }

    fn step(&mut self, index: usize) {
        if self.ranks[index].has_crashed {
            return;
        }
        let waiting = [7000, 7001].map(|port| self.network.waiting(address(index, port)));
        let now = Instant(self.now_ns);
        let rank = &mut self.ranks[index];
        let is_due = waiting != [0, 0] || rank.deadline_ns <= self.now_ns;
        if is_due {
            rank.engine.disarm();
            rank.engine
                .step(now, true)
                .expect("a network without errors");
            rank.engine.watch_peers(now, true);
            let mut state = rank.state.lock().expect("one at a time");
            while let Some(message) = rank.engine.take(now, ENDPOINT) {
                let from = message.source().node.0 - 1;
                state.received.push_back((from, message.to_vec()));
            }
            for departure in rank.engine.take_departures() {
                // A peer that never completed its handshake has no node number.
                let peer = Some(departure.peer);
                let known = rank.peers.iter().position(|known| *known == peer);
                let index = known.map(|index| u32::try_from(index).expect("few"));
                state
                    .departed
                    .extend(index.or(departure.node.checked_sub(1)));
            }
        }
        let state = Arc::clone(&self.ranks[index].state);
        for other in state.lock().expect("one at a time").watched.drain(..) {
            self.peer(index, other as usize);
        }
        self.send(index);
        let rank = &mut self.ranks[index];
        rank.engine.transmit(now).expect("a network without errors");
        let deadline = rank.engine.next_deadline(now);
        rank.deadline_ns = deadline.map_or(u64::MAX, |deadline| deadline.0);
        if !rank.engine.arm() {
            rank.deadline_ns = rank.deadline_ns.min(self.now_ns + MICROSECOND);
        }
    }

    /// True if what a rank waits for has happened.
    fn can_resume(&mut self, index: usize) -> bool {
        let now_ns = self.now_ns;
        let rank = &mut self.ranks[index];
        let Some((pause, since_ns)) = &rank.pause else {
            return false;
        };
        let state = rank.state.lock().expect("one at a time");
        let timed_out = |timeout: &Duration| {
            let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            now_ns >= since_ns.saturating_add(timeout)
        };
        if rank.has_crashed {
            return true;
        }
        match pause {
            Pause::ReclaimMemory => !state.has_pending_writes(),
            Pause::Receive(timeout, is_full) => {
                let has_written = !state.pending_writes.is_empty() && !state.has_pending_writes();
                has_written
                    || !state.received.is_empty()
                    || (*is_full && state.outgoing.len() < ROOM)
                    || timed_out(timeout)
            }
            Pause::Compute(ns) => now_ns >= since_ns + ns,
            Pause::Drain(timeout) => {
                (state.outgoing.is_empty() && rank.engine.is_acknowledged()) || timed_out(timeout)
            }
            Pause::Ended(_) | Pause::Panicked | Pause::OpenMemory(_) | Pause::CloseMemory(_) => {
                false
            }
        }
    }

    /// Lets a rank run until it pauses again.
    fn resume(&mut self, index: usize) {
        self.ranks[index].pause = None;
        let resumes = &self.ranks[index].resumes;
        resumes.send(()).expect("its thread waits");
        self.await_pause();
    }

    fn await_pause(&mut self) {
        let (index, pause) = self.pauses.recv().expect("ranks give a reason to pause");
        let rank = &mut self.ranks[index as usize];
        match pause {
            Pause::OpenMemory(memory) => {
                let rights = Rights {
                    put: true,
                    ..Rights::NONE
                };
                let key = rank.engine.open_region(ENDPOINT, memory, rights);
                rank.state.lock().expect("one at a time").opened_key = key;
                return self.resume(index as usize);
            }
            Pause::CloseMemory(key) => {
                rank.engine.close_region(key);
                return self.resume(index as usize);
            }
            Pause::Ended(result) => {
                rank.ended = Some(result);
                if !rank.has_crashed {
                    rank.engine.send_goodbye();
                }
            }
            Pause::Panicked => panic!("a rank has found a violation"),
            pause => rank.pause = Some((pause, self.now_ns)),
        }
        rank.deadline_ns = self.now_ns;
    }

    /// Time of the next event.
    fn next_ns(&self) -> u64 {
        let own = self.ranks.iter().filter(|rank| !rank.has_crashed);
        let pauses = own.clone().filter_map(|rank| match &rank.pause {
            Some((Pause::Receive(timeout, _) | Pause::Drain(timeout), since)) => {
                Some(since + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
            }
            Some((Pause::Compute(ns), since)) => Some(since + ns),
            Some((Pause::ReclaimMemory, _)) => {
                let state = rank.state.lock().expect("one at a time");
                (!state.has_pending_writes()).then_some(self.now_ns)
            }
            _ => None,
        });
        own.clone()
            .map(|rank| rank.deadline_ns)
            .chain(pauses)
            .chain(self.network.next_event_ns())
            .chain(self.crash.map(|(_, at)| at))
            .min()
            .unwrap_or(u64::MAX)
            .max(self.now_ns)
    }

    fn run(&mut self, seed: u64) {
        while self.ranks.iter().any(|rank| rank.ended.is_none()) {
            self.now_ns = self.next_ns();
            assert!(
                self.now_ns < LONGEST_NS,
                "DIPOLE_SEED={seed}: a rank hangs: {:?}",
                self.ranks
                    .iter()
                    .map(|rank| rank.ended.is_some())
                    .collect::<Vec<_>>()
            );
            self.network.advance(self.now_ns);
            if let Some((victim, at)) = self.crash
                && at <= self.now_ns
            {
                self.crash = None;
                let rank = &mut self.ranks[victim];
                rank.has_crashed = true;
                rank.state.lock().expect("one at a time").has_crashed = true;
            }
            for index in 0..self.ranks.len() {
                self.step(index);
                if self.can_resume(index) {
                    self.resume(index);
                    self.step(index);
                }
            }
        }
    }
}

impl Rank {
    /// Returns true once the engine has taken a remote write, or its rank has ended.
    fn write_one(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (key, offset): (RegionKey, u64),
        bytes: &Bytes,
    ) -> bool {
        let put = Operation::PutUnanswered { key, offset };
        match self.engine.begin_operation(now, edge, &put, bytes) {
            Ok(OperationStart::Sent | OperationStart::InBackground) => true,
            Ok(OperationStart::AwaitsAnswer(_)) => panic!("the operation wants no reply"),
            Err(Blocked::NoCredit | Blocked::NoFrame | Blocked::Opening) => false,
            Err(_) => true,
        }
    }

    /// Returns true once the engine has taken a message, or its receiver has ended.
    fn send_one(&mut self, now: Instant, edge: EdgeId, message: &[u8]) -> bool {
        let sent = if let Some(long) = &mut self.long {
            self.engine.continue_long(long, message)
        } else if message.len() <= self.engine.whole_limit(edge.peer) {
            let sent = self.engine.send_whole(now, edge, message, false);
            sent.map(|()| true)
        } else {
            let begun = self.engine.begin_long(now, edge, message, false);
            begun.map(|long| {
                self.long = Some(long);
                false
            })
        };
        match sent {
            Ok(true) => {
                self.long = None;
                true
            }
            Ok(false) => match &mut self.long {
                Some(long) => {
                    let done = self.engine.continue_long(long, message);
                    if done == Ok(false) {
                        return false;
                    }
                    self.long = None;
                    true
                }
                None => false,
            },
            Err(Blocked::NoCredit | Blocked::NoFrame | Blocked::Opening) => false,
            // The receiver has ended. The ranks that wait for it detect that.
            Err(_) => {
                self.long = None;
                true
            }
        }
    }
}

/// A network with random properties.
fn random_network(seed: u64, rng: &mut ChaCha8Rng) -> Network {
    let path = PathConfig {
        latency_ns: rng.random_range(1..50) * MICROSECOND,
        jitter_ns: rng.random_range(0..20) * MICROSECOND,
        loss: if rng.random_bool(0.7) {
            rng.random_range(0.0..0.05)
        } else {
            0.0
        },
        duplicate: rng.random_range(0.0..0.02),
        reorder: rng.random_range(0.0..0.05),
        reorder_ns: 100 * MICROSECOND,
        ..PathConfig::default()
    };
    let config = NetworkConfig {
        bytes_per_second: [0, 125_000_000, 1_250_000_000][rng.random_range(0..3)],
        switch_queue_bytes: [32 << 10, 1 << 20][rng.random_range(0..2)],
        path,
        ..NetworkConfig::default()
    };
    Network::new(seed, config)
}

/// The side of a rank that runs on its thread.
struct RankThread {
    rank: u32,
    state: Arc<Mutex<RankState>>,
    resumes: Receiver<()>,
    /// Duration of the computation in each superstep.
    skew: Vec<u64>,
}

impl RankThread {
    /// Runs the sections of a program, and reports how it ended.
    fn run(self, pauses: Sender<(u32, Pause)>, node_map: &NodeMap, sections: &[Section]) {
        let RankThread {
            rank,
            state,
            resumes,
            skew,
        } = self;
        let resumes = Arc::new(Mutex::new(resumes));
        let own = || SimulatedCarrier {
            rank,
            state: Arc::clone(&state),
            pauses: pauses.clone(),
            resumes: Arc::clone(&resumes),
        };
        let first = resumes.lock().expect("not shared yet").recv();
        first.expect("the simulation begins");
        let clock = own();
        let size = u32::try_from(node_map.nodes()).expect("few");
        let run = |process: &mut Process<_>, program: &Program| {
            program.run(process, |superstep| {
                clock.pause(Pause::Compute(skew[superstep]));
            })
        };
        let ended = catch_unwind(AssertUnwindSafe(|| match sections {
            [(_, program)] => {
                let joined = Process::join(own(), rank, size, None, node_map)?;
                run_rank(joined.expect("all take part"), |process| {
                    run(process, program)
                })
            }
            _ => {
                let connection = Connection {
                    carrier: own(),
                    node_map: node_map.clone(),
                    machine: Machine::default(),
                    slots: None,
                };
                let standby = Standby::new(connection, rank, size);
                match rank {
                    0 => begin_sections(standby, sections, run),
                    _ => join_sections(standby, sections, run),
                }
            }
        }));
        let pause = ended.map_or(Pause::Panicked, Pause::Ended);
        // The simulation may have panicked.
        let _sent = pauses.send((rank, pause));
    }
}

impl World {
    /// Adds a rank with a port on the network.
    fn add_rank(&mut self, index: usize, size: usize, rng: &mut ChaCha8Rng) -> RankThread {
        let port = self
            .network
            .attach(address(index, 7000), address(index, 7001));
        let port = port.expect("the addresses are unique");
        let number = index as u64 + 1;
        let config = Config {
            node: u32::try_from(number).expect("small"),
            peer_timeout_ns: 2 * SECOND,
            suspect_after_ns: SECOND / 2,
            ..Config::default()
        };
        let mut engine = Engine::new(AnyLink::from(port), config, number, [number, !number], None);
        engine.open_endpoint(ENDPOINT);
        let state = Arc::new(Mutex::new(RankState::default()));
        let (resumes, own_resumes) = channel();
        self.ranks.push(Rank {
            engine,
            state: Arc::clone(&state),
            resumes,
            peers: vec![None; size],
            edges: vec![None; size],
            long: None,
            deadline_ns: 0,
            pause: Some((Pause::Compute(0), 0)),
            ended: None,
            has_crashed: false,
        });
        let skew = (0..13).map(|_| match rng.random_range(0..5) {
            0 => rng.random_range(0..5_000) * MICROSECOND,
            _ => rng.random_range(0..20) * MICROSECOND,
        });
        RankThread {
            rank: u32::try_from(index).expect("few"),
            state,
            resumes: own_resumes,
            skew: skew.collect(),
        }
    }
}

/// Number of ranks that take part, and what they run.
type Section = (usize, Program);

/// Runs one section. A rank that fails ends the program.
fn run_section<C: Carrier>(
    mut process: Process<C>,
    body: impl FnOnce(&mut Process<C>) -> Result<(), Failure>,
) -> Result<Standby<C>, Failure> {
    let ended = body(&mut process).and_then(|()| process.end_section());
    if ended.is_err() {
        process.abort();
    }
    ended.map(|standby| standby.expect("the links are kept"))
}

/// Runs all sections as rank 0.
fn begin_sections<C: Carrier>(
    mut standby: Standby<C>,
    sections: &[Section],
    run: impl Fn(&mut Process<C>, &Program) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for ((ranks, program), number) in sections.iter().zip(0..) {
        let ranks = u32::try_from(*ranks).expect("few");
        let process = standby.begin(Some(ranks), vec![number])?;
        standby = run_section(process, |process| run(process, program))?;
    }
    standby.dismiss();
    Ok(())
}

/// Runs the sections that rank 0 begins and this rank takes part in.
fn join_sections<C: Carrier>(
    mut standby: Standby<C>,
    sections: &[Section],
    run: impl Fn(&mut Process<C>, &Program) -> Result<(), Failure>,
) -> Result<(), Failure> {
    while let Decision::Section(process, name) = standby.wait()? {
        let (_, program) = &sections[usize::from(name[0])];
        standby = run_section(*process, |process| run(process, program))?;
    }
    Ok(())
}

/// Runs a program on a cluster that is derived from the seed. Returns the number of ranks, the rank
/// that crashes, if any, and the result of each rank.
fn run(seed: u64, has_crash: bool) -> (usize, Option<usize>, Vec<Result<(), Failure>>) {
    run_sections(seed, 1, has_crash)
}

/// Like [`run`], with several sections, in which some of the ranks take part.
fn run_sections(
    seed: u64,
    count: u64,
    has_crash: bool,
) -> (usize, Option<usize>, Vec<Result<(), Failure>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(!seed);
    let size = rng.random_range(2..8_usize);
    let sections: Vec<Section> = match count {
        1 => vec![(size, Program::random(seed, size, 12))],
        _ => (0..count)
            .map(|number| {
                let ranks = rng.random_range(1..=size);
                (ranks, Program::random(seed + number, ranks, 4))
            })
            .collect(),
    };
    let network = random_network(seed, &mut rng);
    let (sender, pauses) = channel();
    let mut world = World {
        now_ns: 1,
        ranks: Vec::new(),
        pauses,
        crash: None,
        network,
    };
    let threads: Vec<_> = (0..size)
        .map(|index| world.add_rank(index, size, &mut rng))
        .collect();
    if has_crash {
        let victim = rng.random_range(0..size);
        world.crash = Some((victim, rng.random_range(0..20_000) * MICROSECOND));
    }
    let victim = world.crash.map(|(victim, _)| victim);
    let node_map = NodeMap::new(&(0..size).collect::<Vec<_>>());
    let ranks = thread::scope(|scope| {
        // Dropped if the simulation panics, so that the threads of the ranks end as well.
        let mut world = world;
        for thread in threads {
            let (pauses, node_map, sections) = (sender.clone(), &node_map, &sections);
            scope.spawn(move || thread.run(pauses, node_map, sections));
        }
        world.run(seed);
        world.ranks
    });
    let ended = ranks.into_iter().map(|rank| rank.ended);
    (
        size,
        victim,
        ended.map(|result| result.expect("it has ended")).collect(),
    )
}

fn seeds(default_count: u64) -> std::ops::Range<u64> {
    let given = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let one = given("DIPOLE_SEED");
    let from = one.or(given("DIPOLE_SEED_FROM")).unwrap_or(1);
    let count = match one {
        Some(_) => 1,
        None => given("DIPOLE_SEEDS").unwrap_or(default_count),
    };
    from..from + count
}

#[test]
fn memory_matches_a_sequential_model_whatever_the_network_does() {
    for seed in seeds(40) {
        let (_, _, ended) = run(seed, false);
        for (rank, result) in ended.iter().enumerate() {
            assert!(
                result.is_ok(),
                "DIPOLE_SEED={seed}: rank {rank}: {result:?}"
            );
        }
    }
}

#[test]
fn all_other_ranks_fail_when_one_crashes_and_none_continues_with_wrong_memory() {
    let mut failed = 0;
    for seed in seeds(40) {
        let (_, victim, ended) = run(seed, true);
        let victim = victim.expect("one crashes");
        // If it had ended before the crash, all have.
        if ended[victim].is_ok() {
            continue;
        }
        for (rank, result) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            match result {
                // The rank had already left the last superstep.
                Ok(()) => {}
                Err(
                    Failure::Gone { .. } | Failure::Aborted { .. } | Failure::Unreachable { .. },
                ) => {
                    failed += 1;
                }
                Err(other) => panic!("DIPOLE_SEED={seed}: rank {rank}: {other}"),
            }
        }
    }
    assert!(
        failed > 0 || std::env::var("DIPOLE_SEED").is_ok(),
        "no crash happened in time"
    );
}

#[test]
fn messages_of_sections_never_mix_whatever_the_network_does() {
    for seed in seeds(20) {
        let (_, _, ended) = run_sections(seed, 4, false);
        for (rank, result) in ended.iter().enumerate() {
            assert!(
                result.is_ok(),
                "DIPOLE_SEED={seed}: rank {rank}: {result:?}"
            );
        }
    }
}

#[test]
fn no_rank_waits_for_a_section_after_one_has_crashed() {
    for seed in seeds(20) {
        let (_, victim, ended) = run_sections(seed, 4, true);
        let victim = victim.expect("one crashes");
        for (rank, result) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert!(
                matches!(
                    result,
                    Ok(())
                        | Err(Failure::Gone { .. }
                            | Failure::Aborted { .. }
                            | Failure::Unreachable { .. })
                ),
                "DIPOLE_SEED={seed}: rank {rank}: {result:?}"
            );
        }
    }
}
