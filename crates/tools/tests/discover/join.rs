//! Nodes that join and leave while programs run.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;

use crate::testbed::{Agent, Cluster, PATIENCE, said};

#[test]
fn a_program_reaches_a_node_that_joins_after_it_was_started() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let _agents: Vec<Agent> = (1..=3)
        .map(|node| cluster.agent(node, &["--discover"]))
        .collect();
    cluster.wait_for(&[1, 2, 3]);
    let text = cluster.path("text");
    std::fs::write(&text, "hello, fourth").expect("our own folder");
    let mut send = cluster.dipole(1, &["send", "4:7"]);
    let input = std::fs::File::open(&text).expect("just written");
    let mut sender = send.stdin(input).stderr(Stdio::piped()).spawn();
    let sender = sender.as_mut().expect("it starts");
    // It looks for a node that does not exist.
    std::thread::sleep(Duration::from_secs(2));
    assert!(sender.try_wait().expect("our child").is_none());
    let _fourth = cluster.agent(4, &["--discover"]);
    let output = cluster.dipole(4, &["recv", "4:7"]).output();
    let output = output.expect("it runs");
    assert_eq!(said(&output), "hello, fourth");
    assert!(sender.wait().expect("our child").success());
}

#[test]
fn a_departure_is_known_at_once_a_death_soon_and_a_return_counts_as_a_new_run() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let mut agents = cluster.agents();
    cluster.wait_for(&[1, 2, 3, 4]);

    agents.remove(&3).expect("started").leave();
    let took = cluster.wait_for(&[1, 2, 4]);
    println!("a node that left was gone after {took:?}");
    let file = cluster.testbed.node(1).runtime_dir.join("node-1/nodes");
    let lines = || std::fs::read_to_string(&file).expect("the agent keeps it");
    let begun = Instant::now();
    while lines().contains("\n3 ") {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", lines());
        std::thread::sleep(Duration::from_millis(20));
    }

    agents.insert(3, cluster.agent(3, &["--discover"]));
    let took = cluster.wait_for(&[1, 2, 3, 4]);
    println!("one that came back was there after {took:?}");

    agents.remove(&2).expect("started").kill();
    let took = cluster.wait_for(&[1, 3, 4]);
    println!("one that was killed was gone after {took:?}");

    // A node that is back before its loss was detected counts as a new run of the same node.
    agents.insert(2, cluster.agent(2, &["--discover"]));
    cluster.wait_for(&[1, 2, 3, 4]);
    agents.remove(&4).expect("started").kill();
    agents.insert(4, cluster.agent(4, &["--discover"]));
    agents[&1].says("node restarted");
    cluster.wait_for(&[1, 2, 3, 4]);
}

#[test]
fn an_agent_follows_its_address_and_programs_reach_the_processes_of_its_node() {
    let Some(cluster) = Cluster::make(Testbed::builder().nodes(2)) else {
        return;
    };
    let agents = cluster.agents();
    cluster.wait_for(&[1, 2]);
    // One program that runs while the address changes.
    let received = cluster.path("received");
    std::fs::create_dir(&received).expect("our own folder");
    let place = received.to_str().expect("a name");
    let mut receiver = cluster.dipole(2, &["recv", "--keep", "--out", place, "2:7"]);
    let mut receiver = receiver.spawn().expect("it starts");
    let send = |name: &str| {
        let file = cluster.path(name);
        std::fs::write(&file, name).expect("our own folder");
        let path = file.to_str().expect("a name");
        let output = cluster.dipole(1, &["send", "2:7", path]).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", said(&output));
        let text = std::fs::read_to_string(received.join(name)).expect("it has arrived");
        assert_eq!(text, name);
    };
    send("before");
    let namespace = &cluster.testbed.node(2).namespace;
    for words in [
        "addr del 10.0.0.2/24 dev net0",
        "addr add 10.0.0.12/24 dev net0",
    ] {
        let mut ip = Command::new("ip");
        ip.args(["-n", namespace]).args(words.split(' '));
        assert!(ip.status().expect("ip runs").success(), "{words}");
    }
    agents[&2].says("address has changed");
    let file = cluster.testbed.node(1).runtime_dir.join("node-1/nodes");
    let lines = || std::fs::read_to_string(&file).expect("the agent keeps it");
    let begun = Instant::now();
    while !lines().contains("\n2 10.0.0.12 ") {
        assert!(begun.elapsed() < PATIENCE, "{}", lines());
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("the other agent knew after {:?}", begun.elapsed());
    send("after");
    receiver.kill().expect("our child");
    receiver.wait().expect("our child");
}
