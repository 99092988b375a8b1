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

/// Prints the page of the program and one of each command that is not hidden, and of theirs.
pub(crate) fn pages(mut command: Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    command.build();
    page(&command, "dipole", out)?;
    Ok(ExitCode::SUCCESS)
}

fn page(command: &Command, name: &str, mut out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "\u{1}{name}.1")?;
    clap_mangen::Man::new(command.clone().name(name.to_owned())).render(&mut out)?;
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for sub in commands.filter(|sub| sub.get_name() != "help") {
        page(sub, &format!("{name}-{}", sub.get_name()), out)?;
    }
    Ok(())
}
