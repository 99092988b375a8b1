//! Manual pages and shell completions, from the descriptions of the command line.

use std::io::Write;
use std::process::ExitCode;

use clap::Command;

use crate::output::Failure;

/// Prints the completions of a shell.
pub(crate) fn completions(
    shell: clap_complete::Shell,
    mut command: Command,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "dipole", &mut text);
    out.write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the page of the program and one of each command that is not hidden.
pub(crate) fn pages(mut command: Command, mut out: &mut dyn Write) -> Result<ExitCode, Failure> {
    command.build();
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let shown = commands.filter(|sub| sub.get_name() != "help").cloned();
    let all: Vec<Command> = std::iter::once(command.clone()).chain(shown).collect();
    for one in all {
        let name = match one.get_name() {
            "dipole" => "dipole".to_owned(),
            sub => format!("dipole-{sub}"),
        };
        let page = clap_mangen::Man::new(one.name(name.clone()));
        writeln!(out, "\u{1}{name}.1")?;
        page.render(&mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}
