//! An agent of another version: a real one behind a relay that changes the version it reports.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Stdio};
use std::time::Duration;

use dipole_naming::envelope::Authenticator;
use dipole_naming::registry::{Presence, Response};

use crate::testbed::{Report, cleaned, once_answered};

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

/// Forwards queries to a directory, and its replies back as those of version 9.8.7.
fn relay(at: &UdpSocket, directory: SocketAddr) {
    let inner = UdpSocket::bind("127.0.0.1:0").expect("a port");
    inner.connect(directory).expect("an address");
    let timeout = Some(Duration::from_millis(200));
    inner.set_read_timeout(timeout).expect("a socket");
    let mut buffer = [0; 10_000];
    while let Ok((length, from)) = at.recv_from(&mut buffer) {
        if length == 0 {
            return;
        }
        let _refused_before_it_listens = inner.send(&buffer[..length]);
        let Ok(length) = inner.recv(&mut buffer) else {
            continue;
        };
        let keyless = Authenticator::new(None);
        let opened = keyless.open(&buffer[..length]).expect("an answer");
        let answer = match opened.read().expect("an answer") {
            Response::Present(presence) => Response::Present(Presence {
                version: [9, 8, 7],
                ..presence
            }),
            other => other,
        };
        let answer = keyless.seal_to_length(opened.header, &answer, length);
        at.send_to(&answer, from).expect("a client");
    }
}

#[test]
fn every_path_of_a_node_with_several_addresses_is_tried_with_a_cluster_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let key = dipole_naming::key::ClusterKey::random().expect("random bytes");
    key.save(&place("key")).expect("our own directory");
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("it is bound").port();
    drop(free);
    let text = format!("1 127.0.0.2\n2 127.0.0.1 port={port} interfaces=127.0.0.3\n");
    std::fs::write(place("hosts"), text).expect("our own directory");
    let dipole = |runtime, node| {
        let mut command = cleaned(
            dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole")),
            &place(runtime),
        );
        command
            .env("DIPOLE_NID", node)
            .env("DIPOLE_KEY", place("key"));
        command.env("DIPOLE_HOSTS", place("hosts"));
        command
    };
    let mut agent = dipole("there", "2");
    agent
        .arg("agent")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _agent = Agent(agent.spawn().expect("it starts"));
    let report = || {
        let mut command = dipole("here", "1");
        Report::of(command.args(["--json", "doctor", "--timeout", "0.5"]))
    };
    let report = once_answered(report, "node 2");
    report.expect("path", "node 2", "good", &["will be used"]);
}

#[test]
fn an_agent_of_another_version_is_detected() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let dipole = |runtime| {
        cleaned(
            dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole")),
            &place(runtime),
        )
    };
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let theirs = free.local_addr().expect("it is bound");
    drop(free);
    let before = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let ours = before.local_addr().expect("it is bound");
    let hosts = |name, at: SocketAddr| {
        let text = format!("1 127.0.0.2\n2 127.0.0.1 port={}\n", at.port());
        std::fs::write(place(name), text).expect("our own directory");
        place(name)
    };
    let mut agent = dipole("there");
    agent.arg("agent").env("DIPOLE_NID", "2");
    agent.env("DIPOLE_HOSTS", hosts("hosts-there", theirs));
    let agent = agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _agent = Agent(agent.expect("it starts"));
    let hosts = hosts("hosts-here", ours);
    std::thread::scope(|scope| {
        scope.spawn(|| relay(&before, theirs));
        let report = || {
            let mut command = dipole("here");
            command.args(["--json", "doctor", "--timeout", "0.5", "--hosts"]);
            Report::of(command.arg(&hosts))
        };
        let found = std::panic::catch_unwind(|| {
            let report = once_answered(report, "node 2");
            report.expect(
                "version",
                "node 2",
                "slow",
                &[
                    "9.8.7 on node 2",
                    "`dipole run` passes over",
                    "the same version",
                ],
            );
        });
        let ends = UdpSocket::bind("127.0.0.1:0").expect("a port");
        ends.send_to(&[], ours).expect("the relay is there");
        found.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
