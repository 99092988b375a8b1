//! Random programs whose ranks are threads: with shared memory, with messages, and with both.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use common::Program;
use dipole_bsp::carrier::Carrier;
use dipole_bsp::superstep::exchange::Places;
use dipole_bsp::superstep::pace::{Medium, Slots};
use dipole_bsp::superstep::schedule::Order;
use dipole_bsp::{Failure, Process};

/// Messages between threads.
struct Channels {
    rank: u32,
    others: Vec<Sender<(u32, Vec<u8>)>>,
    inbox: Receiver<(u32, Vec<u8>)>,
}

impl Carrier for Channels {
    type Message = Vec<u8>;

    fn has_room(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let sent = self.others[to as usize].send((self.rank, message));
        sent.map_err(|_| Failure::Gone {
            rank: to,
            cause: "its thread has ended".to_owned(),
        })
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        match self.inbox.recv_timeout(patience) {
            Ok(found) => Ok(Some(found)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    fn check(&mut self, _ranks: &[u32]) -> Result<(), Failure> {
        Ok(())
    }

    fn close(&mut self, _patience: Duration) {}
}

fn carriers(size: usize) -> Vec<Channels> {
    let (senders, inboxes): (Vec<_>, Vec<_>) = (0..size).map(|_| channel()).unzip();
    let with_rank = (0..).zip(inboxes);
    with_rank
        .map(|(rank, inbox)| Channels {
            rank,
            others: senders.clone(),
            inbox,
        })
        .collect()
}

/// Runs a program whose ranks are on these nodes.
fn run(program: &Program, nodes: &[u32]) {
    run_with(program, nodes, |_| {});
}

/// The same; `prepare` sets up each rank.
fn run_with(program: &Program, nodes: &[u32], prepare: impl Fn(&mut Process<Channels>) + Sync) {
    let places = Places::new(nodes);
    let size = u32::try_from(nodes.len()).expect("few");
    thread::scope(|scope| {
        for (rank, carrier) in (0..).zip(carriers(nodes.len())) {
            let (places, prepare) = (&places, &prepare);
            scope.spawn(move || {
                let process = Process::join(carrier, rank, size, None, places);
                let mut process = process.expect("all come").expect("it takes part");
                prepare(&mut process);
                program.run(process, |_| {}).expect("it is right");
            });
        }
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
        run(&Program::random(seed, nodes.len(), 25), nodes);
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
        run_with(&Program::random(seed, 4, 10), &[0, 0, 1, 2], |process| {
            process.set_slots(Some(slots));
            process.set_order(Order::Random { seed });
        });
    }
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
