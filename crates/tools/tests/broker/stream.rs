//! Messages of a user while the ring is taken away in mid-stream and comes back.

use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId};

use crate::scene::{CAROL, PATIENCE, RING_BYTES, Scene};

/// Number of messages per part, and in flight.
const PART: u64 = 20_000;
const WINDOW: u64 = 64;
/// Port of the directories of this user's nodes.
const PORT: u16 = 7500;

fn content(number: u64) -> Vec<u8> {
    let mut message = number.to_le_bytes().to_vec();
    let length = 8 + usize::try_from(number % 900).expect("small");
    message.resize(length, number.to_le_bytes()[0]);
    message
}

fn open(scene: &Scene, node: u32, uid: u32, links: Links) -> (Node, Endpoint) {
    let runtime = scene.runtime_of(uid);
    // An agent of root would serve only root's programs.
    let line = |node| format!("{node} {} port={PORT}\n", scene.address(node));
    let hosts = line(1) + &line(2);
    let make = || {
        let mut config = Config::local(NodeId(node), runtime);
        config.hosts = Hosts::parse(&hosts).expect("a hosts file");
        config.bind = scene.address(node);
        config.links = links;
        config.broker = scene.broker();
        config.ring_bytes = RING_BYTES;
        let node = Node::open(config).expect("a node");
        let endpoint = node.endpoint(EndpointId(7)).expect("free");
        (node, endpoint)
    };
    match node {
        1 => scene.being(uid, make),
        _ => scene.testbed.inside(node, make).expect("a namespace"),
    }
}

/// Sends back messages, which must arrive in order and once.
fn echo(far: &Endpoint, from: u64, count: u64) {
    for number in from..from + count {
        let message = far.receive_timeout(PATIENCE).expect("it comes");
        assert_eq!(&*message, content(number), "to the other side");
        if number == 0 {
            far.target(Address::new(1, 7)).expect("it is there");
        }
        far.send(&message).expect("it is there");
    }
    far.drain(PATIENCE).expect("all is acknowledged");
}

/// Sends messages, which must come back in order and once.
fn ask(near: &Endpoint, from: u64, count: u64) {
    if from == 0 {
        near.target(Address::new(2, 7)).expect("it is there");
    }
    let mut back = from;
    let mut take = || {
        let message = near.receive_timeout(PATIENCE).expect("it comes back");
        assert_eq!(&*message, content(back), "and back");
        back += 1;
    };
    for number in from..from + count {
        near.send(&content(number)).expect("it is there");
        if number >= from + WINDOW {
            take();
        }
    }
    (0..count.min(WINDOW)).for_each(|_| take());
}

#[test]
fn messages_continue_through_the_socket_without_the_ring_and_then_through_the_ring_again() {
    let Some(mut scene) = Scene::with_broker() else {
        return;
    };
    let (user, near) = open(&scene, 1, CAROL, Links::Bpf);
    let (root, far) = open(&scene, 2, 0, Links::Udp);
    let exchange = |scene: &Scene, from, count| {
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| scene.testbed.inside(2, || echo(&far, from, count)));
            scene.being(CAROL, || {
                ask(&near, from, count);
                // Continues to acknowledge until the other end has finished.
                while !echo.is_finished() {
                    let more = near.receive_timeout(Duration::from_millis(1));
                    assert!(more.is_err(), "a message too many");
                }
            });
            echo.join().expect("all in order").expect("a namespace");
        });
    };
    let stats = || user.stats().bpf.expect("the bpf link");

    exchange(&scene, 0, PART);
    let before = stats();
    assert!(before.from_ring > 0 && before.raw > 0, "{before:?}");

    let mut broker = scene.take_broker();
    std::thread::scope(|scope| {
        let going_on = scope.spawn(|| exchange(&scene, PART, 2 * PART));
        std::thread::sleep(Duration::from_millis(20));
        broker.kill().expect("our child");
        broker.wait().expect("our child");
        going_on.join().expect("all in order");
    });
    exchange(&scene, 3 * PART, PART);
    let without = stats();
    assert!(without.from_socket > before.from_socket, "{without:?}");

    let mut broker = scene.command();
    scene.start(&mut broker);
    let begun = Instant::now();
    let mut next = 4 * PART;
    let from_ring = stats().from_ring;
    let raw = stats().raw;
    while stats().from_ring <= from_ring + 100 || stats().raw <= raw + 100 {
        exchange(&scene, next, 1000);
        next += 1000;
        assert!(begun.elapsed() < PATIENCE, "the ring does not come back");
    }
    println!("{before:?}\n{without:?}\n{:?}", stats());
    drop((near, far));
    user.close(PATIENCE).expect("all is acknowledged");
    root.close(PATIENCE).expect("all is acknowledged");
}
