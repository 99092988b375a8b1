//! Random programs whose ranks are threads: with shared memory, with messages, and with both.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::io::{Write, stderr};
use std::process::abort;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Program, run_rank};
use dipole_bsp::carrier::Carrier;
use dipole_bsp::superstep::message::{Head, Kind};
use dipole_bsp::superstep::node_map::NodeMap;
use dipole_bsp::superstep::schedule::Order;
use dipole_bsp::{Failure, Process};
use dipole_model::{Medium, Slots};
use dipole_node::RegionMemory;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A program that takes longer is considered to hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Minimum time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Memory that ranks have opened, by key.
type Memories = Arc<Mutex<HashMap<u64, RegionMemory>>>;

/// Data that have not left.
enum Queued {
    Message(u32, Vec<u8>),
    Write(u64, u64, Bytes),
}

/// Sends messages between threads.
struct Channels {
    rank: u32,
    others: Vec<Sender<(u32, Vec<u8>)>>,
    inbox: Receiver<(u32, Vec<u8>)>,
    memories: Memories,
    /// Remote writes are delayed, and later messages wait behind them.
    queue: VecDeque<Queued>,
    /// Decides when there is room.
    rng: ChaCha8Rng,
    has_room: bool,
    probed_at: Instant,
}

impl Channels {
    fn advance(&mut self, probability: f64) -> Result<(), Failure> {
        while self.rng.random_bool(probability) {
            match self.queue.pop_front() {
                None => break,
                Some(Queued::Message(to, message)) => self.deliver(to, message)?,
                Some(Queued::Write(key, offset, bytes)) => {
                    let memories = self.memories.lock().expect("not poisoned");
                    let at = usize::try_from(offset).expect("inside");
                    let written = memories[&key].write(at, &bytes);
                    written.expect("the memory is open and long enough");
                }
            }
        }
        Ok(())
    }

    fn deliver(&self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let sent = self.others[to as usize].send((self.rank, message));
        sent.map_err(|_| Failure::Gone {
            rank: to,
            cause: "its thread has ended".to_owned(),
        })
    }
}

impl Carrier for Channels {
    type Message = Vec<u8>;

    fn has_room(&mut self) -> Result<bool, Failure> {
        self.advance(0.5)?;
        self.has_room = self.rng.random_bool(0.8);
        Ok(self.has_room)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        if self.queue.is_empty() {
            return self.deliver(to, message);
        }
        self.queue.push_back(Queued::Message(to, message));
        Ok(())
    }

    fn open_memory(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        let mut memories = self.memories.lock().expect("not poisoned");
        let key = memories.keys().max().map_or(1, |last| last + 1);
        memories.insert(key, memory.clone());
        Ok(Some(key))
    }

    fn close_memory(&mut self, key: u64) {
        // It stays in the map, so that its key is not used again.
        let memories = self.memories.lock().expect("not poisoned");
        assert!(memories.contains_key(&key));
    }

    fn write_remote(
        &mut self,
        _to: u32,
        key: u64,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), Failure> {
        self.queue.push_back(Queued::Write(key, offset, bytes));
        Ok(())
    }

    fn has_pending_writes(&self) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|it| matches!(it, Queued::Write(..)))
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        self.advance(0.8)?;
        let has_room = std::mem::replace(&mut self.has_room, true);
        let timeout = match has_room && self.queue.is_empty() {
            true => timeout,
            false => Duration::from_micros(20),
        };
        match self.inbox.recv_timeout(timeout) {
            Ok(found) => Ok(Some(found)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        self.advance(0.8)?;
        Ok(self.queue.is_empty())
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        // Detects ranks that have ended, as the carrier over endpoints does.
        if self.probed_at.elapsed() >= PROBE_INTERVAL {
            self.probed_at = Instant::now();
            for to in ranks {
                let probe = Head::new(Kind::Probe, 0).encode().to_vec();
                // A rank that has just ended may have sent everything.
                let _sent = self.deliver(*to, probe);
            }
        }
        Ok(())
    }

    fn close(&mut self, _timeout: Duration) {
        // A rank that has ended needs no more messages.
        while !self.queue.is_empty() && self.advance(1.0).is_ok() {}
    }
}

fn carriers(size: usize) -> Vec<Channels> {
    let memories = Memories::default();
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..size).map(|_| channel()).unzip();
    let with_rank = (0..).zip(inboxes);
    with_rank
        .map(|(rank, inbox)| Channels {
            rank,
            others: senders.clone(),
            inbox,
            memories: Arc::clone(&memories),
            queue: VecDeque::new(),
            rng: ChaCha8Rng::seed_from_u64(rank.into()),
            has_room: true,
            probed_at: Instant::now(),
        })
        .collect()
}

/// Lets other threads run first at random times.
struct Delay(ChaCha8Rng);

impl Delay {
    fn new(seed: u64, rank: u32) -> Delay {
        Delay(ChaCha8Rng::seed_from_u64(seed << 8 | u64::from(rank)))
    }

    fn wait(&mut self) {
        match self.0.random_range(0..8) {
            0 => thread::sleep(Duration::from_micros(self.0.random_range(0..500))),
            1 | 2 => thread::yield_now(),
            _ => {}
        }
    }
}

/// Runs a function on each rank, with ranks on these nodes. Aborts the tests if it does not end.
fn run_ranks(nodes: &[u32], rank: impl Fn(&mut Process<Channels>) -> Result<(), Failure> + Sync) {
    let node_map = NodeMap::new(nodes);
    let size = u32::try_from(nodes.len()).expect("few");
    let (ended, end) = channel::<()>();
    let test = thread::current().name().unwrap_or_default().to_owned();
    thread::scope(|scope| {
        scope.spawn(move || {
            if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // The threads cannot be stopped, and captured output would be lost.
                let _written = writeln!(stderr(), "test {test} hangs");
                abort();
            }
        });
        for (number, carrier) in (0..).zip(carriers(nodes.len())) {
            let (node_map, rank, ended) = (&node_map, &rank, ended.clone());
            scope.spawn(move || {
                let process = Process::join(carrier, number, size, None, node_map);
                let process = process.expect("all come").expect("it takes part");
                run_rank(process, rank).expect("the program is correct");
                drop(ended);
            });
        }
        drop(ended);
    });
}

/// Runs a program with ranks on these nodes, with delays that are derived from a seed.
fn run(program: &Program, nodes: &[u32], seed: u64) {
    run_with(program, nodes, seed, |_| {});
}

/// Like [`run`]; `prepare` sets up each rank.
fn run_with(
    program: &Program,
    nodes: &[u32],
    seed: u64,
    prepare: impl Fn(&mut Process<Channels>) + Sync,
) {
    run_ranks(nodes, |process| {
        prepare(process);
        let mut delay = Delay::new(seed, process.rank());
        program.run(process, |_| delay.wait())
    });
}

fn seeds() -> std::ops::Range<u64> {
    let given = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let from = given("DIPOLE_SEED")
        .or(given("DIPOLE_SEED_FROM"))
        .unwrap_or(1);
    let count = match given("DIPOLE_SEED") {
        Some(_) => 1,
        None => given("DIPOLE_SEEDS").unwrap_or(6),
    };
    from..from + count
}

fn run_seeds(nodes: &[u32]) {
    for seed in seeds() {
        eprintln!("repeat this with DIPOLE_SEED={seed}");
        run(&Program::random(seed, nodes.len(), 25), nodes, seed);
    }
}

#[test]
fn a_single_rank() {
    run_seeds(&[0]);
}

#[test]
fn ranks_that_share_memory() {
    run_seeds(&[0, 0]);
    run_seeds(&[0, 0, 0, 0, 0]);
}

#[test]
fn ranks_that_send_messages() {
    run_seeds(&[0, 1]);
    run_seeds(&[0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn several_ranks_on_several_nodes() {
    run_seeds(&[0, 0, 1, 1]);
    run_seeds(&[0, 1, 0, 1, 2, 2, 2]);
}

#[test]
fn ranks_that_send_in_slots_and_in_any_order() {
    for (seed, medium) in [(1, Medium::Bus), (2, Medium::Switch)] {
        let slots = Slots {
            bytes: 64 << 10,
            epsilon_ns: 50_000,
            medium,
        };
        run_with(
            &Program::random(seed, 4, 10),
            &[0, 0, 1, 2],
            seed,
            |process| {
                process.set_slots(Some(slots));
                process.set_order(Order::Random { seed });
            },
        );
    }
}

/// The address of an area.
fn handle(area: &mut [u8]) -> *mut c_void {
    area.as_mut_ptr().cast()
}

/// A rank with little to do leaves first, and may then change its own memory.
#[test]
fn memory_belongs_to_its_owner_again_once_the_superstep_has_ended() {
    const LONG: usize = 8 << 20;
    for nodes in [&[0, 0][..], &[0, 0, 1], &[0, 1]] {
        run_ranks(nodes, |process| {
            let rank = process.rank();
            let (mut area, mut source) = (vec![0_u8; LONG], vec![0_u8; LONG]);
            let handle = handle(&mut area);
            // SAFETY: both live until the program has ended, and change only between supersteps.
            unsafe { process.push_registration(handle, LONG as u64)? };
            process.sync()?;
            for round in 1..6 {
                source.fill(round);
                if rank == 0 {
                    for to in 1..process.size() {
                        // SAFETY: `source` lives until the program has ended and changes only after
                        // the next `sync`.
                        unsafe {
                            process.put_unbuffered(to, source.as_ptr(), handle, 0, LONG as u64)?;
                        }
                    }
                }
                process.sync()?;
                source.fill(0xEE);
                assert!(rank == 0 || area.iter().all(|byte| *byte == round));
                area.fill(round + 100);
                process.sync()?;
                if rank == 1 {
                    let into = source.as_mut_ptr();
                    // SAFETY: `source` lives until the program has ended and is read only after
                    // the next `sync`.
                    unsafe { process.get_unbuffered(0, handle, 0, into, LONG as u64)? };
                }
                process.sync()?;
                area.fill(0xEE);
                assert!(rank != 1 || source.iter().all(|byte| *byte == round + 100));
            }
            Ok(())
        });
    }
}

/// Puts more than an arena keeps: memory may go back to the system only once it has been read.
#[test]
fn large_puts_stay_readable_until_they_have_been_read() {
    const LONG: usize = 80 << 20;
    run_ranks(&[0, 0], |process| {
        let rank = process.rank();
        let mut area = vec![0_u8; if rank == 1 { LONG } else { 1 }];
        let source = vec![7_u8; 1 << 20];
        let handle = handle(&mut area);
        // SAFETY: both live until the program has ended, and change only between supersteps.
        unsafe { process.push_registration(handle, area.len() as u64)? };
        process.sync()?;
        for _ in 0..3 {
            if rank == 0 {
                for offset in (0..LONG).step_by(source.len()) {
                    let length = source.len() as u64;
                    // SAFETY: `source` has `length` bytes, and `put` copies them.
                    unsafe { process.put(1, source.as_ptr(), handle, offset as u64, length)? };
                }
            }
            process.sync()?;
            assert!(rank == 0 || area.iter().all(|byte| *byte == 7));
            area.fill(0);
        }
        Ok(())
    });
}

#[test]
fn surplus_ranks_do_not_take_part() {
    begin_with_surplus(Duration::ZERO);
}

/// The surplus ranks probe rank 0 meanwhile, which does not confirm that they leave.
#[test]
fn surplus_ranks_do_not_take_part_when_rank_0_is_late() {
    begin_with_surplus(Duration::from_millis(1200));
}

/// Begins with three of four ranks, when rank 0 starts after the others.
fn begin_with_surplus(delay: Duration) {
    let node_map = NodeMap::new(&[0, 0, 1, 1]);
    thread::scope(|scope| {
        for (rank, carrier) in (0..).zip(carriers(4)) {
            let node_map = &node_map;
            scope.spawn(move || {
                if rank == 0 {
                    thread::sleep(delay);
                }
                // Only the value on rank 0 counts.
                let most = if rank == 0 { Some(3) } else { Some(0) };
                let process = Process::join(carrier, rank, 4, most, node_map);
                let process = process.expect("all come");
                assert_eq!(process.is_some(), rank < 3);
                if let Some(mut process) = process {
                    assert_eq!((process.rank(), process.size()), (rank, 3));
                    process.sync().expect("all of the three");
                    process.end().expect("all of the three");
                }
            });
        }
    });
}
