//! Waits of programs that use endpoints are found, with the source line and the peer.

use dipole_trace::waits::{Cause, MIN_WAIT};
use serde_json::Value;

use crate::jobs::Job;

#[test]
fn waits_for_a_late_rank_are_reported_with_the_line_and_the_rank() {
    let job = Job::late();
    job.run(3, &["5", "20"]);
    let summary = job.summary();
    let list = |name: &str| summary[name].as_array().expect("a list").clone();
    let processes = list("processes");
    assert_eq!(processes.len(), 3, "{summary:#}");
    for (rank, process) in processes.iter().enumerate() {
        let name = format!("rank {rank}");
        assert_eq!(process["name"], name, "{summary:#}");
        let of = |what: &str| process[what].as_u64().expect("a number");
        // 20 messages, each 5 ms late: a stalled machine makes that longer, never shorter.
        assert!(
            rank == 0 || of("waits") >= 10 && of("waited_ns") > 50_000_000,
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

#[test]
fn wait_files_contain_the_recorded_waits() {
    let job = Job::late();
    job.run(2, &["3", "10"]);
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
    assert!(files[1].waits.records.len() >= 5);
}
