//! Nodes without a hosts file, their agents, and the members that these know.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dipole_testbed::{Builder, Testbed};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) testbed: Testbed,
}

impl Cluster {
    pub(crate) fn make(builder: Builder) -> Option<Cluster> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let testbed = builder.build().expect("a testbed");
        Some(Cluster { testbed })
    }

    pub(crate) fn four() -> Option<Cluster> {
        Cluster::make(Testbed::builder().nodes(4))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.testbed.folder().join(name)
    }

    pub(crate) fn dipole(&self, node: u32, arguments: &[&str]) -> Command {
        let mut command = self.testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
        command
            .args(arguments)
            .env_remove("DIPOLE_HOSTS")
            .env("XDG_CONFIG_HOME", self.path("none"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn agent(&self, node: u32, arguments: &[&str]) -> Agent {
        Agent::start(self.dipole(node, &["agent"]).args(arguments))
    }

    /// The agents of all nodes, which discover each other by broadcast.
    pub(crate) fn agents(&self) -> BTreeMap<u32, Agent> {
        let all = 1..=self.testbed.nodes();
        all.map(|node| (node, self.agent(node, &["--discover"])))
            .collect()
    }

    pub(crate) fn status(&self, node: u32) -> serde_json::Value {
        let output = self.dipole(node, &["--json", "agent", "status"]).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The other nodes that a node's agent considers present.
    pub(crate) fn there(&self, node: u32) -> Vec<u64> {
        let status = self.status(node);
        let members = status["members"].as_array().expect("a list");
        let there = members.iter().filter(|member| member["state"] == "up");
        let number = |member: &serde_json::Value| member["node"].as_u64().expect("a number");
        there.map(number).collect()
    }

    /// Waits until the file that a node's agent writes, at most ten times per second, has this many
    /// nodes.
    pub(crate) fn wait_for_file(&self, node: u32, nodes: usize) {
        let place = &self.testbed.node(node).runtime_dir;
        let file = place.join(format!("node-{node}/nodes"));
        let begun = Instant::now();
        loop {
            let text = std::fs::read_to_string(&file).expect("the agent keeps it");
            if text.lines().filter(|line| !line.starts_with('#')).count() == nodes {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "never {nodes} nodes: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the nodes know exactly each other; returns how long that took.
    pub(crate) fn wait_for(&self, nodes: &[u32]) -> Duration {
        let begun = Instant::now();
        for node in nodes {
            let others: Vec<u64> = nodes
                .iter()
                .filter(|other| *other != node)
                .map(|other| u64::from(*other))
                .collect();
            while self.there(*node) != others {
                let found = self.there(*node);
                let waited = begun.elapsed();
                assert!(
                    waited < PATIENCE,
                    "node {node} knows {found:?}, not {others:?}"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        begun.elapsed()
    }
}

/// An agent that ends with the test, and its output.
pub(crate) struct Agent {
    pub(crate) child: Child,
    said: Arc<Mutex<String>>,
}

impl Agent {
    /// Returns when it answers.
    pub(crate) fn start(command: &mut Command) -> Agent {
        let agent = Agent::begin(command);
        agent.says("agent of node");
        agent
    }

    pub(crate) fn begin(command: &mut Command) -> Agent {
        let mut child = command
            .env("DIPOLE_LOG", "info")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stderr = child.stderr.take().expect("a pipe");
        let said = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = kept.lock().expect("no panic");
                said.push_str(&line);
                said.push('\n');
            }
        });
        Agent { child, said }
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no panic").clone()
    }

    /// Waits until its output contains a text.
    pub(crate) fn says(&self, text: &str) {
        let begun = Instant::now();
        while !self.said().contains(text) {
            let waited = begun.elapsed();
            assert!(waited < PATIENCE, "never `{text}`: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Terminates it and waits for its end.
    pub(crate) fn leave(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("our child");
        assert!(self.child.wait().expect("our child").success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Returns the text of both output streams.
pub(crate) fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
