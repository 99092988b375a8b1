//! Callers that may start work through an agent, callers that may not, and callers that waste its time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::process::{Node, new_key, rest_of, said, wait_for};

const GREETING_BYTES: usize = 26;
const PROOF_BYTES: usize = 48;
/// The error of a caller that is displaced by another.
const BUSY: &[u8; GREETING_BYTES] = b"dipole\x1a\n\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Fails unless the agent answers a query at its directory.
fn assert_it_answers(node: &Node) {
    assert_eq!(node.status()["node"], 1);
    assert!(node.call("key").contains("dipole-shim"), "it starts work");
}

#[test]
fn callers_with_the_key_are_served_and_callers_with_another_get_an_error() {
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
    let warns = agent.said().contains("this agent runs as root");
    assert_eq!(warns, rustix::process::geteuid().is_root());
    new_key(&node.path("other"));
    let said = node.call("other");
    assert!(said.contains("does not hold the cluster key"), "{said}");
    assert!(said.contains("dipole key show"), "{said}");
    agent.says("it holds another cluster key");
    assert_it_answers(&node);
}

#[test]
fn an_agent_without_a_key_reports_that_and_accepts_no_calls() {
    let node = Node::new();
    let mut command = node.dipole(&["agent"]);
    command.env_remove("DIPOLE_KEY");
    let _agent = crate::process::Process::start(&mut command, "starts no work");
    assert!(TcpListener::bind(node.address).is_ok(), "the port is free");
    let said = node.call("key");
    assert!(!said.contains("dipole-shim"), "{said}");
    let refuses = node.status()["refuses"].to_string();
    assert!(refuses.contains("DIPOLE_KEY"), "{refuses}");
}

#[test]
fn callers_that_send_garbage_or_nothing_are_rejected_and_do_not_delay_others() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let mut random = StdRng::seed_from_u64(1);
    // More callers than are accepted at once, all silent; later ones displace them.
    let silent: Vec<_> = (0..80).map(|_| node.connect()).collect();
    assert_it_answers(&node);
    for length in [0, 1, PROOF_BYTES - 1, PROOF_BYTES, 5000] {
        let mut caller = node.connect();
        let garbage: Vec<u8> = (0..length).map(|_| random.random()).collect();
        let _may_be_cut_off = caller.write_all(&garbage);
        if length < PROOF_BYTES {
            caller.shutdown(std::net::Shutdown::Write).expect("open");
        }
        assert!(rest_of(&caller).len() <= 2 * GREETING_BYTES);
    }
    assert_it_answers(&node);
    for caller in &silent {
        assert!(
            rest_of(caller).len() <= 2 * GREETING_BYTES,
            "it is sent away"
        );
    }
    agent.says("it sent no proof in time");
    agent.says("it was displaced by a later caller");
    agent.says("it disconnected without a proof");
    // Only callers that proved that they have the key get a session.
    assert_eq!(agent.said().matches("work started").count(), 2);
    wait_for("its children are reaped", || {
        let pid = agent.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let count = children.expect("it runs").split_whitespace().count();
        (count == 0).then_some(())
    });
}

/// A caller whose proof arrives after `meanwhile`; returns its output.
fn slow_caller(node: &Node, from: &str, meanwhile: impl FnOnce()) -> String {
    let between = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = between.local_addr().expect("bound");
    let mut command = node.dipole(&["reach", &address.to_string()]);
    command.args(["--node", "1", "--ranks", "1", "--job", "x", "--", "false"]);
    let caller = std::thread::spawn(move || said(&command.output().expect("it runs")));
    between.set_nonblocking(true).expect("a socket");
    let (mut caller_side, _) = wait_for("it calls", || between.accept().ok());
    caller_side.set_nonblocking(false).expect("a socket");
    let mut agent_side = call_from(node, from);
    let mut greeting = [0; GREETING_BYTES];
    agent_side.read_exact(&mut greeting).expect("a greeting");
    meanwhile();
    caller_side.write_all(&greeting).expect("open");
    // A displaced caller may find the connection closed.
    let mut back = (
        agent_side.try_clone().expect("a socket"),
        caller_side.try_clone().expect("a socket"),
    );
    let carried = std::thread::spawn(move || {
        let _cut = std::io::copy(&mut back.0, &mut back.1);
        let _cut = back.1.shutdown(std::net::Shutdown::Both);
    });
    let _cut = std::io::copy(&mut caller_side, &mut agent_side);
    let _cut = agent_side.shutdown(std::net::Shutdown::Write);
    carried.join().expect("no panic");
    // It retries if it was displaced.
    drop(between);
    caller.join().expect("no panic")
}

/// A connection from an address of this machine.
fn call_from(node: &Node, from: &str) -> TcpStream {
    let from: SocketAddr = from.parse().expect("an address");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    let socket = socket.expect("a socket");
    rustix::net::bind(&socket, &from).expect("loopback");
    rustix::net::connect(&socket, &node.address).expect("the agent listens");
    TcpStream::from(socket)
}

#[test]
fn attackers_displace_only_their_own_calls() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let greeted = |from: String| {
        let mut stranger = call_from(&node, &from);
        stranger
            .read_exact(&mut [0; GREETING_BYTES])
            .expect("a greeting");
        stranger
    };
    let mut strangers = Vec::new();
    // Members connect from an address that no attacker uses, or from that of a node. A loaded machine may
    // need longer than the agent waits for a proof.
    for (member, of_strangers) in [("127.0.0.8:0", 0), ("127.0.0.1:0", 100)] {
        let mut tries = (0..20).map(|_| {
            slow_caller(&node, member, || {
                let own = |stranger: u8| format!("127.0.1.{}:0", stranger.min(of_strangers));
                strangers.extend((0..100).map(|stranger| greeted(own(stranger))));
            })
        });
        let served = tries.find(|said| said.contains("dipole-shim"));
        assert!(served.is_some(), "{}", agent.said());
    }
    agent.says("it was displaced by a later caller");
    assert_eq!(rest_of(&strangers[0]), *BUSY);
    assert_it_answers(&node);
}

#[test]
fn a_busy_agent_is_distinguished_from_one_with_another_key() {
    let node = Node::new();
    let busy = TcpListener::bind(node.address).expect("free");
    let call = std::thread::spawn({
        let mut command = node.caller("key");
        move || said(&command.output().expect("it runs"))
    });
    let mut tries = 0;
    let said = loop {
        busy.set_nonblocking(true).expect("a socket");
        match busy.accept() {
            Ok((mut caller, _)) => {
                caller.write_all(BUSY).expect("open");
                tries += 1;
            }
            Err(_) if call.is_finished() => break call.join().expect("no panic"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    assert!(said.contains("is busy"), "{said}");
    assert!(!said.contains("key"), "{said}");
    assert!(tries > 1, "it tries again");
}

#[test]
fn a_replayed_proof_is_useless() {
    let node = Node::new();
    let agent = node.agent(&[]);
    // An eavesdropper between a caller and the agent.
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
    // The caller retries, and its connection is always closed.
    std::thread::spawn(move || {
        for mut again in between.incoming().map_while(Result::ok) {
            let greeted = again.write_all(&greeting);
            let _proof = greeted.and_then(|()| again.read_exact(&mut [0; PROOF_BYTES]));
        }
    });
    // A proof is rejected in another call.
    let mut thief = node.connect();
    thief.read_exact(&mut greeting).expect("a greeting");
    thief.write_all(&proof).expect("open");
    assert_eq!(rest_of(&thief).len(), GREETING_BYTES, "that it is refused");
    agent.says("it holds another cluster key");
    // In its own call it opens a session, whose packets the eavesdropper cannot read.
    agent_side.write_all(&proof).expect("open");
    agent_side.write_all(&[7; 100]).expect("open");
    rest_of(&agent_side);
    agent.says("a caller disconnected");
    assert!(!agent.said().contains("work started"), "{}", agent.said());
    let said = said(&caller.join().expect("no panic"));
    assert!(
        said.contains("closed the connection after the proof of cluster key"),
        "{said}"
    );
}

#[test]
fn a_port_of_another_program_is_distinguished_from_a_closed_port() {
    let node = Node::new();
    let mut command = node.caller("key");
    let said_of_nobody = said(&command.output().expect("it runs"));
    // `false`, which replaces ssh, was tried and prints nothing.
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
    assert!(said.contains("another program than an agent"), "{said}");
}

#[test]
fn an_agent_whose_port_is_in_use_reports_which() {
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
fn the_log_of_an_agent_is_machine_readable() {
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
