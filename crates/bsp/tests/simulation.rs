//! Random programs over the real protocol on a simulated network, in virtual time: packets are
//! lost, doubled and late, ranks are slow, and one may crash.
//!
//! Each rank's program runs on a thread of its own, one at a time: a rank that waits hands over to the
//! simulation, which goes on until something has come for it. So a seed is repeated exactly:
//! `DIPOLE_SEED=7 cargo test -p dipole-bsp --test simulation`.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use common::{Program, run_rank};
use dipole_bsp::carrier::Carrier;
use dipole_bsp::superstep::exchange::Places;
use dipole_bsp::{Failure, Process};
use dipole_engine::AnyLink;
use dipole_engine::{Begun, Blocked, Destination, Engine, LongSend};
use dipole_link::sim::{Network, NetworkConfig, PathConfig};
use dipole_node::{Operation, RegionKey, RegionMemory, Rights};
use dipole_proto::{Config, EdgeId, Instant, PeerId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ENDPOINT: u32 = 1;
const MICROSECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
/// Virtual time within which a program ends, or has failed.
const LONGEST_NS: u64 = 600 * SECOND;
/// Messages that a rank may have on their way.
const ROOM: usize = 16;

/// What a rank and the simulation share.
#[derive(Debug, Default)]
struct Desk {
    out: VecDeque<(u32, Out)>,
    /// Of bytes to be placed: dead once they are no longer needed.
    placing: Vec<Weak<()>>,
    /// The key of the memory opened last.
    opened: u64,
    came: VecDeque<(u32, Vec<u8>)>,
    gone: Vec<u32>,
    /// Whether they live is to be found out.
    watched: Vec<u32>,
    has_crashed: bool,
}

/// What a rank sends.
#[derive(Debug)]
enum Out {
    Message(Vec<u8>),
    Placed(RegionKey, u64, Bytes),
}

/// Bytes, and that they are needed.
struct Needed(
    Bytes,
    #[expect(dead_code, reason = "dropped with the bytes")] Arc<()>,
);

impl AsRef<[u8]> for Needed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Desk {
    fn is_placing(&self) -> bool {
        self.placing.iter().any(|bytes| bytes.strong_count() > 0)
    }
}

/// Why a rank's thread has handed over.
enum Pause {
    Open(RegionMemory),
    Close(u64),
    /// Until no bytes to be placed are needed any more.
    TakeBack,
    /// Until a message has come, room is left if it had none, or this much time is over.
    Receive(Duration, bool),
    Compute(u64),
    /// Until everything has arrived.
    Drain(Duration),
    /// It ends.
    Ended(Result<(), Failure>),
    /// It has panicked.
    Panicked,
}

struct Simulated {
    rank: u32,
    desk: Arc<Mutex<Desk>>,
    pauses: Sender<(u32, Pause)>,
    turns: Arc<Mutex<Receiver<()>>>,
}

impl Simulated {
    /// Hands over until the simulation gives the turn back.
    fn pause(&self, why: Pause) {
        let told = self.pauses.send((self.rank, why));
        told.expect("the simulation outlives its ranks");
        let turns = self.turns.lock().expect("one at a time");
        turns.recv().expect("the simulation outlives its ranks");
    }

    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.desk.lock().expect("one at a time")
    }
}

impl Carrier for Simulated {
    type Message = Vec<u8>;

    fn has_room(&mut self) -> Result<bool, Failure> {
        Ok(self.desk().out.len() < ROOM)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        self.desk().out.push_back((to, Out::Message(message)));
        Ok(())
    }

    fn open(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        self.pause(Pause::Open(memory.clone()));
        Ok(Some(self.desk().opened))
    }

    fn close_memory(&mut self, key: u64) {
        self.pause(Pause::Close(key));
    }

    fn place(&mut self, to: u32, key: u64, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let needed = Arc::new(());
        let mut desk = self.desk();
        desk.placing.retain(|it| it.strong_count() > 0);
        desk.placing.push(Arc::downgrade(&needed));
        let bytes = Bytes::from_owner(Needed(bytes, needed));
        let out = Out::Placed(RegionKey(key), offset, bytes);
        desk.out.push_back((to, out));
        Ok(())
    }

    fn is_placing(&self) -> bool {
        self.desk().is_placing()
    }

    fn take_back(&mut self) {
        (self.desk().out).retain(|(_, out)| matches!(out, Out::Message(_)));
        self.pause(Pause::TakeBack);
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        let is_full = self.desk().out.len() >= ROOM;
        if self.desk().came.is_empty() {
            self.pause(Pause::Receive(patience, is_full));
        }
        let mut desk = self.desk();
        if desk.has_crashed {
            let rank = self.rank;
            let cause = "it has crashed".to_owned();
            return Err(Failure::Gone { rank, cause });
        }
        Ok(desk.came.pop_front())
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        let mut desk = self.desk();
        desk.watched.extend(ranks);
        match ranks.iter().find(|rank| desk.gone.contains(rank)) {
            None => Ok(()),
            Some(&rank) => Err(Failure::Gone {
                rank,
                cause: "its session has ended".to_owned(),
            }),
        }
    }

    fn close(&mut self, patience: Duration) {
        if !self.desk().has_crashed {
            self.pause(Pause::Drain(patience));
        }
    }
}

/// A rank as the simulation sees it.
struct Rank {
    engine: Engine,
    desk: Arc<Mutex<Desk>>,
    turns: Sender<()>,
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
            peer.expect("a place for it")
        })
    }

    /// Sends what the rank has for others, in order.
    fn send(&mut self, index: usize) {
        loop {
            let desk = Arc::clone(&self.ranks[index].desk);
            let mut desk = desk.lock().expect("one at a time");
            let Some((to, next)) = desk.out.front() else {
                return;
            };
            let to = *to as usize;
            let peer = self.peer(index, to);
            let now = Instant(self.now_ns);
            let rank = &mut self.ranks[index];
            let done = match rank.engine.is_open(peer) {
                Err(_) => true,
                Ok(false) => return,
                Ok(true) => {
                    let edge = *rank.edges[to].get_or_insert_with(|| {
                        let edge = rank.engine.edge(peer, ENDPOINT, ENDPOINT);
                        edge.expect("an edge to an open peer")
                    });
                    match next {
                        Out::Message(message) => rank.send_one(now, edge, message),
                        Out::Placed(key, offset, bytes) => {
                            rank.place_one(now, edge, (*key, *offset), bytes)
                        }
                    }
                }
            };
            if !done {
                return;
            }
            desk.out.pop_front();
        }
    }

    fn turn(&mut self, index: usize) {
        if self.ranks[index].has_crashed {
            return;
        }
        let waiting = [7000, 7001].map(|port| self.network.waiting(address(index, port)));
        let now = Instant(self.now_ns);
        let rank = &mut self.ranks[index];
        let is_due = waiting != [0, 0] || rank.deadline_ns <= self.now_ns;
        if is_due {
            rank.engine.disarm();
            rank.engine.step(now, true).expect("a whole network");
            rank.engine.watch_peers(now, true);
            let mut desk = rank.desk.lock().expect("one at a time");
            while let Some(message) = rank.engine.take(now, ENDPOINT) {
                let from = message.source().node.0 - 1;
                desk.came.push_back((from, message.to_vec()));
            }
            for departure in rank.engine.take_departures() {
                // Some never said which node they are.
                let peer = Some(departure.peer);
                let known = rank.peers.iter().position(|known| *known == peer);
                let index = known.map(|index| u32::try_from(index).expect("few"));
                desk.gone.extend(index.or(departure.node.checked_sub(1)));
            }
        }
        let desk = Arc::clone(&self.ranks[index].desk);
        for other in desk.lock().expect("one at a time").watched.drain(..) {
            self.peer(index, other as usize);
        }
        self.send(index);
        let rank = &mut self.ranks[index];
        rank.engine.transmit(now).expect("a whole network");
        let deadline = rank.engine.next_deadline(now);
        rank.deadline_ns = deadline.map_or(u64::MAX, |deadline| deadline.0);
        if !rank.engine.arm() {
            rank.deadline_ns = rank.deadline_ns.min(self.now_ns + MICROSECOND);
        }
    }

    /// True if what a rank waits for has happened.
    fn may_go_on(&mut self, index: usize) -> bool {
        let now_ns = self.now_ns;
        let rank = &mut self.ranks[index];
        let Some((pause, since_ns)) = &rank.pause else {
            return false;
        };
        let desk = rank.desk.lock().expect("one at a time");
        let over = |patience: &Duration| {
            let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
            now_ns >= since_ns.saturating_add(patience)
        };
        if rank.has_crashed {
            return true;
        }
        match pause {
            Pause::TakeBack => !desk.is_placing(),
            Pause::Receive(patience, is_full) => {
                let has_placed = !desk.placing.is_empty() && !desk.is_placing();
                has_placed
                    || !desk.came.is_empty()
                    || (*is_full && desk.out.len() < ROOM)
                    || over(patience)
            }
            Pause::Compute(ns) => now_ns >= since_ns + ns,
            Pause::Drain(patience) => {
                (desk.out.is_empty() && rank.engine.is_acknowledged()) || over(patience)
            }
            Pause::Ended(_) | Pause::Panicked | Pause::Open(_) | Pause::Close(_) => false,
        }
    }

    /// Lets a rank run until it waits again.
    fn resume(&mut self, index: usize) {
        self.ranks[index].pause = None;
        let turns = &self.ranks[index].turns;
        turns.send(()).expect("its thread waits");
        self.await_pause();
    }

    fn await_pause(&mut self) {
        let (index, pause) = self.pauses.recv().expect("ranks say why they stop");
        let rank = &mut self.ranks[index as usize];
        match pause {
            Pause::Open(memory) => {
                let rights = Rights {
                    put: true,
                    ..Rights::NONE
                };
                let key = rank.engine.open_region(ENDPOINT, memory, rights);
                rank.desk.lock().expect("one at a time").opened = key;
                return self.resume(index as usize);
            }
            Pause::Close(key) => {
                rank.engine.close_region(key);
                return self.resume(index as usize);
            }
            Pause::Ended(how) => {
                rank.ended = Some(how);
                if !rank.has_crashed {
                    rank.engine.say_goodbye();
                }
            }
            Pause::Panicked => panic!("a rank has found a violation"),
            pause => rank.pause = Some((pause, self.now_ns)),
        }
        rank.deadline_ns = self.now_ns;
    }

    /// When something happens next.
    fn next_ns(&self) -> u64 {
        let own = self.ranks.iter().filter(|rank| !rank.has_crashed);
        let pauses = own.clone().filter_map(|rank| match &rank.pause {
            Some((Pause::Receive(patience, _) | Pause::Drain(patience), since)) => {
                Some(since + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX))
            }
            Some((Pause::Compute(ns), since)) => Some(since + ns),
            Some((Pause::TakeBack, _)) => {
                let desk = rank.desk.lock().expect("one at a time");
                (!desk.is_placing()).then_some(self.now_ns)
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
                rank.desk.lock().expect("one at a time").has_crashed = true;
            }
            for index in 0..self.ranks.len() {
                self.turn(index);
                if self.may_go_on(index) {
                    self.resume(index);
                    self.turn(index);
                }
            }
        }
    }
}

impl Rank {
    /// True once bytes to be placed are with the engine, or their rank is gone.
    fn place_one(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (key, offset): (RegionKey, u64),
        bytes: &Bytes,
    ) -> bool {
        let put = Operation::PutUnanswered { key, offset };
        match self.engine.begin_operation(now, edge, &put, bytes) {
            Ok(Begun::Sent | Begun::GoesOn) => true,
            Ok(Begun::Asked(_)) => panic!("no answer was asked for"),
            Err(Blocked::NoCredit | Blocked::NoFrame | Blocked::Opening) => false,
            Err(_) => true,
        }
    }

    /// True once a message is with the engine, or its receiver is gone.
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
            // Who waits for it finds out.
            Err(_) => {
                self.long = None;
                true
            }
        }
    }
}

/// Runs a program on a cluster that follows from the seed; what became of each rank.
fn run(seed: u64, has_crash: bool) -> (usize, Option<usize>, Vec<Result<(), Failure>>) {
    let mut dice = ChaCha8Rng::seed_from_u64(!seed);
    let size = dice.random_range(2..8_usize);
    let program = Program::random(seed, size, 12);
    let path = PathConfig {
        latency_ns: dice.random_range(1..50) * MICROSECOND,
        jitter_ns: dice.random_range(0..20) * MICROSECOND,
        loss: if dice.random_bool(0.7) {
            dice.random_range(0.0..0.05)
        } else {
            0.0
        },
        duplicate: dice.random_range(0.0..0.02),
        reorder: dice.random_range(0.0..0.05),
        reorder_ns: 100 * MICROSECOND,
        ..PathConfig::default()
    };
    let config = NetworkConfig {
        bytes_per_second: [0, 125_000_000, 1_250_000_000][dice.random_range(0..3)],
        switch_queue_bytes: [32 << 10, 1 << 20][dice.random_range(0..2)],
        path,
        ..NetworkConfig::default()
    };
    let network = Network::new(seed, config);
    let (told, pauses) = channel();
    let mut world = World {
        now_ns: 1,
        ranks: Vec::new(),
        pauses,
        crash: None,
        network,
    };
    let mut threads = Vec::new();
    for index in 0..size {
        let port = world
            .network
            .attach(address(index, 7000), address(index, 7001));
        let port = port.expect("addresses of its own");
        let number = index as u64 + 1;
        let config = Config {
            node: u32::try_from(number).expect("small"),
            peer_timeout_ns: 2 * SECOND,
            quiet_ns: SECOND / 2,
            ..Config::default()
        };
        let mut engine = Engine::new(AnyLink::from(port), config, number, [number, !number], None);
        engine.open_endpoint(ENDPOINT);
        let desk = Arc::new(Mutex::new(Desk::default()));
        let (turns, own_turns) = channel();
        world.ranks.push(Rank {
            engine,
            desk: Arc::clone(&desk),
            turns,
            peers: vec![None; size],
            edges: vec![None; size],
            long: None,
            deadline_ns: 0,
            pause: Some((Pause::Compute(0), 0)),
            ended: None,
            has_crashed: false,
        });
        let rank = u32::try_from(index).expect("few");
        let skew: Vec<u64> = (0..13)
            .map(|_| match dice.random_range(0..5) {
                0 => dice.random_range(0..5_000) * MICROSECOND,
                _ => dice.random_range(0..20) * MICROSECOND,
            })
            .collect();
        threads.push((rank, desk, own_turns, skew));
    }
    if has_crash {
        let victim = dice.random_range(0..size);
        world.crash = Some((victim, dice.random_range(0..20_000) * MICROSECOND));
    }
    let victim = world.crash.map(|(victim, _)| victim);
    let places = Places::new(&(0..size).collect::<Vec<_>>());
    let ranks = thread::scope(|scope| {
        // Dropped if it panics: then the ranks' threads end, too.
        let mut world = world;
        for (rank, desk, turns, skew) in threads {
            let (told, places, program) = (told.clone(), &places, &program);
            scope.spawn(move || {
                let turns = Arc::new(Mutex::new(turns));
                let own = || Simulated {
                    rank,
                    desk: Arc::clone(&desk),
                    pauses: told.clone(),
                    turns: Arc::clone(&turns),
                };
                let first = turns.lock().expect("nobody else yet").recv();
                first.expect("the simulation begins");
                let clock = own();
                let size = u32::try_from(places.nodes()).expect("few");
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    let joined = Process::join(own(), rank, size, None, places)?;
                    run_rank(joined.expect("all take part"), |process| {
                        let compute = |superstep: usize| {
                            clock.pause(Pause::Compute(skew[superstep]));
                        };
                        program.run(process, compute)
                    })
                }));
                let pause = ended.map_or(Pause::Panicked, Pause::Ended);
                // The simulation may have ended by a violation.
                let _told = told.send((rank, pause));
            });
        }
        world.run(seed);
        world.ranks
    });
    let ended = ranks.into_iter().map(|rank| rank.ended);
    (
        size,
        victim,
        ended.map(|how| how.expect("it has ended")).collect(),
    )
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let given = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let one = given("DIPOLE_SEED");
    let from = one.or(given("DIPOLE_SEED_FROM")).unwrap_or(1);
    let count = match one {
        Some(_) => 1,
        None => given("DIPOLE_SEEDS").unwrap_or(usual),
    };
    from..from + count
}

#[test]
fn memory_is_as_in_a_sequential_model_whatever_the_network_does() {
    for seed in seeds(40) {
        let (_, _, ended) = run(seed, false);
        for (rank, how) in ended.iter().enumerate() {
            assert!(how.is_ok(), "DIPOLE_SEED={seed}: rank {rank}: {how:?}");
        }
    }
}

#[test]
fn when_a_rank_crashes_all_others_are_told_and_none_goes_on_with_wrong_memory() {
    let mut told = 0;
    for seed in seeds(40) {
        let (_, victim, ended) = run(seed, true);
        let victim = victim.expect("one crashes");
        // It may have crashed when it had ended already; then all have.
        if ended[victim].is_ok() {
            continue;
        }
        for (rank, how) in ended.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            match how {
                // It was through with the last superstep.
                Ok(()) => {}
                Err(
                    Failure::Gone { .. } | Failure::Aborted { .. } | Failure::Unreachable { .. },
                ) => {
                    told += 1;
                }
                Err(other) => panic!("DIPOLE_SEED={seed}: rank {rank}: {other}"),
            }
        }
    }
    assert!(
        told > 0 || std::env::var("DIPOLE_SEED").is_ok(),
        "no crash came in time"
    );
}
