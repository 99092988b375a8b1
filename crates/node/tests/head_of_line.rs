//! One receiver of eight is stuck: its process is stopped, its endpoint is never read, or its port
//! handler does not return. The other seven receive everything, with every way of sending and even
//! from the thread that cannot send to the stuck one. What is held for the stuck receiver is
//! bounded, its sender gets an error, and it receives everything that was accepted once it resumes.

#![allow(missing_docs, reason = "tests")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, IoSlice};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Completion, CompletionQueue, Config, Edge, Endpoint, EndpointId, Links, Message, Node,
    NodeId, Operation, RegionKey, RegionMemory, Rights, SendError,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long operations on the stuck receiver may wait.
const SHORT: Duration = Duration::from_millis(10);
const SENDER: u32 = 1;
const FIRST: u32 = 10;
const RECEIVERS: u32 = 8;
const STUCK: u32 = FIRST + 3;
/// Releases the stuck receiver.
const RELEASE: u32 = 9;
/// Added to an endpoint's number: another endpoint of its process, whose messages are not counted.
const CROWDED: u32 = 100;
/// Endpoints that also send there. Together they have credit for more than all frames.
const CROWD: u32 = 320;
/// Length of their messages, each of which fills a packet.
const PACKET_BYTES: usize = 8000;
const BYTES: usize = 100_000;
/// Upper limit for what waits for one receiver: credit, posted operations, copies.
const MOST_BYTES: u64 = 64 << 20;
/// Upper limit for the sender's growth while a receiver is stuck.
const GROWTH_BYTES: u64 = 96 << 20;

/// Why the receiver is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Each receiver has its own process, and one is stopped.
    Stopped,
    /// All receivers are endpoints of one process, and one is not read.
    Unread,
    /// All receivers are ports of one process, and one handler does not return.
    Handler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Send,
    Try,
    Post,
    Put,
}

const WAYS: [Way; 4] = [Way::Send, Way::Try, Way::Post, Way::Put];

fn node(runtime: &Path, links: Links) -> Node {
    let config = Config::local(NodeId(1), runtime.to_owned());
    Node::open(Config { links, ..config }).expect("a node on loopback")
}

/// Counts what an endpoint receives: messages by their first word, notices by their value.
#[derive(Default)]
struct Counts(HashMap<u32, u64>);

impl Counts {
    /// Counts a message and returns the reply, if one is requested.
    fn count(&mut self, endpoint: u32, message: &Message) -> Option<[u8; 8]> {
        let count = self.0.entry(endpoint).or_default();
        let number = match message.notice() {
            Some(notice) => notice.value,
            None if message.is_empty() => return Some(count.to_le_bytes()),
            None => u64::from_le_bytes(message[..8].try_into().expect("a number")),
        };
        assert_eq!(number, *count, "at {endpoint}");
        *count += 1;
        None
    }
}

/// The receiving process, with endpoints from `first` on.
fn receive(node: &Node, first: u32, count: u32, why: Why) {
    let ids = || first..first + count;
    let open = |id| node.endpoint(EndpointId(id)).expect("free");
    let region = |endpoint: &Endpoint| {
        let memory = RegionMemory::new(BYTES).expect("memory");
        let region = endpoint.open_region(memory, Rights::ALL).expect("open");
        println!(
            "\nregion {} {}",
            endpoint.address().endpoint.0,
            region.key()
        );
        region
    };
    if why == Why::Handler {
        let counts = Arc::new(Mutex::new(Counts::default()));
        let stuck = Arc::new(AtomicBool::new(true));
        let released = Arc::clone(&stuck);
        let handle = |id: u32| {
            let (counts, stuck) = (Arc::clone(&counts), Arc::clone(&stuck));
            move |context: &dipole_node::PortContext, message: Message| {
                while id == STUCK && stuck.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let answer = counts.lock().expect("no panic").count(id, &message);
                if let Some(answer) = answer {
                    context.reply(&message, &answer).expect("it listens");
                }
            }
        };
        let _ports: Vec<_> = ids()
            .map(|id| node.open_port(EndpointId(id), handle(id)).expect("free"))
            .collect();
        let _release = node.open_port(EndpointId(RELEASE), move |_, _| {
            released.store(false, Ordering::Relaxed);
        });
        println!("\nup");
        std::thread::sleep(4 * PATIENCE);
        return;
    }
    let endpoints: HashMap<u32, Endpoint> = ids().map(|id| (id, open(id))).collect();
    let release = open(if why == Why::Unread {
        RELEASE
    } else {
        CROWDED + first
    });
    let _regions: Vec<_> = endpoints.values().map(region).collect();
    let queue = node.completion_queue();
    release.attach(&queue);
    let is_read = |id: &u32| why == Why::Stopped || *id != STUCK;
    let read = endpoints.iter().filter(|(id, _)| is_read(id));
    read.for_each(|(_, endpoint)| endpoint.attach(&queue));
    println!("\nup");
    let mut counts = Counts::default();
    while let Ok(Some(completion)) = queue.wait(4 * PATIENCE) {
        let Completion::Received { endpoint, message } = completion else {
            panic!("{completion:?}");
        };
        match endpoints.get(&endpoint.0) {
            Some(own) => {
                if let Some(answer) = counts.count(endpoint.0, &message) {
                    own.reply(&message, &answer).expect("it listens");
                }
            }
            None if why == Why::Unread => endpoints[&STUCK].attach(&queue),
            None => {}
        }
    }
}

/// Entry point of the child processes; does nothing when run as a test.
#[test]
fn child() {
    let Ok(part) = std::env::var("DIPOLE_STUCK_PART") else {
        return;
    };
    let words: Vec<&str> = part.split(' ').collect();
    let number = |at: usize| words[at].parse().expect("a number");
    let why = [Why::Stopped, Why::Unread, Why::Handler][number(2) as usize];
    let links = if words[3] == "Udp" {
        Links::Udp
    } else {
        Links::Shm
    };
    let runtime = PathBuf::from(std::env::var("DIPOLE_STUCK_RUNTIME").expect("set with it"));
    receive(&node(&runtime, links), number(0), number(1), why);
}

struct Process(Child);

impl Process {
    /// Starts a process with endpoints from `first` on; returns the keys of their regions.
    fn start(
        runtime: &Path,
        (first, count): (u32, u32),
        (why, links): (Why, Links),
        keys: &mut HashMap<u32, RegionKey>,
    ) -> Process {
        let part = format!("{first} {count} {} {links:?}", why as u32);
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child", "--nocapture"])
            .env("DIPOLE_STUCK_PART", part)
            .env("DIPOLE_STUCK_RUNTIME", runtime)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = child.stdout.take().expect("a pipe");
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["region", id, key] => {
                    let (id, key) = (id.parse().expect("one"), key.parse().expect("one"));
                    keys.insert(id, key);
                }
                ["up"] => return Process(child),
                _ => {}
            }
        }
        panic!("the process of endpoint {first} ended");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Receiver {
    edge: Edge,
    key: Option<RegionKey>,
    /// Number of messages and notices accepted for it.
    accepted: u64,
}

impl Receiver {
    fn is_stuck(&self) -> bool {
        self.edge.target().endpoint.0 == STUCK
    }

    /// Tries to send one message; puts only happen if there is a region.
    fn offer(&mut self, way: Way, length: usize) -> Result<(), SendError> {
        let mut payload = vec![7; length];
        payload[..8].copy_from_slice(&self.accepted.to_le_bytes());
        let patience = if self.is_stuck() { SHORT } else { PATIENCE };
        let operation = match (way, self.key) {
            (Way::Put, Some(key)) => Operation::Put {
                key,
                offset: 0,
                notice: Some(self.accepted),
            },
            _ => Operation::Message,
        };
        match way {
            Way::Send => self.edge.send_timeout(&payload, patience),
            Way::Try => self.edge.try_send(&payload),
            Way::Post | Way::Put => self.edge.post(operation, &[IoSlice::new(&payload)], 0),
        }?;
        self.accepted += 1;
        Ok(())
    }
}

struct Cluster {
    receivers: Vec<Receiver>,
    queue: CompletionQueue,
    sender: Endpoint,
    node: Node,
    processes: Vec<Process>,
    why: Why,
    _directory: TempDir,
}

impl Cluster {
    fn new(why: Why, links: Links) -> Cluster {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = directory.path().join("dipole");
        let node = node(&runtime, links);
        let mut keys = HashMap::new();
        let parts: Vec<(u32, u32)> = match why {
            Why::Stopped => (FIRST..FIRST + RECEIVERS).map(|id| (id, 1)).collect(),
            Why::Unread | Why::Handler => vec![(FIRST, RECEIVERS)],
        };
        let start = |part| Process::start(&runtime, part, (why, links), &mut keys);
        let processes = parts.into_iter().map(start).collect();
        let sender = node.endpoint(EndpointId(SENDER)).expect("free");
        let queue = node.completion_queue();
        let receivers = (FIRST..FIRST + RECEIVERS).map(|id| {
            let edge = sender.edge(Address::new(1, id)).expect("usable");
            edge.attach(&queue);
            let key = keys.get(&id).copied();
            let accepted = 0;
            Receiver {
                edge,
                key,
                accepted,
            }
        });
        Cluster {
            receivers: receivers.collect(),
            queue,
            sender,
            node,
            processes,
            why,
            _directory: directory,
        }
    }

    /// Takes the available completions, or waits briefly for one.
    fn complete(&self, patience: Duration) {
        let mut next = self.queue.wait(patience).expect("a working link");
        while let Some(completion) = next {
            assert!(
                matches!(
                    completion,
                    Completion::Sent { .. } | Completion::Done { .. }
                ),
                "{completion:?}"
            );
            next = self.queue.poll().expect("a working link");
        }
    }

    /// Sends one message to each receiver that is not stuck, and to the stuck one if it accepts it.
    fn round(&mut self, way: Way, length: usize) {
        for at in 0..self.receivers.len() {
            let begun = std::time::Instant::now();
            while let Err(error) = self.receivers[at].offer(way, length) {
                if self.receivers[at].is_stuck() {
                    break;
                }
                let is_full = matches!(error, SendError::Full { .. });
                assert!(is_full && begun.elapsed() < PATIENCE, "{way:?}: {error}");
                self.complete(Duration::from_millis(1));
            }
        }
        self.complete(Duration::ZERO);
    }

    /// Other endpoints of this process that send to the receiver that will be stuck.
    fn crowd(&self) -> Vec<(Endpoint, Edge)> {
        let to = Address::new(1, CROWDED + STUCK);
        let one = |id| {
            let endpoint = self.node.endpoint(EndpointId(id)).expect("free");
            let edge = endpoint.edge(to).expect("usable");
            edge.send_timeout(&[7; PACKET_BYTES], PATIENCE)
                .expect("it reads");
            (endpoint, edge)
        };
        (1000..1000 + CROWD).map(one).collect()
    }

    /// Checks that a receiver has got everything that was accepted for it.
    fn has_all(&self, receiver: &Receiver) {
        receiver.edge.send_timeout(&[], PATIENCE).expect("it reads");
        let answer = self.sender.receive_timeout(PATIENCE).expect("an answer");
        assert_eq!(answer.source(), receiver.edge.target());
        let count = u64::from_le_bytes((*answer).try_into().expect("a number"));
        assert_eq!(count, receiver.accepted, "{}", receiver.edge.target());
    }

    fn the_others_have_all(&self) {
        let others = self.receivers.iter().filter(|it| !it.is_stuck());
        others.for_each(|receiver| self.has_all(receiver));
    }

    fn stuck(&mut self) -> &mut Receiver {
        &mut self.receivers[(STUCK - FIRST) as usize]
    }

    /// Makes one receiver stuck.
    fn stick(&self) {
        if self.why == Why::Stopped {
            dipole_testbed::stop(&self.processes[(STUCK - FIRST) as usize].0);
        }
    }

    fn release(&self) {
        if self.why == Why::Stopped {
            self.processes[(STUCK - FIRST) as usize].signal(Signal::CONT);
        } else {
            let release = Address::new(1, RELEASE);
            self.sender.send_to(release, b"go on").expect("it listens");
        }
    }

    /// Sends to the stuck receiver until it accepts no more; returns the accepted bytes.
    fn fill(&mut self, way: Way, length: usize) -> u64 {
        let target = self.stuck().edge.target();
        let mut taken = 0;
        loop {
            match self.stuck().offer(way, length) {
                Ok(()) => taken += length as u64,
                Err(
                    SendError::Full { target: told, .. } | SendError::TimedOut { target: told, .. },
                ) => {
                    assert_eq!(told, target);
                    return taken;
                }
                Err(other) => panic!("{way:?}: {other}"),
            }
            assert!(taken < MOST_BYTES, "{way:?}: unbounded");
        }
    }
}

/// Locked by tests that measure the memory of this process; the others share it.
static MEMORY: RwLock<()> = RwLock::new(());

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    1024 * kilobytes
        .and_then(|it| it.parse::<u64>().ok())
        .expect("a number")
}

fn one_thread_sends_to_all(why: Why, links: Links) {
    let _measures = MEMORY.write();
    let mut cluster = Cluster::new(why, links);
    if why == Why::Stopped {
        // Windows grow, including that of the receiver that will be stuck.
        for length in [1000, BYTES] {
            for way in WAYS {
                (0..100).for_each(|_| cluster.round(way, length));
            }
        }
        cluster.has_all(&cluster.receivers[(STUCK - FIRST) as usize]);
        cluster.the_others_have_all();
    }
    let crowd = match why {
        Why::Stopped => cluster.crowd(),
        Why::Unread | Why::Handler => Vec::new(),
    };
    cluster.stick();
    let before = resident_bytes();
    for (_, edge) in &crowd {
        while edge.try_send(&[7; PACKET_BYTES]).is_ok() {}
    }
    for length in [BYTES, 1000] {
        for way in WAYS {
            cluster.fill(way, length);
            (0..100).for_each(|_| cluster.round(way, length));
            cluster.the_others_have_all();
        }
    }
    if let Some(key) = cluster.stuck().key.filter(|_| why == Why::Stopped) {
        let asked = cluster.stuck().edge.fetch_add(key, 0, 1, SHORT);
        assert!(
            matches!(asked, Err(SendError::TimedOut { target, .. }) if target.endpoint.0 == STUCK),
            "{asked:?}"
        );
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "{grown} bytes more");
    if links == Links::Udp {
        let free = cluster.node.stats().free_frames;
        assert!(free >= 256, "{free} frames are left for seven others");
    }
    cluster.release();
    cluster.has_all(&cluster.receivers[(STUCK - FIRST) as usize]);
}

fn only_the_sender_to_the_stuck_receiver_waits(links: Links) {
    let _uses = MEMORY.read();
    let mut cluster = Cluster::new(Why::Stopped, links);
    (0..100).for_each(|_| cluster.round(Way::Send, BYTES));
    cluster.stick();
    std::thread::scope(|scope| {
        let mut sending: Vec<_> = (cluster.receivers.iter_mut())
            .map(|receiver| {
                scope.spawn(move || {
                    for _ in 0..400 {
                        let mut payload = vec![7; BYTES];
                        payload[..8].copy_from_slice(&receiver.accepted.to_le_bytes());
                        receiver.edge.send(&payload).expect("it will read");
                        receiver.accepted += 1;
                    }
                })
            })
            .collect();
        let stuck = sending.remove((STUCK - FIRST) as usize);
        for other in sending {
            other.join().expect("all of it is taken");
        }
        assert!(
            !stuck.is_finished(),
            "40 MB were accepted for a stopped receiver"
        );
        let process = &cluster.processes[(STUCK - FIRST) as usize];
        process.signal(Signal::CONT);
    });
    for receiver in &cluster.receivers {
        cluster.has_all(receiver);
    }
}

/// Everything sent has been acknowledged and no more may be sent. Nothing is in flight whose silence
/// would reveal the death of the peer, and no attempt lasts long enough for a probe.
fn a_sender_with_short_time_outs_detects_that_its_receiver_died(links: Links) {
    for waits in [true, false] {
        sends_with_short_time_outs(links, waits);
    }
}

fn sends_with_short_time_outs(links: Links, waits: bool) {
    let _uses = MEMORY.read();
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = directory.path().join("dipole");
    let what = ((STUCK, 1), (Why::Unread, links));
    let receiver = Process::start(&runtime, what.0, what.1, &mut HashMap::new());
    let node = node(&runtime, links);
    let sender = node.endpoint(EndpointId(SENDER)).expect("free");
    let edge = sender.edge(Address::new(1, STUCK)).expect("usable");
    edge.wait_open(PATIENCE).expect("open");
    while edge.send_timeout(&[7; 8000], 50 * SHORT).is_ok() {}
    edge.flush(PATIENCE).expect("acknowledged");
    drop(receiver);
    let begun = Instant::now();
    let gone = loop {
        let sent = match waits {
            true => edge.send_timeout(&[7; 8000], SHORT),
            false => edge.try_send(&[7; 8000]),
        };
        match sent {
            // On a busy machine there may be room left, because the wait for it was short.
            Ok(()) | Err(SendError::TimedOut { .. }) => {}
            Err(SendError::Full { .. }) => std::thread::sleep(SHORT),
            Err(ended) => break ended,
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{links:?}, {waits}: no error is reported"
        );
    };
    assert!(matches!(gone, SendError::PeerGone { .. }), "{gone:?}");
}

macro_rules! by_both {
    ($($test:ident: $call:expr;)*) => {
        $(mod $test {
            use super::*;
            #[test]
            fn by_shared_memory() {
                $call(Links::Shm);
            }
            #[test]
            fn by_packets() {
                $call(Links::Udp);
            }
        })*
    };
}

by_both! {
    a_stopped_process_holds_up_nobody: |links| one_thread_sends_to_all(Why::Stopped, links);
    an_endpoint_that_is_not_read_holds_up_nobody: |links| one_thread_sends_to_all(Why::Unread, links);
    a_handler_that_does_not_return_holds_up_nobody: |links| one_thread_sends_to_all(Why::Handler, links);
    who_waits_for_a_stopped_process_waits_alone: only_the_sender_to_the_stuck_receiver_waits;
    a_killed_process_is_found_out: a_sender_with_short_time_outs_detects_that_its_receiver_died;
}
