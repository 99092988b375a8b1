//! The command reference is the output of `--help`. `DIPOLE_UPDATE_REFERENCE=1` writes it.

#![allow(missing_docs, reason = "tests")]

use std::fmt::Write as _;
use std::path::Path;

/// The output of `dipole WORDS --help`, in a terminal of 100 columns.
fn help(words: &[&str]) -> String {
    let output = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"))
        .args(words)
        .arg("--help")
        .env_clear()
        .output()
        .expect("dipole starts");
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).expect("help is text")
}

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<&str> {
    let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let rows = listed.lines().take_while(|line| line.starts_with("  "));
    let names = rows.filter(|row| !row.starts_with("   "));
    let names = names.filter_map(|row| row.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

/// Appends the section of a command, and those of its subcommands.
fn section(words: &[&str], text: &mut String) {
    let help = help(words);
    let name = [&["dipole"], words].concat().join(" ");
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    writeln!(text, "\n## {name}\n\n```text\n{}\n```", lines.join("\n")).expect("a string");
    for name in subcommands(&help) {
        section(&[words, &[name]].concat(), text);
    }
}

#[test]
fn the_reference_of_commands_is_their_help() {
    let mut text =
        "# Commands\n\nThe output of `--help` for each command of `dipole`. A test keeps \
                    this page up to date.\n"
            .to_owned();
    section(&[], &mut text);
    assert!(text.contains("\n## dipole run\n"), "subcommands are found");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    if std::env::var_os("DIPOLE_UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &text).expect("a writable file");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reference/commands.md is out of date; run DIPOLE_UPDATE_REFERENCE=1 \
         cargo test -p dipole-tools --test reference"
    );
}
