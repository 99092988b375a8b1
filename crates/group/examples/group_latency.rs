//! Latency of group calls between processes of this machine, compared with messages.
//!
//! `cargo run --release -p dipole-group --example group_latency -- MEMBERS [ROUNDS [shm|udp]]`
//!
//! The lower bound counts only the rounds of messages: the one-way latency times ceil(log2 n). The
//! broadcast has 8 bytes and is followed by a barrier, so it has twice that bound.

#![allow(missing_docs, reason = "an example")]

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use dipole_group::{Combine, Group, GroupError, Members};
use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId};

const PATIENCE: Duration = Duration::from_secs(60);
const FOLDER: &str = "DIPOLE_GROUP_LATENCY_FOLDER";
const RANK: &str = "DIPOLE_GROUP_LATENCY_RANK";

type Call<'a> = &'a mut dyn FnMut(&mut Group) -> Result<(), GroupError>;

struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ended = child.wait();
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| match arguments.get(at) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    let (size, rounds) = (number(0, 2)?, number(1, 20_000)?);
    let links = match arguments.get(2).map(String::as_str) {
        Some("udp") => Links::Udp,
        _ => Links::Shm,
    };
    if let (Ok(folder), Ok(rank)) = (std::env::var(FOLDER), std::env::var(RANK)) {
        return run(folder.as_ref(), links, (size, rank.parse()?), rounds);
    }
    let folder = tempfile::tempdir()?;
    let mut others = Processes(Vec::new());
    for rank in 1..size {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&arguments).env(FOLDER, folder.path());
        others.0.push(command.env(RANK, rank.to_string()).spawn()?);
    }
    run(folder.path(), links, (size, 0), rounds)
}

fn run(
    folder: &Path,
    links: Links,
    (size, rank): (usize, usize),
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let config = Config::local(NodeId(1), folder.join("dipole"));
    let node = Node::open(Config { links, ..config })?;
    let ports = (0..u32::try_from(size)?).map(|rank| Address::new(1, 100 + rank));
    let members = Members::first(ports.collect::<Vec<_>>());
    let mut group = Group::join(&node, members, rank, PATIENCE)?;
    let one_way = ping_pong(&node, &mut group, rounds)? / 2;
    let levels = size.next_power_of_two().trailing_zeros();
    if rank == 0 {
        println!("{size} members, {rounds} rounds, medians (99th percentile)");
        println!(
            "a message one way: {one_way:?}; bound: {:?}",
            one_way * levels
        );
    }
    let mut word = [0_u64];
    let mut data = vec![0; 8];
    let calls: [(&str, Call<'_>); 3] = [
        ("barrier", &mut |group| group.barrier(PATIENCE)),
        ("allreduce of 8 bytes", &mut |group| {
            group.allreduce_numbers(&mut word, Combine::Max, PATIENCE)
        }),
        ("broadcast and barrier", &mut |group| {
            group.broadcast(0, &mut data, PATIENCE)?;
            group.barrier(PATIENCE)
        }),
    ];
    for (name, call) in calls {
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let begun = Instant::now();
            call(&mut group)?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        if rank == 0 {
            let (median, late) = (times[rounds / 2], times[rounds * 99 / 100]);
            println!("{name}: {median:?} ({late:?})");
        }
    }
    Ok(())
}

/// Median round trip of 8 bytes between endpoints of ranks 0 and 1.
fn ping_pong(node: &Node, group: &mut Group, rounds: usize) -> Result<Duration, Box<dyn Error>> {
    let rank = u32::try_from(group.rank())?;
    let mut times = vec![Duration::ZERO];
    if rank < 2 {
        let endpoint = node.endpoint(EndpointId(rank))?;
        if group.size() > 1 {
            endpoint.target(Address::new(1, 1 - rank))?;
        }
        for _ in 0..rounds * usize::from(group.size() > 1) {
            let begun = Instant::now();
            if rank == 0 {
                endpoint.send(&[0; 8])?;
            }
            endpoint.receive_timeout(PATIENCE)?;
            if rank == 1 {
                endpoint.send(&[0; 8])?;
            }
            times.push(begun.elapsed());
        }
        endpoint
            .drain(PATIENCE)
            .or_else(|error| match group.size() {
                1 => Ok(()),
                _ => Err(error),
            })?;
    }
    group.barrier(PATIENCE)?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
