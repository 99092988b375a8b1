//! Alice's traffic: in each round, every process sends to every other one and checks what it gets.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use dipole_node::{Address, EndpointId, Links, Node};
use dipole_proto::DropReason;

use crate::{PATIENCE, Process, config};

pub(crate) const RANKS: u32 = 3;
const LONGEST: usize = 20_000;

/// Final report of a process.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) departed: usize,
    pub(crate) peers: usize,
    pub(crate) strangers_in_memory: u64,
    pub(crate) wrong_key: u64,
    pub(crate) unknown: u64,
}

/// A message: its sender, its round, whether more follow, and bytes derived from these.
fn message(rank: u32, round: u32, last: bool) -> Vec<u8> {
    let mut bytes = [rank.to_le_bytes(), round.to_le_bytes()].concat();
    bytes.push(u8::from(last));
    let length = (round as usize * 7919 + rank as usize * 31) % LONGEST;
    let byte = |at: usize| (at * 13 + round as usize * 5 + rank as usize).to_le_bytes()[0];
    bytes.extend((0..length).map(byte));
    bytes
}

/// Body of a rank, until the first rank's input ends.
pub(crate) fn talk(runtime: &Path, links: Links, rank: u32) {
    let node = Node::open(config(runtime, links)).expect("a node");
    let own = node.endpoint(EndpointId(rank + 1)).expect("free");
    let others: Vec<u32> = (0..RANKS).filter(|other| *other != rank).collect();
    for other in &others {
        own.target(Address::new(1, other + 1)).expect("it comes");
    }
    let told_to_end = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&told_to_end);
    std::thread::spawn(move || {
        let _end = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::Relaxed);
    });
    let mut heard = [0; RANKS as usize];
    let mut last_round = None;
    let mut departed = 0;
    let mut round = 0;
    while last_round.is_none_or(|last| round <= last) {
        // Rank 0 announces the end two rounds ahead, because no rank is further ahead than that.
        if rank == 0 && last_round.is_none() && told_to_end.load(Ordering::Relaxed) {
            last_round = Some(round + 2);
        }
        // No rank leaves before all have begun the last round.
        if last_round == Some(round) {
            departed = node.take_departures().len();
        }
        let last = rank == 0 && last_round == Some(round + 2);
        let bytes = message(rank, round, last);
        own.send_timeout(&bytes, PATIENCE).expect("they read");
        while others.iter().any(|other| heard[*other as usize] <= round) {
            let got = own.receive_timeout(PATIENCE).expect("they send");
            let source = got.source().endpoint.0 - 1;
            let number = heard[source as usize];
            let ends = source == 0 && got[8] != 0;
            assert!(*got == message(source, number, ends), "{source}: {number}");
            heard[source as usize] += 1;
            if ends {
                last_round = Some(number + 2);
            }
        }
        round += 1;
        println!("round {round}");
    }
    let stats = node.stats();
    println!(
        "end {departed} {} {} {} {}",
        stats.peers,
        stats.local.map_or(0, |local| local.foreign_users),
        stats.protocol.dropped(DropReason::WrongKey),
        stats.protocol.dropped(DropReason::UnknownConnection),
    );
}

/// A rank's process, as seen by the test.
pub(crate) struct Rank {
    process: Process,
    rounds: Arc<AtomicU64>,
    listener: Option<JoinHandle<Option<End>>>,
}

impl Rank {
    pub(crate) fn listen(mut process: Process) -> Rank {
        let rounds = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&rounds);
        let out = process.child.stdout.take().expect("piped");
        let listener = std::thread::spawn(move || {
            let mut end = None;
            for line in BufReader::new(out).lines() {
                let line = line.expect("text");
                if let Some(rest) = line.strip_prefix("round ") {
                    seen.store(rest.parse().expect("a number"), Ordering::Relaxed);
                } else if let Some(rest) = line.strip_prefix("end ") {
                    let all: Vec<u64> = (rest.split(' '))
                        .map(|word| word.parse().expect("a number"))
                        .collect();
                    let small = |at: usize| usize::try_from(all[at]).expect("small");
                    end = Some(End {
                        departed: small(0),
                        peers: small(1),
                        strangers_in_memory: all[2],
                        wrong_key: all[3],
                        unknown: all[4],
                    });
                }
            }
            end
        });
        Rank {
            process,
            rounds,
            listener: Some(listener),
        }
    }
}

/// Waits until each rank has completed so many more rounds.
pub(crate) fn wait_for_rounds(ranks: &[Rank], more: u64) {
    let now: Vec<u64> = (ranks.iter())
        .map(|rank| rank.rounds.load(Ordering::Relaxed))
        .collect();
    let begun = Instant::now();
    let behind =
        |(rank, before): (&Rank, &u64)| rank.rounds.load(Ordering::Relaxed) < before + more;
    while ranks.iter().zip(&now).any(behind) {
        assert!(begun.elapsed() < PATIENCE, "they do not go on");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Lets the ranks end in order.
pub(crate) fn finish(ranks: &mut [Rank]) -> Vec<End> {
    drop(ranks[0].process.child.stdin.take());
    let ends = ranks.iter_mut().map(|rank| {
        let listener = rank.listener.take().expect("finished once");
        let end = listener
            .join()
            .expect("text")
            .expect("it says how it ended");
        assert!(rank.process.child.wait().expect("ours").success());
        end
    });
    ends.collect()
}
