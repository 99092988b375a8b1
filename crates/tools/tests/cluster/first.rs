//! The time of the first message to a new peer, in round trips of a network that is slow enough to
//! measure them.

use std::thread;
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, EndpointId, Node, NodeId};
use dipole_testbed::{Faults, Testbed};

const ONE_WAY: Duration = Duration::from_millis(40);
/// One to look up the endpoint, two for the handshake, half for the message, and some for the
/// kernel's ARP, which comes first.
const MOST_ROUND_TRIPS: f64 = 3.9;

fn node(testbed: &Testbed, number: u32) -> Node {
    let hosts = Hosts::load(&testbed.hosts_file()).expect("the testbed's hosts file");
    let directory = testbed.node(number).runtime_dir.join("first");
    let mut config = Config::local(NodeId(number), directory.clone());
    config.hosts = hosts;
    config.apply_hosts_file();
    config.runtime_dir = directory;
    let opened = testbed.inside(number, || Node::open(config));
    opened.expect("a namespace").expect("a node")
}

/// How often a measurement is repeated on a machine that is too busy for it.
const ATTEMPTS: u32 = 10;

/// Round trips of the first message to a new peer, and to another endpoint of it.
fn measured(testbed: &Testbed) -> [f64; 2] {
    let (left, right) = (node(testbed, 1), node(testbed, 2));
    let outbox = left.endpoint(EndpointId(1)).expect("a free endpoint");
    let inboxes = [7, 8].map(|id| right.endpoint(EndpointId(id)).expect("a free endpoint"));
    inboxes.map(|inbox| {
        let to = Address::new(2, inbox.address().endpoint.0);
        let begun = Instant::now();
        let took = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                inbox
                    .receive_timeout(Duration::from_secs(20))
                    .expect("it comes");
                begun.elapsed()
            });
            // The query leaves from the namespace of the thread that sends it.
            let found = testbed.inside(1, || outbox.target(to));
            found.expect("a namespace").expect("it is there");
            outbox.send(b"first").expect("it is there");
            receiver.join().expect("no panic")
        });
        outbox.untarget(to);
        took.as_secs_f64() / (2.0 * ONE_WAY.as_secs_f64())
    })
}

#[test]
fn the_first_message_arrives_after_three_and_a_half_round_trips() {
    let faults = Faults {
        delay: 1.0,
        delay_time: ONE_WAY,
        ..Faults::default()
    };
    let Some(testbed) = crate::testbed(Testbed::builder().faults(faults)) else {
        return;
    };
    for _ in 0..ATTEMPTS {
        let trips = measured(&testbed);
        println!("round trips to a new peer and to an endpoint of a known one: {trips:.2?}");
        if trips.iter().all(|trips| *trips < MOST_ROUND_TRIPS) {
            return;
        }
    }
    panic!("the first message takes {MOST_ROUND_TRIPS} round trips or more");
}
