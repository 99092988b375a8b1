//! Attackers fill the known ports of all nodes while a new node joins.

use std::net::{SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use dipole_naming::address::EndpointId;
use dipole_naming::registry::Query;
use dipole_node::Security;

use super::{Scene, attacker, packets, rate, seconds};

/// Random bytes, and packets that resemble those of agents and of endpoint look-ups, until the end.
fn flood(nodes: &[(u32, SocketAddrV4)], seed: u64, over: &AtomicBool, sent: &AtomicU64) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    socket.set_nonblocking(true).expect("a flag");
    let mut random = packets::Random(seed);
    let raw = attacker::Raw::open();
    // Create the packets once: only the rate matters.
    let made: Vec<(SocketAddrV4, Vec<u8>)> = (0..64)
        .flat_map(|_| nodes.to_vec())
        .map(|(node, to)| {
            let numbers = [nodes[0].0, node];
            let bytes = match random.next() % 4 {
                0 => random.bytes(64),
                1 => {
                    let question = Query::Lookup(EndpointId(7));
                    packets::control(&mut random, &question, numbers, true)
                }
                _ => {
                    let member = packets::Membership {
                        life: random.next(),
                        body: random.bytes(80),
                    };
                    packets::control(&mut random, &member, numbers, true)
                }
            };
            (to, bytes)
        })
        .collect();
    while !over.load(Ordering::Relaxed) {
        let mut count = 0;
        for (to, bytes) in &made {
            count += u64::from(socket.send_to(bytes, to).is_ok());
            count += raw.forge(nodes[0].1, *to, bytes);
        }
        sent.fetch_add(count, Ordering::Relaxed);
    }
}

/// Stops the flood even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_node_joins_soon_while_attackers_flood_the_known_ports() {
    for keyed in [true, false] {
        let Some(scene) = Scene::of(4, Security::Auth) else {
            return;
        };
        let _agents = [scene.agent(1, keyed), scene.agent(2, keyed)];
        let knows = |node: u32, others: &[u32]| {
            scene.wait(node, keyed, |status| {
                let members = status["members"].as_array().expect("a list");
                others.iter().all(|other| {
                    let mut found = members.iter().filter(|member| member["node"] == *other);
                    found.any(|member| member["state"] == "up")
                })
            });
        };
        knows(1, &[2]);
        knows(2, &[1]);
        let nodes = [1, 2, 3].map(|node| {
            let address = scene.testbed.node(node).addresses[0];
            (node, SocketAddrV4::new(address, 7411))
        });
        let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let (took, flooded) = std::thread::scope(|scope| {
            for seed in 0..2 {
                let (scene, nodes, over, sent) = (&scene, &nodes, &over, &sent);
                scope.spawn(move || {
                    scene
                        .testbed
                        .inside(4, || flood(nodes, seed, over, sent))
                        .expect("node 4");
                });
            }
            let _end = End(&over);
            // Let the queues fill up.
            std::thread::sleep(seconds() / 3);
            let begun = Instant::now();
            let _newcomer = scene.agent(3, keyed);
            knows(3, &[1, 2]);
            knows(1, &[3]);
            knows(2, &[3]);
            let took = begun.elapsed();
            // No node is reported missing meanwhile.
            knows(1, &[2]);
            (took, begun.elapsed() + seconds() / 3)
        });
        let word = if keyed { "with" } else { "without" };
        println!(
            "{word} a key: all knew of it after {took:.1?}, under {} packets a second",
            rate(sent.load(Ordering::Relaxed), flooded)
        );
    }
}
