//! An agent of another version: a real one, behind a relay that changes what it says of itself.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crc_fast::{CrcAlgorithm, checksum};

use crate::testbed::{Report, cleaned, once_answered};

/// In an answer to a probe: which it is, and the version (protocol, 3.7).
const STATUS_AT: usize = 48;
const PRESENT: u8 = 3;
const VERSION_AT: usize = 54;
const CRC_BYTES: usize = 4;

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

/// Passes questions on to a directory, and its answers back as those of version 9.8.7.
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
        if buffer[STATUS_AT] == PRESENT {
            for (index, number) in [9_u16, 8, 7].into_iter().enumerate() {
                let at = VERSION_AT + 2 * index;
                buffer[at..at + 2].copy_from_slice(&number.to_le_bytes());
            }
            let end = length - CRC_BYTES;
            let sum = checksum(CrcAlgorithm::Crc32Iscsi, &buffer[..end]).to_le_bytes();
            buffer[end..length].copy_from_slice(&sum[..CRC_BYTES]);
        }
        at.send_to(&buffer[..length], from).expect("somebody asked");
    }
}

#[test]
fn an_agent_of_another_version_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let dipole = |runtime| cleaned(Command::new(env!("CARGO_BIN_EXE_dipole")), &place(runtime));
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
