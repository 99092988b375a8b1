//! A stream between two nodes whose network begins to take only shorter packets, or an attacker claims
//! so. Needs root; skipped with a message otherwise.

#![allow(missing_docs, reason = "tests")]

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, ChildStdin, Output, Stdio};

use dipole_testbed::{Offloads, Testbed};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

const BLOCK_BYTES: usize = 1 << 20;
const BLOCKS_PER_PHASE: usize = 16;

/// Nodes on one network with jumbo frames and without offloads; `None`, with the reason, if that is not
/// possible.
fn jumbo(nodes: u32) -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let builder = Testbed::builder().nodes(nodes).mtu(9000);
    let testbed = builder.offloads(Offloads::Off).build();
    Some(testbed.expect("a testbed can be made here"))
}

/// `dipole send` on node 1 to `dipole recv` on node 2, fed in phases.
struct Stream<'a> {
    testbed: &'a Testbed,
    sender: Child,
    input: ChildStdin,
    receiver: Child,
    original: Vec<u8>,
}

impl<'a> Stream<'a> {
    fn begin(testbed: &'a Testbed, key: Option<&Path>) -> Stream<'a> {
        let command = |node: u32, words: [&str; 2]| {
            let mut command = testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
            if let Some(key) = key {
                command.env("DIPOLE_KEY", key);
            }
            command.env("DIPOLE_LOG", "info").args(words);
            command.stderr(Stdio::piped());
            command
        };
        let mut receiver = command(2, ["recv", "2:7"]);
        let receiver = receiver.arg("--out").arg(testbed.folder().join("copy"));
        let receiver = receiver.stdin(Stdio::null()).spawn().expect("it starts");
        let mut sender = command(1, ["send", "2:7"]);
        let mut sender = sender.stdin(Stdio::piped()).spawn().expect("it starts");
        Stream {
            testbed,
            input: sender.stdin.take().expect("a pipe"),
            sender,
            receiver,
            original: Vec::new(),
        }
    }

    /// Returns when everything has arrived except what frames and buffers hold.
    fn phase(&mut self) {
        for _ in 0..BLOCKS_PER_PHASE {
            let from = self.original.len();
            let bytes = (from..from + BLOCK_BYTES).map(|at| (at * 131 + at / 977).to_le_bytes()[0]);
            self.original.extend(bytes);
            let block = &self.original[from..];
            self.input.write_all(block).expect("the sender goes on");
        }
    }

    /// Ends the sender and returns its log.
    fn end(self) -> String {
        drop(self.input);
        let check = |output: Output| {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{}\n{errors}", output.status);
            errors
        };
        let log = check(self.sender.wait_with_output().expect("it ends"));
        check(self.receiver.wait_with_output().expect("it ends"));
        let copy = std::fs::read(self.testbed.folder().join("copy")).expect("it is there");
        assert!(copy == self.original, "the copy differs");
        log
    }
}

fn set_mtu(testbed: &Testbed, node: u32, bytes: u32) {
    let mut command = testbed.command(node, "ip");
    command.args(["link", "set", "net0", "mtu", &bytes.to_string()]);
    let status = command.status().expect("ip runs");
    assert!(status.success());
}

#[test]
fn a_stream_continues_when_the_senders_interface_takes_shorter_packets() {
    let Some(testbed) = jumbo(2) else { return };
    let mut stream = Stream::begin(&testbed, None);
    stream.phase();
    set_mtu(&testbed, 1, 1500);
    stream.phase();
    let log = stream.end();
    assert!(log.contains("now have 1472 bytes"), "{log}");
}

#[test]
fn a_stream_continues_when_longer_packets_are_lost_on_the_path() {
    let Some(testbed) = jumbo(2) else { return };
    let mut stream = Stream::begin(&testbed, None);
    stream.phase();
    // The bridge's end of the cable drops packets that the receiver's end does not take.
    set_mtu(&testbed, 2, 1500);
    stream.phase();
    let log = stream.end();
    assert!(log.contains("now have 1472 bytes"), "{log}");
}

/// "Fragmentation needed, next-hop MTU 600" about a packet from node 1 to node 2.
fn fragmentation_needed(port: u16) -> Vec<u8> {
    let mut bytes = vec![3, 4, 0, 0, 0, 0];
    bytes.extend(600_u16.to_be_bytes());
    // The IP header, and the beginning of the UDP header, of the packet that was too long.
    bytes.extend([0x45, 0, 0x23, 0x28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0x1b, 0x58, 0x23, 0x14, 0, 0]);
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    // The one's complement sum, computed modulo 65535.
    let sum = u16::try_from(words.sum::<u32>() % 0xFFFF).expect("a remainder");
    bytes[2..4].copy_from_slice(&(!sum).to_be_bytes());
    bytes
}

/// From the third node, once for each port that the sender may have.
fn lie(testbed: &Testbed) {
    let sent = testbed.inside(3, || {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 0);
        for port in 32_768..61_000 {
            sendto(
                &socket,
                &fragmentation_needed(port),
                SendFlags::empty(),
                &to,
            )?;
        }
        Ok::<(), rustix::io::Errno>(())
    });
    sent.expect("there is a third node").expect("root may send");
    let mut route = testbed.command(1, "ip");
    let route = route.args(["route", "get", "10.0.0.2"]).output();
    let route = String::from_utf8_lossy(&route.expect("ip runs").stdout).into_owned();
    assert!(route.contains("mtu 600"), "the kernel believes it: {route}");
}

#[test]
fn forged_reports_of_too_long_packets_are_ignored() {
    let Some(testbed) = jumbo(3) else { return };
    let key = testbed.folder().join("key");
    let mut made = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    let made = made.args(["key", "new"]).arg(&key).status();
    assert!(made.expect("it starts").success());
    let mut stream = Stream::begin(&testbed, Some(&key));
    stream.phase();
    lie(&testbed);
    stream.phase();
    lie(&testbed);
    stream.phase();
    let log = stream.end();
    assert!(
        !log.contains("now have"),
        "packets are as long as before: {log}"
    );
}
