//! A service manager that keeps an agent's sockets while it is started again.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use dipole_node::NodeId;
use dipole_node::registry::{Probe, decode_presence, encode_probe};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::process::{Node, PATIENCE, Process};

/// The next thing the agent says to its service manager, with the descriptors it sends along.
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

/// All it says until it answers, and what it gave into keeping by name.
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

#[test]
fn questions_and_calls_that_come_while_an_agent_is_started_again_wait_for_it() {
    let node = Node::new();
    let manager = UnixDatagram::bind(node.path("notify")).expect("our own directory");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut command = node.dipole(&["agent"]);
    command.env("NOTIFY_SOCKET", node.path("notify"));
    let first = Process::start(&mut command, "agent of node 1");
    let kept = until_ready(&manager);
    let mut named = std::collections::BTreeMap::new();
    for (name, descriptor) in kept {
        assert!(named.insert(name, descriptor).is_none(), "one card");
    }
    let directory = named.remove("directory").expect("it was given");
    let listener = named.remove("listener").expect("it was given");
    first.kill();

    // Nobody answers now. What is asked waits.
    let client = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let question = encode_probe(&Probe {
        nonce: 7,
        node: NodeId(1),
        length_bytes: 200,
    });
    client.send_to(&question, node.address).expect("sent");
    let mut call = node.caller("key");
    let call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let call = call.expect("it starts");
    let waits = node.connect();

    let mut command = Command::new("sh");
    let script =
        "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\" agent";
    command.args(["-c", script, env!("CARGO_BIN_EXE_dipole")]);
    command.envs(
        node.dipole(&[])
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command.env("NOTIFY_SOCKET", node.path("notify"));
    command.env("LISTEN_FDNAMES", "directory:listener");
    command
        .stdin(directory)
        .stdout(listener)
        .stderr(Stdio::piped());
    let mut second = command.spawn().expect("it starts");
    assert_eq!(
        until_ready(&manager).len(),
        0,
        "they are in keeping already"
    );
    let mut answer = [0; 2048];
    let (length, from) = client.recv_from(&mut answer).expect("an answer");
    assert_eq!(from, node.address);
    let presence = decode_presence(&answer[..length]).expect("an answer");
    assert_eq!((presence.nonce, presence.node), (7, NodeId(1)));
    let said = crate::process::said(&call.wait_with_output().expect("it ends"));
    assert!(said.contains("dipole-shim"), "{said}");
    drop(waits);
    second.kill().expect("our child");
    second.wait().expect("our child");
}
