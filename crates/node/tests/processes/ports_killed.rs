//! Processes with active ports that are killed in the middle of messages. The other side gets an
//! error, delivers no partial message, and continues with all other peers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Config, EndpointId, GoneReason, Links, Message, Node, NodeId, SendError,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];
const PORT: u32 = 2;
const STEADY: u32 = 10;
const FIRST_VICTIM: u32 = 11;
const VICTIMS: u32 = 6;
/// Messages by which the steady process must advance after each death.
const GOES_ON: u64 = 50;

fn node(runtime: &Path, links: Links) -> Node {
    let config = Config::local(NodeId(1), runtime.to_owned());
    let mut config = Config { links, ..config };
    // On the network, a process that only receives probes its peers now and then.
    config.protocol.idle_check_ns = 500_000_000;
    Node::open(config).expect("a node on loopback")
}

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = directory.path().join("dipole");
    (directory, runtime)
}

/// Message number `number`; every seventh is long. All bytes follow from the number.
fn message(number: u64) -> Vec<u8> {
    let length = if number % 7 == 3 { 200_000 } else { 40 };
    let mut bytes = vec![number.to_le_bytes()[0]; length];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Checks that a message is whole and the next of its source.
fn check(next: &mut u64, message: &[u8]) {
    assert!(*message == self::message(*next), "message {next}");
    *next += 1;
}

/// Entry point of the child processes; does nothing when run as a test.
#[test]
fn child() {
    let Ok(part) = std::env::var("DIPOLE_PORTS_PART") else {
        return;
    };
    let runtime = PathBuf::from(std::env::var("DIPOLE_PORTS_RUNTIME").expect("set with it"));
    let [what, id, links] = part.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{part}");
    };
    let links = if links == "Udp" {
        Links::Udp
    } else {
        Links::Shm
    };
    let (node, id) = (
        node(&runtime, links),
        EndpointId(id.parse().expect("a number")),
    );
    if what == "receive" {
        let mut next = 0;
        let port = node.open_port(id, move |_, message| check(&mut next, &message));
        println!("\nup");
        port.expect("free").wait(4 * PATIENCE).expect("it lives");
        return;
    }
    // Messages pass from one port to another.
    let own = node.open_port(id, |_, _| {}).expect("free");
    let edge = own.edge(Address::new(1, PORT)).expect("usable");
    println!("\nup");
    for number in 0.. {
        if edge.send(&message(number)).is_err() {
            return;
        }
    }
}

struct Process(Child);

impl Process {
    fn start(runtime: &Path, what: &str, id: u32, links: Links) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "ports_killed::child", "--nocapture"])
            .env("DIPOLE_PORTS_PART", format!("{what} {id} {links:?}"))
            .env("DIPOLE_PORTS_RUNTIME", runtime)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = child.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "up"), "the process of {id} ended");
        Process(child)
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

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn senders_killed_during_messages_leave_no_partial_message_and_are_reported() {
    for links in BOTH {
        let (_directory, runtime) = directory();
        let node = node(&runtime, links);
        let counts: Arc<Mutex<HashMap<u32, u64>>> = Arc::default();
        let handled = Arc::clone(&counts);
        // This process makes no calls, so the node's own threads run the handler.
        let port = node.open_port(EndpointId(PORT), move |_, message: Message| {
            let mut counts = handled.lock().expect("no panic");
            let next = counts.entry(message.source().endpoint.0).or_default();
            check(next, &message);
        });
        let port = port.expect("free");
        let count = |id| {
            counts
                .lock()
                .expect("no panic")
                .get(&id)
                .copied()
                .unwrap_or(0)
        };
        let _steady = Process::start(&runtime, "send", STEADY, links);
        for id in (FIRST_VICTIM..).take(VICTIMS as usize) {
            let mut victim = Process::start(&runtime, "send", id, links);
            until("its messages arrive", || {
                count(id) > 7 * u64::from(id - FIRST_VICTIM)
            });
            victim.kill();
            until("its death is reported", || {
                node.take_departures()
                    .iter()
                    .any(|gone| gone.reason == GoneReason::Died)
            });
            let before = count(STEADY);
            until("the others continue", || count(STEADY) >= before + GOES_ON);
            port.check().expect("the handler found only whole messages");
        }
    }
}

#[test]
fn senders_to_a_killed_port_get_an_error_and_other_ports_get_everything() {
    for links in BOTH {
        let (_directory, runtime) = directory();
        let node = node(&runtime, links);
        let sender = node.endpoint(EndpointId(1)).expect("free");
        let _steady = Process::start(&runtime, "receive", STEADY, links);
        let steady = sender.edge(Address::new(1, STEADY)).expect("usable");
        let mut sent = 0;
        for id in (FIRST_VICTIM..).take(VICTIMS as usize) {
            let mut victim = Process::start(&runtime, "receive", id, links);
            let edge = sender.edge(Address::new(1, id)).expect("usable");
            edge.send_timeout(&message(0), PATIENCE).expect("it lives");
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| {
                    let failed = (1..).map(|number| edge.send_timeout(&message(number), PATIENCE));
                    failed.filter_map(Result::err).next().expect("it is killed")
                });
                // Some messages are in flight, more with each victim.
                for _ in 0..10 * (id - FIRST_VICTIM) {
                    steady
                        .send_timeout(&message(sent), PATIENCE)
                        .expect("it lives");
                    sent += 1;
                }
                victim.kill();
                let told = sending.join().expect("no panic");
                assert!(
                    matches!(&told, SendError::PeerGone { target, .. } if target.endpoint.0 == id),
                    "{told}"
                );
            });
            for _ in 0..GOES_ON {
                steady
                    .send_timeout(&message(sent), PATIENCE)
                    .expect("it lives");
                sent += 1;
            }
            steady.flush(PATIENCE).expect("it takes all");
        }
    }
}
