//! Who may ask an agent to start work, and who wastes their time.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::process::{Node, new_key, rest_of, said, wait_for};

const GREETING_BYTES: usize = 26;
const PROOF_BYTES: usize = 48;

/// A question any agent answers at its directory: does it still?
fn assert_it_answers(node: &Node) {
    assert_eq!(node.status()["node"], 1);
    assert!(node.call("key").contains("dipole-shim"), "it starts work");
}

#[test]
fn whoever_holds_the_key_is_served_and_whoever_holds_another_is_told() {
    let node = Node::new();
    let agent = node.agent(&[]);
    assert!(
        agent
            .said()
            .contains("starts work for holders of the cluster key")
    );
    assert!(node.call("key").contains("dipole-shim"));
    agent.says("work started");
    agent.says("work ended");
    new_key(&node.path("other"));
    let said = node.call("other");
    assert!(
        said.contains("hung up on the proof of cluster key"),
        "{said}"
    );
    assert!(said.contains("dipole key show"), "{said}");
    agent.says("it holds another cluster key");
    assert_it_answers(&node);
}

#[test]
fn an_agent_without_a_key_says_so_and_listens_to_nobody() {
    let node = Node::new();
    let mut command = node.dipole(&["agent"]);
    command.env_remove("DIPOLE_KEY");
    let _agent = crate::process::Process::start(&mut command, "starts no work");
    assert!(TcpListener::bind(node.address).is_ok(), "nobody listens");
    let said = node.call("key");
    assert!(!said.contains("dipole-shim"), "{said}");
    let refuses = node.status()["refuses"].to_string();
    assert!(refuses.contains("DIPOLE_KEY"), "{refuses}");
}

#[test]
fn callers_that_send_garbage_or_nothing_are_sent_away_and_hold_nobody_up() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let mut random = StdRng::seed_from_u64(1);
    // More than are heard at once, all silent; those that come later take their places.
    let silent: Vec<_> = (0..80).map(|_| node.connect()).collect();
    assert_it_answers(&node);
    for length in [0, 1, PROOF_BYTES - 1, PROOF_BYTES, 5000] {
        let mut caller = node.connect();
        let garbage: Vec<u8> = (0..length).map(|_| random.random()).collect();
        let _may_be_cut_off = caller.write_all(&garbage);
        if length < PROOF_BYTES {
            caller.shutdown(std::net::Shutdown::Write).expect("open");
        }
        assert!(rest_of(&caller).len() <= GREETING_BYTES);
    }
    assert_it_answers(&node);
    for caller in &silent {
        assert!(rest_of(caller).len() <= GREETING_BYTES, "it is sent away");
    }
    agent.says("it sent no proof in time");
    agent.says("it gave way to a later caller");
    agent.says("it hung up without a proof");
    // A session for each who proved something, for nobody else.
    assert_eq!(agent.said().matches("work started").count(), 2);
    wait_for("its children are reaped", || {
        let pid = agent.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.expect("it runs").trim().is_empty().then_some(())
    });
}

#[test]
fn a_proof_that_was_overheard_serves_nobody_else() {
    let node = Node::new();
    let agent = node.agent(&[]);
    // Between a caller and the agent, listening.
    let between = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = between.local_addr().expect("bound");
    let mut command = node.dipole(&["reach", &address.to_string()]);
    command.args(["--node", "1", "--ranks", "1", "--job", "x", "--", "false"]);
    let caller = std::thread::spawn(move || command.output().expect("it runs"));
    let (mut caller_side, _) = between.accept().expect("it calls");
    let mut agent_side = node.connect();
    let mut greeting = [0; GREETING_BYTES];
    agent_side.read_exact(&mut greeting).expect("a greeting");
    caller_side.write_all(&greeting).expect("open");
    let mut proof = [0; PROOF_BYTES];
    caller_side.read_exact(&mut proof).expect("a proof");
    drop(caller_side);
    // The caller tries again, and is always hung up on.
    std::thread::spawn(move || {
        for mut again in between.incoming().map_while(Result::ok) {
            let greeted = again.write_all(&greeting);
            let _proof = greeted.and_then(|()| again.read_exact(&mut [0; PROOF_BYTES]));
        }
    });
    // To another call it is worth nothing.
    let mut thief = node.connect();
    thief.read_exact(&mut greeting).expect("a greeting");
    thief.write_all(&proof).expect("open");
    assert_eq!(rest_of(&thief), [0; 0]);
    agent.says("it holds another cluster key");
    // To its own call it opens a session, which gets nothing it could read.
    agent_side.write_all(&proof).expect("open");
    agent_side.write_all(&[7; 100]).expect("open");
    rest_of(&agent_side);
    agent.says("a caller hung up");
    assert!(!agent.said().contains("work started"), "{}", agent.said());
    let said = said(&caller.join().expect("no panic"));
    assert!(
        said.contains("hung up on the proof of cluster key"),
        "{said}"
    );
}

#[test]
fn what_is_no_agent_and_what_does_not_listen_is_told_apart() {
    let node = Node::new();
    let mut command = node.caller("key");
    let said_of_nobody = said(&command.output().expect("it runs"));
    // `false`, the stand-in for ssh, was tried, and says nothing.
    assert!(!said_of_nobody.contains("refused"), "{said_of_nobody}");
    let shell = node.write("shell", "#!/bin/sh\necho reached by shell\nexit 255\n");
    let mut command = node.dipole(&["reach", &node.address.to_string()]);
    command
        .args(["--node", "1", "--ranks", "1", "--job", "x", "--", "sh"])
        .arg(shell);
    command.env("DIPOLE_LOG", "info");
    let output = said(&command.output().expect("it runs"));
    assert!(output.contains("reached by shell"), "{output}");
    assert!(output.contains("no agent answers at 127.0.0.1"), "{output}");
    assert!(output.contains("start `dipole agent` there"), "{output}");

    let other = TcpListener::bind(node.address).expect("free");
    let call = std::thread::spawn({
        let mut command = node.caller("key");
        move || said(&command.output().expect("it runs"))
    });
    let (mut caller, _) = other.accept().expect("it calls");
    caller
        .write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
        .expect("open");
    let said = call.join().expect("no panic");
    assert!(said.contains("something else than an agent"), "{said}");
}

#[test]
fn an_agent_whose_port_another_has_says_which() {
    let node = Node::new();
    let _other = TcpListener::bind(node.address).expect("free");
    let output = node.dipole(&["agent"]).output().expect("it runs");
    let said = said(&output);
    assert!(!output.status.success());
    assert!(
        said.contains(&format!("cannot listen at {} (TCP)", node.address)),
        "{said}"
    );
    let socket = UdpSocket::bind(node.address);
    assert!(socket.is_ok(), "nothing is left behind");
}

#[test]
fn the_log_of_an_agent_can_be_read_by_a_program() {
    let node = Node::new();
    let mut command = node.dipole(&["--json", "agent"]);
    let agent = crate::process::Process::start(&mut command, "agent-up");
    assert!(node.call("key").contains("dipole-shim"));
    agent.says("work-ended");
    drop(node.connect());
    agent.says("caller-refused");
    let log = agent.said();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    let started = lines.iter().find(|line| line["event"] == "work-started");
    let started = started.expect("it was logged");
    assert_eq!(started["node"], 1);
    assert_eq!(started["command"], "sort big");
    assert_eq!(started["ranks"], 3);
    let text = |name: &str| started[name].as_str().expect("a text").to_owned();
    assert!(text("peer").starts_with("127.0.0.1:"));
    assert!(text("who").contains('@'));
    assert!(text("timestamp").contains('T'));
    for line in &lines {
        assert!(line["event"].is_string() && line["node"].is_u64(), "{line}");
    }
}
