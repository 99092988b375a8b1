//! Processes that exchanged their ports directly, without a hosts file or directory; and cheap
//! polling.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{
    Address, ClusterKey, Config, Edge, Endpoint, EndpointId, GoneReason, KeyMismatch, Message,
    Node, NodeId, Operation, Security,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Posts a message, because a send would block while the edge connects.
fn post(edge: &Edge, text: &[u8]) {
    let posted = edge.post(Operation::Message, &[IoSlice::new(text)], 0);
    posted.expect("there is room");
}

fn config(node: u32, directory: &std::path::Path) -> Config {
    Config::local(NodeId(node), directory.join(format!("node{node}")))
}

#[test]
fn an_edge_to_a_process_of_an_unknown_node_works_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let key = ClusterKey::random().unwrap();
    let [first, second] = [1, 2].map(|node| {
        let mut config = config(node, directory.path());
        config.key = Some(key.clone());
        Node::open(config).unwrap()
    });
    let here = first.endpoint(EndpointId(10)).unwrap();
    let there = second.endpoint(EndpointId(20)).unwrap();
    let edge = here.edge_at(there.address(), second.ports()).unwrap();
    post(&edge, b"out");
    let message = there.receive_timeout(PATIENCE).unwrap();
    assert_eq!(
        (&*message, message.source()),
        (&b"out"[..], Address::new(1, 10))
    );
    // A process that has received from another one knows its ports.
    let back = there.edge(here.address()).unwrap();
    post(&back, b"back");
    assert_eq!(&*here.receive_timeout(PATIENCE).unwrap(), b"back");
}

#[test]
fn nodes_with_addresses_of_different_families_are_named_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let of = |interfaces: &str| {
        let free = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let port = free.port();
        let text = format!("1 127.0.0.1 port={port}\n2 ::1 port={port}{interfaces}\n");
        let mut config = config(1, directory.path());
        config.hosts = Hosts::parse(&text).unwrap();
        let node = Node::open(config).unwrap();
        let endpoint = node.endpoint(EndpointId::ANY).unwrap();
        let edge = endpoint.edge(Address::new(2, 7)).unwrap();
        edge.wait_open(Duration::from_secs(1))
            .unwrap_err()
            .to_string()
    };
    let text = of("");
    assert!(
        text.contains("node 1 (127.0.0.1) and node 2 (::1)"),
        "{text}"
    );
    assert!(text.contains("same family"), "{text}");
    let text = of(" interfaces=127.0.0.2");
    assert!(!text.contains("same family"), "{text}");
}

/// One node sends to the other, which replies; they did not know each other before.
fn exchange(from: &Node, to: &Node, number: u32) {
    let here = from.endpoint(EndpointId(number)).unwrap();
    let there = to.endpoint(EndpointId(number)).unwrap();
    let edge = here.edge_at(there.address(), to.ports()).unwrap();
    post(&edge, b"out");
    assert_eq!(&*there.receive_timeout(PATIENCE).unwrap(), b"out");
    post(&there.edge(here.address()).unwrap(), b"back");
    assert_eq!(&*here.receive_timeout(PATIENCE).unwrap(), b"back");
}

#[test]
fn a_key_is_exchanged_while_messages_flow_and_processes_start() {
    exchange_key(Security::Auth, None);
}

#[test]
fn a_key_is_exchanged_with_packet_loss_and_nothing_leaks_or_is_lost() {
    exchange_key(Security::Encrypt, Some("drop=0.01,seed=5"));
}

/// A message of the sender in the test below, long enough to be recognised in a capture.
fn said(number: u64) -> String {
    format!("this is what the program says, number {number:016}")
}

/// A capture of all packets contains the text, or none of it.
fn check_captures(directory: &Path, security: Security) {
    for node in [1, 2] {
        let capture = std::fs::read(directory.join(format!("capture{node}"))).unwrap();
        assert!(capture.len() > 10_000, "{} bytes", capture.len());
        let words = b"what the program says";
        let is_read = capture.windows(words.len()).any(|part| part == words);
        assert_eq!(is_read, security == Security::Auth);
    }
}

fn exchange_key(security: Security, faults: Option<&str>) {
    let directory = tempfile::tempdir().unwrap();
    let file = |node: u32| directory.path().join(format!("key{node}"));
    let key = ClusterKey::random().unwrap().with_security(security);
    for node in [1, 2] {
        key.save(&file(node)).unwrap();
    }
    let open = |node, process: u32| {
        let folder = format!("node{node}-{process}");
        let mut config = Config::local(NodeId(node), directory.path().join(folder));
        config.key = Some(ClusterKey::load(&file(node)).unwrap());
        config.fault = faults.map(|plan| plan.parse().unwrap());
        if process == 0 {
            config.recordings.capture = Some(directory.path().join(format!("capture{node}")));
        }
        Node::open(config).unwrap()
    };
    let [first, second] = [1, 2].map(|node| open(node, 0));
    let here = first.endpoint(EndpointId(10)).unwrap();
    let there = second.endpoint(EndpointId(20)).unwrap();
    let edge = here.edge_at(there.address(), second.ports()).unwrap();
    post(&edge, said(0).as_bytes());
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 1_u64;
            while !ends.load(Ordering::Relaxed) {
                edge.send(said(sent).as_bytes()).unwrap();
                sent += 1;
            }
            sent
        });
        let receiver = scope.spawn(|| {
            let mut next = 0_u64;
            while let Ok(message) = there.receive_timeout(PATIENCE)
                && !message.is_empty()
            {
                assert_eq!(&*message, said(next).as_bytes());
                next += 1;
            }
            next
        });
        for step in 0..3 {
            let rotated = ClusterKey::rotate(&file(1), step > 0).unwrap();
            for copied in [false, true] {
                if copied {
                    std::fs::copy(file(1), file(2)).unwrap();
                }
                // Files are not checked for each proof.
                std::thread::sleep(Duration::from_millis(100));
                let number = 100 + 10 * step + u32::from(copied);
                let [one, two] = [1, 2].map(|node| open(node, number));
                exchange(&one, &two, number);
                exchange(&one, &second, number + 2);
                exchange(&first, &two, number + 4);
            }
            // A process that only has the old key is no longer part of the cluster.
            assert_eq!(rotated.other().is_none(), step == 2);
        }
        let mut stranger = config(3, directory.path());
        stranger.key = Some(key.clone());
        stranger.connect_timeout = Duration::from_millis(300);
        let stranger = Node::open(stranger).unwrap();
        let elsewhere = stranger.endpoint(EndpointId(30)).unwrap();
        let refused = elsewhere.edge_at(there.address(), second.ports()).unwrap();
        assert!(refused.wait_open(PATIENCE).is_err());
        ends.store(true, Ordering::Relaxed);
        let sent = sender.join().expect("the sender");
        edge.send(b"").unwrap();
        assert_eq!(receiver.join().expect("the receiver"), sent);
    });
    drop((edge, here, there));
    for node in [first, second] {
        node.close(PATIENCE).unwrap();
    }
    check_captures(directory.path(), security);
}

/// Longer than members may take to prove their membership again.
const RENEWAL: Duration = Duration::from_secs(60);

#[test]
fn a_process_with_only_a_withdrawn_key_is_removed_within_a_minute() {
    let longer = std::env::var("DIPOLE_ATTACK_S").map_or(0, |text| text.parse().expect("seconds"));
    if longer < RENEWAL.as_secs() {
        eprintln!("SKIPPED: takes a minute; DIPOLE_ATTACK_S=60 runs it");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let old = ClusterKey::random().unwrap();
    old.save(&file).unwrap();
    let open = |node, key: ClusterKey| {
        let mut config = config(node, directory.path());
        config.key = Some(key);
        Node::open(config).unwrap()
    };
    let [first, second] = [1, 2].map(|node| open(node, ClusterKey::load(&file).unwrap()));
    // This node has the old key and does not read the key file.
    let expelled = open(3, old);
    exchange(&first, &second, 10);
    exchange(&first, &expelled, 20);
    for step in 0..3 {
        ClusterKey::rotate(&file, step > 0).unwrap();
    }
    std::thread::sleep(RENEWAL);
    assert_eq!(first.stats().peers, 1);
    assert!(second.take_departures().is_empty());
    let departed = first.take_departures();
    let [departure] = &departed[..] else {
        panic!("{departed:?}");
    };
    assert_eq!(
        (departure.node, departure.reason),
        (3, GoneReason::Key(KeyMismatch::Different))
    );
    exchange(&first, &second, 30);
}

#[test]
fn an_edge_to_a_lost_process_reports_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = [1, 2].map(|node| Node::open(config(node, directory.path())).unwrap());
    let here = first.endpoint(EndpointId(10)).unwrap();
    let (to, ports) = (Address::new(1, 20), second.ports());
    drop(second);
    let mut brief = config(1, directory.path());
    brief.connect_timeout = Duration::from_millis(300);
    let third = Node::open(brief).unwrap();
    let elsewhere = third.endpoint(EndpointId(30)).unwrap();
    let edge = elsewhere.edge_at(to, ports).unwrap();
    assert!(edge.wait_open(PATIENCE).is_err());
    drop(here);
}

/// A node of a hosts file that is read again when it changes, and an endpoint of it.
fn node_of(hosts: &Path, directory: &Path, node: u32, number: u32) -> (Node, Endpoint) {
    let mut config = config(node, &directory.join(format!("life{number}")));
    config.hosts = Hosts::load_followed(hosts).unwrap();
    config.apply_hosts_file();
    let node = Node::open(config).unwrap();
    let endpoint = node.endpoint(EndpointId(number)).unwrap();
    (node, endpoint)
}

#[test]
fn a_node_that_moves_to_another_address_is_found_by_running_programs() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    // A port that is free now; each node has an address of its own.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().unwrap().port();
    let write = |second: &str, third: &str| {
        let text =
            format!("1 127.0.0.1 port={port}\n2 {second} port={port}\n3 {third} port={port}\n");
        std::fs::write(&hosts, text).unwrap();
    };
    write("127.0.0.2", "127.0.0.3");
    let (_first, here) = node_of(&hosts, directory.path(), 1, 10);
    let exchange = |there: &Endpoint, text: &[u8]| {
        std::thread::scope(|scope| {
            let got = scope.spawn(|| there.receive_timeout(PATIENCE));
            let edge = here.edge(there.address()).unwrap();
            edge.send_timeout(text, PATIENCE).unwrap();
            assert_eq!(&*got.join().unwrap().unwrap(), text);
        });
    };
    let (second, there) = node_of(&hosts, directory.path(), 2, 20);
    exchange(&there, b"at the first address");
    drop((second, there));
    // Another node takes its address before the node has opened at the new one.
    write("127.0.0.4", "127.0.0.2");
    let (_third, _other) = node_of(&hosts, directory.path(), 3, 30);
    let (_second, there) = node_of(&hosts, directory.path(), 2, 21);
    exchange(&there, b"at another address");
}

#[test]
fn try_receive_local_finds_messages_in_shared_memory() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = [(); 2].map(|()| Node::open(config(1, directory.path())).unwrap());
    let here = nodes[0].endpoint(EndpointId(10)).unwrap();
    let there = nodes[1].endpoint(EndpointId(20)).unwrap();
    assert!(there.try_receive_local().unwrap().is_none());
    let edge = here.edge(there.address()).unwrap();
    post(&edge, b"first");
    assert_eq!(&*there.receive_timeout(PATIENCE).unwrap(), b"first");
    post(&edge, b"second");
    let until = Instant::now() + PATIENCE;
    let found: Option<Message> = loop {
        let found = there.try_receive_local().unwrap();
        if found.is_some() || Instant::now() > until {
            break found;
        }
        std::thread::yield_now();
    };
    assert_eq!(found.as_deref(), Some(&b"second"[..]));
    there.end();
    assert!(there.try_receive_local().is_err());
}
