//! Network interfaces that come and go while nodes are open: what appears is taken into use, what
//! disappears is let go, and a stream of messages goes on. In network namespaces of the test.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId};
use dipole_testbed::Testbed;

const LENGTH: usize = 30_000;
const PATIENCE: Duration = Duration::from_secs(60);
const SENDER: EndpointId = EndpointId(1);
const RECEIVER: EndpointId = EndpointId(7);

/// Two nodes on two networks, and the stream from the first to the second.
struct Cluster {
    bed: Testbed,
    received: AtomicU32,
    ends: AtomicBool,
    ready: Barrier,
}

fn message(number: u32) -> Vec<u8> {
    let mut message = vec![number.to_le_bytes()[0]; LENGTH];
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

impl Cluster {
    fn new() -> Option<Arc<Cluster>> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let bed = Testbed::builder().nodes(2).networks(2).build();
        Some(Arc::new(Cluster {
            bed: bed.expect("a testbed"),
            received: AtomicU32::new(0),
            ends: AtomicBool::new(false),
            ready: Barrier::new(2),
        }))
    }

    fn ip(&self, node: u32, words: &str) {
        let namespace = &self.bed.node(node).namespace;
        let mut command = Command::new("ip");
        command.args(["-n", namespace]).args(words.split(' '));
        assert!(command.status().expect("ip runs").success(), "{words}");
    }

    /// Adds the address of a node on a network, or deletes it.
    fn address(&self, node: u32, network: u32, verb: &str) {
        let words = format!("addr {verb} 10.{network}.0.{node}/24 dev net{network}");
        self.ip(node, &words);
    }

    fn node(&self, node: u32) -> Node {
        let runtime = self.bed.node(node).runtime_dir.clone();
        let mut config = Config::local(NodeId(node), runtime);
        config.hosts = Hosts::load(&self.bed.hosts_file()).expect("a hosts file");
        config.apply_hosts_file();
        config.links = Links::Udp;
        Node::open(config).expect("a node")
    }

    /// Receives until the sender has ended, and checks that each message arrives once, in order.
    fn receive(&self) {
        let node = self.node(2);
        let endpoint = node.endpoint(RECEIVER).expect("free");
        self.ready.wait();
        loop {
            let received = endpoint.receive_timeout(PATIENCE).expect("a message");
            if received.len() < LENGTH {
                // The node leaves when the sender has every acknowledgement.
                self.ready.wait();
                return;
            }
            let number = self.received.load(Ordering::SeqCst);
            assert!(*received == *message(number), "message {number}");
            self.received.store(number + 1, Ordering::SeqCst);
        }
    }

    /// Sends until the test ends the stream; then waits until everything has arrived.
    fn send(&self) -> u32 {
        let node = self.node(1);
        let endpoint = node.endpoint(SENDER).expect("free");
        self.ready.wait();
        let to = Address::new(2, RECEIVER.0);
        endpoint.target(to).expect("the receiver");
        let mut sent = 0;
        while !self.ends.load(Ordering::SeqCst) {
            endpoint
                .send_timeout(&message(sent), PATIENCE)
                .expect("the receiver reads");
            sent += 1;
        }
        endpoint.send(b"end").expect("the receiver reads");
        endpoint.drain(PATIENCE).expect("the receiver reads");
        self.ready.wait();
        sent
    }

    /// Bytes that a node has received through an interface.
    fn arrived(&self, node: u32, network: u32) -> u64 {
        let counters = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let counters = self.bed.inside(node, counters).expect("the node");
        let counters = counters.expect("counters");
        let name = format!("net{network}:");
        let line = counters
            .lines()
            .find_map(|line| line.trim().strip_prefix(&name));
        let bytes = line.and_then(|line| line.split_whitespace().next());
        bytes
            .and_then(|bytes| bytes.parse().ok())
            .expect("a number")
    }

    /// Waits until more than 1 MB has arrived at node 2 through each of these networks.
    fn wait_for_traffic(&self, networks: &[u32]) {
        let before: Vec<u64> = networks.iter().map(|it| self.arrived(2, *it)).collect();
        let begun = Instant::now();
        let has_more =
            |(network, before): (&u32, &u64)| self.arrived(2, *network) > before + 1_000_000;
        while !networks.iter().zip(&before).all(has_more) {
            assert!(
                begun.elapsed() < PATIENCE,
                "no traffic on some of {networks:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the stream goes on over one network, and the other one, which was let go, carries
    /// next to nothing.
    fn carries_no_more(&self, network: u32) {
        let begun = Instant::now();
        loop {
            let before = self.arrived(2, network);
            self.wait_for_traffic(&[1 - network]);
            self.wait_for_traffic(&[1 - network]);
            let bytes = self.arrived(2, network) - before;
            if bytes < 100_000 {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{bytes} bytes on network {network}"
            );
        }
    }
}

/// Streams while `change` runs, and checks everything that was sent.
fn stream(cluster: &Arc<Cluster>, change: impl FnOnce()) {
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| cluster.bed.inside(2, || cluster.receive()));
        let sender = scope.spawn(|| cluster.bed.inside(1, || cluster.send()));
        // A failure below must not leave the sender running.
        struct Ending<'a>(&'a AtomicBool);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let ending = Ending(&cluster.ends);
        change();
        drop(ending);
        let sent = sender.join().expect("it sends").expect("the node");
        receiver.join().expect("it receives").expect("the node");
        assert_eq!(cluster.received.load(Ordering::SeqCst), sent);
    });
}

#[test]
fn an_interface_that_appears_is_used_and_the_stream_survives_the_loss_of_the_first() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    // Both nodes begin with one interface.
    cluster.address(1, 1, "del");
    cluster.address(2, 1, "del");
    stream(&cluster, || {
        cluster.wait_for_traffic(&[0]);
        cluster.address(1, 1, "add");
        cluster.address(2, 1, "add");
        cluster.wait_for_traffic(&[0, 1]);
        // The receiver loses the address by which it was found.
        cluster.address(2, 0, "del");
        cluster.carries_no_more(0);
        cluster.address(2, 0, "add");
        cluster.wait_for_traffic(&[0, 1]);
        // Now the sender loses its first interface.
        cluster.ip(1, "link set net0 down");
        cluster.carries_no_more(0);
        cluster.ip(1, "link set net0 up");
        cluster.wait_for_traffic(&[0, 1]);
    });
}

#[test]
fn a_node_whose_first_address_is_missing_is_reached_by_the_other() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    cluster.address(2, 0, "del");
    stream(&cluster, || {
        cluster.wait_for_traffic(&[1]);
        cluster.address(2, 0, "add");
        cluster.wait_for_traffic(&[0, 1]);
        cluster.address(2, 1, "del");
        cluster.carries_no_more(1);
    });
}
