//! Manual pages and shell completions, from what the program says of itself.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: clap_complete::Shell, mut command: Command) -> ExitCode {
    clap_complete::generate(shell, &mut command, "dipole", &mut io::stdout());
    ExitCode::SUCCESS
}

/// Prints the page of the program and one of each command that is not hidden.
pub(crate) fn pages(mut command: Command) -> ExitCode {
    command.build();
    let mut out = io::stdout().lock();
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let shown = commands.filter(|sub| sub.get_name() != "help").cloned();
    let all: Vec<Command> = std::iter::once(command.clone()).chain(shown).collect();
    for one in all {
        let name = match one.get_name() {
            "dipole" => "dipole".to_owned(),
            sub => format!("dipole-{sub}"),
        };
        let page = clap_mangen::Man::new(one.name(name.clone()));
        let written = writeln!(out, "\u{1}{name}.1").and_then(|()| page.render(&mut out));
        if let Err(cause) = written {
            eprintln!("dipole manual: {cause}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
