//! `dipole calibrate` and `dipole predict`. Tests that need namespaces need root; skipped with a message otherwise.

#![allow(missing_docs, reason = "tests")]

mod on_nodes;

use std::process::Output;

use dipole_model::{MedianInterval, PointToPoint, Profile, Short};
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
            contention: None,
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
fn contention_of_a_relation_replaces_g() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut profile = Profile::new("udp");
    profile.set_cost(dipole_model::Cost {
        p: 4,
        nodes: 4,
        s_mflops: 1000.0,
        l_ns: 10_000.0,
        l_ci_ns: 1.0,
        g_ns_per_byte: 3.0,
        g_sd: 0.1,
        contention: Some(dipole_model::Contention {
            one_to_many: 2.0,
            many_to_one: 6.0,
            exchange: 3.0,
        }),
    });
    profile.save_to(folder.path()).expect("it can be written");
    for (pattern, g) in [
        ("", 3.0),
        (" --pattern one-to-many", 2.0),
        (" --pattern many-to-one", 6.0),
        (" --pattern exchange", 3.0),
    ] {
        let command = format!("--json predict --ranks 4 --h 1000{pattern}");
        let told = lines(&dipole(folder.path(), &command));
        assert_eq!(told[0]["ns"], 10_000.0 + g * 1000.0, "{pattern}");
    }
    let wide = dipole(folder.path(), "predict --ranks 4 --pattern many-to-one");
    assert!(text(&wide).contains("6.000"), "{}", text(&wide));
}

/// A message whose times are those of `model`, in units.
fn model(o_s: f64, l: f64) -> PointToPoint {
    let ns = MedianInterval::exactly;
    PointToPoint {
        place: "nodes".to_owned(),
        rounds: 1,
        fragment_bytes: 16 << 10,
        cache_line_ns: None,
        wire: None,
        short: [1, 16 << 10]
            .map(|bytes| Short {
                bytes,
                trip_ns: ns(o_s + l + 300.0),
                o_s_ns: ns(o_s),
                o_r_ns: ns(200.0),
                u_r_ns: ns(100.0),
                l_ns: ns(l),
                g_s_ns: ns(o_s),
                g_r_ns: ns(300.0),
            })
            .into(),
        long: Vec::new(),
    }
}

#[test]
fn phases_of_a_message_are_shown_side_by_side_over_machines() {
    let (own, other) = (tempfile::tempdir(), tempfile::tempdir());
    let (own, other) = (own.expect("a folder"), other.expect("a folder"));
    let elsewhere = other.path().join("other-machine");
    for (folder, o_s, l) in [(own.path(), 500.0, 2000.0), (&elsewhere, 900.0, 1000.0)] {
        let mut profile = Profile::new("udp");
        profile.point_to_point = Some(model(o_s, l));
        profile.save_to(folder).expect("it can be written");
    }
    let phases = format!(
        "predict --phases --bytes 1 --profiles {}",
        elsewhere.display()
    );
    let told = lines(&dipole(own.path(), &format!("--json {phases}")));
    let one = |line: &Value| {
        let ns = |name: &str| line[name].as_f64().expect("a number");
        let phases = [
            "start_up_ns",
            "send_ns",
            "network_ns",
            "delivery_ns",
            "trip_ns",
        ];
        (
            line["machine"].as_str().expect("text").to_owned(),
            phases.map(ns),
        )
    };
    let expected = [
        ("here".to_owned(), [500.0, 0.0, 2000.0, 300.0, 2800.0]),
        (
            "other-machine".to_owned(),
            [900.0, 0.0, 1000.0, 300.0, 2200.0],
        ),
    ];
    assert_eq!(told.iter().map(one).collect::<Vec<_>>(), expected);
    let shown = text(&dipole(own.path(), &phases));
    // 40 letters for the longest trip.
    let bar = format!("{}{}{}", "s".repeat(7), "n".repeat(29), "d".repeat(4));
    assert!(shown.contains(&bar), "{shown}");
    let long = dipole(own.path(), "predict --phases --bytes 1000000");
    assert!(text(&long).contains("not one fragment"), "{}", text(&long));
    let missing = dipole(own.path(), "predict --phases --profiles /nowhere");
    assert!(
        text(&missing).contains("has no profile"),
        "{}",
        text(&missing)
    );
}

#[test]
fn a_path_with_a_delay_is_calibrated_and_its_limits_are_shown() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let command = "--json calibrate --quick --delay-us 500 --rate-mbit 1000";
    let found = lines(&dipole(folder.path(), command));
    let [found] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (&found["link"], &found["place"]),
        (&"udp".into(), &"path".into())
    );
    let wire: dipole_model::Wire = serde_json::from_value(found["wire"].clone()).expect("known");
    assert_eq!((wire.mbit, wire.delay_ns), (1000, 500_000.0));
    // However busy this machine is, nothing arrives earlier.
    for one in found["short"].as_array().expect("short messages") {
        let ns = one["trip_ns"]["median"].as_f64().expect("a number");
        assert!(ns > 500_000.0, "{one}");
        // The wait for the packet belongs to the network, and not to the receiver's overhead.
        let latency_ns = one["l_ns"]["median"].as_f64().expect("a number");
        assert!(latency_ns > 500_000.0, "{one}");
    }
    // The rate is kept over bursts that are longer than the shaper's.
    let long = found["long"].as_array().expect("long messages");
    let longest = long.last().expect("several");
    let gap_ns = longest["g_r_ns"]["median"].as_f64().expect("a number");
    let limit_ns = wire.gap_ns(16 << 10);
    assert!(gap_ns > 0.8 * limit_ns, "{gap_ns} {limit_ns}");
    let shown = dipole(folder.path(), "calibrate --quick --rate-mbit 1000");
    let shown = text(&shown);
    assert!(shown.contains("a network of 1000 Mbit/s"), "{shown}");
    for refused in [
        "--delay-us 5 --job",
        "--rate-mbit 5 --on node",
        "--delay-us 5 --link bpf",
    ] {
        let output = dipole(folder.path(), &format!("calibrate {refused}"));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    }
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
