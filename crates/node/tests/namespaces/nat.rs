//! A node behind NAT: its packets arrive from a translated address, and NAT passes only replies. In
//! network namespaces of the test.

use std::process::Command;
use std::time::Duration;

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId};
use dipole_testbed::Testbed;

const PATIENCE: Duration = Duration::from_secs(60);
const ROUNDS: u32 = 2000;
/// The address of node 1, which node 2 has no route to.
const PRIVATE: &str = "10.77.1.1";

fn run(bed: &Testbed, node: u32, words: &[&str]) -> bool {
    let mut command = Command::new("ip");
    let namespace = &bed.node(node).namespace;
    command.args(["netns", "exec", namespace]).args(words);
    command.status().expect("ip runs").success()
}

fn open(bed: &Testbed, node: u32) -> Node {
    let mut config = Config::local(NodeId(node), bed.node(node).runtime_dir.clone());
    let hosts = format!("1 {PRIVATE}\n2 10.0.0.2\n");
    config.hosts = Hosts::parse(&hosts).expect("a hosts file");
    config.apply_hosts_file();
    config.links = Links::Udp;
    Node::open(config).expect("a node")
}

#[test]
fn a_node_behind_nat_converses_without_stalls() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let bed = Testbed::builder().nodes(2).build().expect("a testbed");
    let private = format!("{PRIVATE}/32");
    assert!(run(&bed, 1, &["ip", "addr", "add", &private, "dev", "lo"]));
    let rules = format!(
        "table ip t {{ chain c {{ type nat hook postrouting priority 100; \
         ip saddr {PRIVATE} oifname net0 masquerade; }}; }}"
    );
    if !run(&bed, 1, &["nft", &rules]) {
        eprintln!("SKIPPED: nft cannot translate addresses here");
        return;
    }
    std::thread::scope(|scope| {
        let replies = scope.spawn(|| {
            bed.inside(2, || {
                let node = open(&bed, 2);
                let endpoint = node.endpoint(EndpointId(7)).expect("free");
                for _ in 0..ROUNDS {
                    let message = endpoint.receive_timeout(PATIENCE).expect("a message");
                    let edge = endpoint.edge(message.source()).expect("known");
                    edge.send_timeout(&message, PATIENCE).expect("it reads");
                }
                // Node 1 has everything when it says goodbye.
                let _last = endpoint.receive_timeout(PATIENCE);
            })
        });
        let converses = bed.inside(1, || {
            let node = open(&bed, 1);
            let endpoint = node.endpoint(EndpointId(1)).expect("free");
            let edge = endpoint.edge(Address::new(2, 7)).expect("found");
            for round in 0..ROUNDS {
                // Short ones, and some that take the bulk port.
                let bytes = if round % 100 == 99 { 20_000 } else { 8 };
                let message = vec![round.to_le_bytes()[0]; bytes];
                edge.send_timeout(&message, PATIENCE).expect("it reads");
                let reply = endpoint.receive_timeout(PATIENCE).expect("a reply");
                assert_eq!(*reply, *message, "round {round}");
            }
            edge.send_timeout(b"end", PATIENCE).expect("it reads");
            node.stats().protocol.tail_repeats
        });
        let repeats = converses.expect("node 1");
        replies.join().expect("it replies").expect("node 2");
        // Each stall would be a tail time-out.
        assert!(repeats < u64::from(ROUNDS) / 10, "{repeats} tail time-outs");
        println!("{repeats} tail time-outs");
    });
}
