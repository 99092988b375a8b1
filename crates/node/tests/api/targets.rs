//! Messages to several targets: each gets every message once, and none holds up the others for
//! longer than its policy says.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId, SendError};
use dipole_node::{OverflowPolicy, ReceiveError};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough that few messages fit into a target's room.
const LENGTH: usize = 5000;

fn node(directory: &TempDir, links: Links) -> Node {
    let config = Config {
        links,
        ..Config::local(NodeId(1), directory.path().join("dipole"))
    };
    Node::open(config).expect("a node on loopback")
}

fn message(number: u32) -> Vec<u8> {
    let mut message = vec![0; LENGTH];
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

fn number(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[..4].try_into().expect("long enough"))
}

/// A target in a node of its own, which reads on command.
struct Leaf {
    address: Address,
    commands: Sender<Command>,
    thread: JoinHandle<Vec<u32>>,
}

enum Command {
    /// Read this many messages.
    Read(usize),
    /// Read until nothing arrives for this long.
    ReadFor(Duration),
}

impl Leaf {
    fn new(directory: &TempDir, links: Links, id: u32) -> Leaf {
        let node = node(directory, links);
        let endpoint = node.endpoint(EndpointId(id)).expect("a free endpoint");
        let address = endpoint.address();
        // A thread of the node answers while this one reads nothing.
        let descriptor = endpoint.export().expect("a descriptor");
        let (commands, orders) = channel();
        let thread = std::thread::spawn(move || {
            let _descriptor = descriptor;
            let _node = node;
            obey(&endpoint, &orders)
        });
        Leaf {
            address,
            commands,
            thread,
        }
    }

    fn order(&self, command: Command) {
        self.commands.send(command).expect("the leaf lives");
    }

    /// Closes the leaf and its node; returns the numbers that it read.
    fn end(self) -> Vec<u32> {
        drop(self.commands);
        self.thread.join().expect("no panic")
    }
}

fn obey(endpoint: &Endpoint, orders: &Receiver<Command>) -> Vec<u32> {
    let mut numbers = Vec::new();
    for order in orders {
        match order {
            Command::Read(count) => {
                for _ in 0..count {
                    let taken = endpoint.receive_timeout(PATIENCE).expect("in time");
                    numbers.push(number(&taken));
                }
            }
            Command::ReadFor(quiet) => loop {
                match endpoint.receive_timeout(quiet) {
                    Ok(taken) => numbers.push(number(&taken)),
                    Err(ReceiveError::TimedOut { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            },
        }
    }
    numbers
}

/// A root with two targets in other nodes.
fn tree(directory: &TempDir, links: Links) -> (Endpoint, [Leaf; 2]) {
    tree_of(directory, links, [2, 3])
}

/// A root with these targets in other nodes.
fn tree_of<const N: usize>(
    directory: &TempDir,
    links: Links,
    ids: [u32; N],
) -> (Endpoint, [Leaf; N]) {
    let leaves = ids.map(|id| Leaf::new(directory, links, id));
    let root = node(directory, links)
        .endpoint(EndpointId(1))
        .expect("a free endpoint");
    for leaf in &leaves {
        root.target(leaf.address).expect("it exists");
    }
    (root, leaves)
}

/// Sends with `send`, and lets the slow leaf read whenever there is no room.
fn send_with_repeats(
    root: &Endpoint,
    slow: &Leaf,
    count: u32,
    send: impl Fn(&[u8]) -> Result<(), SendError>,
) -> usize {
    let (mut refused, mut left) = (0, count as usize);
    for number in 0..count {
        while let Err(error) = send(&message(number)) {
            let out_of_room = matches!(error, SendError::Full { .. } | SendError::TimedOut { .. });
            assert!(out_of_room, "{error}");
            refused += 1;
            if refused % 10 == 1 && left >= 20 {
                slow.order(Command::Read(20));
                left -= 20;
            }
            std::thread::yield_now();
        }
    }
    slow.order(Command::Read(left));
    root.drain(PATIENCE).expect("both read");
    refused
}

fn a_repeated_send_never_delivers_twice(links: Links) {
    let all: Vec<u32> = (0..4000).collect();
    for timed in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let (root, [fast, slow]) = tree(&directory, links);
        fast.order(Command::Read(all.len()));
        let refused = send_with_repeats(&root, &slow, 4000, |message| match timed {
            true => root.send_timeout(message, Duration::from_micros(300)),
            false => root.try_send(message),
        });
        assert!(refused > 0, "the slow target always had room");
        assert_eq!(fast.end(), all);
        assert_eq!(slow.end(), all);
    }
}

/// The sender sleeps until seven targets have room: each of them can wake it.
fn a_message_waits_for_many_slow_targets(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (root, leaves) = tree_of(&directory, links, [2, 3, 4, 5, 6, 7, 8]);
    let mut sent = 0;
    let blocked = loop {
        match root.send_timeout(&message(sent), Duration::from_millis(200)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    let is_timeout = matches!(blocked, SendError::TimedOut { .. });
    assert!(is_timeout, "{blocked}");
    for leaf in &leaves {
        leaf.order(Command::Read(sent as usize + 1));
    }
    root.send_timeout(&message(sent), PATIENCE)
        .expect("all read");
    root.drain(PATIENCE).expect("all read");
    for leaf in leaves {
        assert_eq!(leaf.end(), (0..=sent).collect::<Vec<_>>());
    }
}

fn long_messages_reach_all_targets_once(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (root, leaves) = tree(&directory, links);
    for leaf in &leaves {
        leaf.order(Command::Read(9));
    }
    for number in 0..9_u32 {
        let mut message = vec![7; 300_000];
        message[..4].copy_from_slice(&number.to_le_bytes());
        match number % 3 {
            0 => root.send(&message),
            1 => root.send_timeout(&message, PATIENCE),
            _ => loop {
                match root.try_send(&message) {
                    Err(SendError::Full { .. }) => std::thread::yield_now(),
                    sent => break sent,
                }
            },
        }
        .expect("both read");
    }
    root.drain(PATIENCE).expect("both read");
    for leaf in leaves {
        assert_eq!(leaf.end(), (0..9).collect::<Vec<_>>());
    }
}

fn a_lost_target_is_reported_once_and_the_others_go_on(links: Links) {
    for lost_at in [0, 1] {
        let directory = tempfile::tempdir().expect("a directory");
        let (root, mut leaves) = tree(&directory, links);
        leaves.rotate_left(lost_at);
        let [lost, other] = leaves;
        lost.order(Command::Read(1));
        other.order(Command::Read(101));
        root.send(&message(0)).expect("both live");
        root.drain(PATIENCE).expect("both read");
        let address = lost.address;
        lost.end();
        let (mut errors, mut sent) = (Vec::new(), 1);
        while sent <= 100 {
            match root.send_timeout(&message(sent), PATIENCE) {
                Ok(()) => sent += 1,
                Err(error) => errors.push(error),
            }
        }
        assert_eq!(other.end(), (0..=100).collect::<Vec<_>>());
        let [error] = &errors[..] else {
            panic!("expected one report: {errors:?}");
        };
        let names_it = match error {
            SendError::PeerGone { target, .. } | SendError::Refused { target, .. } => *target,
            other => panic!("{other}"),
        };
        assert_eq!(names_it, address);
    }
}

fn a_policy_decides_what_a_slow_target_gets(links: Links) {
    const COUNT: u32 = 4000;
    let newest = COUNT - 1;
    let policies = [
        OverflowPolicy::DropNewest { messages: 4 },
        OverflowPolicy::DropOldest { messages: 4 },
        OverflowPolicy::KeepLatest,
    ];
    for policy in policies {
        let directory = tempfile::tempdir().expect("a directory");
        let (root, [fast, slow]) = tree(&directory, links);
        root.set_overflow_policy(slow.address, policy)
            .expect("it is a target");
        fast.order(Command::Read(COUNT as usize));
        for number in 0..COUNT {
            root.send(&message(number)).expect("the fast target reads");
        }
        assert_eq!(fast.end(), (0..COUNT).collect::<Vec<_>>());
        let dropped = root.dropped_messages(slow.address).expect("a target");
        slow.order(Command::ReadFor(Duration::from_secs(2)));
        let got = slow.end();
        assert_eq!(got.len() as u64 + dropped, u64::from(COUNT), "{policy:?}");
        assert!(dropped > 100, "{policy:?}: {dropped}");
        assert!(got.is_sorted_by(|a, b| a < b), "{policy:?}: order");
        let last = got[got.len() - 4..].to_vec();
        match policy {
            OverflowPolicy::DropOldest { .. } => {
                assert_eq!(last, (newest - 3..COUNT).collect::<Vec<_>>());
            }
            OverflowPolicy::KeepLatest => assert_eq!(last[3], newest),
            _ => assert_eq!(got[..4], [0, 1, 2, 3]),
        }
    }
}

fn closing_an_endpoint_delivers_what_waits_for_room(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (root, [fast, slow]) = tree(&directory, links);
    let mut sent = 0;
    fast.order(Command::ReadFor(Duration::from_secs(2)));
    while root.try_send(&message(sent)).is_ok() {
        sent += 1;
    }
    slow.order(Command::ReadFor(Duration::from_secs(2)));
    drop(root);
    let all: Vec<u32> = (0..sent).collect();
    assert_eq!(slow.end(), all);
    assert_eq!(fast.end(), all);
}

fn an_unreliable_message_skips_a_lost_target(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (root, [lost, other]) = tree(&directory, links);
    other.order(Command::Read(1));
    lost.end();
    let lost = loop {
        match root.send_unreliable(&message(0)) {
            Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(lost, SendError::PeerGone { .. } | SendError::Refused { .. }),
        "{lost}"
    );
    root.send_unreliable(&message(0)).expect("the other lives");
    assert_eq!(other.end(), [0]);
}

macro_rules! over_each_link {
    ($($test:ident,)*) => {
        mod by_udp {
            $(#[test] fn $test() { super::$test(super::Links::Udp); })*
        }
        mod by_shared_memory {
            $(#[test] fn $test() { super::$test(super::Links::Shm); })*
        }
    };
}

over_each_link! {
    a_repeated_send_never_delivers_twice,
    a_message_waits_for_many_slow_targets,
    long_messages_reach_all_targets_once,
    a_lost_target_is_reported_once_and_the_others_go_on,
    a_policy_decides_what_a_slow_target_gets,
    closing_an_endpoint_delivers_what_waits_for_room,
    an_unreliable_message_skips_a_lost_target,
}
