//! `dipole-lab crowd` and `dipole-lab incast` with short measurements.

#![allow(missing_docs, reason = "tests")]

use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use dipole_testbed::isolated_command;
use serde_json::Value;

/// The processes need all cores, so only one measurement runs at a time.
static CORES: Mutex<()> = Mutex::new(());

/// Runs with `--json` and returns the objects on standard output.
fn objects(arguments: &str) -> Vec<Value> {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = isolated_command(env!("CARGO_BIN_EXE_dipole-lab"));
    command
        .args(arguments.split_whitespace())
        .args(["--seconds", "0.05", "--rounds", "1", "--json"])
        .stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {object}"))
}

fn number(object: &Value, field: &str) -> f64 {
    object[field]
        .as_f64()
        .unwrap_or_else(|| panic!("no number {field} in {object}"))
}

#[test]
fn a_crowd_has_throughput_shares_and_latencies() {
    let objects = objects("crowd --processes 4");
    let benches: Vec<(&str, f64)> = objects
        .iter()
        .map(|object| (text(object, "bench"), number(object, "processes")))
        .collect();
    let expected = [
        ("crowd", 2.0),
        ("crowd", 4.0),
        ("crowd-pingpong-idle", 4.0),
        ("crowd-pingpong-busy", 4.0),
    ];
    assert_eq!(benches, expected);
    for flow in &objects[..2] {
        assert!(number(flow, "messages_per_s") > 0.0, "{flow}");
        let [least, most] =
            ["least_pair_share", "most_pair_share"].map(|field| number(flow, field));
        assert!((0.0..=1.0).contains(&least) && most >= 1.0, "{flow}");
    }
    for pingpong in &objects[2..] {
        let [p50, p999] = ["p50_ns", "p999_ns"].map(|field| number(pingpong, field));
        assert!(0.0 < p50 && p50 <= p999, "{pingpong}");
    }
}

#[test]
fn an_incast_has_losses_and_times() {
    if let Some(why) = dipole_testbed::Testbed::why_not() {
        eprintln!("SKIPPED an_incast_has_losses_and_times: {why}");
        return;
    }
    let objects = objects("incast --senders 3");
    let subjects: Vec<&str> = objects.iter().map(|one| text(one, "subject")).collect();
    assert_eq!(subjects, ["link", "dipole", "tcp"]);
    for object in &objects {
        assert_eq!(text(object, "bench"), "incast");
        assert_eq!(number(object, "senders"), 3.0);
        assert_eq!(number(object, "size_bytes"), 65_536.0);
        assert!(number(object, "lost_packets") >= 0.0, "{object}");
        assert!(number(object, "first_lost_packets") >= 0.0, "{object}");
        // Clock and burst of the shaper may be slightly off.
        let efficiency = number(object, "efficiency");
        assert!(0.0 < efficiency && efficiency < 1.2, "{object}");
        let [p50, p99] = ["p50_over_ideal", "p99_over_ideal"].map(|name| number(object, name));
        assert!(0.0 < p50 && p50 <= p99, "{object}");
    }
    assert!(objects[1..].iter().all(|one| number(one, "bursts") >= 10.0));
}
