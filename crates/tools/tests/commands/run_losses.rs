//! `dipole run --on-loss`: what happens to a job when some of its ranks fail.

use std::process::{Output, Stdio};

fn run(policy: &str, options: &[&str], script: &str) -> Output {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIPOLE_") {
            command.env_remove(name);
        }
    }
    command.args(["run", "-n", "3", "--on-loss", policy]);
    command.args(options).args(["sh", "-c", script]);
    command.stdin(Stdio::null()).output().expect("it starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_others_are_terminated_by_default() {
    let output = run(
        "end",
        &[],
        "test $DIPOLE_RANK = 1 && exit 3; exec sleep 600",
    );
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
}

#[test]
fn the_others_continue_and_the_status_shows_the_failure() {
    let output = run(
        "continue",
        &[],
        "test $DIPOLE_RANK = 1 && exit 3; sleep 0.3; echo rank $DIPOLE_RANK is done",
    );
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    for rank in [0, 2] {
        let done = format!("rank {rank} is done");
        assert!(out(&output).contains(&done), "{}", out(&output));
    }
    let story = "rank 1 ended with status 3; the others continue";
    assert!(err(&output).contains(story), "{}", err(&output));
}

#[test]
fn a_failed_rank_is_restarted_and_gets_the_number_of_restarts() {
    let output = run(
        "restart",
        &[],
        "echo rank $DIPOLE_RANK life ${DIPOLE_RESTARTS-0} of $DIPOLE_SIZE
         test $DIPOLE_RANK = 1 -a ${DIPOLE_RESTARTS-0} -lt 2 && kill -9 $$
         sleep 5",
    );
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for life in 0..3 {
        let line = format!("rank 1 life {life} of 3");
        assert!(out(&output).contains(&line), "{}", out(&output));
    }
    assert!(!out(&output).contains("rank 0 life 1"), "{}", out(&output));
    let story = "rank 1 was killed by signal 9; it will be started again there";
    assert_eq!(err(&output).matches(story).count(), 2, "{}", err(&output));
}

#[test]
fn a_rank_that_always_fails_ends_the_job_after_the_last_try() {
    let output = run(
        "restart",
        &["--restarts", "1"],
        "test $DIPOLE_RANK = 1 && exit 7; exec sleep 600",
    );
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    let last = "rank 1 ended with status 7; ending the others";
    assert!(err(&output).contains(last), "{}", err(&output));
}

#[test]
fn a_rank_that_fails_when_the_others_are_done_is_not_waited_for() {
    let output = run(
        "restart",
        &[],
        "test $DIPOLE_RANK = 1 || exit 0; sleep 0.5; exit 7",
    );
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    let story = "rank 1 did not return";
    assert!(err(&output).contains(story), "{}", err(&output));
}
