//! Commands whose output cannot be written, and the format of errors.

use std::fs::{File, OpenOptions};
use std::process::{Command, Output, Stdio};

const GRAPH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/graphs/paper.toml"
);

fn dipole(words: &[&str]) -> Command {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command.args(words).stdin(Stdio::null());
    for variable in ["DIPOLE_HOSTS", "DIPOLE_KEY", "DIPOLE_NID", "DIPOLE_LOG"] {
        command.env_remove(variable);
    }
    command
}

/// Runs a command whose output goes to a pipe without a reader.
fn into_closed_pipe(words: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = dipole(words).stdout(writer).stderr(Stdio::piped()).spawn();
    child
        .expect("it starts")
        .wait_with_output()
        .expect("it ends")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_closed_output_pipe_ends_a_command_silently() {
    let bench = "bench pingpong --on node --seconds 0.01 --rounds 1 --subjects bare-unix-spin";
    let bench: Vec<&str> = bench.split(' ').collect();
    for words in [
        &["completions", "bash"][..],
        &["graph", GRAPH],
        &["--json", "graph", GRAPH],
        &bench,
    ] {
        let output = into_closed_pipe(words);
        assert_eq!(output.status.code(), Some(128 + 13), "{words:?}");
        assert!(!errors(&output).contains("panicked"), "{}", errors(&output));
    }
}

#[test]
fn a_full_disk_is_an_error_with_its_cause() {
    for words in [
        &["completions", "bash"][..],
        &["graph", GRAPH],
        &["--help"],
        &["help", "run"],
        &["doctor"],
    ] {
        let full: File = OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .expect("Linux has it");
        let output = dipole(words).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let text = errors(&output);
        assert!(
            text.contains("cannot write to standard output") && text.contains("No space left"),
            "{text}"
        );
    }
}

#[test]
fn errors_are_json_with_the_option_json() {
    for (words, status) in [
        (
            &[
                "--json",
                "run",
                "-n",
                "1",
                "--hosts",
                "/nowhere/hosts",
                "true",
            ][..],
            1,
        ),
        (&["--json", "key", "show", "/nowhere/key"], 1),
        (&["--json", "graph", "/nowhere/graph.toml"], 2),
        (&["--json", "send", "1:7", "/nowhere/file"], 1),
    ] {
        let output = dipole(words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(status), "{words:?}");
        let text = errors(&output);
        let event: serde_json::Value = serde_json::from_str(text.trim()).expect("one object");
        assert_eq!(event["event"], "error", "{text}");
        let cause = event["text"].as_str().expect("text");
        assert!(cause.contains("/nowhere/"), "{text}");
    }
}

#[test]
fn each_step_of_a_key_rotation_says_what_to_do_next_and_the_last_leaves_the_new_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key");
    let file = file.to_str().expect("text");
    let said = |words: &[&str], status| {
        let output = dipole(words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(status), "{words:?}");
        match status {
            0 => String::from_utf8(output.stdout).expect("text"),
            _ => errors(&output),
        }
    };
    let fingerprints = || -> serde_json::Value {
        let shown = said(&["--json", "key", "show", file], 0);
        serde_json::from_str(&shown).expect("one object")
    };
    said(&["key", "new", file, "--security", "encrypt"], 0);
    let first = fingerprints()["fingerprint"].clone();
    let refused = said(&["key", "rotate", "--continue", file], 1);
    assert!(refused.contains("leave out --continue"), "{refused}");
    let step = said(&["key", "rotate", file], 0);
    assert!(
        step.contains("step 1 of 3") && step.contains(" next="),
        "{step}"
    );
    let next = fingerprints()["next"].clone();
    assert_eq!(fingerprints()["fingerprint"], first);
    let refused = said(&["key", "rotate", file], 1);
    assert!(refused.contains("--continue"), "{refused}");
    let step = said(&["key", "rotate", "--continue", file], 0);
    assert!(
        step.contains("step 2 of 3") && step.contains(" old="),
        "{step}"
    );
    let step = said(&["key", "rotate", "--continue", file], 0);
    assert!(step.contains("step 3 of 3"), "{step}");
    let last = serde_json::json!({"fingerprint": next, "security": "encrypt"});
    assert_eq!(fingerprints(), last);
}

#[test]
fn usage_errors_are_json_with_the_option_json() {
    let output = dipole(&["--json", "recv", "x"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let text = errors(&output);
    let event: serde_json::Value = serde_json::from_str(text.trim()).expect("one object");
    let cause = event["text"].as_str().expect("text");
    assert!(cause.contains("`x` is not a valid endpoint"), "{text}");
}

#[test]
fn an_invalid_log_level_is_refused() {
    let mut command = dipole(&["key", "show", "/nowhere/key"]);
    let output = command
        .env("DIPOLE_LOG", "foo,,=")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        errors(&output).contains("DIPOLE_LOG: found `foo,,=`"),
        "{}",
        errors(&output)
    );
}
