//! Processes of a node are killed at random moments of their traffic. Survivors are notified and
//! lose nothing from others, and nothing is left behind.

#![allow(missing_docs, reason = "tests")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Config, Departure, Endpoint, EndpointId, GoneReason, Links, Message, Node, NodeId,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Two for waiting and waking, a timer, and what they watch.
const DESCRIPTORS_OF_A_SLEEPER: usize = 6;
const SURVIVOR: u32 = 1;
const STEADY: u32 = 2;
const FIRST_VICTIM: u32 = 100;
const AT_ONCE: usize = 4;
const HEAD_BYTES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);
const TEST: &str = "killed_processes_leave_nothing_and_survivors_are_told";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn config(runtime: &Path, connect_timeout: Duration) -> Config {
    Config {
        links: Links::Shm,
        connect_timeout,
        ..Config::local(NodeId(1), runtime.to_owned())
    }
}

/// Message with a sequence number, and bytes that follow from it.
fn message(endpoint: u32, sequence: u32, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
    bytes.extend(endpoint.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend((0..length).map(|at| pattern(endpoint, sequence, at)));
    bytes
}

fn pattern(endpoint: u32, sequence: u32, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ endpoint as usize ^ (sequence as usize).wrapping_mul(7)).to_le_bytes()[0]
}

/// Body of a child process: sends until its input ends.
fn send_for_ever(runtime: &Path, own: u32, longest: usize) {
    let node = Node::open(config(runtime, PATIENCE)).expect("a node");
    let endpoint = node.endpoint(EndpointId(own)).expect("free");
    endpoint
        .target(Address::new(1, SURVIVOR))
        .expect("the survivor lives");
    println!("up");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = std::sync::Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut random = StdRng::seed_from_u64(own.into());
    let mut sequence = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let length = match random.random_range(0..10) {
            0 => random.random_range(0..=longest),
            1..4 => random.random_range(0..4000),
            _ => random.random_range(0..100),
        };
        endpoint
            .send_timeout(&message(own, sequence, length), PATIENCE)
            .expect("the survivor reads");
        sequence += 1;
        while endpoint.try_receive().expect("works").is_some() {}
    }
    endpoint.drain(PATIENCE).expect("the survivor reads");
    println!("{sequence}");
}

struct Sender {
    endpoint: u32,
    child: Child,
    /// When it is killed; set when its first message arrives.
    dies: Option<Instant>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(runtime: &Path, endpoint: u32) -> Sender {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", TEST, "--nocapture"])
        .env("DIPOLE_STORM_ENDPOINT", endpoint.to_string())
        .env("DIPOLE_STORM_RUNTIME", runtime)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    Sender {
        endpoint,
        child,
        dies: None,
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Targets of the descriptors of this process.
fn open_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("proc");
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.collect()
}

fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines()
        .filter(|line| line.contains("memfd:dipole"))
        .count()
}

/// Other programs on this machine have files there, too.
fn our_shared_memory() -> Vec<String> {
    let mut names = entries(Path::new("/dev/shm"));
    names.retain(|name| name.starts_with("dipole"));
    names
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

/// Kills the processes whose time of death is reached. None may end on its own.
fn kill_due(running: &mut Vec<Sender>, seed: u64) {
    let now = Instant::now();
    running.retain_mut(|victim| {
        let ended = victim.child.try_wait().expect("a child");
        assert!(
            ended.is_none(),
            "{} ended by itself: {ended:?}, seed {seed}",
            victim.endpoint
        );
        let alive = victim.dies.is_none_or(|dies| now < dies);
        if !alive {
            victim.child.kill().expect("ours to kill");
            victim.child.wait().expect("it ends");
        }
        alive
    });
}

/// The sender of a message, which must be its next one, undamaged.
fn check_message(got: &Message, received: &mut HashMap<u32, u32>, seed: u64) -> u32 {
    let word = |at: usize| u32::from_le_bytes(got[at..at + 4].try_into().expect("four bytes"));
    let (from, sequence) = (word(0), word(4));
    assert_eq!(got.source(), Address::new(1, from), "seed {seed}");
    let expected = received.entry(from).or_default();
    assert_eq!(sequence, *expected, "of {from}, seed {seed}");
    *expected += 1;
    let whole = got[HEAD_BYTES..]
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == pattern(from, sequence, at));
    assert!(
        whole,
        "message {sequence} of {from} is damaged, seed {seed}"
    );
    from
}

fn wait_until_quiet(node: &Node, survivor: &Endpoint) {
    let mut is_quiet = false;
    while !is_quiet || node.stats().local_peers > 0 || node.stats().pool_used_bytes > 0 {
        is_quiet = survivor.receive_timeout(Duration::from_millis(20)).is_err();
    }
}

/// The process that was never killed lost nothing.
fn check_steady(
    mut steady: Sender,
    node: &Node,
    survivor: &Endpoint,
    received: &mut HashMap<u32, u32>,
    departed: &mut Vec<Departure>,
) {
    drop(steady.child.stdin.take());
    let told = BufReader::new(steady.child.stdout.take().expect("piped"));
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let last = told
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.parse::<u32>().ok())
            .last();
        let _ = send.send(last);
    });
    let sent = loop {
        if let Ok(got) = survivor.receive_timeout(Duration::from_millis(5)) {
            let from = u32::from_le_bytes(got[..4].try_into().expect("four bytes"));
            *received.entry(from).or_default() += 1;
        } else if let Ok(last) = lines.try_recv() {
            break last.expect("it says how many it sent");
        }
        departed.extend(node.take_departures());
    };
    while survivor
        .receive_timeout(Duration::from_millis(50))
        .is_ok_and(|got| {
            *received
                .entry(u32::from_le_bytes(got[..4].try_into().expect("four bytes")))
                .or_default() += 1;
            true
        })
    {}
    assert_eq!(received[&STEADY], sent);
    steady.child.wait().expect("it ends");
}

/// Returns how many processes are reported as dead, once `all` of them are.
fn wait_for_deaths(
    all: usize,
    deadline: Instant,
    node: &Node,
    survivor: &Endpoint,
    mut departed: Vec<Departure>,
) -> usize {
    loop {
        departed.extend(node.take_departures());
        let died = departed
            .iter()
            .filter(|one| one.reason == GoneReason::Died)
            .count();
        if died >= all || Instant::now() > deadline {
            return died;
        }
        let _nothing = survivor.receive_timeout(Duration::from_millis(5));
    }
}

/// Waits until the survivor holds no more mappings, descriptors and unread bytes than before.
fn wait_until_settled(
    before: (usize, usize, u64),
    deadline: Instant,
    node: &Node,
    survivor: &Endpoint,
) {
    let held = || {
        let pool_bytes = node.stats().pool_used_bytes;
        (shared_mappings(), descriptors(), pool_bytes)
    };
    // The survivor may have its counter file open at the moment.
    let mut found = held();
    let is_settled = |found: (usize, usize, u64)| {
        found.0 <= before.0 && found.1 <= before.1 && found.2 <= before.2
    };
    while !is_settled(found) && Instant::now() < deadline {
        let _nothing = survivor.receive_timeout(Duration::from_millis(5));
        found = held();
    }
    assert!(
        is_settled(found),
        "{found:?}, before {before:?}; open: {:?}",
        open_files()
    );
}

fn check_files(runtime: &Path, seed: u64) {
    let mut left = entries(&runtime.join("node-1"));
    // The survivor may be writing its counters.
    left.retain(|name| !name.ends_with(".new"));
    let own = |name: &String| {
        let of_survivor = ["owner-", "shm-", "counters-", "links-"];
        ["registry.lock", "key", "endpoint-1"].contains(&name.as_str())
            || of_survivor.iter().any(|kind| name.starts_with(kind))
    };
    assert!(
        left.iter().all(own) && left.len() == 7,
        "{left:?}, seed {seed}"
    );
}

#[test]
fn killed_processes_leave_nothing_and_survivors_are_told() {
    if let Ok(endpoint) = std::env::var("DIPOLE_STORM_ENDPOINT") {
        let endpoint = endpoint.parse().expect("a number");
        let runtime = PathBuf::from(std::env::var("DIPOLE_STORM_RUNTIME").expect("set with it"));
        let longest = if endpoint == STEADY { 3000 } else { 200_000 };
        return send_for_ever(&runtime, endpoint, longest);
    }
    let seed = number("DIPOLE_SEED", 0x5eed);
    let victims = u32::try_from(number("DIPOLE_STORM", 1000)).expect("a number of processes");
    println!("seed {seed}, {victims} processes killed; DIPOLE_SEED and DIPOLE_STORM change that");
    let mut random = StdRng::seed_from_u64(seed);
    let testbed = tempfile::tempdir().expect("a directory");
    let runtime = testbed.path().join("dipole");
    let shared_memory_files = our_shared_memory();
    let node = Node::open(config(&runtime, Duration::from_millis(500))).expect("a node");
    let survivor = node.endpoint(EndpointId(SURVIVOR)).expect("free");
    // The first peer starts the progress thread, which has its own descriptors.
    let first = start(&runtime, FIRST_VICTIM + victims);
    survivor.receive_timeout(PATIENCE).expect("it sends");
    drop(first);
    wait_until_quiet(&node, &survivor);
    assert_eq!(node.take_departures().len(), 1);
    let (descriptors_before, mappings_before) = (descriptors(), shared_mappings());
    // On a busy machine, this thread and the progress thread may once sleep at the same time.
    let descriptors_before = descriptors_before + DESCRIPTORS_OF_A_SLEEPER;

    let steady = start(&runtime, STEADY);
    let mut running: Vec<Sender> = Vec::new();
    let mut next = FIRST_VICTIM;
    let mut received: HashMap<u32, u32> = HashMap::new();
    let mut departed = Vec::new();
    let begun = Instant::now();
    while next < FIRST_VICTIM + victims || !running.is_empty() {
        while running.len() < AT_ONCE && next < FIRST_VICTIM + victims {
            running.push(start(&runtime, next));
            next += 1;
        }
        if let Ok(got) = survivor.receive_timeout(Duration::from_millis(1)) {
            let from = check_message(&got, &mut received, seed);
            let victim = running.iter_mut().find(|victim| victim.endpoint == from);
            if let Some(victim) = victim.filter(|victim| victim.dies.is_none()) {
                victim.dies =
                    Some(Instant::now() + Duration::from_micros(random.random_range(0..5000)));
                // Some also get messages, and die while some are in flight to them.
                if random.random_bool(0.25) && survivor.target(Address::new(1, from)).is_ok() {
                    let _dies_meanwhile = survivor.try_send(&[7; 1000]);
                    survivor.untarget(Address::new(1, from));
                }
            }
        }
        kill_due(&mut running, seed);
        departed.extend(node.take_departures());
        assert!(
            begun.elapsed() < Duration::from_secs(600),
            "stuck: {received:?}, seed {seed}"
        );
    }

    check_steady(steady, &node, &survivor, &mut received, &mut departed);

    // Every victim that sent a message is reported as dead exactly once.
    let heard = received.keys();
    let heard = heard.filter(|endpoint| **endpoint >= FIRST_VICTIM).count();
    let message = "all were killed after their first message";
    assert_eq!(heard, victims as usize, "{message}");
    let deadline = Instant::now() + PATIENCE;
    let died = wait_for_deaths(heard, deadline, &node, &survivor, departed);
    assert_eq!(died, heard, "seed {seed}");

    // Nothing of the victims is left.
    let before = (mappings_before, descriptors_before, 0);
    wait_until_settled(before, deadline, &node, &survivor);
    assert_eq!(node.stats().local_peers, 0, "seed {seed}");
    assert_eq!(our_shared_memory(), shared_memory_files);
    check_files(&runtime, seed);
}
