//! Messages of an endpoint to itself, and to another endpoint of its node.

use std::thread;
use std::time::Duration;

use dipole_node::{
    Address, Bytes, Completion, Config, Endpoint, EndpointId, Links, Node, NodeId, Operation,
};

const PATIENCE: Duration = Duration::from_secs(60);
const LENGTHS: [usize; 6] = [0, 1, 9_000, 300_000, 3 << 20, 40_000_000];

fn pattern(length: usize) -> Bytes {
    let byte = |at: usize| u8::try_from((at * 7 + at / 256) % 251).expect("a byte");
    (0..length).map(byte).collect()
}

fn receive(endpoint: &Endpoint, expected: &Bytes) {
    let message = endpoint.receive_timeout(PATIENCE).expect("it comes");
    assert!(*message == *expected, "{} bytes", expected.len());
}

fn to_each_kind_of_target(mut check: impl FnMut(&Node, &Endpoint, &Endpoint, Address)) {
    for links in [Links::Auto, Links::Shm, Links::Udp] {
        let directory = tempfile::tempdir().expect("a directory");
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        let node = Node::open(Config { links, ..config }).expect("a node on loopback");
        let from = node.endpoint(EndpointId(1)).expect("free");
        let other = node.endpoint(EndpointId(2)).expect("free");
        check(&node, &from, &from, Address::new(1, 1));
        check(&node, &from, &other, Address::new(1, 2));
    }
}

#[test]
fn one_thread_posts_a_message_and_receives_it() {
    to_each_kind_of_target(|node, from, to, address| {
        let edge = from.edge(address).expect("usable");
        let queue = node.completion_queue();
        edge.attach(&queue);
        for length in LENGTHS {
            let bytes = pattern(length);
            (edge.post_bytes(Operation::Message, bytes.clone(), length as u64)).expect("posted");
            receive(to, &bytes);
            let completion = queue.wait(PATIENCE).expect("a working link");
            assert!(
                matches!(completion, Some(Completion::Sent { .. })),
                "{length} bytes: {completion:?}"
            );
        }
    });
}

#[test]
fn one_thread_sends_and_another_receives() {
    to_each_kind_of_target(|_, from, to, address| {
        let edge = from.edge(address).expect("usable");
        for length in LENGTHS {
            let bytes = pattern(length);
            thread::scope(|scope| {
                scope.spawn(|| edge.send_timeout(&bytes, PATIENCE).expect("sent"));
                receive(to, &bytes);
            });
        }
    });
}
