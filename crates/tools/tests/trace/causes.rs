//! Deliberate slowdowns are reported as the cause of the time that a run took.

use std::path::Path;

use dipole_testbed::{Faults, Testbed};
use serde_json::Value;

use crate::jobs::{Job, main_call, reasons};

#[test]
fn a_slowed_rank_and_the_function_that_waits_are_reported() {
    let job = Job::slowed();
    job.run(3, &["1", "2", "12", "1000"]);
    let summary = job.summary();
    let call = main_call(&summary);
    assert_eq!(call["supersteps"], 12);
    // Other programs of this machine may come first, here and among the deviations.
    let is_named = reasons(call)
        .iter()
        .any(|reason| reason.starts_with("slow rank: ") && reason.contains("wait for rank 1;"));
    assert!(is_named, "{summary:#}");
    let largest = summary["predictions"]["largest"].as_array();
    let named = largest.expect("a list").iter().any(|one| {
        let reason = one["reason"].as_str().expect("a reason");
        reason.starts_with("slow rank: rank 1 ")
    });
    assert!(named, "{summary:#}");
    let hottest = summary["hottest"].as_str().expect("a path");
    assert!(
        hottest.starts_with("main > exchange > slowed.c:"),
        "{hottest}"
    );
    // Computation of the supersteps in their function, next to that of the function itself.
    let tree = &summary["tree"];
    assert_eq!(tree["name"], "main");
    let below = tree["below"].as_array().expect("functions");
    let exchange = below.iter().find(|node| node["name"] == "exchange");
    assert_eq!(exchange.expect("it is called")["supersteps"], 12);
}

#[test]
fn the_imbalance_of_block_lu_is_found_and_reported() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bsp/lu.c");
    let job = Job::compile(&source, &["-DBLOCKS", "-DORDER=600"]);
    job.run(3, &[]);
    let summary = job.summary();
    let calls = summary["calls"].as_array().expect("calls");
    // Rows are eliminated before the call that looks for the next pivot, so of the calls made for each
    // column it has the most computation.
    let columns = calls.iter().filter(|call| call["supersteps"] == 600);
    let most = columns.max_by_key(|call| call["compute_ns"].as_u64());
    let call = most.expect("a call for each column");
    let used = call["utilisation"].as_f64().expect("a number");
    assert!(used < 0.8, "{summary:#}");
    assert!(
        call["call"]
            .as_str()
            .is_some_and(|name| name.starts_with("lu.c:"))
    );
    let named = reasons(call)
        .into_iter()
        .any(|reason| reason.starts_with("imbalance: ") || reason.starts_with("slow rank: "));
    assert!(named, "{summary:#}");
    let (sum, most) = (&summary["sum_of_max_ns"], &summary["max_of_sums_ns"]);
    assert!(sum.as_u64() > most.as_u64(), "{summary:#}");
}

#[test]
fn loss_on_a_link_is_reported_and_clocks_of_nodes_are_compared() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let lossy = Testbed::builder().nodes(2).faults(Faults {
        drop: 0.01,
        ..Faults::default()
    });
    let testbed = lossy.build().expect("a testbed");
    let job = Job::slowed();
    job.run_on(&testbed, 2, &["9", "1", "20", "300000"]);
    let summary = job.summary();
    assert_eq!(summary["nodes"], 2);
    let call = main_call(&summary);
    let named = reasons(call).into_iter();
    let losses: Vec<&str> = named
        .filter(|reason| reason.starts_with("loss: "))
        .collect();
    assert_eq!(losses.len(), 1, "{summary:#}");
    assert!(call["repeats"].as_u64() > Some(0), "{summary:#}");
    // Both nodes are on one machine with one clock, so any difference is an error.
    let clocks = summary["clocks"].as_array().expect("a list");
    let [clock] = &clocks[..] else {
        panic!("{summary:#}");
    };
    let error_ns = clock["error_ns"].as_u64().expect("a number");
    let files = [0, 1].map(|rank| {
        let file = job.traces().join(dipole_bsp::trace::file_name(rank));
        let bytes = std::fs::read(file).expect("each rank has one");
        dipole_bsp::trace::TraceFile::parse(&bytes).expect("as written")
    });
    let found = dipole_bsp::trace::Clocks::of(&files).expect("common supersteps");
    for step in &files[1].steps {
        let offset = found.at(1, step.entered_ns);
        assert!(
            offset.add_ns.unsigned_abs() <= offset.error_ns,
            "{offset:?}"
        );
        assert!(offset.error_ns <= error_ns, "{offset:?}");
    }
    let basis = summary["predictions"]["basis"].as_str();
    assert!(
        basis.is_some_and(|basis| basis.contains("dipole calibrate supersteps")),
        "{summary:#}"
    );
}

#[test]
fn with_a_profile_of_the_link_supersteps_are_predicted_by_the_model() {
    let job = Job::slowed();
    job.run(2, &["9", "1", "6", "100000"]);
    std::fs::create_dir_all(job.path("profile")).expect("a folder");
    let profile = serde_json::json!({
        "version": 1, "link": "shm",
        "cost": [{ "p": 2, "nodes": 1, "s_mflops": 1000.0, "l_ns": 2000.0, "l_ci_ns": 10.0,
                   "g_ns_per_byte": 0.5, "g_sd": 0.1 }],
    });
    std::fs::write(job.path("profile/shm.json"), profile.to_string()).expect("a file");
    let summary = job.summary();
    let predictions = &summary["predictions"];
    assert_eq!(
        predictions["parameters"]["g_ns_per_byte"], 0.5,
        "{summary:#}"
    );
    let call = main_call(&summary);
    // Each of two ranks sends 100000 bytes and receives as many.
    let predicted = call["predicted_communicate_ns"].as_f64().expect("a number");
    assert!(
        (predicted - 6.0 * (2000.0 + 0.5 * 100_000.0)).abs() < 1.0,
        "{summary:#}"
    );
    let told = job.trace(&[]);
    assert!(
        told.contains("g = 0.500 ns/byte and l = 2.00 us for 2 ranks over shm, measured"),
        "{told}"
    );
}

#[test]
fn a_range_of_supersteps_is_reported_alone_and_an_invalid_one_refused() {
    let job = Job::slowed();
    job.run(2, &["9", "1", "6", "10"]);
    let run = |range: &str| {
        let mut command = std::process::Command::new(crate::jobs::PROGRAM);
        command.args(["--json", "trace", "--steps", range]);
        command.arg(job.traces()).output().expect("it starts")
    };
    let part: Value = serde_json::from_slice(&run("2..3").stdout).expect("an object");
    assert_eq!(part["supersteps"], 2);
    assert!(!run("80..90").status.success());
    assert_eq!(run("3..2").status.code(), Some(2));
}
