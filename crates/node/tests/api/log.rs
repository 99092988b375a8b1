//! `DIPOLE_LOG`, tested in another process: this test, started again.

use std::process::{Command, Stdio};
use std::time::Duration;

use dipole_node::{Config, EndpointId, Node, NodeId};

/// Set in the child process.
const CHILD: &str = "DIPOLE_TEST_LOG_CHILD";

/// Output of a process that waits for a message for more than 2 s, with this setting.
fn said(setting: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "--nocapture", "log::a_process_that_waits"]);
    command.env(CHILD, "1").env_remove("DIPOLE_LOG");
    if let Some(setting) = setting {
        command.env("DIPOLE_LOG", setting);
    }
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_process_that_waits() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    if let Err(wrong) = dipole_node::log::from_env() {
        eprintln!("{wrong}");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let node = Node::open(Config::local(NodeId(1), directory.path().join("run")));
    let endpoint = node.expect("a node").endpoint(EndpointId(7));
    let endpoint = endpoint.expect("it is free");
    let nothing = endpoint.receive_timeout(Duration::from_millis(2500));
    assert!(nothing.is_err(), "there are no senders");
}

#[test]
fn a_program_logs_according_to_dipole_log_and_nothing_without_it() {
    assert_eq!(said(None), "");
    assert_eq!(said(Some("error")), "");
    let text = said(Some("warn"));
    assert!(text.contains("WARN") && text.contains("1:7"), "{text}");
    assert!(!text.contains('\x1b'), "no colour in a pipe: {text:?}");
    let text = said(Some("verbose"));
    assert!(text.starts_with("DIPOLE_LOG: found `verbose`"), "{text}");
    let text = said(Some("foo,,="));
    assert!(text.starts_with("DIPOLE_LOG: found `foo,,=`"), "{text}");
}

/// Output of a process that waits on a terminal, with these variables; `None` if that is impossible
/// here.
fn shown(variables: &[(&str, &str)]) -> Option<String> {
    let test = std::env::current_exe().expect("this test");
    let line = format!(
        "{} --exact --nocapture log::a_process_that_waits",
        test.display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    command.env(CHILD, "1").env("TERM", "xterm");
    command.env_remove("DIPOLE_LOG").env_remove("NO_COLOR");
    command.envs(variables.iter().copied());
    let Ok(output) = command.stdin(Stdio::null()).output() else {
        eprintln!("SKIPPED: script is not installed (Debian: bsdutils)");
        return None;
    };
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_log_has_colour_on_a_terminal_unless_it_is_unwanted() {
    let coloured = "\x1b[33m WARN";
    let Some(text) = shown(&[("DIPOLE_LOG", "warn")]) else {
        return;
    };
    assert!(text.contains(coloured), "{text:?}");
    for unwanted in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = shown(&[("DIPOLE_LOG", "warn"), unwanted]).expect("as before");
        assert!(text.contains("WARN") && !text.contains('\x1b'), "{text:?}");
    }
}

#[test]
fn a_long_wait_on_a_terminal_is_reported_without_dipole_log() {
    let Some(text) = shown(&[]) else {
        return;
    };
    assert!(
        text.contains("waiting for 2 s") && text.contains("1:7"),
        "{text:?}"
    );
    let text = shown(&[("DIPOLE_LOG", "error")]).expect("as before");
    assert!(!text.contains("waiting for"), "{text:?}");
}
