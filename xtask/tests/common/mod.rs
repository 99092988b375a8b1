//! Commands that must succeed, and what they print.

use std::process::{Command, Output};

/// Returns the text of both output streams.
pub(crate) fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs a command and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
