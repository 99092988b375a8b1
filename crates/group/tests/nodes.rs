//! Groups whose members share nodes: processes in network namespaces. Each node gets one copy of a
//! broadcast and sends one message of a reduction; members that stop or die. Needs root; skipped with
//! a message otherwise.

#![allow(missing_docs, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use dipole_group::{Combine, Group, GroupError, Members};
use dipole_node::{Address, Config, Node};
use dipole_testbed::Testbed;

const PATIENCE: Duration = Duration::from_secs(120);
const PART: &str = "GROUP_NODES_PART";
/// The nodes of the ranks: neighbours in rank order are on different nodes.
const NODES: [u32; 7] = [1, 2, 3, 2, 3, 2, 3];
/// The member of node 2 that gets its copy, and one that gets it from there.
const RELAY: usize = 1;
const LEAF: usize = 5;

const ROUNDS: u64 = 40;
const BYTES: u64 = 100_000;
/// Messages of a broadcast in which a member stops at one and dies later. The root can be 64 calls
/// ahead, so the others get `AHEAD` of them while the member does not move.
const MESSAGES: u64 = 200;
const STOPS_AT: u64 = 20;
const AHEAD: u64 = 60;

fn address(rank: usize) -> Address {
    Address::new(NODES[rank], 100 + u32::try_from(rank).expect("few"))
}

/// A member as a process on its node.
struct Member {
    child: Child,
    /// Open as long as this process lives.
    _input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Member {
    fn start(testbed: &Testbed, part: &str, rank: usize) -> Member {
        let mut child = testbed
            .command(NODES[rank], std::env::current_exe().expect("this test"))
            .args(["--exact", "member", "--nocapture"])
            .env(PART, format!("{part} {rank}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let _input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Member {
            child,
            _input,
            lines,
        }
    }

    fn start_all(testbed: &Testbed, part: &str) -> Vec<Member> {
        let ranks = 0..NODES.len();
        ranks
            .map(|rank| Member::start(testbed, part, rank))
            .collect()
    }

    /// Reads its output up to a line that starts with `beginning`.
    fn wait_for(&mut self, beginning: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line).expect("text");
            assert!(length > 0, "no line `{beginning}` in:\n{all}");
            if line.starts_with(beginning) {
                return line.trim_end().to_owned();
            }
            all += &line;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn testbed() -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    Some(Testbed::builder().nodes(3).build().expect("a testbed"))
}

/// One member; started by the tests below.
#[test]
fn member() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let words: Vec<&str> = part.split(' ').collect();
    let rank: usize = words.last().expect("a rank").parse().expect("a rank");
    let node = Node::open(Config::from_env().expect("the testbed's variables")).expect("a node");
    let members = Members::first((0..NODES.len()).map(address).collect::<Vec<_>>());
    let mut group = Group::join(&node, members, rank, PATIENCE).expect("all come");
    match words[0] {
        "copies" => copies(&node, &mut group),
        _ => lose_one(&mut group, (rank, words[1].parse().expect("a rank"))),
    }
    drop(group);
    node.close(PATIENCE).expect("the others read");
}

/// Prints how many bytes of packets this process has received when a phase begins.
fn phase(node: &Node, group: &mut Group, name: &str) {
    group.barrier(PATIENCE).expect("all are there");
    println!("\n{name} {}", node.stats().traffic.bytes_received);
}

fn copies(node: &Node, group: &mut Group) {
    let size = group.size() as u64;
    phase(node, group, "broadcast");
    for round in 0..ROUNDS {
        let expected = vec![round.to_le_bytes()[0]; usize::try_from(BYTES).expect("little")];
        let mut data = match group.rank() {
            0 => expected.clone(),
            _ => vec![0; expected.len()],
        };
        (group.broadcast_slice(0, &mut data, PATIENCE)).expect("it comes");
        assert!(data == expected, "{round}");
    }
    phase(node, group, "reduce");
    for round in 0..ROUNDS {
        let mut numbers: Vec<u64> = (0..BYTES / 8)
            .map(|at| at * round + group.rank() as u64)
            .collect();
        (group.reduce_numbers(0, &mut numbers, Combine::Sum, PATIENCE)).expect("all come");
        let ranks = size * (size - 1) / 2;
        let sums = (0..BYTES / 8).map(|at| at * round * size + ranks);
        assert!(group.rank() != 0 || sums.eq(numbers), "{round}");
    }
    phase(node, group, "end");
    // Each member as the root.
    for root in 0..group.size() {
        let mut data = (root as u64 * u64::from(group.rank() == root)).to_le_bytes();
        (group.broadcast_slice(root, &mut data, PATIENCE)).expect("it comes");
        assert_eq!(data, (root as u64).to_le_bytes());
        let mut numbers = [group.rank() as u64];
        (group.reduce_numbers(root, &mut numbers, Combine::Max, PATIENCE)).expect("all come");
        let greatest = size - 1;
        let expected = if group.rank() == root {
            greatest
        } else {
            group.rank() as u64
        };
        assert_eq!(numbers, [expected]);
    }
}

#[test]
fn each_node_gets_one_copy_of_a_broadcast_and_sends_one_of_a_reduction() {
    let Some(testbed) = testbed() else { return };
    let mut members = Member::start_all(&testbed, "copies");
    let mut received = |phase: &str| {
        let mut of_nodes = [0_u64; 3];
        for (member, node) in members.iter_mut().zip(NODES) {
            let line = member.wait_for(phase);
            let (_, bytes) = line.split_once(' ').expect("a number");
            let of_node = &mut of_nodes[usize::try_from(node).expect("small") - 1];
            *of_node += bytes.parse::<u64>().expect("a number");
        }
        of_nodes
    };
    let [start, middle, end] = ["broadcast", "reduce", "end"].map(&mut received);
    // The copies that each node received, rounded: heads and acknowledgements are much less.
    let copies = |before: [u64; 3], after: [u64; 3]| {
        let payload = ROUNDS * BYTES;
        [0, 1, 2].map(|at| (after[at] - before[at] + payload / 2) / payload)
    };
    assert_eq!(copies(start, middle), [0, 1, 1], "copies of a broadcast");
    assert_eq!(copies(middle, end), [2, 0, 0], "partial results");
    for member in &mut members {
        assert!(member.child.wait().expect("our child").success());
    }
}

/// Receives numbered messages while a member stops and dies. The others report it and go on from
/// the first message that one of them does not have.
fn lose_one(group: &mut Group, (rank, victim): (usize, usize)) {
    let mut next = 0;
    println!();
    while next < MESSAGES {
        if rank == victim && next == STOPS_AT {
            println!("stopped");
            std::io::stdin()
                .read_line(&mut String::new())
                .expect("the test waits");
            unreachable!("it is killed");
        }
        if next == AHEAD {
            println!("ahead");
        }
        let mut number = [next];
        let mut data = number[0].to_le_bytes().to_vec();
        match group.broadcast(0, &mut data, PATIENCE) {
            Ok(()) => {
                let found = u64::from_le_bytes(data.try_into().expect("a number"));
                assert!(found <= next, "{found} without {next}");
                // Some members had it before the loss.
                next += u64::from(found == next);
            }
            Err(GroupError::Gone { members }) => {
                let lost: Vec<String> = members.iter().map(ToString::to_string).collect();
                println!("lost {}", lost.join(", "));
                group
                    .reform_without(&[], PATIENCE)
                    .expect("the others agree");
                (group.allreduce_numbers(&mut number, Combine::Min, PATIENCE)).expect("all come");
                if rank == 0 {
                    next = number[0];
                }
            }
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }
    println!("complete in {}", group.size());
}

#[test]
fn a_member_that_stops_delays_no_other_and_its_death_is_reported_with_its_address() {
    for victim in [RELAY, LEAF] {
        let Some(testbed) = testbed() else { return };
        let mut members = Member::start_all(&testbed, &format!("loss {victim}"));
        members[victim].wait_for("stopped");
        let others = (0..NODES.len()).filter(|rank| *rank != victim);
        for rank in others.clone() {
            members[rank].wait_for("ahead");
        }
        members[victim].child.kill().expect("our child");
        for rank in others {
            let lost = members[rank].wait_for("lost");
            assert_eq!(lost, format!("lost rank {victim} ({})", address(victim)));
            assert_eq!(members[rank].wait_for("complete"), "complete in 6");
            assert!(members[rank].child.wait().expect("our child").success());
        }
    }
}
