//! `dipole stats` and `dipole links` as an operator runs them, next to processes that transfer a stream.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn dipole(testbed: &TempDir, arguments: &[&str]) -> Command {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command
        .args(arguments)
        .env("DIPOLE_RUNTIME_DIR", testbed.path().join("runtime"))
        .env_remove("DIPOLE_HOSTS")
        .env_remove("DIPOLE_LINK")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Its output once `is_there` accepts it.
fn eventually(command: &mut Command, is_there: impl Fn(&str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let output = command.output().expect("it starts");
        let said = text(&output.stdout);
        if output.status.success() && is_there(&said) {
            return said;
        }
        let errors = text(&output.stderr);
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{command:?}: {said}{errors}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that is killed at the end of the test.
struct Ended(Child);

impl Ended {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child");
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A receiver, and a sender that has sent something and has more to send, over these links.
fn stream(testbed: &TempDir, link: &str) -> (Ended, Ended) {
    checked_stream(testbed, link, ["crc32c"; 2])
}

/// Such a stream between a receiver and a sender with these checksums.
fn checked_stream(testbed: &TempDir, link: &str, checksums: [&str; 2]) -> (Ended, Ended) {
    let receiver = dipole(testbed, &["recv", "7"])
        .env("DIPOLE_CHECKSUM", checksums[0])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut sender = dipole(testbed, &["send", "1:7"])
        .env("DIPOLE_LINK", link)
        .env("DIPOLE_CHECKSUM", checksums[1])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = sender.stdin.take().expect("a pipe");
    input.write_all(&[7; 100_000]).expect("a reader");
    sender.stdin = Some(input);
    (Ended(receiver), Ended(sender))
}

fn lines(said: &str) -> Vec<serde_json::Value> {
    let lines = said.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON")
}

#[test]
fn counters_are_shown_for_running_hung_and_dead_processes() {
    let testbed = tempfile::tempdir().expect("a directory");
    let (mut receiver, sender) = stream(&testbed, "auto");
    let pid = receiver.pid();
    let received = |said: &str| {
        let told = lines(said);
        told.len() == 1 && told[0]["counters"]["memory_bytes_received"].as_u64() >= Some(100_000)
    };
    // A stopped process does not answer, and has nothing left to do before.
    let mut json = dipole(&testbed, &["--json", "stats", &pid]);
    eventually(&mut json, received);
    receiver.signal(Signal::STOP);
    let said = eventually(&mut dipole(&testbed, &["--json", "stats", "1:7"]), received);
    let told = &lines(&said)[0];
    assert_eq!(told["pid"].to_string(), pid);
    assert_eq!(told["alive"], true);
    assert_eq!(told["endpoints"][0], "1:7");
    let said = eventually(&mut dipole(&testbed, &["stats", &pid]), |_| true);
    assert!(said.contains("dipole recv 7, endpoint 1:7"), "{said}");
    assert!(said.contains("  messages received"), "{said}");
    assert!(!said.contains("dropped: forged"), "zero: {said}");
    let said = eventually(&mut dipole(&testbed, &["stats"]), |_| true);
    assert!(
        said.contains(&pid) && said.contains(&sender.pid()),
        "{said}"
    );
    let widest = said.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{said}");

    // Any other process would remove the files at once.
    drop(sender);
    receiver.signal(Signal::KILL);
    receiver.0.wait().expect("our own child");
    let told = |output: &Output| (text(&output.stdout), text(&output.stderr));
    let mut stats = dipole(&testbed, &["stats", &pid]);
    let (last, why) = told(&stats.output().expect("it starts"));
    assert!(
        why.contains("has died without a goodbye; its files are removed now"),
        "{why}"
    );
    assert!(last.contains("memory bytes received"), "{last}");
    let (_, why) = told(&stats.output().expect("it starts"));
    assert!(
        why.contains(&format!("process {pid} has no node of Dipole")),
        "{why}"
    );
}

#[test]
fn links_are_shown_with_the_reason_why_better_ones_are_not_used() {
    let testbed = tempfile::tempdir().expect("a directory");
    for (link, carrier, why) in [
        ("auto", "shm", ""),
        (
            "udp",
            "udp",
            "no shared memory: DIPOLE_LINK is set; 127.0.0.1: DIPOLE_LINK=udp",
        ),
    ] {
        let (receiver, sender) = stream(&testbed, link);
        let mut links = dipole(&testbed, &["--json", "links", &sender.pid()]);
        let said = eventually(&mut links, |said| lines(said).len() == 1);
        let told = &lines(&said)[0];
        assert_eq!(told["link"], carrier, "{said}");
        assert_eq!(told["peer_pid"].to_string(), receiver.pid(), "{said}");
        assert_eq!(told["why"], why, "{said}");
        let mut links = dipole(&testbed, &["links", "1:7"]);
        let said = eventually(&mut links, |said| said.contains(" to node 1, process "));
        assert!(said.contains(&sender.pid()), "{said}");
        assert_eq!(
            said.contains("not better, since"),
            carrier == "udp",
            "{said}"
        );
    }
}

#[test]
fn the_kernels_checksum_is_used_if_both_processes_want_it() {
    let testbed = tempfile::tempdir().expect("a directory");
    for (checksums, used) in [
        (["kernel", "kernel"], "kernel"),
        (["crc32c", "kernel"], "crc32c"),
        (["kernel", "crc32c"], "crc32c"),
    ] {
        let (_receiver, sender) = checked_stream(&testbed, "udp", checksums);
        let mut links = dipole(&testbed, &["--json", "links", &sender.pid()]);
        let said = eventually(&mut links, |said| lines(said).len() == 1);
        assert_eq!(lines(&said)[0]["check"], used, "{said}");
        let mut stats = dipole(&testbed, &["--json", "stats", "1:7"]);
        let arrived = |said: &str| {
            let counters = lines(said)[0]["counters"].clone();
            counters["packet_bytes_received"].as_u64() >= Some(100_000)
        };
        eventually(&mut stats, arrived);
    }
}

#[test]
fn a_checksum_is_refused_where_it_would_have_no_effect() {
    let testbed = tempfile::tempdir().expect("a directory");
    let key = testbed.path().join("key");
    let made = dipole(&testbed, &["key", "new"]).arg(&key).output();
    assert!(made.expect("it starts").status.success());
    for (checksum, with_key, word) in [
        ("kernel", true, "the cluster key protects packets"),
        ("md5", false, "expected crc32c or kernel"),
    ] {
        let mut receiver = dipole(&testbed, &["recv", "7"]);
        receiver.env("DIPOLE_CHECKSUM", checksum);
        if with_key {
            receiver.env("DIPOLE_KEY", &key);
        }
        let output = receiver.output().expect("it starts");
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("DIPOLE_CHECKSUM") && said.contains(word),
            "{said}"
        );
    }
}

#[test]
fn unknown_processes_and_invalid_arguments_are_refused() {
    let testbed = tempfile::tempdir().expect("a directory");
    for (which, status, word) in [
        ("4:7", 1, "no process has endpoint 4:7 open"),
        ("1", 1, "process 1 has no node of Dipole"),
        ("seven", 2, "expected a process id"),
    ] {
        for command in ["stats", "links"] {
            let output = dipole(&testbed, &[command, which])
                .output()
                .expect("it starts");
            assert_eq!(output.status.code(), Some(status), "{command} {which}");
            let said = text(&output.stderr);
            assert!(said.contains(word), "{said}");
        }
    }
}
