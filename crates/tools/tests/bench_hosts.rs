//! Benchmarks between two hosts, which are network namespaces. Needs root; skipped with a message otherwise.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use dipole_node::hosts::Hosts;
use dipole_node::{Address, Config, EndpointId, Node, NodeId};
use dipole_testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The address of a server.
const SERVER: u32 = 0xfeb0_0000;
/// More than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn testbed(nodes: u32) -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = Testbed::builder().nodes(nodes).build();
    Some(testbed.expect("a testbed can be made here"))
}

fn dipole(testbed: &Testbed, node: u32, arguments: &str) -> Command {
    let mut command = testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null());
    command
}

/// A server that is killed when this is dropped.
struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let output = child.stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let server = Server { child, lines };
        server.says("takes part in benches");
        server
    }

    /// Waits until it prints a line with these words.
    fn says(&self, words: &str) {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it never said `{words}`"));
            if line.contains(words) {
                return;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Runs a command that must end with status 2 and print these words.
fn refused(mut command: Command, words: &[&str]) {
    let output = command.output().expect("it starts");
    let (text, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{text}\n{errors}");
    for word in words {
        assert!(errors.contains(word), "{word}: {errors}");
    }
}

#[test]
fn two_hosts_are_measured_with_the_same_table_and_page() {
    let Some(testbed) = testbed(2) else {
        return;
    };
    refused(
        dipole(&testbed, 1, "bench --to 2 --quick"),
        &["bench server", "node 2", "start one there"],
    );
    let mut server = Server::start(dipole(&testbed, 2, "bench server"));
    let page = testbed.folder().join("page.html");
    let mut command = dipole(&testbed, 1, "--json bench --to 2 --quick --html");
    let output = command.arg(&page).output().expect("it starts");
    let (text, errors) = texts(&output);
    assert!(output.status.success(), "{errors}");
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    for (bench, subject) in [
        ("pingpong", "dipole"),
        ("pingpong", "bare-udp-spin"),
        ("pingpong-block", "bare-tcp-block"),
        ("stream", "bare-tcp-spin"),
        ("rate", "bare-udp-gso"),
        ("bidir", "dipole"),
        ("stream-drop-0.01", "dipole"),
    ] {
        let found = objects.iter().any(|object| {
            object["bench"] == bench && object["subject"] == subject && object["testbed"] == "hosts"
        });
        assert!(found, "{bench} of {subject}: {text}");
    }
    let links: Vec<&str> = objects
        .iter()
        .filter_map(|object| object["link"].as_str())
        .collect();
    assert!(!links.contains(&"unix"), "nothing within one node: {text}");
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains("two hosts, node 1"), "the page says where");
    server.says("node 1 is done");
    // The server is ready for the next client, and ends on a signal.
    let table = dipole(&testbed, 1, "bench pingpong --to 2 --quick").output();
    let (table, errors) = texts(&table.expect("it starts"));
    assert!(table.contains("two hosts, node 1"), "{table}\n{errors}");
    assert!(table.contains("x first"), "{table}\n{errors}");
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert!(server.child.wait().expect("it ends").success());
}

#[test]
fn who_cannot_measure_with_a_server_is_told_why() {
    let Some(testbed) = testbed(3) else {
        return;
    };
    let key = |name: &str| -> PathBuf {
        let path = testbed.folder().join(name);
        let key = dipole_naming::key::ClusterKey::random().expect("random bytes");
        key.save(&path).expect("our own directory");
        path
    };
    let (right, wrong) = (key("right"), key("wrong"));
    let keyed = |node, arguments, key: &Path| {
        let mut command = dipole(&testbed, node, arguments);
        command.env("DIPOLE_KEY", key);
        command
    };
    let server = Server::start(keyed(2, "bench server", &right));
    refused(
        keyed(1, "bench pingpong --to 2", &wrong),
        &["node 2", "copy the key file of one node to the other"],
    );
    refused(
        dipole(&testbed, 1, "bench pingpong --to 2"),
        &["node 2", "set DIPOLE_KEY to a copy of its key file"],
    );
    // Another client on the same node.
    refused(
        keyed(2, "bench server", &right),
        &["another `dipole bench server` runs on this node"],
    );
    // A busy server refuses others; a killed client frees it.
    let long = "bench pingpong --to 2 --seconds 60 --subjects dipole";
    let mut busy = keyed(1, long, &right);
    let mut busy = busy.stdout(Stdio::null()).spawn().expect("it starts");
    server.says("node 1 measures");
    refused(
        keyed(3, "bench pingpong --to 2", &right),
        &["node 2 refuses the bench: it measures with node 1 now"],
    );
    busy.kill().expect("it runs");
    busy.wait().expect("it ends");
    server.says("node 1 is gone");
    let quick = "bench pingpong --to 2 --quick --subjects dipole";
    let output = keyed(3, quick, &right).output().expect("it starts");
    assert!(output.status.success(), "{:?}", texts(&output));
    // A killed server ends its client.
    let mut left = keyed(1, long, &right);
    let left = left
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    server.says("node 1 measures");
    drop(server);
    let output = left.wait_with_output().expect("it ends");
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("node 2"), "{errors}");
}

#[test]
fn a_side_of_another_version_is_refused_in_words() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let free = || std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let (one, two) = (free(), free());
    let port = |socket: &std::net::UdpSocket| socket.local_addr().expect("bound").port();
    let text = format!(
        "1 127.0.0.1 port={}\n2 127.0.0.2 port={}\n",
        port(&one),
        port(&two)
    );
    drop((one, two));
    std::fs::write(place("hosts"), text).expect("our own directory");
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command.args(["bench", "server", "--nid", "2", "--hosts"]);
    command.arg(place("hosts")).stdin(Stdio::null());
    command.env_remove("DIPOLE_KEY");
    command.env("DIPOLE_RUNTIME_DIR", place("there"));
    let server = Server::start(command);
    let mut config = Config::local(NodeId(1), place("here"));
    config.hosts = Hosts::load(&place("hosts")).expect("a hosts file");
    config.bind = [127, 0, 0, 1].into();
    let node = Node::open(config).expect("a node");
    let endpoint = node.endpoint(EndpointId(7)).expect("it is free");
    let edge = endpoint
        .edge(Address::new(2, SERVER))
        .expect("it may be one");
    for (message, words) in [
        (r#"{"Hello":{"version":"9.8.7"}}"#, "9.8.7"),
        ("anything", "cannot be understood"),
    ] {
        edge.send_timeout(message.as_bytes(), PATIENCE)
            .expect("it takes it");
        let answer = endpoint.receive_timeout(PATIENCE).expect("an answer");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        let why = answer["Refused"]["why"].as_str().expect("a refusal");
        assert!(why.contains(words), "{why}");
    }
    server.says("refused");
}
