//! The only address of a node changes while its process runs: streams of messages go on, and other
//! processes find it. In network namespaces of the test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{
    Address, Config, Endpoint, EndpointId, GoneReason, Links, Node, NodeId, SendError,
};
use dipole_testbed::Testbed;

const PATIENCE: Duration = Duration::from_secs(60);
const PEER_TIMEOUT: Duration = Duration::from_secs(1);
const SENDER: EndpointId = EndpointId(1);
const RECEIVER: EndpointId = EndpointId(7);

/// Two nodes on one network.
struct Cluster {
    bed: Testbed,
    hosts: PathBuf,
    links: Links,
}

impl Cluster {
    fn new(links: Links) -> Option<Cluster> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let bed = Testbed::builder().nodes(2).build().expect("a testbed");
        let hosts = bed.hosts_file();
        Some(Cluster { bed, hosts, links })
    }

    fn ip(&self, node: u32, words: &str) {
        let namespace = &self.bed.node(node).namespace;
        let mut command = Command::new("ip");
        command.args(["-n", namespace]).args(words.split(' '));
        assert!(command.status().expect("ip runs").success(), "{words}");
    }

    /// Replaces the address of a node. The hosts file still lists the former one.
    fn renumber(&self, node: u32, from: &str, to: &str) {
        self.ip(node, &format!("addr del {from}/24 dev net0"));
        self.ip(node, &format!("addr add {to}/24 dev net0"));
    }

    /// Replaces an address in the hosts file.
    fn rewrite(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(&self.hosts).expect("a hosts file");
        let lines = text.lines().map(|line| {
            let words = line.split(' ');
            let words = words.map(|word| if word == from { to } else { word });
            words.collect::<Vec<_>>().join(" ") + "\n"
        });
        std::fs::write(&self.hosts, lines.collect::<String>()).expect("a hosts file");
    }

    /// True if a node receives no packets at other ports than that of its directory any more; false
    /// if the rules of `nft` cannot be set.
    fn filter(&self, node: u32) -> bool {
        let namespace = &self.bed.node(node).namespace;
        let rules = "table inet t { chain c { type filter hook input priority 0; \
                     udp dport != 7411 drop; }; }";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "nft", rules]);
        command.status().expect("ip runs").success()
    }

    fn node(&self, node: u32) -> Node {
        let runtime = self.bed.node(node).runtime_dir.clone();
        let mut config = Config::local(NodeId(node), runtime);
        config.hosts = Hosts::load_followed(&self.hosts).expect("a hosts file");
        config.apply_hosts_file();
        config.links = self.links;
        config.set_peer_timeout(PEER_TIMEOUT);
        Node::open(config).expect("a node")
    }
}

/// Receives numbered messages, and replies to each of them.
fn reply(endpoint: &Endpoint, received: &AtomicU32) {
    loop {
        let message = endpoint.receive_timeout(PATIENCE).expect("a message");
        if message.is_empty() {
            return;
        }
        let number = received.load(Ordering::SeqCst);
        assert_eq!(*message, number.to_le_bytes());
        let edge = endpoint.edge(message.source()).expect("an edge");
        edge.send_timeout(&message, PATIENCE)
            .expect("the sender reads");
        received.store(number + 1, Ordering::SeqCst);
    }
}

/// Sends numbered messages and waits for each reply.
fn converse(endpoint: &Endpoint, ends: &AtomicBool) -> u32 {
    let edge = endpoint.edge(Address::new(2, RECEIVER.0)).expect("open");
    let mut sent = 0_u32;
    while !ends.load(Ordering::SeqCst) {
        edge.send_timeout(&sent.to_le_bytes(), PATIENCE)
            .expect("the receiver reads");
        let reply = endpoint.receive_timeout(PATIENCE).expect("a reply");
        assert_eq!(*reply, sent.to_le_bytes());
        sent += 1;
    }
    edge.send_timeout(b"", PATIENCE)
        .expect("the receiver reads");
    sent
}

fn wait_for_more(received: &AtomicU32, what: &str) {
    let before = received.load(Ordering::SeqCst);
    let begun = Instant::now();
    // The first of them may have been on its way already.
    while received.load(Ordering::SeqCst) < before + 3 {
        assert!(begun.elapsed() < PATIENCE, "nothing arrives {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{what}: {} ms", begun.elapsed().as_millis());
}

/// A conversation goes on while each node gets another address, and a process that starts later
/// finds the node that has moved.
fn follow(links: Links) {
    let Some(cluster) = Cluster::new(links) else {
        return;
    };
    let cluster = &cluster;
    let received = AtomicU32::new(0);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A failure below must not leave the sender running.
        struct Ending<'a>(&'a AtomicBool);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (here, there) = (&received, &ends);
        let second = cluster.bed.inside(2, || cluster.node(2)).expect("node 2");
        let first = cluster.bed.inside(1, || cluster.node(1)).expect("node 1");
        let receiving = second.endpoint(RECEIVER).expect("free");
        let sending = first.endpoint(SENDER).expect("free");
        // Look-ups happen in the namespace of the thread that begins them.
        let receiver = scope.spawn(move || cluster.bed.inside(2, || reply(&receiving, here)).ok());
        let sender = scope.spawn(move || cluster.bed.inside(1, || converse(&sending, there)));
        let ending = Ending(&ends);
        wait_for_more(&received, "at first");
        cluster.renumber(2, "10.0.0.2", "10.0.0.12");
        wait_for_more(&received, "after the receiver has moved");
        cluster.renumber(1, "10.0.0.1", "10.0.0.11");
        wait_for_more(&received, "after the sender has moved");
        cluster.renumber(2, "10.0.0.12", "10.0.0.22");
        let through_ring = || second.stats().bpf.map(|stats| stats.from_ring);
        let before = through_ring();
        wait_for_more(&received, "after the receiver has moved again");
        // The new address has a fast path, too, if the former ones had.
        assert_eq!(through_ring() > before, links == Links::Bpf);
        assert_eq!(second.ports().small.ip().to_string(), "10.0.0.22");
        // The running processes are found at the addresses that the hosts file now has.
        cluster.rewrite("10.0.0.2", "10.0.0.22");
        cluster.rewrite("10.0.0.1", "10.0.0.11");
        let other = second.endpoint(EndpointId(8)).expect("free");
        let found = cluster.bed.inside(1, || {
            let newcomer = cluster.node(1);
            let endpoint = newcomer.endpoint(EndpointId(2)).expect("free");
            let edge = endpoint.edge(Address::new(2, 8)).expect("found");
            edge.send_timeout(b"from a newcomer", PATIENCE)
        });
        found.expect("node 1").expect("sent");
        let message = other.receive_timeout(PATIENCE).expect("a message");
        assert_eq!(*message, *b"from a newcomer");
        // So does the process that has a session from before the moves.
        let sent = cluster.bed.inside(1, || {
            let endpoint = first.endpoint(EndpointId(3)).expect("free");
            let edge = endpoint.edge(Address::new(2, 8)).expect("found");
            edge.send_timeout(b"from before", PATIENCE)
        });
        sent.expect("node 1").expect("sent");
        let message = other.receive_timeout(PATIENCE).expect("a message");
        assert_eq!(*message, *b"from before");
        wait_for_more(&received, "after all that");
        drop(ending);
        let sent = sender.join().expect("it sends").expect("node 1");
        assert_eq!(receiver.join().expect("it replies"), Some(()));
        assert_eq!(received.load(Ordering::SeqCst), sent);
    });
}

#[test]
fn a_conversation_follows_nodes_whose_only_address_changes_over_udp() {
    follow(Links::Udp);
}

#[test]
fn a_conversation_follows_nodes_whose_only_address_changes_over_bpf() {
    follow(Links::Bpf);
}

#[test]
fn a_running_process_whose_packets_are_filtered_is_reported_as_unreachable() {
    let Some(cluster) = Cluster::new(Links::Udp) else {
        return;
    };
    let second = cluster.bed.inside(2, || cluster.node(2)).expect("node 2");
    let receiving = second.endpoint(RECEIVER).expect("free");
    let reported = cluster.bed.inside(1, || {
        let first = cluster.node(1);
        let sending = first.endpoint(SENDER).expect("free");
        let edge = sending.edge(Address::new(2, RECEIVER.0)).expect("open");
        std::thread::scope(|scope| {
            let received = scope.spawn(|| receiving.receive_timeout(PATIENCE));
            edge.send_timeout(b"before", PATIENCE).expect("sent");
            let message = received.join().expect("it receives");
            assert_eq!(*message.expect("a message"), *b"before");
        });
        if !cluster.filter(2) {
            eprintln!("SKIPPED: nft does not work here");
            return None;
        }
        let begun = Instant::now();
        let error = loop {
            if let Err(error @ SendError::PeerGone { .. }) =
                edge.send_timeout(b"after", PEER_TIMEOUT)
            {
                break error;
            }
            assert!(begun.elapsed() < PATIENCE, "no error");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(
            begun.elapsed() >= 10 * PEER_TIMEOUT,
            "{:?}",
            begun.elapsed()
        );
        let departures = first.take_departures();
        Some((error.to_string(), departures[0].node, departures[0].reason))
    });
    if let Some((error, node, reason)) = reported.expect("node 1") {
        assert_eq!((node, reason), (2, GoneReason::Unreachable));
        assert!(error.contains("2:7"), "{error}");
    }
}
