//! A service manager that keeps an agent's sockets while the agent is restarted.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};

use dipole_naming::envelope::{Authenticator, Header};
use dipole_naming::registry::{Query, Response};
use dipole_node::NodeId;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::process::{Node, PATIENCE, Process, said, wait_for};

/// The next message of the agent to its service manager, with the descriptors it sends along.
fn notified(manager: &UnixDatagram) -> (String, Vec<OwnedFd>) {
    let mut text = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut text)];
    let received = recvmsg(manager, &mut into, &mut ancillary, RecvFlags::empty());
    let length = received.expect("it says something").bytes;
    let mut sent = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sent.extend(descriptors);
        }
    }
    (String::from_utf8_lossy(&text[..length]).into_owned(), sent)
}

/// All messages until it answers, and the descriptors that it stored, by name.
fn until_ready(manager: &UnixDatagram) -> Vec<(String, OwnedFd)> {
    let mut kept = Vec::new();
    loop {
        let (text, descriptors) = notified(manager);
        if text.contains("READY=1") {
            return kept;
        }
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.expect("a name").to_owned();
        if text.contains("FDSTOREREMOVE=1") {
            kept.retain(|(of, _)| *of != name);
        } else {
            assert!(text.contains("FDSTORE=1"), "{text}");
            kept.extend(descriptors.into_iter().map(|one| (name.clone(), one)));
        }
    }
}

/// A program on the node without the cluster key, which answers queries while no agent runs.
fn program(node: &Node) -> Process {
    let mut command = node.dipole(&["recv", "1:7", "--out"]);
    command.arg(node.path("out")).env("DIPOLE_LINK", "udp");
    command.env_remove("DIPOLE_KEY");
    let process = Process::start(&mut command, "");
    let there = node.path("runtime").join("node-1/endpoint-7");
    wait_for("an endpoint", || there.is_symlink().then_some(()));
    process
}

/// An agent that is killed by SIGKILL and restarted with the sockets it left; `meanwhile` runs before it
/// answers.
fn started_again<T>(node: &Node, key: bool, meanwhile: impl FnOnce() -> T) -> (T, Child) {
    let manager = UnixDatagram::bind(node.path("notify")).expect("our own directory");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut agent = node.dipole(&["agent"]);
    agent.env("NOTIFY_SOCKET", node.path("notify"));
    if !key {
        agent.env_remove("DIPOLE_KEY");
    }
    let first = Process::start(&mut agent, "agent of node 1");
    let mut kept = until_ready(&manager);
    first.kill();
    let done = meanwhile();

    let names = ["directory", "listener"];
    let names = &names[..1 + usize::from(key)];
    assert_eq!(kept.len(), names.len(), "one interface");
    let mut command = Command::new("sh");
    let count = names.len();
    let script = format!(
        "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_FDS={count} LISTEN_PID=$$ exec \"$0\" agent"
    );
    command.args(["-c", &script, env!("CARGO_BIN_EXE_dipole")]);
    for (name, value) in agent.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("LISTEN_FDNAMES", names.join(":"));
    let mut take = |wanted: &str| -> Stdio {
        let index = kept.iter().position(|(name, _)| name == wanted);
        index.map_or(Stdio::null(), |index| kept.remove(index).1.into())
    };
    command.stdin(take("directory")).stdout(take("listener"));
    let second = command.stderr(Stdio::null()).spawn().expect("it starts");
    assert_eq!(
        until_ready(&manager).len(),
        0,
        "they are in keeping already"
    );
    (done, second)
}

fn end(mut agent: Child) {
    agent.kill().expect("our child");
    agent.wait().expect("our child");
}

#[test]
fn queries_during_an_agents_restart_wait_for_it() {
    let node = Node::new();
    // It wants to answer in between, and must give way again although it receives no query.
    let _program = program(&node);
    let client = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let header = Header {
        from: NodeId(0),
        to: NodeId(1),
        nonce: 7,
    };
    let keyless = Authenticator::new(None);
    let question = keyless.seal_to_length(header, &Query::Probe, 200);
    let ((), agent) = started_again(&node, false, || {
        client.send_to(&question, node.address).expect("sent");
    });
    let mut answer = [0; 2048];
    let (length, from) = client.recv_from(&mut answer).expect("an answer");
    assert_eq!(from, node.address);
    let opened = keyless.open(&answer[..length]).expect("an answer");
    assert!(matches!(opened.read(), Ok(Response::Present(_))));
    assert_eq!((opened.header.nonce, opened.header.from), (7, NodeId(1)));
    end(agent);
}

#[test]
fn calls_during_an_agents_restart_wait_for_it() {
    let node = Node::new();
    let (call, agent) = started_again(&node, true, || {
        let mut call = node.caller("key");
        let call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        call.expect("it starts")
    });
    let said = said(&call.wait_with_output().expect("it ends"));
    assert!(said.contains("dipole-shim"), "{said}");
    end(agent);
}
