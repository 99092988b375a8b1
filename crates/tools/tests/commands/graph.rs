//! `dipole graph` as a user runs it: checked, printed, drawn, played, watched.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn paper() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/graphs/paper.toml")
}

fn dipole(testbed: &TempDir, arguments: &[&str]) -> Command {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command
        .args(arguments)
        .env("DIPOLE_RUNTIME_DIR", testbed.path().join("runtime"))
        .env_remove("DIPOLE_HOSTS")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        text(&output.stderr)
    );
    output
}

#[test]
fn the_graph_of_the_paper_is_printed_and_drawn() {
    let testbed = tempfile::tempdir().expect("a directory");
    let picture = testbed.path().join("paper.svg");
    let paper = paper();
    let file = paper.to_str().expect("a path");
    let shown = run(&mut dipole(
        &testbed,
        &["graph", file, "--svg", picture.to_str().expect("a path")],
    ));
    let shown = text(&shown.stdout);
    for wanted in [
        "P1",
        "2:2, 1:6",
        "4 nodes, 3 processes, 9 endpoints, 4 edges",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let picture = std::fs::read_to_string(picture).expect("it was drawn");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    let json = run(&mut dipole(&testbed, &["--json", "graph", file]));
    let facts: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(facts["edges"].as_array().map(Vec::len), Some(4));
    // Several edges at an endpoint are neither a broadcast nor a reduction.
    assert_eq!(facts["broadcasts"].as_array().map(Vec::len), Some(0));
    assert_eq!(facts["reductions"].as_array().map(Vec::len), Some(0));
}

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/graphs/tree.toml")
}

#[test]
fn broadcasts_and_reductions_are_printed_with_their_trees() {
    let testbed = tempfile::tempdir().expect("a directory");
    let tree = tree();
    let file = tree.to_str().expect("a path");
    let shown = text(&run(&mut dipole(&testbed, &["graph", file])).stdout);
    for wanted in [
        "broadcast from 1:1: 1:1 -> 2:1, 2:1 -> 2:2, 2:1 -> 2:3, 1:1 -> 3:1, 3:1 -> 3:2, 3:1 -> 3:3",
        "reduction (sum) to 1:1: 2:1 -> 1:1, 2:2 -> 2:1,",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    let json = run(&mut dipole(&testbed, &["--json", "graph", file]));
    let facts: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(facts["broadcasts"][0]["from"], "1:1");
    assert_eq!(facts["broadcasts"][0]["tree"][1][0], "2:1");
    assert_eq!(facts["reductions"][0]["with"], "sum");
}

/// Looks of `--watch`, as JSON.
fn watch(testbed: &TempDir, file: &str, times: &str) -> Vec<serde_json::Value> {
    let watched = run(&mut dipole(
        testbed,
        &[
            "--json", "graph", file, "--watch", "--every", "0.2", "--times", times,
        ],
    ));
    let looks = text(&watched.stdout);
    let looks = looks
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    looks.collect()
}

/// The results of `--run`, as JSON.
fn results(output: &Output) -> Vec<serde_json::Value> {
    let lines = text(&output.stdout);
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

/// All that was sent arrived, in order or with the right sums.
fn is_whole(result: &serde_json::Value) -> bool {
    let sent = result["sent"].as_u64();
    sent > Some(0) && result["sent"] == result["received"] && result["in_order"] == true
}

#[test]
fn a_tree_runs_while_it_is_watched_and_a_lost_relay_is_reported() {
    let testbed = tempfile::tempdir().expect("a directory");
    let tree = tree();
    let file = tree.to_str().expect("a path");
    let start = |seconds: &str| {
        dipole(
            &testbed,
            &[
                "--json",
                "graph",
                file,
                "--run",
                "--seconds",
                seconds,
                "--rate",
                "300",
            ],
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
    };
    let whole = start("0.5").wait_with_output().expect("it ends");
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let whole = results(&whole);
    assert_eq!(whole.len(), 12);
    assert_eq!(
        whole.iter().filter(|it| is_whole(it)).count(),
        12,
        "{whole:#?}"
    );

    let mut playing = start("15");
    // The process that passes the broadcast on at node 2.
    let relay = loop {
        let ended = playing.try_wait().expect("our child");
        assert!(ended.is_none(), "it ended before all members had joined");
        let looks = watch(&testbed, file, "2");
        let look = looks.last().expect("a look");
        if look["missing"].is_null() {
            assert!(
                look["edges"]
                    .as_array()
                    .expect("edges")
                    .iter()
                    .all(|edge| edge["expected"] == true),
                "{look}"
            );
            let endpoints = look["endpoints"].as_array().expect("endpoints");
            let relay = endpoints.iter().find(|it| it["endpoint"] == "2:1");
            break relay.expect("none is missing")["pid"]
                .as_u64()
                .expect("a pid");
        }
    };
    let killed = Command::new("kill")
        .args(["-KILL", &relay.to_string()])
        .status();
    assert!(killed.expect("it starts").success());
    let played = playing.wait_with_output().expect("it ends");
    assert_eq!(played.status.code(), Some(1));
    let errors = text(&played.stderr);
    assert!(
        errors.contains("endpoint 2:1 was lost; its group went on"),
        "{errors}"
    );
    assert!(errors.contains("process worker 1 failed"), "{errors}");
    for result in results(&played) {
        let touches = |end: &str| result[end] == "2:1";
        assert_eq!(
            is_whole(&result),
            !touches("from") && !touches("to"),
            "{result}"
        );
    }
}

#[test]
fn a_graph_that_breaks_the_rules_is_refused_with_file_and_line() {
    let testbed = tempfile::tempdir().expect("a directory");
    let file = testbed.path().join("wrong.toml");
    std::fs::write(
        &file,
        "edges = [\"1:1 -> 1:2\"]\n[[process]]\nnode = 1\nendpoints = [1, 2]\n",
    )
    .expect("a file");
    let output = dipole(&testbed, &["graph", file.to_str().expect("a path")])
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains("wrong.toml:1: edge 1:1 -> 1:2 stays inside one process"),
        "{said}"
    );
}

#[test]
fn the_graph_of_the_paper_runs_and_its_edges_are_shown_meanwhile() {
    let testbed = tempfile::tempdir().expect("a directory");
    let paper = paper();
    let file = paper.to_str().expect("a path");
    let mut play = dipole(
        &testbed,
        &[
            "--json",
            "graph",
            file,
            "--run",
            "--seconds",
            "4",
            "--rate",
            "500",
        ],
    );
    let playing = play
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // Polls until all edges have carried messages, or the play has ended.
    let watched = run(&mut dipole(
        &testbed,
        &[
            "--json", "graph", file, "--watch", "--every", "0.3", "--times", "9",
        ],
    ));
    let played = playing.wait_with_output().expect("it ends");
    assert!(played.status.success(), "{}", text(&played.stderr));
    let heard: Vec<serde_json::Value> = text(&played.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(heard.len(), 4);
    for edge in &heard {
        assert_eq!(edge["sent"], edge["received"], "{edge}");
        assert_eq!(edge["in_order"], true, "{edge}");
    }
    let looks: Vec<serde_json::Value> = text(&watched.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let seen = looks.iter().any(|look| {
        let edges = look["edges"].as_array().expect("edges");
        let moving = edges
            .iter()
            .filter(|edge| edge["messages_per_s"].as_f64() > Some(0.0));
        moving.count() == 4 && look["missing"].is_null()
    });
    assert!(seen, "no look saw all four edges move: {looks:#?}");
    let links = |from: &str, to: &str| {
        let edges = looks
            .iter()
            .flat_map(|look| look["edges"].as_array().expect("edges"));
        let mut matching = edges.filter(|edge| edge["from"] == from && edge["to"] == to);
        matching.next().map(|edge| edge["link"].clone())
    };
    assert_eq!(links("1:1", "1:5"), Some("shm".into()));
    assert_eq!(links("1:2", "2:2"), Some("packets".into()));
    // All processes are gone, and nothing is left to show.
    let after = run(&mut dipole(
        &testbed,
        &["--json", "graph", "--watch", "--times", "1"],
    ));
    let look: serde_json::Value = serde_json::from_slice(&after.stdout).expect("JSON");
    assert_eq!(
        look["endpoints"].as_array().map(Vec::len),
        Some(0),
        "{look}"
    );
}
