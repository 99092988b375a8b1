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
use std::time::Duration;

use bytes::Bytes;
use common::{Program, run_rank};
use dipole_bsp::carrier::Carrier;
use dipole_bsp::superstep::exchange::Places;
use dipole_bsp::superstep::schedule::Order;
use dipole_bsp::{Failure, Process};
use dipole_model::{Medium, Slots};
use dipole_node::RegionMemory;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory that ranks have opened, by key.
type Memories = Arc<Mutex<HashMap<u64, RegionMemory>>>;

/// What has not left.
enum Waiting {
    Message(u32, Vec<u8>),
    Placed(u64, u64, Bytes),
}

/// Messages between threads.
struct Channels {
    rank: u32,
    others: Vec<Sender<(u32, Vec<u8>)>>,
    inbox: Receiver<(u32, Vec<u8>)>,
    memories: Memories,
    /// Bytes are placed late, and what is sent then waits behind them.
    waiting: VecDeque<Waiting>,
    /// There is room now and then only.
    dice: ChaCha8Rng,
    has_room: bool,
}

impl Channels {
    fn advance(&mut self, probability: f64) -> Result<(), Failure> {
        while self.dice.random_bool(probability) {
            match self.waiting.pop_front() {
                None => break,
                Some(Waiting::Message(to, message)) => self.tell(to, message)?,
                Some(Waiting::Placed(key, offset, bytes)) => {
                    let memories = self.memories.lock().expect("whole");
                    let at = usize::try_from(offset).expect("inside");
                    let placed = memories[&key].write(at, &bytes);
                    placed.expect("the memory is open, and as long");
                }
            }
        }
        Ok(())
    }

    fn tell(&self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
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
        self.has_room = self.dice.random_bool(0.8);
        Ok(self.has_room)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        if self.waiting.is_empty() {
            return self.tell(to, message);
        }
        self.waiting.push_back(Waiting::Message(to, message));
        Ok(())
    }

    fn open(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        let mut memories = self.memories.lock().expect("whole");
        let key = memories.keys().max().map_or(1, |last| last + 1);
        memories.insert(key, memory.clone());
        Ok(Some(key))
    }

    fn close_memory(&mut self, key: u64) {
        // It keeps its place, so that no key names two.
        assert!(self.memories.lock().expect("whole").contains_key(&key));
    }

    fn place(&mut self, _to: u32, key: u64, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        self.waiting.push_back(Waiting::Placed(key, offset, bytes));
        Ok(())
    }

    fn is_placing(&self) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|it| matches!(it, Waiting::Placed(..)))
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        self.advance(0.8)?;
        let has_room = std::mem::replace(&mut self.has_room, true);
        let patience = match has_room && self.waiting.is_empty() {
            true => patience,
            false => Duration::from_micros(20),
        };
        match self.inbox.recv_timeout(patience) {
            Ok(found) => Ok(Some(found)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    fn has_left(&mut self) -> Result<bool, Failure> {
        self.advance(0.8)?;
        Ok(self.waiting.is_empty())
    }

    fn check(&mut self, _ranks: &[u32]) -> Result<(), Failure> {
        Ok(())
    }

    fn close(&mut self, _patience: Duration) {
        // Who is gone needs nothing.
        while !self.waiting.is_empty() && self.advance(1.0).is_ok() {}
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
            waiting: VecDeque::new(),
            dice: ChaCha8Rng::seed_from_u64(rank.into()),
            has_room: true,
        })
        .collect()
}

/// Lets other threads run first, now and then.
struct Dawdler(ChaCha8Rng);

impl Dawdler {
    fn new(seed: u64, rank: u32) -> Dawdler {
        Dawdler(ChaCha8Rng::seed_from_u64(seed << 8 | u64::from(rank)))
    }

    fn dawdle(&mut self) {
        match self.0.random_range(0..8) {
            0 => thread::sleep(Duration::from_micros(self.0.random_range(0..500))),
            1 | 2 => thread::yield_now(),
            _ => {}
        }
    }
}

/// Runs what each rank does, of ranks on these nodes; ends all tests if that does not end.
fn run_ranks(nodes: &[u32], rank: impl Fn(&mut Process<Channels>) -> Result<(), Failure> + Sync) {
    let places = Places::new(nodes);
    let size = u32::try_from(nodes.len()).expect("few");
    let (ended, end) = channel::<()>();
    let test = thread::current().name().unwrap_or_default().to_owned();
    thread::scope(|scope| {
        scope.spawn(move || {
            if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // Its threads cannot be ended by themselves, and what is printed would be kept.
                let _told = writeln!(stderr(), "test {test} hangs");
                abort();
            }
        });
        for (number, carrier) in (0..).zip(carriers(nodes.len())) {
            let (places, rank, ended) = (&places, &rank, ended.clone());
            scope.spawn(move || {
                let process = Process::join(carrier, number, size, None, places);
                let process = process.expect("all come").expect("it takes part");
                run_rank(process, rank).expect("it is right");
                drop(ended);
            });
        }
        drop(ended);
    });
}

/// Runs a program whose ranks are on these nodes, with pauses that follow from a seed.
fn run(program: &Program, nodes: &[u32], seed: u64) {
    run_with(program, nodes, seed, |_| {});
}

/// The same; `prepare` sets up each rank.
fn run_with(
    program: &Program,
    nodes: &[u32],
    seed: u64,
    prepare: impl Fn(&mut Process<Channels>) + Sync,
) {
    run_ranks(nodes, |process| {
        prepare(process);
        let mut dawdler = Dawdler::new(seed, process.rank());
        program.run(process, |_| dawdler.dawdle())
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
        eprintln!("DIPOLE_SEED={seed} repeats this");
        run(&Program::random(seed, nodes.len(), 25), nodes, seed);
    }
}

#[test]
fn one_rank_alone() {
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

/// An area, as an address that goes with its thread.
fn handle(area: &mut [u8]) -> *mut c_void {
    area.as_mut_ptr().cast()
}

/// Who has little to do leaves first, and may do at once whatever it likes with its own memory.
#[test]
fn memory_is_its_owner_s_again_once_the_superstep_has_ended() {
    const LONG: usize = 8 << 20;
    for nodes in [&[0, 0][..], &[0, 0, 1], &[0, 1]] {
        run_ranks(nodes, |process| {
            let rank = process.rank();
            let (mut area, mut source) = (vec![0_u8; LONG], vec![0_u8; LONG]);
            let handle = handle(&mut area);
            // SAFETY: both live until the program has ended, and change between supersteps only.
            unsafe { process.push_registration(handle, LONG as u64)? };
            process.sync()?;
            for round in 1..6 {
                source.fill(round);
                if rank == 0 {
                    for to in 1..process.size() {
                        // SAFETY: as above.
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
                    // SAFETY: as above.
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

/// More than a rank keeps: what it gives back to the system nobody may still have to read.
#[test]
fn much_that_was_put_is_there_until_it_was_read() {
    const LONG: usize = 80 << 20;
    run_ranks(&[0, 0], |process| {
        let rank = process.rank();
        let mut area = vec![0_u8; if rank == 1 { LONG } else { 1 }];
        let source = vec![7_u8; 1 << 20];
        let handle = handle(&mut area);
        // SAFETY: both live until the program has ended, and change between supersteps only.
        unsafe { process.push_registration(handle, area.len() as u64)? };
        process.sync()?;
        for _ in 0..3 {
            if rank == 0 {
                for offset in (0..LONG).step_by(source.len()) {
                    let length = source.len() as u64;
                    // SAFETY: as above.
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
fn ranks_that_are_too_many_do_not_take_part() {
    let places = Places::new(&[0, 0, 1, 1]);
    thread::scope(|scope| {
        for (rank, carrier) in (0..).zip(carriers(4)) {
            let places = &places;
            scope.spawn(move || {
                // What others than rank 0 say does not count.
                let most = if rank == 0 { Some(3) } else { Some(0) };
                let process = Process::join(carrier, rank, 4, most, places);
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
