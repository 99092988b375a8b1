//! `DIPOLE_LOG`, tested in another process: this test, started again.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use dipole_node::{Config, EndpointId, Node, NodeId};

/// Set in the child process, to how many milliseconds it waits for a message.
const CHILD: &str = "DIPOLE_TEST_LOG_CHILD";
/// Longer than the 2 s after which a wait is reported.
const SHORT: &str = "2500";
/// For a child whose output is expected: it ends when its output has been read. A busy machine may not
/// run it between the report and the end of a short wait.
const LONG: &str = "60000";

/// Output of a process that waits for a message for more than 2 s, with this setting.
fn said(setting: Option<&str>) -> String {
    let mut command = waiting(setting, SHORT);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// The same of a process that waits until its output contains `end`.
fn said_until(end: &str, setting: &str) -> String {
    let mut child = waiting(Some(setting), LONG)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let text = read_until(end, child.stderr.take().expect("a pipe"));
    child.kill().expect("ours");
    child.wait().expect("a child");
    text
}

/// Reads until the text contains `end`, or all of it.
fn read_until(end: &str, mut from: impl Read) -> String {
    let mut text = Vec::new();
    let mut part = [0; 1024];
    loop {
        let length = from.read(&mut part).unwrap_or(0);
        text.extend_from_slice(&part[..length]);
        let so_far = String::from_utf8_lossy(&text);
        if length == 0 || so_far.contains(end) {
            return so_far.into_owned();
        }
    }
}

fn waiting(setting: Option<&str>, milliseconds: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "--nocapture", "log::a_process_that_waits"]);
    command.env(CHILD, milliseconds).env_remove("DIPOLE_LOG");
    command.envs(setting.map(|setting| ("DIPOLE_LOG", setting)));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[test]
fn a_process_that_waits() {
    let Ok(milliseconds) = std::env::var(CHILD) else {
        return;
    };
    if let Err(wrong) = dipole_node::log::from_env() {
        eprintln!("{wrong}");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let node = Node::open(Config::local(NodeId(1), directory.path().join("run")));
    let endpoint = node.expect("a node").endpoint(EndpointId(7));
    let endpoint = endpoint.expect("it is free");
    let nothing = endpoint.receive_timeout(Duration::from_millis(
        milliseconds.parse().expect("a number"),
    ));
    assert!(nothing.is_err(), "there are no senders");
}

#[test]
fn a_program_logs_according_to_dipole_log_and_nothing_without_it() {
    assert_eq!(said(None), "");
    assert_eq!(said(Some("error")), "");
    let text = said_until("1:7", "warn");
    assert!(text.contains("WARN") && text.contains("1:7"), "{text}");
    assert!(!text.contains('\x1b'), "no colour in a pipe: {text:?}");
    let text = said(Some("verbose"));
    assert!(text.starts_with("DIPOLE_LOG: found `verbose`"), "{text}");
    let text = said(Some("foo,,="));
    assert!(text.starts_with("DIPOLE_LOG: found `foo,,=`"), "{text}");
}

/// Output of a process that waits on a terminal, with these variables, until it contains `end`; `None`
/// if that is impossible here.
fn shown(end: &str, milliseconds: &str, variables: &[(&str, &str)]) -> Option<String> {
    let test = std::env::current_exe().expect("this test");
    let line = format!(
        "{} --exact --nocapture log::a_process_that_waits",
        test.display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    command.env(CHILD, milliseconds).env("TERM", "xterm");
    command.env_remove("DIPOLE_LOG").env_remove("NO_COLOR");
    command.envs(variables.iter().copied());
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED: script is not installed (Debian: bsdutils)");
        return None;
    };
    let text = read_until(end, child.stdout.take().expect("a pipe"));
    // Its end hangs up the terminal, which ends the process there.
    child.kill().expect("ours");
    child.wait().expect("a child");
    Some(text)
}

#[test]
fn a_log_has_colour_on_a_terminal_unless_it_is_unwanted() {
    let coloured = "\x1b[33m WARN";
    let warned = |variables: &[_]| shown("1:7", LONG, variables);
    let Some(text) = warned(&[("DIPOLE_LOG", "warn")]) else {
        return;
    };
    assert!(text.contains(coloured), "{text:?}");
    for unwanted in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = warned(&[("DIPOLE_LOG", "warn"), unwanted]).expect("as before");
        assert!(text.contains("WARN") && !text.contains('\x1b'), "{text:?}");
    }
}

#[test]
fn a_long_wait_on_a_terminal_is_reported_without_dipole_log() {
    let Some(text) = shown("1:7", LONG, &[]) else {
        return;
    };
    assert!(
        text.contains("waiting for 2 s") && text.contains("1:7"),
        "{text:?}"
    );
    let text = shown("waiting for", SHORT, &[("DIPOLE_LOG", "error")]).expect("as before");
    assert!(!text.contains("waiting for"), "{text:?}");
}
