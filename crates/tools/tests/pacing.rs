//! `dipole calibrate pacing`. It needs a shaped network of namespaces, so root, and is skipped aloud without.
//! In a program of its own: nothing else is measured meanwhile.

#![allow(missing_docs, reason = "tests")]

mod on_nodes;

use dipole_model::Profile;
use dipole_testbed::Testbed;
use on_nodes::{calibrate, text};
use serde_json::Value;

const NODES: u32 = 4;
const RATE_MBIT: u32 = 100;

#[test]
fn slots_are_found_on_a_shaped_network_and_saved_where_supersteps_look() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let builder = Testbed::builder().nodes(NODES);
    let builder = builder
        .rate_mbit(u64::from(RATE_MBIT))
        .queue_bytes(64 << 10);
    let testbed = builder.build().expect("a testbed");
    let output = calibrate(
        &testbed,
        NODES,
        &["--json", "calibrate", "pacing", "--rounds", "5"],
    );
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    for line in &lines {
        println!("{line}");
    }
    let chosen: Vec<&Value> = lines.iter().filter(|line| line["chosen"] == true).collect();
    let [chosen] = chosen[..] else {
        panic!("{} of {} chosen", chosen.len(), lines.len());
    };
    let directory = testbed.folder().join("profile");
    let profile = Profile::load_from(&directory, "udp").expect("a profile");
    let pacing = profile
        .and_then(|profile| profile.pacing)
        .expect("pacing was measured");
    assert_eq!(
        serde_json::to_value(pacing.slots).expect("JSON"),
        chosen["slots"]
    );
    assert_eq!(pacing.processes, NODES);
    // However busy this machine is, the shapers let no more through: 80 ns for a byte.
    let wire_ns = 8_000.0 / f64::from(RATE_MBIT);
    for line in &lines {
        let g = line["g_ns_per_byte"].as_f64().expect("a number");
        assert!(g > wire_ns * 0.8, "{line}");
    }
    // The rates tried follow from the measurements of one process alone.
    let tried: Vec<&Value> = lines
        .iter()
        .filter(|line| !line["slots"].is_null())
        .collect();
    assert!(tried.len() + 1 == lines.len() && !tried.is_empty());
    for line in tried {
        let slots = &line["slots"];
        let bytes = slots["bytes"].as_f64().expect("a number");
        let epsilon_ns = slots["epsilon_ns"].as_f64().expect("a number");
        assert!(epsilon_ns > 0.5 * bytes * wire_ns, "{line}");
    }
}

#[test]
fn without_nodes_to_measure_it_says_what_to_do() {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    for name in ["DIPOLE_JOB", "DIPOLE_RANK", "DIPOLE_SIZE"] {
        command.env_remove(name);
    }
    let output = command.args(["calibrate", "pacing"]).output();
    let output = output.expect("the program runs");
    assert!(!output.status.success());
    assert!(
        text(&output).contains("dipole run -n N --hosts FILE"),
        "{}",
        text(&output)
    );
}
