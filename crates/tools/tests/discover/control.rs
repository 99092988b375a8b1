//! Nodes on two networks, one of which is down; and a network that is only for queries.

use std::process::Command;
use std::time::Duration;

use dipole_testbed::Testbed;

use crate::testbed::{Agent, Cluster, said};

/// Long enough for a node that does not answer to be declared gone.
const LONG: Duration = Duration::from_secs(8);

fn two_networks() -> Option<Cluster> {
    Cluster::make(Testbed::builder().nodes(4).networks(2))
}

fn set_network(cluster: &Cluster, network: u32, up: bool) {
    for node in 1..=4 {
        cluster
            .testbed
            .set_interface(node, network, up)
            .expect("an interface");
    }
}

fn nobody_is_missed(cluster: &Cluster, agents: &[&Agent]) {
    std::thread::sleep(LONG);
    for agent in agents {
        let said = agent.said();
        assert!(!said.contains("node is down"), "{said}");
    }
    cluster.wait_for(&[1, 2, 3, 4]);
}

#[test]
fn no_node_is_declared_gone_while_one_of_two_networks_is_down() {
    let Some(cluster) = two_networks() else {
        return;
    };
    let agents = cluster.agents();
    let agents: Vec<&Agent> = agents.values().collect();
    cluster.wait_for(&[1, 2, 3, 4]);
    let status = cluster.status(1);
    assert_eq!(
        status["members"][0]["address"],
        "10.0.0.2:7411 10.1.0.2:7411"
    );
    for network in [0, 1] {
        set_network(&cluster, network, false);
        nobody_is_missed(&cluster, &agents);
        set_network(&cluster, network, true);
        nobody_is_missed(&cluster, &agents);
    }
    // A node that has lost its first interface is still reached by nodes that have both.
    cluster
        .testbed
        .set_interface(2, 0, false)
        .expect("an interface");
    nobody_is_missed(&cluster, &agents);
}

/// Packets to the directory port that a node has sent on an interface, counted by its firewall.
fn sent_by(cluster: &Cluster, node: u32, network: u32) -> u64 {
    let device = format!("/sys/class/net/net{network}/statistics/tx_packets");
    let mut command: Command = cluster.testbed.command(node, "cat");
    let output = command.arg(device).output().expect("it runs");
    said(&output).trim().parse().expect("a number")
}

#[test]
fn queries_and_membership_use_the_control_network_and_the_interfaces_if_it_is_down() {
    let Some(cluster) = two_networks() else {
        return;
    };
    let agents: Vec<Agent> = (1..=4)
        .map(|node| {
            let place = cluster.testbed.node(node);
            let (interface, control) = (
                place.addresses[0].to_string(),
                place.addresses[1].to_string(),
            );
            let bound = ["--discover", "--bind", &interface, "--control", &control];
            cluster.agent(node, &bound)
        })
        .collect();
    let agents: Vec<&Agent> = agents.iter().collect();
    cluster.wait_for(&[1, 2, 3, 4]);
    // Announcements after the start are sent on all interfaces.
    std::thread::sleep(LONG);
    let before = (sent_by(&cluster, 1, 0), sent_by(&cluster, 1, 1));
    std::thread::sleep(LONG);
    let by_interface = sent_by(&cluster, 1, 0) - before.0;
    let by_control = sent_by(&cluster, 1, 1) - before.1;
    println!(
        "in {LONG:?}: {by_interface} packets by the interface, {by_control} by the control network"
    );
    assert!(
        by_control > 2 * by_interface,
        "{by_interface} by the interface, {by_control}"
    );

    let file = cluster.testbed.node(1).runtime_dir.join("node-1/nodes");
    let file = std::fs::read_to_string(file).expect("the agent keeps it");
    assert!(
        file.contains("2 10.0.0.2 port=7411 control=10.1.0.2"),
        "{file}"
    );
    let carry = || {
        let mut receiver = cluster.dipole(2, &["recv", "2:7"]);
        let receiver = receiver.stdout(std::process::Stdio::piped()).spawn();
        let receiver = receiver.expect("it starts");
        let text = cluster.path("text");
        std::fs::write(&text, "by the interface").expect("our own folder");
        let mut sender = cluster.dipole(1, &["send", "2:7"]);
        sender.stdin(std::fs::File::open(&text).expect("just written"));
        let sent = sender.output().expect("it runs");
        assert!(sent.status.success(), "{}", said(&sent));
        let output = receiver.wait_with_output().expect("our child");
        assert_eq!(said(&output), "by the interface");
    };
    carry();
    set_network(&cluster, 1, false);
    nobody_is_missed(&cluster, &agents);
    carry();
}
