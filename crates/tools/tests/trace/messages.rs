//! The phases of a message at its sender and its receiver, from recordings of both.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const DIPOLE: &str = env!("CARGO_BIN_EXE_dipole");

fn dipole(place: &Path, link: &str, line: &str) -> Command {
    let mut command = dipole_testbed::isolated_command(DIPOLE);
    command
        .current_dir(place)
        .env("DIPOLE_RUNTIME_DIR", place.join("dipole"))
        .env("DIPOLE_LINK", link)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .args(line.split_whitespace());
    command
}

fn run(place: &Path, line: &str) -> Output {
    dipole(place, "udp", line).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a file between two recorded processes.
fn transfer(place: &Path, link: &str, fault: Option<&str>) {
    std::fs::write(place.join("from"), vec![7; 900_000]).expect("our file");
    let start = |line: &str| {
        let mut command = dipole(place, link, line);
        command.env("DIPOLE_RECORD", place.join("r"));
        command.envs(fault.map(|fault| ("DIPOLE_FAULT", fault)));
        command.spawn().expect("it starts")
    };
    let receiver = start("recv 7 --out to");
    let sent = start("send 1:7 from").wait_with_output().expect("it ends");
    let received = receiver.wait_with_output().expect("it ends");
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    assert!(received.status.success(), "{}", text(&received.stderr));
}

fn messages(place: &Path, options: &str) -> Value {
    let output = run(place, &format!("--json trace r {options}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// The phases of the shown message by name, each from and to.
fn phases(messages: &Value) -> Vec<(String, i64, i64)> {
    let phases = messages["shown"]["phases"].as_array().expect("a list");
    let phase = |phase: &Value| {
        let time = |name: &str| phase[name].as_i64().expect("a number");
        let name = phase["name"].as_str().expect("a name");
        (name.to_owned(), time("from_ns"), time("to_ns"))
    };
    phases.iter().map(phase).collect()
}

/// The edge to endpoint 7, on which the file goes.
fn edge(messages: &Value) -> Value {
    let edges = messages["edges"].as_array().expect("a list");
    let edge = edges.iter().find(|edge| edge["to"] == "1:7");
    edge.unwrap_or_else(|| panic!("{messages:#}")).clone()
}

#[test]
fn a_long_message_is_followed_from_its_sender_to_its_receiver() {
    for link in ["udp", "shm"] {
        let place = tempfile::tempdir().expect("a directory");
        transfer(place.path(), link, None);
        let all = messages(place.path(), "");
        let edge = edge(&all);
        assert!(edge["messages"].as_u64() > Some(2), "{all:#}");
        assert_eq!(all["notes"], Value::Array(Vec::new()), "{all:#}");
        let sender = edge["from"].as_str().expect("an address");
        // Message 0 opens the transfer; the later ones are the file.
        let shown = messages(place.path(), &format!("--message {sender}-1:7/2"));
        assert_eq!(shown["shown"]["number"], 2);
        assert!(
            shown["shown"]["bytes"].as_u64() > Some(100_000),
            "{shown:#}"
        );
        assert_eq!(shown["shown"]["same_host"], true);
        let phases = phases(&shown);
        let total = shown["shown"]["total_ns"].as_i64().expect("a number");
        for (name, from, to) in &phases {
            assert!(name == "network" || from < to, "{link}: {phases:?}");
            assert!(*to <= total, "{link}: {phases:?}");
        }
        // What the sender does comes before the network, and that before the receiver.
        let at = |name: &str| phases.iter().find(|(it, ..)| it == name).cloned();
        let (_, left, arrived) = at("network").expect("it crossed it");
        assert!(0 <= left && left <= arrived, "{link}: {phases:?}");
        for name in ["arrive", "order", "unread"] {
            let begins = at(name).map(|(_, from, _)| from);
            assert!(
                begins.is_none_or(|from| arrived <= from),
                "{link}: {phases:?}"
            );
        }
        if link == "udp" {
            assert!(at("arrive").is_some(), "many packets arrive: {phases:?}");
        }
    }
}

#[test]
fn packets_that_are_sent_again_are_shown_in_the_terminal_and_on_the_page() {
    let place = tempfile::tempdir().expect("a directory");
    transfer(place.path(), "udp", Some("drop=0.05,seed=7"));
    let edge = edge(&messages(place.path(), ""));
    let sender = edge["from"].as_str().expect("an address");
    let mut choices = (0..edge["messages"].as_u64().expect("a number"))
        .map(|number| format!("--message {sender}-1:7/{number}"));
    let has_repeats = |choice: &String| {
        let all = messages(place.path(), choice);
        all["shown"]["retransmissions"].as_u64() > Some(0)
            && phases(&all).iter().any(|(name, ..)| name == "repeat")
    };
    let choice = choices.find(has_repeats).expect("packets were lost");
    let slowest = text(&run(place.path(), "trace r").stdout);
    assert!(slowest.contains("the slowest"), "{slowest}");
    let printed = run(place.path(), &format!("trace r {choice} --html page.html"));
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let printed = text(&printed.stdout);
    for part in ["sender |", "receiver |", "sent again", "rrr"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let page = std::fs::read_to_string(place.path().join("page.html")).expect("it was written");
    for part in ["<svg", "receiver 1:7", "<title>repeat: ", "retransmissions"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_message_that_was_not_recorded_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let fails = |line: &str, words: &str| {
        let output = run(place.path(), line);
        assert!(!output.status.success());
        let said = text(&output.stderr);
        assert!(said.contains(words), "{said}");
    };
    std::fs::create_dir(place.path().join("r")).expect("our folder");
    fails("trace r --message 1:8-2:7/9", "DIPOLE_RECORD");
    fails("trace r --message 1:8/9", "is not a message");
    transfer(place.path(), "udp", None);
    fails("trace r --message 9:9-1:7/1", "not in the recordings");
    let folder = tempfile::tempdir().expect("a directory");
    let none = run(folder.path(), "trace .");
    assert!(text(&none.stderr).contains("has no traces"));
}
