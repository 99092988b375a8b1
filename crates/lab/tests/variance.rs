//! `dipole-lab variance` with few supersteps.

#![allow(missing_docs, reason = "tests")]

use std::process::Output;

use dipole_testbed::isolated_command;
use serde_json::Value;

fn dipole(arguments: &[&str]) -> Output {
    let mut command = isolated_command(env!("CARGO_BIN_EXE_dipole-lab"));
    command.args(arguments).output().expect("the program runs")
}

#[test]
fn distributions_of_jobs_and_of_simulated_nodes_are_printed_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let page_text = page.to_str().expect("plain");
    let output = dipole(&[
        "--json", "variance", "--quick", "--link", "shm", "--ranks", "2,4", "--nodes", "2,4",
        "--html", page_text,
    ]);
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    for (system, simulated) in [
        ("shm", false),
        ("simulated switch", true),
        ("simulated switch, paced", true),
        ("simulated bus", true),
    ] {
        for p in [2, 4] {
            let own = lines
                .iter()
                .filter(|line| line["system"] == system && line["p"] == p);
            let own: Vec<&Value> = own.collect();
            // Simulated without pace and loss, two nodes may take the same time again and again.
            assert!(
                own.len() <= 2 && (simulated || own.len() == 2),
                "{system} {p}: {own:?}"
            );
            for line in own {
                let samples = line["g_ns_per_byte"].as_array().expect("samples");
                assert_eq!(samples.len(), 12, "{line}");
                for fit in ["normal", "log_normal"] {
                    let chance = line["fit"][fit]["chance"].as_f64().expect("a number");
                    assert!((0.0..=1.0).contains(&chance), "{line}");
                }
                assert_eq!(line["is_simulated"], simulated);
                assert_eq!(line["by_links"].is_null(), p == 2, "{line}");
            }
        }
    }
    let regressions = lines
        .iter()
        .filter(|line| !line["edge_regression"].is_null());
    assert!(regressions.count() >= 2);
    let page = std::fs::read_to_string(page).expect("a page");
    for figure in ["7.1", "7.2", "7.3", "7.4", "7.5"] {
        assert!(page.contains(&format!("(figure {figure})")), "{figure}");
    }
    assert!(page.contains("All distributions") && !page.contains("NaN"));
}
