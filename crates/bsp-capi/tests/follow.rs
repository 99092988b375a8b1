//! Ranks leave loaded nodes without help, the others keep their processes, and the result is that of an
//! undisturbed run.

mod harness;
#[path = "harness/moving.rs"]
mod moving;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use dipole_testbed::built;
use moving::{Cluster, Job, STOPS, nodes, wait_until};

/// Nodes with one slot each. A job starts on the first three.
const NODES: u32 = 5;

/// The agents of all nodes. Each finds a load average that the test writes.
struct Agents<'a> {
    cluster: &'a Cluster,
    dipole: PathBuf,
    children: Vec<Child>,
}

impl<'a> Agents<'a> {
    /// Returns when they know the loads of all nodes.
    fn start(cluster: &'a Cluster) -> Agents<'a> {
        let mut agents = Agents {
            cluster,
            dipole: built::program("dipole"),
            children: Vec::new(),
        };
        for node in 1..=NODES {
            agents.set_load(node, 0.1);
            agents.start_one(node);
        }
        wait_until("all loads", || {
            (1..=NODES).all(|node| agents.loads(node).len() == 5)
        });
        agents
    }

    fn start_one(&mut self, node: u32) {
        // `ip netns exec` gives each process mounts of its own.
        let script = "mount --bind \"$1\" /proc/loadavg && shift && exec \"$@\"";
        let mut command = self.cluster.testbed.command(node, "sh");
        command.args(["-c", script, "sh"]).arg(self.file(node));
        command.arg(&self.dipole).args(["agent", "--speed", "1000"]);
        command.args(["--load-every", "0.2-0.4", "--load-peers", "4"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.children.push(command.spawn().expect("it starts"));
    }

    fn file(&self, node: u32) -> PathBuf {
        self.cluster
            .testbed
            .folder()
            .join(format!("loadavg-{node}"))
    }

    /// Sets the load of a node: so many processes that want to run for each core.
    fn set_load(&self, node: u32, per_core: f64) {
        let cores = std::thread::available_parallelism()
            .expect("known here")
            .get();
        let load = per_core * f64::from(u32::try_from(cores).expect("few"));
        // The file stays the same, because it is mounted.
        let text = format!("{load:.2} {load:.2} {load:.2} 1/100 1000\n");
        fs::write(self.file(node), text).expect("own folder");
    }

    /// The loads that the agent of a node has.
    fn loads(&self, node: u32) -> Vec<String> {
        let mut command = self.cluster.testbed.command(node, &self.dipole);
        let output = command
            .args(["--json", "load"])
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Agents<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

fn start<'a>(cluster: &'a Cluster, name: &str, how: &str) -> Job<'a> {
    let options = ["--migrate-every", "0.5"];
    let job = cluster.start(name, "auto", how, &options);
    job.at(1);
    job
}

#[test]
fn a_rank_leaves_a_loaded_node_and_the_others_keep_their_processes() {
    let Some(cluster) = Cluster::new(NODES, 1) else {
        return;
    };
    let expected = cluster.expected();
    let agents = Agents::start(&cluster);
    let job = start(&cluster, "loaded", "syncs");
    let before = job.processes();
    assert_eq!(nodes(&before), [1, 2, 3]);
    assert!(!job.messages().contains("is to move"), "{}", job.messages());

    // Node 4 would be better than node 5, but refuses.
    agents.set_load(5, 0.2);
    job.set_refusing(4, true);
    agents.set_load(2, 8.0);
    job.wait_for_message(
        "rank 1 has moved from node 2 (10.0.0.2) to node 5 (10.0.0.5)",
        1,
    );
    job.wait_for_message("of standstill the job goes on", 1);
    let messages = job.messages();
    assert!(
        messages.contains("rank 1 stays where it is: node 4"),
        "{messages}"
    );
    assert!(messages.contains("no thanks"), "{messages}");
    let reason = "rank 1 is to move from node 2 (10.0.0.2), with a load of ";
    assert!(messages.contains(reason), "{messages}");
    job.set_refusing(4, false);
    job.go(1);
    job.at(2);
    let moved = job.processes();
    assert_eq!(nodes(&moved), [1, 5, 3]);
    assert_eq!((&moved[0], &moved[2]), (&before[0], &before[2]));

    // Rank 0 moves with the input that it has not read, and rank 1 stays.
    agents.set_load(1, 8.0);
    job.wait_for_message("rank 0 has moved from node 1", 1);
    job.wait_for_message("of standstill the job goes on", 2);
    job.go(2);
    job.at(3);
    let last = job.processes();
    assert_eq!(last[1..], moved[1..], "{}", job.messages());
    assert_ne!(nodes(&last)[0], 1);
    (3..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn a_host_that_the_user_has_emptied_stays_empty() {
    let Some(cluster) = Cluster::new(NODES, 1) else {
        return;
    };
    let expected = cluster.expected();
    let agents = Agents::start(&cluster);
    let job = start(&cluster, "emptied", "syncs");
    job.migrate(&["--rank", "1", "--to", "4"]);
    // Node 2 is the only one that is idle, but the user wants it empty. Node 5 is better than node 4.
    agents.set_load(4, 8.0);
    agents.set_load(5, 3.0);
    job.wait_for_message(
        "rank 1 has moved from node 4 (10.0.0.4) to node 5 (10.0.0.5)",
        1,
    );
    (1..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn loads_that_are_not_known_are_reported_once_and_no_rank_moves() {
    let Some(cluster) = Cluster::new(NODES, 1) else {
        return;
    };
    let expected = cluster.expected();
    let job = start(&cluster, "unknown", "syncs");
    let before = job.processes();
    job.wait_for_message(
        "the ranks stay where they are while no agent reports the load",
        1,
    );
    let agents = Agents::start(&cluster);
    agents.set_load(3, 8.0);
    job.wait_for_message("rank 2 has moved from node 3", 1);
    job.go(1);
    job.at(2);
    assert_eq!(job.processes()[..2], before[..2]);
    (2..=STOPS).for_each(|stop| job.go(stop));
    let messages = job.messages();
    assert_eq!(
        messages.matches("no agent reports").count(),
        1,
        "{messages}"
    );
    assert_eq!(job.end(), expected);
}
