//! Two nodes as network namespaces joined by networks of a testbed: jobs and streams between machines,
//! without a second machine. Needs root; skipped with a message otherwise.

#![allow(missing_docs, reason = "tests")]

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use dipole_testbed::built::example;
use dipole_testbed::{Builder, Testbed};

/// Two nodes with an interface on each of two networks, and two slots each.
fn two_networks() -> Builder {
    Testbed::builder().networks(2).slots(2)
}

/// The testbed; `None`, with the reason, if it cannot be created.
fn make(builder: Builder) -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    Some(builder.build().expect("a testbed can be made here"))
}

/// The program on a node, which gets its settings from the environment.
fn dipole(testbed: &Testbed, node: u32) -> Command {
    let mut command = testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
    command.stdin(Stdio::null());
    command
}

/// Connects or disconnects the interface of both nodes on a network.
fn set_network(testbed: &Testbed, network: u32, up: bool) {
    for node in 1..=2 {
        testbed
            .set_interface(node, network, up)
            .expect("there is such an interface");
    }
}

/// Bytes that a device of the first node has sent.
fn sent_by(testbed: &Testbed, device: &str) -> u64 {
    let file = format!("/sys/class/net/{device}/statistics/tx_bytes");
    let output = testbed
        .command(1, "cat")
        .arg(&file)
        .output()
        .expect("cat runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().expect("a number")
}

fn path(testbed: &Testbed, name: &str) -> PathBuf {
    testbed.folder().join(name)
}

fn check_copy(testbed: &Testbed) {
    let same = Command::new("cmp")
        .args([path(testbed, "original"), path(testbed, "copy")])
        .status()
        .expect("cmp runs");
    assert!(same.success(), "the copy differs");
}

fn write(testbed: &Testbed, name: &str, text: &str) {
    std::fs::write(path(testbed, name), text).expect("our own directory");
}

/// A bridge like those of containers, with the same address on every node, and a device that drops
/// packets to the other node.
fn add_nowhere(testbed: &Testbed) {
    for node in 1..=2 {
        let other = 3 - node;
        let script = format!(
            "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && \
             ip link set docker0 up && \
             ip link add overlay0 type veth peer name underlay0 && ip link set underlay0 up && \
             ip address add 10.9.0.{node}/24 dev overlay0 && ip link set overlay0 up && \
             ip neighbour add 10.9.0.{other} lladdr 02:00:00:00:00:01 dev overlay0"
        );
        let made = testbed.command(node, "sh").args(["-c", &script]).status();
        assert!(made.expect("sh runs").success(), "{script}");
    }
}

/// Receives on node 2.
const RECEIVE: [&str; 2] = ["recv", "2:7"];

fn spawn(command: &mut Command) -> Child {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn check(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    text
}

#[test]
fn the_examples_run_on_four_ranks_of_one_machine() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["ring", "all_to_all"] {
        let output = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"))
            .args(["run", "-n", "4", "--tag"])
            .arg(example(name))
            .env("DIPOLE_RUNTIME_DIR", directory.path().join("runtime"))
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        let text = check(&output);
        assert!(text.contains("[0]"), "{text}");
    }
}

#[test]
fn the_examples_run_on_four_ranks_of_two_nodes() {
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    for name in ["ring", "all_to_all"] {
        let output = dipole(&testbed, 1)
            .args(["run", "-n", "4", "--tag", "--hosts"])
            .arg(testbed.hosts_file())
            .arg("--rsh")
            .arg(testbed.remote_shell())
            .arg(example(name))
            .output()
            .expect("it starts");
        let text = check(&output);
        assert!(text.contains("[3]") || text.contains("[0]"), "{text}");
    }
}

#[test]
fn a_file_arrives_unchanged_on_another_node_despite_loss() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let mut original = File::create(path(&testbed, "original")).expect("our own directory");
    let mut block = vec![0_u8; 1 << 20];
    for index in 0..48_usize {
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = u8::try_from((at * 131 + index * 17 + at / 977) % 256).expect("a byte");
        }
        original.write_all(&block).expect("there is room");
    }
    drop(original);
    let mut receiver = dipole(&testbed, 2);
    receiver.args(RECEIVE);
    receiver.args(["--fault", "drop=0.01,seed=3", "--out"]);
    let receiver = spawn(receiver.arg(path(&testbed, "copy")));
    let sent = dipole(&testbed, 1)
        .args(["send", "2:7", "--fault", "drop=0.01,seed=4"])
        .arg(path(&testbed, "original"))
        .output()
        .expect("it starts");
    check(&sent);
    check(&receiver.wait_with_output().expect("it ends"));
    check_copy(&testbed);
}

#[test]
fn a_file_arrives_although_the_first_of_two_interfaces_is_down_from_the_start() {
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    set_network(&testbed, 0, false);
    write(&testbed, "original", "what is sent\n");
    let receiver = spawn(dipole(&testbed, 2).args(RECEIVE));
    let sent = dipole(&testbed, 1)
        .args(["send", "2:7"])
        .arg(path(&testbed, "original"))
        .output()
        .expect("it starts");
    check(&sent);
    let received = check(&receiver.wait_with_output().expect("it ends"));
    assert_eq!(received, "what is sent\n");
}

#[test]
fn a_stream_continues_while_either_of_two_interfaces_is_down() {
    const BLOCK_BYTES: usize = 1 << 20;
    const BLOCKS_PER_PHASE: usize = 24;
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    let mut receiver = dipole(&testbed, 2);
    receiver.args(RECEIVE);
    let receiver = spawn(receiver.arg("--out").arg(path(&testbed, "copy")));
    let mut sender = dipole(&testbed, 1)
        .args(["send", "2:7"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = sender.stdin.take().expect("a pipe");
    let mut original = File::create(path(&testbed, "original")).expect("our own directory");
    let mut block = vec![0_u8; BLOCK_BYTES];
    let mut blocks = 0_usize;
    // Bytes that each interface has sent in a phase.
    let mut phase = || {
        let before = [0, 1].map(|interface| sent_by(&testbed, &format!("net{interface}")));
        for _ in 0..BLOCKS_PER_PHASE {
            blocks += 1;
            for (at, byte) in block.iter_mut().enumerate() {
                *byte = (at * 131 + blocks * 17 + at / 977).to_le_bytes()[0];
            }
            original.write_all(&block).expect("there is room");
            input.write_all(&block).expect("the sender goes on");
        }
        let sent = [0, 1].map(|interface: usize| {
            sent_by(&testbed, &format!("net{interface}")) - before[interface]
        });
        println!(
            "{} and {} KiB by the interfaces",
            sent[0] >> 10,
            sent[1] >> 10
        );
        // A quarter of a phase: the interface did its share, or almost nothing.
        sent.map(|bytes| bytes > (BLOCK_BYTES * BLOCKS_PER_PHASE / 4) as u64)
    };
    // An interface that was given up is not used for a while.
    let until_both_are_used = |phase: &mut dyn FnMut() -> [bool; 2]| {
        let plugged_in = std::time::Instant::now();
        while phase() != [true, true] {
            assert!(
                plugged_in.elapsed().as_secs() < 60,
                "an interface is not used again"
            );
        }
    };
    assert_eq!(phase(), [true, true], "bulk uses both interfaces");
    set_network(&testbed, 1, false);
    assert_eq!(phase(), [true, false]);
    set_network(&testbed, 1, true);
    until_both_are_used(&mut phase);
    set_network(&testbed, 0, false);
    assert_eq!(phase(), [false, true]);
    set_network(&testbed, 0, true);
    until_both_are_used(&mut phase);
    drop(input);
    let sent = sender.wait_with_output().expect("it ends");
    check(&sent);
    check(&receiver.wait_with_output().expect("it ends"));
    check_copy(&testbed);
}

#[test]
fn unreachable_bridges_and_overlays_carry_nothing_and_are_reported() {
    const BYTES: usize = 8 << 20;
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    add_nowhere(&testbed);
    // The second node lists its interfaces in another order.
    write(
        &testbed,
        "interfaces",
        "1 10.0.0.1 interfaces=172.17.0.1,10.9.0.1,10.1.0.1\n\
         2 10.0.0.2 interfaces=10.1.0.2,10.9.0.2,172.17.0.1\n",
    );
    write(
        &testbed,
        "original",
        &"sixteen bytes.\n\n".repeat(BYTES / 16),
    );
    let interfaces = path(&testbed, "interfaces");
    let mut receiver = dipole(&testbed, 2);
    receiver
        .args(RECEIVE)
        .arg("--hosts")
        .arg(&interfaces)
        .arg("--out");
    let receiver = spawn(receiver.arg(path(&testbed, "copy")));
    let before = sent_by(&testbed, "overlay0");
    let sent = dipole(&testbed, 1)
        .args(["send", "2:7", "--hosts"])
        .arg(&interfaces)
        .arg(path(&testbed, "original"))
        .env("DIPOLE_LOG", "info")
        .output()
        .expect("it starts");
    check(&sent);
    check(&receiver.wait_with_output().expect("it ends"));
    check_copy(&testbed);
    let by_overlay = sent_by(&testbed, "overlay0") - before;
    assert!(by_overlay < (BYTES / 50) as u64, "{by_overlay} bytes");
    for network in ["net0", "net1"] {
        let bytes = sent_by(&testbed, network);
        assert!(bytes > (BYTES / 4) as u64, "{bytes} over {network}");
    }
    let log = String::from_utf8_lossy(&sent.stderr);
    for words in [
        "10.0.0.1 <-> 10.0.0.2 small and bulk",
        "10.1.0.1 <-> 10.1.0.2 small and bulk",
        "10.9.0.1 <-> 10.9.0.2 no answer: not used",
        "172.17.0.1 an address of this node too: not used",
    ] {
        assert!(log.contains(words), "{words} is not in\n{log}");
    }
}

#[test]
fn link_local_addresses_carry_streams_and_jobs() {
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    let mut hosts = std::fs::read_to_string(testbed.hosts_file()).expect("it is there");
    for node in 1..=2 {
        let added = testbed
            .command(node, "ip")
            .args(["address", "add", &format!("fe80::{node}/64"), "dev", "net0"])
            .args(["scope", "link", "nodad"])
            .status();
        assert!(added.expect("ip runs").success());
        hosts = hosts.replace(&format!("10.0.0.{node}"), &format!("fe80::{node}%net0"));
    }
    write(&testbed, "link-local", &hosts);
    let hosts = path(&testbed, "link-local");
    write(&testbed, "original", &"sixteen bytes.\n\n".repeat(1 << 19));
    let mut receiver = dipole(&testbed, 2);
    receiver.args(RECEIVE).arg("--hosts").arg(&hosts);
    let receiver = spawn(receiver.arg("--out").arg(path(&testbed, "copy")));
    let sent = dipole(&testbed, 1)
        .args(["send", "2:7", "--hosts"])
        .arg(&hosts)
        .arg(path(&testbed, "original"))
        .env("DIPOLE_LOG", "info")
        .output()
        .expect("it starts");
    check(&sent);
    check(&receiver.wait_with_output().expect("it ends"));
    check_copy(&testbed);
    let log = String::from_utf8_lossy(&sent.stderr);
    for words in [
        "fe80::1 <-> fe80::2 small and bulk",
        "10.1.0.1 <-> 10.1.0.2 small and bulk",
    ] {
        assert!(log.contains(words), "{words} is not in\n{log}");
    }
    for links in ["udp", "auto"] {
        let output = dipole(&testbed, 1)
            .args(["run", "-n", "4", "--tag", "--hosts"])
            .arg(&hosts)
            .arg("--rsh")
            .arg(testbed.remote_shell())
            .arg(example("ring"))
            .env("DIPOLE_LINKS", links)
            .output()
            .expect("it starts");
        let text = check(&output);
        assert!(text.contains("[3]") || text.contains("[0]"), "{text}");
    }
}

#[test]
fn a_node_with_one_interface_and_one_with_two_use_what_both_have() {
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    write(
        &testbed,
        "interfaces",
        "1 10.0.0.1 interfaces=10.1.0.1\n2 10.1.0.2\n",
    );
    write(&testbed, "original", &"sixteen bytes.\n\n".repeat(1 << 18));
    let interfaces = path(&testbed, "interfaces");
    for (from, to) in [(1, 2), (2, 1)] {
        let target = format!("{to}:7");
        let mut receiver = dipole(&testbed, to);
        receiver.args(["recv", &target, "--hosts"]).arg(&interfaces);
        let receiver = spawn(receiver.arg("--out").arg(path(&testbed, "copy")));
        let sent = dipole(&testbed, from)
            .args(["send", &target, "--hosts"])
            .arg(&interfaces)
            .arg(path(&testbed, "original"))
            .output()
            .expect("it starts");
        check(&sent);
        check(&receiver.wait_with_output().expect("it ends"));
        check_copy(&testbed);
    }
}

#[test]
fn doctor_names_every_pair_of_addresses_and_every_interface() {
    let Some(testbed) = make(two_networks()) else {
        return;
    };
    add_nowhere(&testbed);
    write(
        &testbed,
        "interfaces",
        "1 10.0.0.1 interfaces=172.17.0.1,10.9.0.1,10.1.0.1\n\
         2 10.0.0.2 interfaces=172.17.0.1,10.9.0.2,10.1.0.2\n",
    );
    let interfaces = path(&testbed, "interfaces");
    let mut receiver = spawn(
        dipole(&testbed, 2)
            .args(RECEIVE)
            .arg("--hosts")
            .arg(&interfaces),
    );
    let begun = std::time::Instant::now();
    let report = loop {
        let mut doctor = dipole(&testbed, 1);
        doctor.args(["doctor", "--verbose", "--timeout", "0.3", "--hosts"]);
        let output = doctor.arg(&interfaces).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains("10.0.0.1 <-> 10.0.0.2: answers") {
            break text;
        }
        // A process that has just started may not listen yet.
        assert!(begun.elapsed().as_secs() < 30, "{text}");
    };
    receiver.kill().expect("ours");
    receiver.wait().expect("ours");
    let plain = report.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "10.1.0.1 <-> 10.1.0.2: answers to packets of 1500 bytes, will be used",
        "10.9.0.1 <-> 10.9.0.2: no answer, will not be used",
        "172.17.0.1: an address of this node too, will not be used",
        "a bridge (docker, libvirt or the like)",
    ] {
        assert!(plain.contains(words), "{words} is not in\n{report}");
    }
}
