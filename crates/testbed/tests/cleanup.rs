//! Testbeds are removed when they are dropped, on signals, and after a kill. The tests need root and
//! `ip` and print SKIPPED without them.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::make;
use dipole_testbed::{Faults, Testbed};
use rustix::process::{Pid, Signal, kill_process};

/// Set for the process that makes a testbed and waits.
const CHILD: &str = "DIPOLE_TESTBED_TEST_CHILD";
/// Prefix of its output lines, because the test harness prints others.
const MARK: &str = "left behind: ";

/// Namespaces and folder that must disappear.
fn traces(testbed: &Testbed) -> Vec<PathBuf> {
    let namespaces = (1..=testbed.nodes()).map(|node| &testbed.node(node).namespace);
    let mut paths: Vec<PathBuf> = namespaces
        .map(|name| Path::new("/run/netns").join(name))
        .collect();
    let first = testbed
        .node(1)
        .namespace
        .strip_suffix('1')
        .expect("its number");
    paths.push(Path::new("/run/netns").join(format!("{first}hub")));
    paths.push(testbed.folder().to_owned());
    paths
}

fn exist(paths: &[PathBuf]) -> Vec<&PathBuf> {
    paths.iter().filter(|path| path.exists()).collect()
}

#[test]
fn nothing_is_left_after_a_drop() {
    for builder in [
        Testbed::builder().nodes(3).networks(2),
        Testbed::builder().nodes(3).faults(Faults::default()),
    ] {
        let Some(testbed) = make(builder) else { return };
        let paths = traces(&testbed);
        assert!(exist(&paths).len() >= 4, "{paths:?}");
        drop(testbed);
        assert_eq!(exist(&paths), Vec::<&PathBuf>::new());
    }
}

/// The process that the tests below kill. Without the variable it does nothing.
#[test]
fn helper_process_with_a_testbed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let testbed = Testbed::builder().build().expect("the parent has one too");
    // The process may not be inside yet when the testbed is removed, and must be killed all the same.
    let mut sleeper = testbed
        .command(1, "sleep")
        .arg("1000")
        .spawn()
        .expect("it runs");
    for path in traces(&testbed) {
        println!("{MARK}{}", path.display());
    }
    println!("{MARK}/proc/{}", sleeper.id());
    println!("{MARK}");
    let _outlives_us = sleeper.wait();
}

/// Starts a process with a testbed and returns the paths that it has created.
fn child() -> (Child, Vec<PathBuf>) {
    let mut command = Command::new(std::env::current_exe().expect("this test has a path"));
    command.args(["--exact", "helper_process_with_a_testbed", "--nocapture"]);
    command.env(CHILD, "1").stdout(Stdio::piped());
    let mut child = command.spawn().expect("this test runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let lines = lines.map(|line| line.expect("text"));
    // The harness prints the test's first line after its own, without a line break.
    let paths = lines.filter_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
    let paths = paths.take_while(|path| !path.is_empty()).map(PathBuf::from);
    let paths = paths.collect();
    (child, paths)
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[test]
fn a_signal_removes_the_testbed() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let (mut child, paths) = child();
        assert!(exist(&paths).len() >= 5, "{paths:?}");
        kill_process(pid(&child), signal).expect("it lives");
        let ended = child.wait().expect("ours");
        assert_eq!(ended.code(), Some(status));
        gone(&paths);
    }
}

#[test]
fn leftovers_of_a_killed_process_are_removed_with_the_next_testbed() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let (mut child, paths) = child();
    assert!(exist(&paths).len() >= 5, "{paths:?}");
    kill_process(pid(&child), Signal::KILL).expect("it lives");
    child.wait().expect("ours");
    let testbed = make(Testbed::builder()).expect("there has been one");
    gone(&paths);
    drop(testbed);
}

/// Waits until the paths have disappeared. The system may be slow to reap an orphan.
fn gone(paths: &[PathBuf]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !exist(paths).is_empty() {
        assert!(Instant::now() < deadline, "{:?} stay", exist(paths));
        thread::yield_now();
    }
}
