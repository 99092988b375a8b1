//! Two nodes as two network namespaces joined by a veth pair: jobs and streams
//! between machines, without a second machine. Needs root; skipped aloud without.

#![allow(missing_docs, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!(
                "link add v{tag}a netns {a} type veth peer name v{tag}b netns {b}"
            ))
            && ip(&format!("-n {a} addr add 10.98.0.1/24 dev v{tag}a"))
            && ip(&format!("-n {b} addr add 10.98.0.2/24 dev v{tag}b"))
            && ip(&format!("-n {a} link set lo up"))
            && ip(&format!("-n {b} link set lo up"))
            && ip(&format!("-n {a} link set v{tag}a up"))
            && ip(&format!("-n {b} link set v{tag}b up"));
        if !made {
            eprintln!("SKIPPED: `ip netns` makes no namespaces here (iproute2, veth?)");
            return None;
        }
        bed.write(
            "hosts",
            &format!("1 10.98.0.1 slots=2 ssh={a}\n2 10.98.0.2 slots=2 ssh={b}\n"),
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

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
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
    let receiver = bed
        .dipole(1)
        .args(["recv", "2:7", "--nid", "2", "--hosts"])
        .arg(bed.path("hosts"))
        .args(["--fault", "drop=0.01,seed=3", "--out"])
        .arg(bed.path("copy"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
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
    let same = Command::new("cmp")
        .args([bed.path("original"), bed.path("copy")])
        .status()
        .expect("cmp runs");
    assert!(same.success(), "the copy differs");
}
