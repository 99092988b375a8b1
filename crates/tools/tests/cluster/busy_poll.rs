//! A process that polls the interface itself. The interrupts of the interfaces are delayed so much that
//! every round-trip time shows how packets were received.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Message, Node, NodeId};
use dipole_testbed::{Offloads, Testbed};

/// Delay of a packet that no thread polls for.
const PUT_OFF: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 21;

/// Two nodes on interfaces with a receive queue (NAPI); the second has delayed interrupts.
fn testbed() -> Option<Testbed> {
    let testbed = crate::testbed(Testbed::builder().offloads(Offloads::GroOnly))?;
    let nanoseconds = PUT_OFF.as_nanos();
    for (name, value) in [
        ("napi_defer_hard_irqs", 1000),
        ("gro_flush_timeout", nanoseconds),
    ] {
        let set = format!("echo {value} > /sys/class/net/net0/{name}");
        let status = testbed.command(2, "sh").args(["-c", &set]).status();
        assert!(status.expect("sh runs").success(), "{set}");
    }
    Some(testbed)
}

/// Behaviour of the second node until a message arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    /// Polls continuously; waiting threads would sleep if other processes want the cores.
    Looks,
    Sleeps,
}

fn node(testbed: &Testbed, number: u32, busy_poll: bool) -> Node {
    let hosts = Hosts::load(&testbed.hosts_file()).expect("the testbed's hosts file");
    let directory = testbed.node(number).runtime_dir.join("busy-poll");
    let mut config = Config::local(NodeId(number), directory.clone());
    config.hosts = hosts;
    config.apply_hosts_file();
    config.runtime_dir = directory;
    config.links = Links::Udp;
    config.busy_poll = busy_poll;
    config.spin = Duration::ZERO;
    let opened = testbed.inside(number, || Node::open(config));
    opened.expect("a namespace").expect("a node")
}

fn next(endpoint: &Endpoint, meanwhile: Meanwhile) -> Message {
    if meanwhile == Meanwhile::Sleeps {
        return endpoint.receive_timeout(PATIENCE).expect("a question");
    }
    let begun = Instant::now();
    loop {
        if let Some(message) = endpoint.try_receive().expect("it is open") {
            return message;
        }
        assert!(begun.elapsed() < PATIENCE, "no question");
    }
}

/// The 25th percentile of the round-trip time of small messages (other processes may use a core); the
/// second node busy-polls or not.
fn round_trip(testbed: &Testbed, busy_poll: bool, meanwhile: Meanwhile) -> Duration {
    let near = node(testbed, 1, false);
    let far = node(testbed, 2, busy_poll);
    let [asks, answers] = [(&near, 1), (&far, 2)].map(|(node, id)| {
        let endpoint = node.endpoint(EndpointId(id));
        endpoint.expect("a free endpoint")
    });
    let mut times: Vec<Duration> = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let question = next(&answers, meanwhile);
                answers.reply(&question, &question).expect("a session");
            }
        });
        let found = testbed.inside(1, || asks.target(Address::new(2, 2)));
        found.expect("a namespace").expect("it is there");
        let ask = |round: usize| {
            let begun = Instant::now();
            asks.send(&round.to_ne_bytes()).expect("it is there");
            let answer = asks.receive_timeout(PATIENCE).expect("an answer");
            assert_eq!(*answer, round.to_ne_bytes());
            begun.elapsed()
        };
        (0..ROUNDS).map(ask).collect()
    });
    times.sort();
    times[ROUNDS / 4]
}

#[test]
fn a_polling_process_needs_no_interrupts_and_a_sleeping_one_receives_as_well() {
    let Some(testbed) = testbed() else { return };
    let interrupts = round_trip(&testbed, false, Meanwhile::Looks);
    let polled = round_trip(&testbed, true, Meanwhile::Looks);
    let asleep = round_trip(&testbed, true, Meanwhile::Sleeps);
    println!("by interrupts {interrupts:?}, polled {polled:?}, polled and asleep {asleep:?}");
    assert!(interrupts > PUT_OFF / 2, "nothing was put off");
    // Packets that the kernel holds back to merge them would wait for 4 ms.
    assert!(polled < PUT_OFF / 10, "{polled:?}: nothing was polled");
}

#[test]
fn doctor_measures_where_busy_polling_helps_and_explains_how_to_enable_it() {
    let Some(testbed) = testbed() else { return };
    let dipole = env!("CARGO_BIN_EXE_dipole");
    let mut receiver = testbed.command(1, dipole);
    let receiver = receiver.args(["recv", "1:7"]).stdout(Stdio::null());
    let mut receiver = receiver.spawn().expect("it starts");
    let begun = Instant::now();
    let finding = loop {
        let mut doctor = testbed.command(2, dipole);
        let output = doctor.args(["--json", "doctor"]).output().expect("it runs");
        let report = String::from_utf8(output.stdout).expect("text");
        let finding = report
            .lines()
            .find(|line| line.contains("\"busy polling\""));
        if let Some(finding) = finding {
            break finding.to_owned();
        }
        assert!(begun.elapsed() < PATIENCE, "no such finding: {report}");
    };
    receiver.kill().expect("ours");
    receiver.wait().expect("ours");
    assert!(finding.contains("helps: round trips take"), "{finding}");
    assert!(finding.contains("DIPOLE_BUSY_POLL=1"), "{finding}");
}
