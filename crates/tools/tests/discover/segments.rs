//! Nodes discover each other: on a segment, through seeds, by keys and cluster names, and with a
//! duplicate number.

use std::time::Duration;

use dipole_node::ClusterKey;

use crate::testbed::{Agent, Cluster, said};

#[test]
fn four_nodes_discover_each_other_without_a_hosts_file_and_run_a_job() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let key = cluster.path("key");
    let new = ClusterKey::random().expect("randomness").save(&key);
    new.expect("a new file");
    let agents: Vec<Agent> = (1..=4)
        .map(|node| {
            let mut command = cluster.dipole(node, &["agent", "--discover", "--slots", "2"]);
            Agent::start(command.env("DIPOLE_KEY", &key))
        })
        .collect();
    let took = cluster.wait_for(&[1, 2, 3, 4]);
    cluster.wait_for_file(1, 4);
    println!("four nodes knew each other {took:?} after the last was started");
    let mut run = cluster.dipole(1, &["run", "-n", "8", "--hosts", "agent"]);
    run.args(["sh", "-c", "echo $DIPOLE_NID"]);
    let output = run.env("DIPOLE_KEY", &key).output().expect("it runs");
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["1", "1", "2", "2", "3", "3", "4", "4"]);
    drop(agents);
}

#[test]
fn seeds_alone_are_sufficient_and_the_table_shows_all_addresses() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let first = cluster.testbed.node(1).addresses[0].to_string();
    let second = format!("{}:7411", cluster.testbed.node(2).addresses[0]);
    // The first has no seed, and each of the others has one that has.
    let _agents = [
        cluster.agent(1, &["--seed", &first, "--name", "one"]),
        cluster.agent(2, &["--seed", &first]),
        cluster.agent(3, &["--seed", &second]),
        cluster.agent(4, &["--seed", &second]),
    ];
    cluster.wait_for(&[1, 2, 3, 4]);
    let output = cluster.dipole(4, &["agent", "status"]).output();
    let table = said(&output.expect("it runs"));
    assert!(
        table.contains("10.0.0.1:7411") && table.contains("cluster dipole"),
        "{table}"
    );
    cluster.wait_for_file(4, 4);
    let file = cluster.testbed.node(4).runtime_dir.join("node-4/nodes");
    let file = std::fs::read_to_string(file).expect("the agent keeps it");
    assert!(
        file.contains("1 10.0.0.1 port=7411") && file.contains("name=one"),
        "{file}"
    );
}

#[test]
fn clusters_with_other_keys_or_names_do_not_meet_on_one_segment() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let key = |name: &str| {
        let file = cluster.path(name);
        let key = ClusterKey::random().expect("randomness");
        key.save(&file).expect("a new file");
        file
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let with_key = |node, file| {
        Agent::start(
            cluster
                .dipole(node, &["agent", "--discover"])
                .env("DIPOLE_KEY", file),
        )
    };
    let agents = [with_key(1, &ours), with_key(2, &ours), with_key(3, &theirs)];
    let none = cluster.agent(4, &["--discover"]);
    cluster.wait_for(&[1, 2]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(cluster.there(1), [2]);
    assert_eq!(cluster.there(3), [0_u64; 0]);
    assert_eq!(cluster.there(4), [0_u64; 0]);
    drop((agents, none));

    let _agents = [
        cluster.agent(1, &["--discover", "--cluster", "one"]),
        cluster.agent(2, &["--discover", "--cluster", "one"]),
        cluster.agent(3, &["--discover", "--cluster", "two"]),
        cluster.agent(4, &["--discover"]),
    ];
    cluster.wait_for(&[1, 2]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(cluster.there(1), [2]);
    assert_eq!(cluster.there(3), [0_u64; 0]);
    assert!(cluster.status(1)["foreign"].as_u64() > Some(0));
}

#[test]
fn the_later_of_two_nodes_with_one_number_refuses_to_run() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    for way in [&["--discover"][..], &["--seed", "10.0.0.1"]] {
        let others = [cluster.agent(1, way), cluster.agent(3, way)];
        let first = cluster.agent(2, way);
        cluster.wait_for(&[1, 2, 3]);
        let mut command = cluster.dipole(4, &["agent", "--nid", "2"]);
        let mut second = Agent::begin(command.args(way));
        second.says("node number 2 is taken: an agent at 10.0.0.2:7411 has had it");
        assert!(!second.child.wait().expect("our child").success());
        first.says("another node has this node's number");
        assert!(first.said().contains("10.0.0.4:7411"), "{}", first.said());
        // The existing node is not affected.
        std::thread::sleep(Duration::from_secs(5));
        cluster.wait_for(&[1, 2, 3]);
        let status = cluster.status(3);
        assert_eq!(status["members"][1]["address"], "10.0.0.2:7411", "{status}");
        for agent in others {
            assert!(!agent.said().contains("node is down"), "{}", agent.said());
            agent.kill();
        }
        first.kill();
    }
}
