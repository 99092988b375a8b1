//! `dipole agent` as run by a service manager and by a user, with programs on the same node.

#![allow(missing_docs, reason = "tests")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::hosts::Hosts;
use dipole_node::registry::{ProbeLength, ProbeResult, Prober};
use dipole_node::{Address, Config, Endpoint, EndpointId, GoneReason, Links, Node, NodeId};
use dipole_testbed::free_port;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const MOST_MEMORY_KIB: u64 = 20 * 1024;

/// Nodes 1 and 2 on this machine, with separate registries.
struct Testbed {
    folder: TempDir,
}

impl Testbed {
    fn new() -> Testbed {
        let folder = tempfile::tempdir().expect("a directory");
        let text = format!(
            "1 127.0.0.1 port={}\n2 127.0.0.2 port={}\n",
            free_port("127.0.0.1"),
            free_port("127.0.0.2")
        );
        std::fs::write(folder.path().join("hosts"), text).expect("a file");
        Testbed { folder }
    }

    fn runtime(&self, node: u32) -> PathBuf {
        self.folder.path().join(format!("runtime-{node}"))
    }

    fn dipole(&self, node: u32, arguments: &[&str]) -> Command {
        let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
        command
            .args(arguments)
            .env("DIPOLE_NID", node.to_string())
            .env("DIPOLE_HOSTS", self.folder.path().join("hosts"))
            .env("DIPOLE_RUNTIME_DIR", self.runtime(node))
            .env("DIPOLE_LINK", "udp")
            .stdin(Stdio::null());
        command
    }

    /// Returns when the agent answers.
    fn agent(&self, node: u32) -> Process {
        self.agent_with(node, None)
    }

    fn agent_with(&self, node: u32, key: Option<&PathBuf>) -> Process {
        let mut command = self.dipole(node, &["agent"]);
        if let Some(key) = key {
            command.env("DIPOLE_KEY", key);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let said = child.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(said).lines();
        let mut before = String::new();
        let up = lines
            .by_ref()
            .map(|line| line.expect("a line"))
            .any(|line| {
                before.push_str(&line);
                line.starts_with("agent of node")
            });
        assert!(up, "the agent of node {node} ended: {before}");
        // Its later output must be read.
        std::thread::spawn(move || lines.for_each(drop));
        Process(child)
    }

    fn status(&self, node: u32) -> serde_json::Value {
        let output = self
            .dipole(node, &["--json", "agent", "status"])
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn wait_for_state(&self, node: u32, other: u32, wanted: &str) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let status = self.status(node);
            let members = status["members"].as_array().expect("a list");
            let found = members.iter().find(|member| member["node"] == other);
            if found.is_some_and(|member| member["state"] == wanted) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("node {node} never said that node {other} is {wanted}");
    }

    /// A node in this process.
    fn node(&self, id: u32) -> Node {
        Node::open(self.config(id)).expect("a node")
    }

    fn config(&self, id: u32) -> Config {
        let hosts = Hosts::load(&self.folder.path().join("hosts")).expect("a hosts file");
        let mut config = Config::local(NodeId(id), self.runtime(id));
        config.bind = hosts.get(NodeId(id)).expect("in it").address;
        config.hosts = hosts;
        config.links = Links::Udp;
        config
    }
}

struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our child");
    }

    /// Stops the process, and returns when all its threads have stopped.
    fn stop(&self) {
        dipole_testbed::stop(&self.0);
    }

    fn kill(mut self) {
        self.0.kill().expect("our child");
        self.0.wait().expect("our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// `dipole recv` on node 2, and an endpoint of node 1 that can reach it.
fn receiver(testbed: &Testbed) -> Process {
    let mut child = testbed
        .dipole(2, &["recv", "2:7", "--out"])
        .arg(testbed.folder.path().join("out"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let begun = Instant::now();
    let there = testbed.runtime(2).join("node-2/endpoint-7");
    while !there.is_symlink() {
        assert!(child.try_wait().expect("our child").is_none(), "it ended");
        assert!(begun.elapsed() < PATIENCE, "it never opened its endpoint");
        std::thread::sleep(Duration::from_millis(10));
    }
    Process(child)
}

fn reach(node: &Node, id: u32) -> Endpoint {
    let endpoint = node.endpoint(EndpointId(id)).expect("free");
    endpoint
        .target(Address::new(2, 7))
        .expect("a reply arrives");
    endpoint
}

#[test]
fn agents_report_each_other_and_their_processes_and_use_little_memory() {
    let testbed = Testbed::new();
    let first = testbed.agent(1);
    let second = testbed.agent(2);
    testbed.wait_for_state(1, 2, "up");
    testbed.wait_for_state(2, 1, "up");
    let _receiver = receiver(&testbed);
    let status = testbed.status(2);
    assert_eq!(status["processes"][0]["endpoints"][0], 7);
    assert_eq!(status["pid"], second.0.id());
    let text = testbed
        .dipole(2, &["agent", "status"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("agent of node 2") && text.contains("up"),
        "{text}"
    );

    let facts = std::fs::read_to_string(format!("/proc/{}/status", first.0.id()));
    let facts = facts.expect("it runs");
    // Without the code, which is longer if it is not optimized.
    let own = facts.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let own = own.and_then(|rest| rest.trim().strip_suffix(" kB"));
    let own: u64 = own.expect("a size").trim().parse().expect("a number");
    println!("an agent has {own} KiB");
    assert!(own < MOST_MEMORY_KIB, "{own} KiB");

    // A killed one is detected; one that gets SIGTERM announces its end.
    second.kill();
    testbed.wait_for_state(1, 2, "down");
    let second = testbed.agent(2);
    testbed.wait_for_state(1, 2, "up");
    second.signal(Signal::TERM);
    testbed.wait_for_state(1, 2, "down");
}

#[test]
fn an_agent_takes_over_from_a_running_program_which_resumes_when_the_agent_is_killed() {
    let testbed = Testbed::new();
    let node = testbed.node(1);
    let _receiver = receiver(&testbed);
    // The program itself answers for its node.
    let _without = reach(&node, 1);
    let agent = testbed.agent(2);
    let _with = reach(&node, 2);
    let answered = testbed.status(2)["answered"].as_u64().expect("a number");
    assert!(answered > 0, "the agent was not asked");
    let refused = testbed.dipole(2, &["agent"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let pid = agent.0.id();
    assert!(!refused.status.success());
    assert!(
        said.contains(&format!("process {pid} is this node's agent already")),
        "{said}"
    );

    agent.kill();
    let none = testbed
        .dipole(2, &["agent", "status"])
        .output()
        .expect("it runs");
    assert!(!none.status.success());
    assert!(
        String::from_utf8_lossy(&none.stderr).contains("no agent listens"),
        "{none:?}"
    );
    let _again = reach(&node, 3);
    assert_eq!(node.take_departures(), [], "a process was reported gone");
}

#[test]
fn an_agent_answers_for_a_stopped_program_but_not_for_a_killed_one() {
    let testbed = Testbed::new();
    let agent = testbed.agent(2);
    let node = testbed.node(1);
    let receiver = receiver(&testbed);
    let endpoint = reach(&node, 1);
    endpoint.drain(PATIENCE).expect("open");
    receiver.stop();
    endpoint.send(b"a question").expect("there is room");
    // Wait longer than the timeout of 3 s.
    let waited = endpoint.receive_timeout(Duration::from_secs(5));
    assert!(waited.is_err());
    assert_eq!(node.take_departures(), [], "its agent reports it as alive");

    receiver.kill();
    let begun = Instant::now();
    let departure = loop {
        let nothing = endpoint.receive_timeout(Duration::from_millis(20));
        assert!(nothing.is_err());
        if let Some(departure) = node.take_departures().pop() {
            break departure;
        }
        assert!(begun.elapsed() < PATIENCE, "the death was not reported");
    };
    assert_eq!((departure.node, departure.reason), (2, GoneReason::Died));
    drop(agent);
}

#[test]
fn a_node_is_found_after_its_agent_was_killed_and_by_the_next_agent() {
    let testbed = Testbed::new();
    let agent = testbed.agent(2);
    let node = testbed.node(1);
    let _receiver = receiver(&testbed);
    let _before = reach(&node, 1);
    agent.kill();
    let _without = reach(&node, 2);
    let second = testbed.agent(2);
    let _with_another = reach(&node, 3);
    assert_eq!(testbed.status(2)["pid"], second.0.id());
}

#[test]
fn an_agent_without_a_hosts_file_says_what_is_missing() {
    let testbed = Testbed::new();
    let refused = testbed
        .dipole(3, &["agent"])
        .env_remove("DIPOLE_HOSTS")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        said.contains("no hosts file has an address for node 3"),
        "{said}"
    );
}

#[test]
fn an_agent_refuses_a_hosts_file_with_link_local_addresses() {
    let testbed = Testbed::new();
    let directory = tempfile::tempdir().expect("a directory");
    let hosts = directory.path().join("hosts");
    std::fs::write(&hosts, "3 127.0.0.3\n4 fe80::4%lo\n").expect("our own directory");
    let mut agent = testbed.dipole(3, &["agent"]);
    let said = refused(agent.env("DIPOLE_HOSTS", &hosts));
    assert!(
        said.contains("node 4 (fe80::4%lo) has a link-local address"),
        "{said}"
    );
}

/// The output of an agent that does not get its port, and its end.
fn refused(agent: &mut Command) -> String {
    let mut child = agent.stderr(Stdio::piped()).spawn().expect("it starts");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("our child") {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().expect("our child");
            panic!("it has the seat");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(!status.success());
    let mut said = String::new();
    let mut pipe = child.stderr.take().expect("a pipe");
    pipe.read_to_string(&mut said).expect("text");
    said
}

#[test]
fn agents_with_another_key_are_ignored_and_do_not_take_over() {
    let testbed = Testbed::new();
    let key = |name: &str| {
        let file = testbed.folder.path().join(name);
        let made = dipole_node::ClusterKey::random().expect("random bytes");
        made.save(&file).expect("a file of our own");
        file
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let _first = testbed.agent_with(1, Some(&ours));
    let second = testbed.agent_with(2, Some(&theirs));
    let begun = Instant::now();
    while testbed.status(1)["strangers"] == 0 || testbed.status(2)["strangers"] == 0 {
        assert!(begun.elapsed() < PATIENCE, "{}", testbed.status(1));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(testbed.status(1)["members"][0]["state"], "never seen");
    let text = testbed
        .dipole(1, &["agent", "status"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("packets without the key"), "{text}");
    drop(second);
    let second = testbed.agent_with(2, Some(&ours));
    testbed.wait_for_state(1, 2, "up");
    drop(second);

    // A program that answers for its node gives way only to an agent of its own cluster.
    let mut config = testbed.config(2);
    config.key = Some(dipole_node::ClusterKey::load(&theirs).expect("just made"));
    let at = config.hosts.get(NodeId(2)).expect("in it").directory();
    let prober = Prober::open(None, at, NodeId(2), config.key.as_ref()).expect("a socket");
    let node = Node::open(config).expect("a node");
    // The thread that answers starts at some later time.
    let begun = Instant::now();
    while !matches!(
        prober.probe(ProbeLength::SHORTEST, Duration::from_millis(100)),
        ProbeResult::Answered(..)
    ) {
        assert!(begun.elapsed() < PATIENCE, "the program does not answer");
    }
    for key in [Some(&ours), None] {
        let mut agent = testbed.dipole(2, &["agent"]);
        if let Some(key) = key {
            agent.env("DIPOLE_KEY", key);
        }
        let said = refused(&mut agent);
        assert!(
            said.contains("does not hand over") && said.contains("DIPOLE_KEY"),
            "{said}"
        );
    }
    let _agent = testbed.agent_with(2, Some(&theirs));
    drop(node);
}
