//! The table of loads that agents exchange, and the placement of ranks by it.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::testbed::{Agent, Cluster, PATIENCE, said};

/// Slots of each node.
const SLOTS: usize = 2;

/// Agents with a cluster key that exchange their tables with one other every second. Their cores
/// differ in speed, and the owner of node 3 allows no ranks.
fn agents(cluster: &Cluster) -> Vec<Agent> {
    let key = cluster.path("key");
    let made = cluster.dipole(1, &["key", "new"]).arg(&key).output();
    assert!(made.expect("it runs").status.success());
    let rules = cluster.path("rules.toml");
    std::fs::write(&rules, "max-ranks = 0\n").expect("our own folder");
    let agent = |node: u32| {
        let mut command = cluster.dipole(node, &["agent", "--discover", "--slots", "2"]);
        command
            .args(["--load-every", "0.5-1.5", "--load-peers", "1"])
            .args(["--speed", &(1000 * node).to_string()])
            .env("DIPOLE_KEY", &key);
        if node == 3 {
            command.arg("--rules").arg(&rules);
        }
        Agent::start(&mut command)
    };
    (1..=4).map(agent).collect()
}

/// The table of a node's agent, best node first.
fn table(cluster: &Cluster, node: u32) -> Vec<Value> {
    let output = cluster.dipole(node, &["--json", "load"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Nodes in the order of the table.
fn order(table: &[Value]) -> Vec<u64> {
    table.iter().map(|row| number(&row["node"])).collect()
}

/// Waits until a condition holds.
fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_for_tables(cluster: &Cluster, nodes: usize) {
    for node in 1..=4 {
        wait_for("a whole table", || {
            (table(cluster, node).len() == nodes).then_some(())
        });
    }
}

fn run(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut run: Command = cluster.dipole(1, &["run", "--hosts", "agent"]);
    run.args(arguments)
        .args(["sh", "-c", "echo on $DIPOLE_NID of $DIPOLE_SIZE"])
        .env("DIPOLE_KEY", cluster.path("key"))
        .stdin(Stdio::null());
    run.output().expect("it runs")
}

/// Number of ranks on each node.
fn placed(output: &Output) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let node = line.split(' ').nth(1).and_then(|node| node.parse().ok());
        *counts.entry(node.expect("a node")).or_default() += 1;
    }
    counts
}

#[test]
fn agents_know_the_load_of_all_nodes_and_ranks_go_to_the_best_that_accept_them() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let mut agents = agents(&cluster);
    cluster.wait_for(&[1, 2, 3, 4]);
    wait_for_tables(&cluster, 4);
    cluster.wait_for_file(1, 4);
    for row in table(&cluster, 2) {
        assert_eq!(number(&row["speed"]), 1000 * number(&row["node"]), "{row}");
        assert!(
            number(&row["cores"]) > 0 && number(&row["memory_mib"]) > 0,
            "{row}"
        );
        assert_eq!(number(&row["jobs"]), 0, "{row}");
    }
    // The rows stay fresh: the age of each becomes less than it was.
    let ages = || -> BTreeMap<u64, f64> {
        let rows = table(&cluster, 1).into_iter();
        rows.map(|row| {
            (
                number(&row["node"]),
                row["age_s"].as_f64().expect("a number"),
            )
        })
        .collect()
    };
    for node in 2..=4 {
        let mut last = ages()[&node];
        wait_for("a fresher row", || {
            let age = ages()[&node];
            let is_fresher = age < last;
            last = age;
            is_fresher.then_some(())
        });
    }

    // All nodes have the load of this machine, which may change meanwhile, so only runs during
    // which the order stayed the same count.
    wait_for("ranks on the best nodes", || {
        let before = order(&table(&cluster, 1));
        let output = run(&cluster, &["-n", "4"]);
        assert!(output.status.success(), "{}", said(&output));
        let accepting = before.iter().filter(|node| **node != 3).take(2);
        let expected = accepting.map(|node| (*node, SLOTS)).collect();
        (order(&table(&cluster, 1)) == before && placed(&output) == expected).then_some(())
    });

    // Three nodes with two slots each accept ranks.
    let output = run(&cluster, &["-n", "8"]);
    assert!(!output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("refuses work: 0 ranks run there"), "{text}");
    assert!(text.contains("8 ranks are too many"), "{text}");
    let output = run(&cluster, &["-n", "8", "--at-least", "5"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("starting 6 of 8 ranks"), "{text}");
    assert_eq!(text.matches("of 6\n").count(), 6, "{text}");
    assert_eq!(placed(&output), [1, 2, 4].map(|node| (node, SLOTS)).into());
    let output = run(&cluster, &["-n", "8", "--at-least", "7"]);
    assert!(!output.status.success(), "{}", said(&output));

    // A node that leaves takes its row with it.
    agents.pop().expect("four").leave();
    wait_for("a table of three", || {
        (order(&table(&cluster, 1)).len() == 3).then_some(())
    });
}

#[test]
fn without_a_key_each_node_reports_its_own_load_only() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let agent = |node| cluster.agent(node, &["--discover", "--load-every", "0.5"]);
    let _agents: Vec<Agent> = (1..=4).map(agent).collect();
    cluster.wait_for(&[1, 2, 3, 4]);
    wait_for_tables(&cluster, 4);
    let output = cluster.dipole(1, &["load"]).output().expect("it runs");
    let text = said(&output);
    let mut top = cluster.dipole(1, &["top", "--once", "--every", "0.1"]);
    let top = said(&top.output().expect("it runs"));
    assert!(top.contains("idle Mflop/s"), "{top}");
    assert!(
        text.contains("idle Mflop/s") && text.lines().count() > 6,
        "{text}"
    );
}

#[test]
fn the_load_of_a_node_without_an_agent_is_refused_with_advice() {
    let Some(cluster) = Cluster::four() else {
        return;
    };
    let output = cluster.dipole(1, &["load"]).output().expect("it runs");
    assert!(!output.status.success());
    assert!(
        said(&output).contains("start one with `dipole agent`"),
        "{}",
        said(&output)
    );
}
