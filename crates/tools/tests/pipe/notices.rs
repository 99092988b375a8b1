//! Notices on a terminal.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::Running;

#[test]
fn a_receiver_on_a_terminal_reports_that_it_waits_for_a_sender() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_dipole");
    let mut command = dipole_testbed::isolated_command("script");
    command
        .args(["-qec", &format!("{program} recv 7"), "/dev/null"])
        .env("DIPOLE_RUNTIME_DIR", folder.path().join("dipole"))
        .env("TERM", "dumb")
        .stdin(Stdio::null());
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: script is not installed (Debian: bsdutils)");
        return;
    }
    let mut running = Running::start(&mut command);
    let shown = BufReader::new(running.child().stdout.take().unwrap());
    let notice = shown
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("waiting for"));
    let notice = notice.expect("a notice before it ends");
    assert!(notice.contains("a message to endpoint 1:7"), "{notice}");
}
