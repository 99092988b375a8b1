//! `dipole-lab peers`: libraries and tools of other projects, installed or not.

#![allow(missing_docs, reason = "tests")]

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use dipole_testbed::isolated_command;
use serde_json::Value;

/// Both sides spin and need a core each, so only one bench runs at a time.
static CORES: Mutex<()> = Mutex::new(());

/// Peers for each kind of work, and part of the line with installation advice.
const PINGPONG: [(&str, &str); 8] = [
    ("open-mpi", "libopenmpi-dev"),
    ("mpich", "libmpich-dev"),
    ("libfabric", "libfabric-bin"),
    ("ucx", "ucx-utils"),
    ("aeron", "from source"),
    ("zeromq", "libzmq3-dev"),
    ("bsponmpi", "from source"),
    ("sockperf", "sockperf"),
];
const STREAM: [(&str, &str); 8] = [
    ("open-mpi", "libopenmpi-dev"),
    ("mpich", "libmpich-dev"),
    ("ucx", "ucx-utils"),
    ("aeron", "from source"),
    ("zeromq", "libzmq3-dev"),
    ("bsponmpi", "from source"),
    ("iperf3", "iperf3"),
    ("sockperf", "sockperf"),
];

fn bench(arguments: &str) -> Command {
    let mut command = isolated_command(env!("CARGO_BIN_EXE_dipole-lab"));
    command.arg("peers").stdin(Stdio::null());
    command.args(arguments.split_whitespace());
    command
}

fn succeeded(output: &Output) -> (Vec<Value>, String) {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let objects = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    (objects.collect(), errors)
}

/// Finds the remark that a peer is missing. Remarks are folded to the width of a terminal.
fn absence<'a>(notes: &'a str, name: &str) -> Option<&'a str> {
    notes
        .lines()
        .find(|line| line.starts_with(&format!("{name} is left out: ")))
}

#[test]
fn missing_peers_are_listed_with_their_packages() {
    let empty = tempfile::tempdir().expect("a folder");
    let mut command = bench("--quick --json --wide --size 64 --on loopback --seconds 0.01");
    let output = command
        .env("PATH", empty.path())
        .output()
        .expect("it starts");
    let (objects, notes) = succeeded(&output);
    for (name, package) in PINGPONG.into_iter().chain(STREAM) {
        let line = absence(&notes, name).unwrap_or_else(|| panic!("{name}: {notes}"));
        assert!(line.contains(package), "{line}");
    }
    // Our own subjects are measured all the same.
    for (bench, subject) in [("pingpong", "dipole"), ("stream", "bare-tcp-spin")] {
        let mut rows = objects.iter();
        assert!(
            rows.any(|row| row["bench"] == bench && row["subject"] == subject),
            "{bench} {subject}"
        );
    }
}

/// Checks that each of these has a result, or a remark with installation advice.
fn check(kind: &str, place: &str, others: &[(&str, &str)], figure: &str) {
    let arguments = format!("{kind} --quick --json --wide --size 4096 --on {place}");
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let output = bench(&arguments).output().expect("it starts");
    let (objects, notes) = succeeded(&output);
    for (name, package) in others {
        let row = objects.iter().find(|row| row["subject"] == *name);
        match (row, absence(&notes, name)) {
            (Some(row), None) => {
                let value = row[figure].as_f64().expect("a number");
                assert!(value > 0.0 && value.is_finite(), "{row}");
                let cpu_ns = row["cpu_ns_per_message"].as_f64();
                assert!(cpu_ns.is_some_and(|ns| ns >= 0.0), "{row}");
            }
            (None, Some(line)) => assert!(line.contains(package), "{line}"),
            _ => panic!("{name} has a row or a note, not both: {notes}"),
        }
    }
    let known = |row: &Value| {
        let name = row["subject"].as_str().expect("a name");
        name.starts_with("dipole")
            || name.starts_with("bare-")
            || others.iter().any(|(other, _)| *other == name)
    };
    assert!(objects.iter().all(known), "{objects:?}");
}

#[test]
fn installed_peers_answer_on_one_node_and_over_the_network() {
    check("pingpong", "node", &PINGPONG, "p50_ns");
    check("pingpong", "loopback", &PINGPONG, "p50_ns");
}

#[test]
fn installed_peers_stream_on_one_node_and_over_the_network() {
    check("stream", "node", &STREAM, "bytes_per_s");
    check("stream", "loopback", &STREAM, "bytes_per_s");
}

#[test]
fn installed_peers_answer_between_namespaces() {
    if let Some(why) = dipole_testbed::Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    check("pingpong", "veth", &PINGPONG, "p50_ns");
}

#[test]
fn impossible_command_lines_are_rejected() {
    for (arguments, words) in [
        ("rate", "pingpong, stream"),
        ("--block", "--block"),
        ("--subjects nonsense", "nonsense"),
        ("pingpong --link shm --on veth", "--on node"),
    ] {
        let output = bench(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(words), "{arguments}: {errors}");
    }
}
