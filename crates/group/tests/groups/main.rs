//! Groups through the public API, in this process and with a process that is killed.

#![allow(missing_docs, reason = "tests")]

mod disagreement;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dipole_group::{Combine, Group, GroupError, Members};
use dipole_node::{Address, Config, Links, Node, NodeId, OpenError};
use proptest::prelude::*;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];
const SIZES: [usize; 6] = [1, 2, 3, 5, 8, 16];
const FIRST_PORT: u32 = 100;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(directory: &Path, links: Links) -> Node {
    let config = Config::local(NodeId(1), directory.join("dipole"));
    Node::open(Config { links, ..config }).expect("a node on loopback")
}

fn members(size: usize) -> Members {
    let size = u32::try_from(size).expect("few");
    Members::first((0..size).map(port).collect::<Vec<_>>())
}

fn port(rank: u32) -> Address {
    Address::new(1, FIRST_PORT + rank)
}

fn join(node: &Node, size: usize, rank: usize) -> Group {
    (Group::join(node, members(size), rank, PATIENCE))
        .unwrap_or_else(|error| panic!("{rank}: {error}"))
}

/// Runs each rank on its own thread with its own node.
fn each<R: Send>(links: Links, size: usize, body: impl Fn(&Node, usize) -> R + Sync) -> Vec<R> {
    let directory = directory();
    std::thread::scope(|scope| {
        let body = &body;
        let path = directory.path();
        let threads: Vec<_> = (0..size)
            .map(|rank| scope.spawn(move || body(&open(path, links), rank)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.expect("no panic")).collect()
    })
}

fn each_in_group<R: Send>(
    links: Links,
    size: usize,
    body: impl Fn(&mut Group) -> R + Sync,
) -> Vec<R> {
    each(links, size, |node, rank| {
        let mut group = join(node, size, rank);
        assert_eq!((group.rank(), group.size()), (rank, size));
        body(&mut group)
    })
}

/// Bytes that identify their sender and round.
fn pattern(length: usize, rank: usize, round: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (rank * 17) ^ (round * 101)).to_le_bytes()[0];
    (0..length).map(byte).collect()
}

/// A 2 x 2 matrix of words, whose product is associative but not commutative.
type Matrix = [u64; 4];

fn matrix(rank: usize, round: usize) -> Matrix {
    let (rank, round) = (rank as u64, round as u64);
    [rank + 2, round + 1, 1, rank * 3 + round]
}

fn product(left: Matrix, right: Matrix) -> Matrix {
    let cell = |row: usize, column: usize| {
        let first = left[2 * row].wrapping_mul(right[column]);
        first.wrapping_add(left[2 * row + 1].wrapping_mul(right[2 + column]))
    };
    [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)]
}

fn to_bytes(matrix: Matrix) -> Vec<u8> {
    matrix.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Matrix {
    let word = |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("a word"));
    [word(0), word(1), word(2), word(3)]
}

fn multiply(left: &mut [u8], right: &[u8]) {
    left.copy_from_slice(&to_bytes(product(from_bytes(left), from_bytes(right))));
}

fn all_product(size: usize, round: usize) -> Matrix {
    let matrices = (0..size).map(|rank| matrix(rank, round));
    matrices.reduce(product).expect("at least one")
}

#[test]
fn no_member_leaves_a_barrier_before_all_have_entered_it() {
    for links in BOTH {
        for size in SIZES {
            let entered = AtomicUsize::new(0);
            each_in_group(links, size, |group| {
                for round in 1..=100 {
                    entered.fetch_add(1, Ordering::SeqCst);
                    group.barrier(PATIENCE).expect("all come");
                    let entered = entered.load(Ordering::SeqCst);
                    assert!(entered >= round * size, "{entered} of {size} in {round}");
                }
            });
        }
    }
}

#[test]
fn a_broadcast_from_any_root_and_of_any_length_reaches_all() {
    for links in BOTH {
        for size in SIZES {
            each_in_group(links, size, |group| {
                for (round, length) in [0, 1, 1000, 65_536, 300_000].into_iter().enumerate() {
                    for root in 0..size {
                        let expected = pattern(length, root, round);
                        let mut data = match group.rank() == root {
                            true => expected.clone(),
                            false => b"something else".to_vec(),
                        };
                        group
                            .broadcast(root, &mut data, PATIENCE)
                            .expect("it comes");
                        assert!(data == expected, "{length} bytes from {root} of {size}");
                        data.fill(0);
                        if group.rank() == root {
                            data.copy_from_slice(&expected);
                        }
                        (group.broadcast_slice(root, &mut data, PATIENCE)).expect("it comes");
                        assert!(data == expected, "{length} bytes from {root} of {size}");
                    }
                }
            });
        }
    }
}

#[test]
fn reductions_combine_in_rank_order_and_give_identical_bits() {
    for links in BOTH {
        for size in SIZES {
            let sums = each_in_group(links, size, |group| {
                for root in 0..size {
                    let own = to_bytes(matrix(group.rank(), root));
                    let expected = to_bytes(all_product(size, root));
                    let mut data = own.clone();
                    (group.reduce(root, &mut data, multiply, PATIENCE)).expect("all come");
                    match group.rank() == root {
                        true => assert_eq!(data, expected),
                        false => assert_eq!(data, own),
                    }
                    let mut data = own.clone();
                    (group.allreduce(&mut data, multiply, PATIENCE)).expect("all come");
                    assert_eq!(data, expected);
                }
                // The sum of these depends on the order.
                let own = [0.1 * (group.rank() + 1) as f64, 1e16, -1e16];
                let mut everywhere = own;
                let mut at_last = own;
                (group.allreduce_numbers(&mut everywhere, Combine::Sum, PATIENCE))
                    .expect("all come");
                (group.reduce_numbers(size - 1, &mut at_last, Combine::Sum, PATIENCE))
                    .expect("all come");
                if group.rank() == size - 1 {
                    assert_eq!(everywhere.map(f64::to_bits), at_last.map(f64::to_bits));
                }
                let mut extremes = [group.rank() as i64 - 3];
                (group.allreduce_numbers(&mut extremes, Combine::Min, PATIENCE)).expect("all come");
                assert_eq!(extremes, [-3]);
                let mut greatest = [group.rank() as u64];
                (group.allreduce_numbers(&mut greatest, Combine::Max, PATIENCE)).expect("all come");
                assert_eq!(greatest, [size as u64 - 1]);
                everywhere.map(f64::to_bits)
            });
            assert!(sums.iter().all(|sum| *sum == sums[0]));
        }
    }
}

#[test]
fn long_vectors_can_be_reduced() {
    for links in BOTH {
        for size in [2, 3, 5] {
            each_in_group(links, size, |group| {
                let mut numbers: Vec<u64> =
                    (0..50_000).map(|at| at * group.rank() as u64).collect();
                (group.allreduce_numbers(&mut numbers, Combine::Sum, PATIENCE)).expect("all come");
                let ranks: u64 = (0..size as u64).sum();
                assert!((0..50_000).map(|at| at * ranks).eq(numbers));
            });
        }
    }
}

#[test]
fn members_join_one_after_the_other() {
    for links in BOTH {
        for size in [2, 5] {
            let (present, turn) = (AtomicUsize::new(0), AtomicUsize::new(0));
            each(links, size, |node, rank| {
                while turn.load(Ordering::SeqCst) != rank {
                    std::thread::yield_now();
                }
                turn.fetch_add(1, Ordering::SeqCst);
                if rank == size - 1 {
                    std::thread::sleep(Duration::from_millis(300));
                }
                present.fetch_add(1, Ordering::SeqCst);
                let mut group = join(node, size, rank);
                assert_eq!(present.load(Ordering::SeqCst), size);
                group.barrier(PATIENCE).expect("all are there");
            });
        }
    }
}

#[test]
fn a_computing_member_does_not_delay_broadcasts_through_it() {
    for links in BOTH {
        let size = 8;
        let done = Barrier::new(size);
        each_in_group(links, size, |group| {
            // Ranks 5, 6 and 7 are below rank 4 in the tree.
            if group.rank() == 4 {
                done.wait();
            }
            let mut data = pattern(200_000 * usize::from(group.rank() == 0), 0, 0);
            group.broadcast(0, &mut data, PATIENCE).expect("it comes");
            assert_eq!(data, pattern(200_000, 0, 0));
            if group.rank() != 4 {
                done.wait();
            }
        });
    }
}

#[test]
fn a_member_far_ahead_of_a_slow_one_waits() {
    for links in BOTH {
        let sent = AtomicUsize::new(0);
        each_in_group(links, 2, |group| {
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_millis(300));
                assert!(sent.load(Ordering::SeqCst) <= 65);
            }
            for number in 0..1000_u64 {
                let mut data = number.to_le_bytes().to_vec();
                group.broadcast(0, &mut data, PATIENCE).expect("it comes");
                assert_eq!(data, number.to_le_bytes());
                if group.rank() == 0 {
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
}

#[test]
fn overlapping_groups_do_not_interfere() {
    for links in BOTH {
        each(links, 5, |node, rank| {
            let mut whole = join(node, 5, rank);
            // The members in the middle form another group, in reverse order.
            let addresses: Vec<_> = (1..4)
                .rev()
                .map(|rank| Address::new(1, 500 + rank))
                .collect();
            let mut inner = (1..4).contains(&rank).then(|| {
                let inner = Group::join(node, Members::first(addresses), 3 - rank, PATIENCE);
                inner.expect("all come")
            });
            for round in 0..100 {
                if let Some(inner) = &mut inner {
                    let mut ranks = [rank as u64];
                    (inner.allreduce_numbers(&mut ranks, Combine::Sum, PATIENCE)).expect("all");
                    assert_eq!(ranks, [6]);
                }
                let mut data = pattern(100, rank, round);
                (whole.broadcast(round % 5, &mut data, PATIENCE)).expect("it comes");
                assert_eq!(data, pattern(100, round % 5, round));
            }
        });
    }
}

/// The calls during which a member is killed.
#[derive(Clone, Copy, Debug)]
enum Repeated {
    Barrier,
    Broadcast,
    Reduce,
    /// In any order, along the broadcast tree.
    Numbers,
    Allreduce,
}

impl Repeated {
    const ALL: [Repeated; 5] = [
        Repeated::Barrier,
        Repeated::Broadcast,
        Repeated::Reduce,
        Repeated::Numbers,
        Repeated::Allreduce,
    ];

    fn call(self, group: &mut Group, round: usize) -> Result<(), GroupError> {
        let (size, rank) = (group.size(), group.rank());
        let root = round % size;
        let mut data = to_bytes(matrix(rank, round));
        match self {
            Repeated::Barrier => return group.barrier(PATIENCE),
            Repeated::Broadcast => {
                let length = if round.is_multiple_of(8) { 100_000 } else { 10 };
                data = pattern(length, root, round);
                if rank != root {
                    data.clear();
                }
                group.broadcast(root, &mut data, PATIENCE)?;
                assert!(data == pattern(length, root, round));
            }
            Repeated::Reduce => {
                group.reduce(root, &mut data, multiply, PATIENCE)?;
                if rank == root {
                    assert_eq!(from_bytes(&data), all_product(size, round));
                }
            }
            Repeated::Numbers => {
                let mut numbers = [(rank + round) as u64];
                group.reduce_numbers(root, &mut numbers, Combine::Sum, PATIENCE)?;
                let sum = (0..size).map(|rank| (rank + round) as u64).sum::<u64>();
                assert!(rank != root || numbers == [sum]);
            }
            Repeated::Allreduce => {
                group.allreduce(&mut data, multiply, PATIENCE)?;
                assert_eq!(from_bytes(&data), all_product(size, round));
            }
        }
        Ok(())
    }
}

/// A member that makes calls until it is killed; started by the test below.
#[test]
fn victim() {
    let Ok(part) = std::env::var("DIPOLE_GROUPS_VICTIM") else {
        return;
    };
    let numbers: Vec<usize> = part
        .split(' ')
        .map(|it| it.parse().expect("a number"))
        .collect();
    let [links, size, rank, which] = numbers[..] else {
        panic!("{part}");
    };
    let folder = std::env::var("DIPOLE_GROUPS_FOLDER").expect("set by the test");
    let node = open(folder.as_ref(), BOTH[links]);
    let mut group = join(&node, size, rank);
    println!("up");
    for round in 0.. {
        let called = Repeated::ALL[which].call(&mut group, round);
        called.expect("only one rank is killed");
    }
}

struct Victim(Child);

impl Victim {
    fn start(folder: &Path, part: &str) -> Victim {
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "victim", "--nocapture"])
            .env("DIPOLE_GROUPS_VICTIM", part)
            .env("DIPOLE_GROUPS_FOLDER", folder)
            .stdout(Stdio::piped())
            .spawn();
        Victim(child.expect("it starts"))
    }

    /// Kills it with SIGKILL and waits for its end.
    fn kill(&mut self) {
        self.0.kill().expect("our child");
        self.0.wait().expect("our child");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[test]
fn a_member_killed_during_a_call_is_reported_to_all_and_the_others_continue() {
    for (at, links) in BOTH.into_iter().enumerate() {
        for (which, repeated) in Repeated::ALL.into_iter().enumerate() {
            for (size, killed) in [(2, 0), (3, 1), (5, 4), (8, 0)] {
                let directory = directory();
                let path = directory.path();
                let mut victim = Victim::start(path, &format!("{at} {size} {killed} {which}"));
                let out = victim.0.stdout.take().expect("a pipe");
                let context = format!("{repeated:?}, {links:?}, {killed} of {size}");
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..size)
                        .filter(|rank| *rank != killed)
                        .map(|rank| {
                            scope.spawn(move || survive(path, links, (size, rank), repeated))
                        })
                        .collect();
                    let mut lines = BufReader::new(out).lines();
                    assert!(lines.any(|line| line.expect("a line") == "up"), "{context}");
                    std::thread::sleep(Duration::from_millis(20));
                    victim.kill();
                    for thread in threads {
                        let named = thread.join().expect("no panic");
                        assert_eq!(named, killed, "{context}");
                    }
                });
            }
        }
    }
}

#[test]
fn a_member_that_crashes_before_the_group_starts_may_come_back() {
    for (at, links) in BOTH.into_iter().enumerate() {
        let directory = directory();
        let path = directory.path();
        std::thread::scope(|scope| {
            let mut victim = Victim::start(path, &format!("{at} 3 1 0"));
            let come = |rank| {
                let mut group = join(&open(path, links), 3, rank);
                group.barrier(PATIENCE).expect("all are there");
            };
            scope.spawn(move || come(0));
            // Rank 0 announced itself to the first rank 1, and must do so to the second, too.
            std::thread::sleep(Duration::from_millis(500));
            victim.kill();
            scope.spawn(move || come(1));
            scope.spawn(move || come(2));
        });
    }
}

/// Makes calls until the victim is killed, then continues without it; returns the killed rank.
fn survive(path: &Path, links: Links, (size, rank): (usize, usize), repeated: Repeated) -> usize {
    let node = open(path, links);
    let mut group = join(&node, size, rank);
    let mut round = 0;
    let error = loop {
        match repeated.call(&mut group, round) {
            Ok(()) => round += 1,
            Err(error) => break error,
        }
    };
    let GroupError::Gone { members } = &error else {
        panic!("rank {rank}: {error}");
    };
    let again = group.barrier(PATIENCE).expect_err("it has ended");
    assert_eq!(again.to_string(), error.to_string());
    group
        .reform_without(&[], PATIENCE)
        .unwrap_or_else(|error| panic!("{rank}: {error}"));
    assert_eq!(group.size(), size - 1);
    for round in 0..100 {
        for repeated in Repeated::ALL {
            let called = repeated.call(&mut group, round);
            called.unwrap_or_else(|error| panic!("{rank}: {error}"));
        }
    }
    members[0].rank
}

#[derive(Clone, Debug)]
enum Call {
    Barrier,
    Broadcast(usize, usize),
    Reduce(usize),
    Allreduce(usize),
    /// One member is late.
    Late(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        Just(Call::Barrier),
        (0_usize..8, 0_usize..200_000).prop_map(|(root, length)| Call::Broadcast(root, length)),
        (0_usize..8, 0_usize..64).prop_map(|(root, length)| Call::Broadcast(root, length)),
        (0_usize..8).prop_map(Call::Reduce),
        (1_usize..3000).prop_map(Call::Allreduce),
        (0_usize..8).prop_map(Call::Late),
    ];
    prop::collection::vec(call, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_equals_a_sequential_computation(
        size in 1_usize..8,
        links in prop::sample::select(&BOTH[..]),
        calls in calls(),
    ) {
        each_in_group(links, size, |group| {
            for (round, call) in calls.iter().enumerate() {
                let rank = group.rank();
                match *call {
                    Call::Barrier => group.barrier(PATIENCE).expect("all come"),
                    Call::Broadcast(root, length) => {
                        let root = root % size;
                        let mut data = pattern(length * usize::from(rank == root), root, round);
                        group.broadcast(root, &mut data, PATIENCE).expect("it comes");
                        assert!(data == pattern(length, root, round));
                    }
                    Call::Reduce(root) => {
                        let root = root % size;
                        let mut data = to_bytes(matrix(rank, round));
                        group.reduce(root, &mut data, multiply, PATIENCE).expect("all come");
                        if rank == root {
                            assert_eq!(from_bytes(&data), all_product(size, round));
                        }
                    }
                    Call::Allreduce(length) => {
                        let mut numbers = vec![rank as u64 + 1; length];
                        (group.allreduce_numbers(&mut numbers, Combine::Sum, PATIENCE))
                            .expect("all come");
                        let sum: u64 = (1..=size as u64).sum();
                        assert!(numbers.iter().all(|number| *number == sum));
                    }
                    Call::Late(who) => {
                        if rank == who % size {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    }
                }
            }
        });
    }
}
