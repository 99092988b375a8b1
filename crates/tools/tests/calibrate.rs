//! `dipole calibrate` and `dipole predict`. Tests that need namespaces need root; skipped with a message otherwise.

#![allow(missing_docs, reason = "tests")]

mod on_nodes;

use std::process::Output;

use dipole_model::Profile;
use dipole_testbed::Testbed;
use on_nodes::{calibrate, text};
use serde_json::Value;

/// `dipole` with a folder for profiles.
fn dipole(profiles: &std::path::Path, arguments: &str) -> Output {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command.env("DIPOLE_PROFILE", profiles);
    command.args(arguments.split_whitespace());
    command.output().expect("the program runs")
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(output));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

#[test]
fn messages_are_calibrated_saved_and_predicted() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = lines(&dipole(folder.path(), "--json calibrate --link shm"));
    assert_eq!(found.len(), 1);
    let short = found[0]["short"].as_array().expect("short messages");
    for one in short {
        for name in ["trip_ns", "o_s_ns", "u_r_ns", "g_s_ns", "g_r_ns"] {
            let value = |which: &str| one[name][which].as_f64().expect("a number");
            assert!(value("median") > 0.0, "{name}: {one}");
            assert!(value("low") <= value("median") && value("median") <= value("high"));
        }
    }
    let kib = short.iter().find(|one| one["bytes"] == 1024);
    let kib = kib.expect("1 KiB is measured")["trip_ns"]["median"].as_f64();
    let predicted = lines(&dipole(
        folder.path(),
        "--json predict --bytes 1024,1000000",
    ));
    let ns = |line: &Value| line["ns"]["median"].as_f64().expect("a number");
    assert!((ns(&predicted[0]) / kib.expect("a number") - 1.0).abs() < 1e-3);
    assert_eq!(predicted[0]["regime"], "one-fragment");
    assert!(ns(&predicted[1]) > ns(&predicted[0]));
    assert_ne!(predicted[1]["regime"], "one-fragment");
    let samples = std::fs::read_to_string(folder.path().join("shm.samples.jsonl"));
    let samples = samples.expect("samples are kept");
    let rounds: std::collections::BTreeSet<u64> = samples
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter_map(|sample| sample["round"].as_u64())
        .collect();
    assert_eq!(rounds.len(), 9);
    // Predictions next to measurements, for as many lengths as were measured.
    let checked = lines(&dipole(folder.path(), "--json calibrate --check --quick"));
    assert_eq!(checked.len(), 3);
    for line in &checked {
        for name in ["predicted_ns", "measured_ns"] {
            assert!(line[name].as_f64().is_some_and(|ns| ns > 0.0), "{line}");
        }
    }
}

#[test]
fn two_processes_of_a_job_calibrate_the_link_between_their_nodes() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2).build().expect("a testbed");
    let output = calibrate(&testbed, 2, &["--json", "calibrate", "--job", "--quick"]);
    let found = lines(&output);
    let [found] = &found[..] else {
        panic!("{}", text(&output));
    };
    let place = (&found["link"], &found["place"]);
    assert_eq!(place, (&"udp".into(), &"nodes".into()));
    for one in found["long"].as_array().expect("long messages") {
        let trip = one["trip_ns"]["median"].as_f64();
        assert!(trip.is_some_and(|ns| ns > 0.0), "{one}");
    }
    let alone = calibrate(&testbed, 1, &["calibrate", "--job"]);
    assert!(text(&alone).contains("start two"), "{}", text(&alone));
}

#[test]
fn packets_are_calibrated_over_loopback_and_a_quick_run_saves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let command = "--json calibrate --quick --link udp --on loopback";
    let found = lines(&dipole(folder.path(), command));
    let place = (&found[0]["link"], &found[0]["place"]);
    assert_eq!(place, (&"udp".into(), &"loopback".into()));
    let levels = found[0]["copies"].as_array().expect("copies");
    assert_eq!(levels.last().expect("memory")["level"], "memory");
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("it exists").count(),
        0
    );
}

#[test]
fn supersteps_of_any_number_of_ranks_are_predicted_with_the_basis_of_the_prediction() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut profile = Profile::new("udp");
    for (p, l_ns, g_ns_per_byte) in [(1, 0.0, 0.0), (2, 10_000.0, 1.0), (4, 30_000.0, 3.0)] {
        profile.set_cost(dipole_model::Cost {
            p,
            nodes: p,
            s_mflops: 1000.0,
            l_ns,
            l_ci_ns: 1.0,
            g_ns_per_byte,
            g_sd: 0.1,
        });
    }
    profile.save_to(folder.path()).expect("it can be written");
    let told = lines(&dipole(
        folder.path(),
        "--json predict --ranks 2,3,8 --h 1000 --supersteps 10 --flops 4e9",
    ));
    let [two, three, eight] = &told[..] else {
        panic!("{told:?}");
    };
    // 4e9 operations at 1000 Mflop/s take one rank 4 s.
    assert_eq!(two["ns"], 2e9 + 10.0 * (1000.0 + 10_000.0));
    assert_eq!(three["ns"], 4e9 / 3.0 + 10.0 * (2000.0 + 20_000.0));
    assert_eq!(eight["ns"], 0.5e9 + 10.0 * (7000.0 + 70_000.0));
    assert_eq!(two["parameters"]["basis"], "measured");
    assert_eq!(
        three["parameters"]["basis"]["between"],
        serde_json::json!([2, 4])
    );
    assert_eq!(
        eight["parameters"]["basis"]["beyond"],
        serde_json::json!([2, 4])
    );
    let speed_up = two["speed_up"].as_f64().expect("a number");
    assert!((speed_up - 4e9 / (2e9 + 110_000.0)).abs() < 1e-9);
}

#[test]
fn without_a_profile_it_says_what_to_run() {
    let folder = tempfile::tempdir().expect("a folder");
    Profile::new("udp")
        .save_to(folder.path())
        .expect("it can be written");
    for (arguments, status, words) in [
        ("predict", 1, "run dipole calibrate first"),
        (
            "predict --bytes 4096 --link udp",
            1,
            "run dipole calibrate first",
        ),
        ("calibrate --check", 2, "run dipole calibrate first"),
        (
            "predict --ranks 4 --h 1000",
            1,
            "run dipole calibrate supersteps first",
        ),
        ("predict --bytes 0", 2, "1..="),
        ("predict --ranks 4 --flops -1", 2, "give a number from 0"),
        (
            "predict --ranks 4 --work-seconds nan",
            2,
            "give a number from 0",
        ),
        ("predict --h 10", 2, "--ranks"),
        ("calibrate --link bpf --on loopback", 2, "leave it out"),
        ("calibrate --link udp --on node", 2, "--link shm"),
        ("calibrate pacing --link udp", 2, "--link"),
        ("calibrate --rounds 5", 2, "--rounds"),
        ("calibrate --job --link udp", 2, "cannot be used with"),
    ] {
        let output = dipole(folder.path(), arguments);
        let told = text(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments}: {told}");
        assert!(told.contains(words), "{arguments}: {told}");
    }
}
