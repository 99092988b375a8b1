//! `dipole-lab migration`: jobs on nodes on which others compute.

#![allow(missing_docs, reason = "tests")]

use std::process::Stdio;

use dipole_testbed::{Testbed, built, isolated_command};
use serde_json::Value;

/// Jobs start in four ways, and each finds the published result.
#[test]
fn a_solver_runs_on_busy_nodes_in_four_ways() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    // The agents, the launcher and libbsp are those next to the laboratory.
    assert!(built::program("dipole").exists());
    assert!(built::libraries().join("libbsp.so").exists());
    let mut command = isolated_command(env!("CARGO_BIN_EXE_dipole-lab"));
    let output = command
        .args([
            "--json",
            "migration",
            "--quick",
            "--minute",
            "0.3",
            "--seed",
            "5",
        ])
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("cannot create control groups") {
        eprintln!("SKIPPED: {errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line));
    let rows: Vec<Value> = rows.collect();
    let (power, jobs) = rows.split_at(6);
    for row in power {
        assert_eq!(row["bench"], "power", "{row}");
        let (peak, idle) = (row["peak_mflops"].as_f64(), row["idle_mflops"].as_f64());
        assert!(idle <= peak && peak > Some(0.0), "{row}");
    }
    // Sorted by idle speed, as the nodes are used.
    let idle = |row: &Value| row["idle_mflops"].as_f64().expect("a number");
    assert!(
        power
            .windows(2)
            .all(|pair| idle(&pair[0]) >= idle(&pair[1])),
        "{text}"
    );
    let columns: Vec<_> = jobs.iter().map(|row| row["column"].as_str()).collect();
    let expected = ["random", "best", "checkpoints", "migration"].map(Some);
    assert_eq!(columns, expected);
    for row in jobs {
        assert!(row["seconds"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["nodes"].as_array().map(Vec::len), Some(2), "{row}");
        assert_eq!(
            row["thesis_of_best"].as_f64().map(|it| it >= 1.0),
            Some(true),
            "{row}"
        );
    }
}
