//! Waits of programs that use endpoints are found, with the source line and the peer.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use dipole_trace::waits::{Cause, MIN_WAIT};
use serde_json::Value;

use crate::jobs::{Job, PROGRAM, text};

#[test]
fn waits_for_a_late_rank_are_reported_with_the_line_and_the_rank() {
    let job = Job::late();
    job.run(3, &["20", "20"]);
    let summary = job.summary();
    let list = |name: &str| summary[name].as_array().expect("a list").clone();
    let processes = list("processes");
    assert_eq!(processes.len(), 3, "{summary:#}");
    for (rank, process) in processes.iter().enumerate() {
        let name = format!("rank {rank}");
        assert_eq!(process["name"], name, "{summary:#}");
        let of = |what: &str| process[what].as_u64().expect("a number");
        // 20 messages, each 20 ms late; a receiver kept off its core does not wait for all.
        assert!(
            rank == 0 || of("waits") >= 5 && of("waited_ns") > 50_000_000,
            "{summary:#}"
        );
        assert!(of("lived_ns") >= of("waited_ns"), "{summary:#}");
    }
    assert!(
        processes[0]["awaited_ns"].as_u64() > Some(100_000_000),
        "{summary:#}"
    );
    let calls = list("calls");
    let call = &calls[0];
    assert_eq!(call["call"], "dp_read", "{summary:#}");
    assert_eq!(call["path"], "main > take", "{summary:#}");
    let line = 1 + include_str!("../c/late.c")
        .lines()
        .position(|line| line.contains("dp_read("))
        .expect("it is read there");
    assert_eq!(call["place"], format!("late.c:{line}"), "{summary:#}");
    assert_eq!(call["awaited"][0], "rank 0", "{summary:#}");
    let reasons = list("reasons");
    let slow = reasons.first().and_then(Value::as_str);
    assert!(
        slow.is_some_and(|slow| slow.starts_with("slow rank: ") && slow.contains("rank 0 only")),
        "{summary:#}"
    );
    assert_eq!(summary["notes"], Value::Array(Vec::new()), "{summary:#}");

    job.trace_fits("dp_read");

    let timeline = job.path("waits.perfetto-trace");
    let path = timeline.to_str().expect("a path");
    let told = job.trace(&["--perfetto", path]);
    for part in [
        "rank 0",
        "dp_read",
        "late.c:",
        "a message",
        "main > take > dp_read",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let bytes = std::fs::read(timeline).expect("it was written");
    for part in ["rank 2", "dp_read", "late.c:"] {
        let is_there = bytes
            .windows(part.len())
            .any(|bytes| bytes == part.as_bytes());
        assert!(is_there, "{part}");
    }
}

/// `dipole send` and `dipole recv` are Rust programs.
#[test]
fn programs_in_rust_leave_traces_and_a_page_shows_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let traces = folder.path().join("traces");
    std::fs::create_dir(&traces).expect("a folder");
    let dipole = |arguments: &[&str]| {
        let mut command = dipole_testbed::isolated_command(PROGRAM);
        command
            .args(arguments)
            .env("DIPOLE_RUNTIME_DIR", folder.path().join("runtime"))
            .env("DIPOLE_TRACE", &traces)
            .stdout(Stdio::piped());
        command
    };
    let receiver = dipole(&["recv", "7"]).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(100));
    let mut sender = dipole(&["send", "1:7"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    sender
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"text")
        .expect("it reads");
    assert!(sender.wait().expect("it ends").success());
    let received = receiver.wait_with_output().expect("it ends");
    assert_eq!(received.stdout, b"text");

    let page = folder.path().join("page.html");
    let path = page.to_str().expect("text");
    let directory = traces.to_str().expect("text");
    let output = dipole(&["--json", "trace", directory, "--html", path]).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let processes = summary["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 2, "{summary:#}");
    let calls = summary["calls"].as_array().expect("a list");
    let receives = calls.iter().any(|call| {
        let name = call["call"].as_str().expect("text");
        name.starts_with("Endpoint::receive") && call["path"].as_str() != Some("")
    });
    assert!(receives, "{summary:#}");
    let html = std::fs::read_to_string(&page).expect("it was written");
    for part in [
        "Where the processes waited",
        "<rect",
        "a message",
        "dipole ",
        "Endpoint::receive",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
}

#[test]
fn wait_files_contain_the_recorded_waits() {
    let job = Job::late();
    job.run(2, &["20", "10"]);
    let entries = std::fs::read_dir(job.traces()).expect("the folder was made");
    let files =
        entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file"));
    let files =
        files.map(|bytes| dipole_trace::waits::WaitFile::parse(&bytes).expect("as written"));
    let mut files: Vec<_> = files.collect();
    files.sort_by_key(|file| file.header.rank);
    assert_eq!(files.len(), 2);
    assert!(
        files
            .iter()
            .all(|file| file.header.has_ended && file.header.program == "late")
    );
    for wait in &files[1].waits.records {
        assert!(
            wait.ns() >= u64::try_from(MIN_WAIT.as_nanos()).expect("short"),
            "{wait:?}"
        );
        assert_eq!((wait.cause, wait.bytes), (Cause::Message, 100));
    }
    // A receiver kept off its core does not wait for all ten.
    assert!(files[1].waits.records.len() >= 2);
}
