//! `dipole predict --trace`: predictions for a traced job with the same and other numbers of ranks.

use std::path::Path;
use std::process::Output;

use dipole_model::{Cost, Profile};
use serde_json::Value;

fn dipole(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    for name in [
        "DIPOLE_JOB",
        "DIPOLE_RANK",
        "DIPOLE_SIZE",
        "DIPOLE_LINK",
        "DIPOLE_HOSTS",
    ] {
        command.env_remove(name);
    }
    command
        .env("DIPOLE_PROFILE", folder.join("profile"))
        .env("DIPOLE_RUNTIME_DIR", folder.join("run"));
    command.args(arguments).output().expect("the program runs")
}

#[test]
fn a_traced_job_is_predicted_and_compared_and_extrapolated_to_other_numbers_of_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let traces = folder.join("traces");
    std::fs::create_dir(&traces).expect("a folder of our own");
    let traces = traces.to_str().expect("plain");
    let program = env!("CARGO_BIN_EXE_dipole");
    let to_traces = format!("DIPOLE_TRACE={traces}");
    let job = [
        "run",
        "-n",
        "2",
        "--env",
        &to_traces,
        "--env",
        "DIPOLE_LINK=shm",
        program,
    ];
    let rank = [
        "superstep-rank",
        "--each",
        "5",
        "--seconds",
        "0.01",
        "--samples",
        "6",
        "--most-bytes",
        "4096",
    ];
    let output = dipole(folder, &[&job[..], &rank].concat());
    assert!(output.status.success(), "{output:?}");

    let output = dipole(folder, &["predict", "--trace", traces]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("dipole calibrate supersteps --link shm"),
        "{said}"
    );

    let mut profile = Profile::new("shm");
    for p in [2, 4] {
        profile.set_cost(Cost {
            p,
            nodes: 1,
            s_mflops: 1000.0,
            l_ns: 1000.0,
            l_ci_ns: 1.0,
            g_ns_per_byte: 1.0,
            g_sd: 0.0,
            contention: None,
        });
    }
    profile
        .save_to(&folder.join("profile"))
        .expect("a folder of our own");
    let line = [
        "--json", "predict", "--trace", traces, "--ranks", "4,8", "--cores", "8",
    ];
    let output = dipole(folder, &line);
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let number = |line: &Value, name: &str| line[name].as_f64().expect("a number");
    assert_eq!(lines.len(), 3, "{lines:?}");
    let (own, four) = (&lines[0], &lines[1]);
    assert!(number(own, "measured_ns") > 0.0 && four["measured_ns"].is_null());
    // Eight total exchanges of 4096 bytes, next to random relations.
    assert!(number(own, "h_bytes") >= 8.0 * 4096.0, "{own}");
    let sum = number(own, "work_ns") + number(own, "h_bytes") + 1000.0 * number(own, "supersteps");
    assert!((number(own, "ns") - sum).abs() < 1.0, "{own}");
    assert_eq!(number(four, "h_bytes") * 2.0, number(own, "h_bytes"));
    assert_eq!(lines[2]["basis"]["beyond"], serde_json::json!([2, 4]));
}
