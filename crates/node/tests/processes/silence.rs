//! Silent processes: stopped ones that their node reports as alive, stopped ones without another process
//! on their node, and killed ones.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, EndpointId, GoneReason, Links, Node, NodeId, SendError};
use dipole_testbed::free_port;
use rustix::process::{Pid, Signal, kill_process};

const QUIET: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_millis(1200);
const PATIENCE: Duration = Duration::from_secs(60);

/// Two nodes on this machine, each with its own registry.
struct Testbed {
    folder: tempfile::TempDir,
}

impl Testbed {
    fn new() -> Testbed {
        let folder = tempfile::tempdir().expect("a directory");
        let text = format!(
            "1 127.0.0.1 port={}\n2 127.0.0.2 port={}\n",
            free_port("127.0.0.1"),
            free_port("127.0.0.2")
        );
        std::fs::write(folder.path().join("hosts"), text).expect("a file");
        Testbed { folder }
    }

    fn child(&self, part: &str) -> Process {
        self.child_by(part, Links::Udp)
    }

    fn child_by(&self, part: &str, links: Links) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "silence::child", "--nocapture"])
            .env("DIPOLE_SILENCE_PART", part)
            .env("DIPOLE_SILENCE_LINKS", format!("{links:?}"))
            .env("DIPOLE_SILENCE_TESTBED", self.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = child.stdout.take().expect("a pipe");
        let up = BufReader::new(out)
            .lines()
            .any(|line| line.expect("a line") == "up");
        assert!(up, "the {part} ended");
        Process(child)
    }
}

struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).expect("our child");
    }

    /// Stops the process, and returns when all its threads have stopped.
    fn stop(&self) {
        dipole_testbed::stop(&self.0);
    }

    fn kill(&mut self) {
        self.0.kill().expect("our child");
        self.0.wait().expect("our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn node(testbed: &Path, id: u32, links: Links) -> Node {
    let hosts = Hosts::load(&testbed.join("hosts")).expect("a hosts file");
    let mut config = Config::local(NodeId(id), testbed.join(format!("runtime-{id}")));
    config.bind = hosts.get(NodeId(id)).expect("in it").address;
    config.hosts = hosts;
    config.links = links;
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).expect("short");
    config.protocol.suspect_after_ns = nanoseconds(QUIET);
    config.protocol.peer_timeout_ns = nanoseconds(TIMEOUT);
    Node::open(config).expect("a node")
}

/// Entry point of the child processes; does nothing when run as a test.
#[test]
fn child() {
    let Ok(part) = std::env::var("DIPOLE_SILENCE_PART") else {
        return;
    };
    let testbed = PathBuf::from(std::env::var("DIPOLE_SILENCE_TESTBED").expect("set with it"));
    let links = match std::env::var("DIPOLE_SILENCE_LINKS").as_deref() {
        Ok("Udp") => Links::Udp,
        _ => Links::Shm,
    };
    let node = node(&testbed, 2, links);
    let endpoint = node.endpoint(EndpointId(if part == "echo" { 7 } else { 8 }));
    let endpoint = endpoint.expect("free");
    println!("\nup");
    if part == "neighbour" {
        // It answers for its node, and does nothing else.
        std::thread::sleep(PATIENCE);
        return;
    }
    while let Ok(message) = endpoint.receive_timeout(PATIENCE) {
        endpoint.target(message.source()).expect("the parent");
        endpoint.send(&message).expect("the parent listens");
    }
}

/// An endpoint of this process on this node, after the first reply of the echo process.
fn meet(testbed: &Testbed, id: u32) -> (Node, dipole_node::Endpoint) {
    meet_by(testbed, id, Links::Udp)
}

fn meet_by(testbed: &Testbed, id: u32, links: Links) -> (Node, dipole_node::Endpoint) {
    let node = node(testbed.folder.path(), id, links);
    let endpoint = node.endpoint(EndpointId(1)).expect("free");
    endpoint.target(Address::new(2, 7)).expect("the echo");
    endpoint.send(b"hello").expect("sent");
    let answer = endpoint.receive_timeout(PATIENCE).expect("an answer");
    assert_eq!(&*answer, b"hello");
    (node, endpoint)
}

/// Waits until the echo process is reported as gone.
fn departure(node: &Node, endpoint: &dipole_node::Endpoint) -> GoneReason {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        assert!(endpoint.receive_timeout(QUIET / 4).is_err());
        if let Some(departure) = node.take_departures().pop() {
            assert_eq!(departure.node, 2);
            return departure.reason;
        }
    }
    panic!("the loss of the echo process was not reported");
}

#[test]
fn a_stopped_process_is_not_gone_while_its_node_vouches_for_it() {
    let testbed = Testbed::new();
    // The first process to start answers for the node.
    let _neighbour = testbed.child("neighbour");
    let mut echo = testbed.child("echo");
    let (node, endpoint) = meet(&testbed, 1);
    echo.stop();
    endpoint.send(b"are you there?").expect("sent");
    let nothing = endpoint.receive_timeout(4 * TIMEOUT);
    assert!(nothing.is_err(), "a stopped process answers");
    assert_eq!(node.take_departures(), [], "its node reports it as alive");
    echo.signal(Signal::CONT);
    let answer = endpoint.receive_timeout(PATIENCE).expect("an answer");
    assert_eq!(&*answer, b"are you there?");

    echo.kill();
    endpoint.send(b"and now?").expect("sent");
    assert_eq!(departure(&node, &endpoint), GoneReason::Died);
}

#[test]
fn a_process_alone_on_its_node_is_gone_after_the_time_out() {
    let testbed = Testbed::new();
    let echo = testbed.child("echo");
    let (node, endpoint) = meet(&testbed, 1);
    echo.stop();
    endpoint.send(b"are you there?").expect("sent");
    assert_eq!(departure(&node, &endpoint), GoneReason::Silent);
}

#[test]
fn a_killed_process_of_this_node_is_detected_even_over_the_network() {
    let testbed = Testbed::new();
    let mut echo = testbed.child("echo");
    // The registry of its own node is queried.
    let (node, endpoint) = meet(&testbed, 2);
    echo.kill();
    endpoint.send(b"and now?").expect("sent");
    assert_eq!(departure(&node, &endpoint), GoneReason::Died);
}

#[test]
fn messages_not_taken_by_a_killed_receiver_are_not_delivered() {
    for links in [Links::Udp, Links::Shm] {
        let testbed = Testbed::new();
        let mut echo = testbed.child_by("echo", links);
        let (_node, endpoint) = meet_by(&testbed, 2, links);
        endpoint.drain(PATIENCE).expect("it answers");
        echo.stop();
        endpoint.send(b"never read").expect("room");
        echo.kill();
        let lost = endpoint.drain(PATIENCE);
        assert!(
            matches!(lost, Err(SendError::PeerGone { .. })),
            "{links:?}: {lost:?}"
        );
    }
}

#[test]
fn a_killed_process_is_detected_without_traffic_if_it_is_watched() {
    for links in [Links::Udp, Links::Shm] {
        let testbed = Testbed::new();
        let mut echo = testbed.child_by("echo", links);
        let (_node, endpoint) = meet_by(&testbed, 2, links);
        let edge = endpoint.edge(Address::new(2, 7)).expect("it is known");
        endpoint.drain(PATIENCE).expect("it answers");
        edge.wait_open(PATIENCE).expect("it answers");
        edge.watch().expect("it lives");
        echo.kill();
        let begun = Instant::now();
        let gone = loop {
            assert!(endpoint.receive_timeout(QUIET / 4).is_err());
            assert!(
                begun.elapsed() < PATIENCE,
                "{links:?}: the loss was not reported"
            );
            if let Err(gone) = edge.watch() {
                break gone;
            }
        };
        let is_right = matches!(gone, SendError::PeerGone { .. });
        assert!(is_right, "{links:?}: {gone}");
    }
}
