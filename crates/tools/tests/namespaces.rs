//! Two nodes as two network namespaces joined by a veth pair: jobs and streams
//! between machines, without a second machine. Needs root; skipped aloud without.

#![allow(missing_docs, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// Two namespaces that exist as long as this.
struct Bed {
    names: [String; 2],
    directory: TempDir,
}

fn ip(arguments: &str) -> bool {
    Command::new("ip")
        .args(arguments.split_whitespace())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Bed {
    /// Makes the bed; `None`, and a word why, where that isn't possible.
    fn make(tag: &str) -> Option<Bed> {
        let process = std::process::id();
        let names = ["a", "b"].map(|side| format!("dpt{process}{tag}{side}"));
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: network namespaces need root");
            return None;
        }
        let bed = Bed {
            names,
            directory: tempfile::tempdir().expect("a directory"),
        };
        let [a, b] = &bed.names;
        let card = |number: u32| {
            let net = 98 + number;
            ip(&format!(
                "link add card{number} netns {a} type veth peer name card{number} netns {b}"
            )) && ip(&format!("-n {a} addr add 10.{net}.0.1/24 dev card{number}"))
                && ip(&format!("-n {b} addr add 10.{net}.0.2/24 dev card{number}"))
                && bed.set_card(number, true)
        };
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("-n {a} link set lo up"))
            && ip(&format!("-n {b} link set lo up"))
            && card(0)
            && card(1);
        if !made {
            eprintln!("SKIPPED: `ip netns` makes no namespaces here (iproute2, veth?)");
            return None;
        }
        bed.write(
            "hosts",
            &format!("1 10.98.0.1 slots=2 ssh={a}\n2 10.98.0.2 slots=2 ssh={b}\n"),
        );
        bed.write(
            "two-cards",
            "1 10.98.0.1 cards=10.99.0.1\n2 10.98.0.2 cards=10.99.0.2\n",
        );
        // Called as `remote-shell DEST COMMAND-LINE`, like ssh.
        bed.write(
            "remote-shell",
            "#!/bin/sh\ndest=$1\nshift\nexec ip netns exec \"$dest\" sh -c \"$*\"\n",
        );
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bed.path("remote-shell"), mode).expect("our own file");
        Some(bed)
    }

    /// Plugs a card of both nodes in or out.
    fn set_card(&self, number: u32, up: bool) -> bool {
        let state = if up { "up" } else { "down" };
        let set = |name| ip(&format!("-n {name} link set card{number} {state}"));
        self.names.iter().all(set)
    }

    /// Bytes that the first node has sent by a card.
    fn sent_by(&self, number: u32) -> u64 {
        let file = format!("/sys/class/net/card{number}/statistics/tx_bytes");
        let output = Command::new("ip")
            .args(["netns", "exec", &self.names[0], "cat", &file])
            .output()
            .expect("ip runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse().expect("a number")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn check_copy(&self) {
        let same = Command::new("cmp")
            .args([self.path("original"), self.path("copy")])
            .status()
            .expect("cmp runs");
        assert!(same.success(), "the copy differs");
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("our own directory");
    }

    /// The program `dipole` inside a namespace, its environment clean.
    fn dipole(&self, side: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]);
        command.arg(env!("CARGO_BIN_EXE_dipole"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DIPOLE_") {
                command.env_remove(name);
            }
        }
        command.env("DIPOLE_RUNTIME_DIR", self.path("runtime"));
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// An example of the node crate, built if it isn't there.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let profile = test.ancestors().nth(2).expect("a target directory");
    let path = profile.join("examples").join(name);
    if !path.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--package", "dipole-node", "--example", name]);
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        build.arg("--manifest-path").arg(manifest);
        build
            .arg("--target-dir")
            .arg(profile.parent().expect("a target directory"));
        assert!(build.status().expect("cargo runs").success());
    }
    path
}

/// Receives on node 2; the hosts file follows.
const RECEIVE: [&str; 5] = ["recv", "2:7", "--nid", "2", "--hosts"];

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
        let output = Command::new(env!("CARGO_BIN_EXE_dipole"))
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
    let Some(bed) = Bed::make("r") else { return };
    for name in ["ring", "all_to_all"] {
        let output = bed
            .dipole(0)
            .args(["run", "-n", "4", "--tag", "--hosts"])
            .arg(bed.path("hosts"))
            .arg("--rsh")
            .arg(bed.path("remote-shell"))
            .arg(example(name))
            .output()
            .expect("it starts");
        let text = check(&output);
        assert!(text.contains("[3]") || text.contains("[0]"), "{text}");
    }
}

#[test]
fn a_file_crosses_from_node_to_node_through_loss_unchanged() {
    let Some(bed) = Bed::make("f") else { return };
    let mut original = std::fs::File::create(bed.path("original")).expect("our own directory");
    let mut block = vec![0_u8; 1 << 20];
    for index in 0..48_usize {
        for (at, byte) in block.iter_mut().enumerate() {
            *byte = u8::try_from((at * 131 + index * 17 + at / 977) % 256).expect("a byte");
        }
        original.write_all(&block).expect("there is room");
    }
    drop(original);
    let mut receiver = bed.dipole(1);
    receiver.args(RECEIVE).arg(bed.path("hosts"));
    receiver.args(["--fault", "drop=0.01,seed=3", "--out"]);
    let receiver = spawn(receiver.arg(bed.path("copy")));
    let sent = bed
        .dipole(0)
        .args(["send", "2:7", "--nid", "1", "--hosts"])
        .arg(bed.path("hosts"))
        .args(["--fault", "drop=0.01,seed=4"])
        .arg(bed.path("original"))
        .output()
        .expect("it starts");
    check(&sent);
    check(&receiver.wait_with_output().expect("it ends"));
    bed.check_copy();
}

#[test]
fn a_file_crosses_though_the_first_of_two_cards_is_out_from_the_start() {
    let Some(bed) = Bed::make("o") else { return };
    assert!(bed.set_card(0, false));
    bed.write("original", "what is sent\n");
    let receiver = spawn(bed.dipole(1).args(RECEIVE).arg(bed.path("two-cards")));
    let sent = bed
        .dipole(0)
        .args(["send", "2:7", "--nid", "1", "--hosts"])
        .arg(bed.path("two-cards"))
        .arg(bed.path("original"))
        .output()
        .expect("it starts");
    check(&sent);
    let received = check(&receiver.wait_with_output().expect("it ends"));
    assert_eq!(received, "what is sent\n");
}

#[test]
fn a_stream_goes_on_while_either_of_two_cards_is_out() {
    const BLOCK_BYTES: usize = 1 << 20;
    const BLOCKS_PER_PHASE: usize = 24;
    let Some(bed) = Bed::make("c") else { return };
    let mut receiver = bed.dipole(1);
    receiver.args(RECEIVE).arg(bed.path("two-cards"));
    let receiver = spawn(receiver.arg("--out").arg(bed.path("copy")));
    let mut sender = bed
        .dipole(0)
        .args(["send", "2:7", "--nid", "1", "--hosts"])
        .arg(bed.path("two-cards"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = sender.stdin.take().expect("a pipe");
    let mut original = std::fs::File::create(bed.path("original")).expect("our own directory");
    let mut block = vec![0_u8; BLOCK_BYTES];
    let mut blocks = 0_usize;
    // Bytes that each card has sent of a phase.
    let mut phase = || {
        let before = [0, 1].map(|card| bed.sent_by(card));
        for _ in 0..BLOCKS_PER_PHASE {
            blocks += 1;
            for (at, byte) in block.iter_mut().enumerate() {
                *byte = (at * 131 + blocks * 17 + at / 977).to_le_bytes()[0];
            }
            original.write_all(&block).expect("there is room");
            input.write_all(&block).expect("the sender goes on");
        }
        let sent = [0, 1].map(|card: u32| bed.sent_by(card) - before[card as usize]);
        println!("{} and {} KiB by the cards", sent[0] >> 10, sent[1] >> 10);
        // A quarter of a phase: a card did its share, or next to nothing.
        sent.map(|bytes| bytes > (BLOCK_BYTES * BLOCKS_PER_PHASE / 4) as u64)
    };
    assert_eq!(phase(), [true, true], "bulk uses both cards");
    assert!(bed.set_card(1, false));
    assert_eq!(phase(), [true, false]);
    assert!(bed.set_card(1, true) && bed.set_card(0, false));
    assert_eq!(phase(), [false, true]);
    assert!(bed.set_card(0, true));
    // A card that was given up rests for a while.
    let plugged_in = std::time::Instant::now();
    while phase() != [true, true] {
        assert!(
            plugged_in.elapsed().as_secs() < 60,
            "a card is not used again"
        );
    }
    drop(input);
    let sent = sender.wait_with_output().expect("it ends");
    check(&sent);
    check(&receiver.wait_with_output().expect("it ends"));
    bed.check_copy();
}
